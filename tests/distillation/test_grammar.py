"""Captions: what they may say, and what is kept out of them."""

import numpy as np
import pytest

from vlmsafe.distillation import grammar
from vlmsafe.distillation.facts import FACTS
from vlmsafe.errors import InputError
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
    drawn |= {grammar.caption(fact, rng, deny=True) for fact in facts for _ in range(100)}
    drawn |= {grammar.joined_caption(pair, rng) for pair in grammar.joined() for _ in range(100)}
    drawn |= {
        grammar.joint_caption(*rng.choice(facts, 2), "and", rng, deny=(deny, not deny))
        for deny in (True, False)
        for _ in range(500)
    }
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


@pytest.mark.parametrize("fact", FACTS)
def test_every_fact_can_be_denied_in_known_words(fact: str) -> None:
    rng, tokenizer = np.random.default_rng(8), Tokenizer(grammar.vocabulary(), Architecture().longest)
    drawn = [grammar.caption(fact, rng, deny=True) for _ in range(60)]
    assert all("not" in text.split() or "it is false that" in text for text in drawn)
    assert not any(tokenizer.encode(drawn)[1])
    assert all(" not " in grammar.joint_caption("safe", fact, "and", rng, deny=(False, True)) for _ in range(10))


def test_a_denial_is_not_denied_and_an_alternative_neither() -> None:
    for predicate in ("is not moving", "has no room", "cannot stop", "stands still or goes the wrong way", "hits"):
        assert grammar.denied(predicate) is None
    assert grammar.denied("has hit a wall") == "has not hit a wall"
    assert grammar.denied("faces a hazard") == "does not face a hazard"


def test_sentences_of_two_facts_state_known_ones_in_known_words() -> None:
    rng, tokenizer = np.random.default_rng(9), Tokenizer(grammar.vocabulary(), Architecture().longest)
    for pair in grammar.joined():
        assert set(pair) <= set(FACTS)
        assert not any(tokenizer.encode([grammar.joined_caption(pair, rng) for _ in range(50)])[1])


def test_a_wording_that_can_never_be_drawn_is_refused_instead_of_drawn_for_ever() -> None:
    kept = load_prompts("metadrive").texts[0]
    with pytest.raises(InputError, match="no caption can be made of"):
        grammar._draw((kept,), np.random.default_rng(0))
