"""What models that answer yes or no are asked, and which answers count. Imports no model library."""

from __future__ import annotations

from vlmsafe.signals.prompts import PromptSet

QUESTION = "Does this image show {description}? Answer yes or no."
QUESTION_ABOUT_SEVERAL = "Do these images, the oldest first, show {description}? Answer yes or no."
YES = ("yes", "Yes", "YES", " yes", " Yes", " YES")
NO = ("no", "No", "NO", " no", " No", " NO")


def questions_of(prompts: PromptSet, scorer: str, images: int = 1) -> tuple[str, str]:
    """The question about each group of prompts, positive first; an InputError where a group has no description."""
    prompts.require_descriptions(scorer)
    wording = QUESTION if images == 1 else QUESTION_ABOUT_SEVERAL
    descriptions = (prompts.positive_description, prompts.negative_description)
    positive, negative = (wording.format(description=text) for text in descriptions)
    return positive, negative
