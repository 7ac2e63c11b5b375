"""What models that answer yes or no are asked, and which answers count. Imports no model library."""

from __future__ import annotations

from vlmsafe.signals.prompts import PromptSet

QUESTION = "Does this image show {description}? Answer yes or no."
CLIP_QUESTION = "These images show one scene over time, the oldest first. Do they show {description}? Answer yes or no."
"""The question where a stack has several frames."""
YES = ("yes", "Yes", "YES", " yes", " Yes", " YES")
NO = ("no", "No", "NO", " no", " No", " NO")


def questions(prompts: PromptSet, scorer: str, frames: int = 1) -> tuple[str, str]:
    """The questions about the positive and the negative group; `scorer` is the scorer's kind, for messages."""
    prompts.require_descriptions(scorer)
    form = QUESTION if frames == 1 else CLIP_QUESTION
    return (
        form.format(description=prompts.positive_description),
        form.format(description=prompts.negative_description),
    )
