"""Captions: what they may say, and what is kept out of them."""

import numpy as np
import pytest

from vlmsafe.distillation import grammar
from vlmsafe.distillation.facts import FACTS
from vlmsafe.signals.prompts import load_prompts, shipped_prompts
from vlmsafe.signals.scorers.embedded.network import Architecture
from vlmsafe.signals.scorers.embedded.tokenizer import Tokenizer, split


@pytest.mark.parametrize("fact", FACTS)
def test_captions_are_plain_sentences_of_known_words(fact: str) -> None:
    rng, words = np.random.default_rng(0), set(grammar.vocabulary())
    drawn = [grammar.caption(fact, rng) for _ in range(100)]
    assert all(set(text) <= set("abcdefghijklmnopqrstuvwxyz '-") for text in drawn)
    assert all(set(split(text)) <= words for text in drawn)
    # Facts that templates say in few ways have few wordings; none has just one.
    assert len(set(drawn)) > 5


def test_wordings_kept_for_measuring_are_never_drawn() -> None:
    rng, facts = np.random.default_rng(1), list(FACTS)
    kept = [text for name in shipped_prompts() for text in load_prompts(name).texts]
    kept += [text for texts in grammar.held_out().values() for text in texts]
    drawn = {grammar.caption(fact, rng) for fact in facts for _ in range(300)}
    drawn |= {grammar.joint_caption(*rng.choice(facts, 2), "and", rng) for _ in range(1000)}
    assert not drawn & set(kept)
    assert not [text for text in drawn if any(wording in text for wording in grammar.reserved())]


def test_a_template_that_could_write_a_prompt_is_held_back_from_it() -> None:
    assert "the car is about to crash into another vehicle" in load_prompts("metadrive").texts
    template = "{a car|it} is about to crash into {another vehicle|a truck}"
    rng = np.random.default_rng(2)
    drawn = {grammar._draw((template,), rng) for _ in range(50)}
    assert drawn == {"a car is about to crash into a truck", "it is about to crash into a truck"}


def test_the_words_of_prompts_and_held_out_sentences_are_known() -> None:
    tokenizer = Tokenizer(grammar.vocabulary())
    texts = [text for name in shipped_prompts() for text in load_prompts(name).texts]
    texts += [text for group in grammar.held_out().values() for text in group]
    assert not any(tokenizer.encode(texts)[1])


def test_held_out_sentences_state_known_facts() -> None:
    assert set(grammar.held_out()) <= set(FACTS)


def test_every_caption_of_one_fact_is_short_enough_for_the_scorer() -> None:
    rng = np.random.default_rng(6)
    longest = max(len(list(split(grammar.caption(fact, rng)))) for fact in FACTS for _ in range(100))
    assert longest <= Architecture().longest


def test_two_facts_in_one_sentence_are_joined_by_the_word() -> None:
    rng = np.random.default_rng(3)
    assert all(" or " in grammar.joint_caption("centred", "safe", "or", rng) for _ in range(20))


def test_equal_seeds_draw_equal_captions() -> None:
    drawn = [[grammar.caption("danger", np.random.default_rng(seed)) for _ in range(3)] for seed in (4, 4, 5)]
    assert drawn[0] == drawn[1] != drawn[2]
