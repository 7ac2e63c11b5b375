"""The text side of distilled models: the prompts they were distilled with, and no others."""

from pathlib import Path

import numpy as np
import pytest
import torch

from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.embedded.network import Architecture, Embedding, load, save
from vlmsafe.signals.scorers.embedded.prompt_table import find_prompts
from vlmsafe.signals.scorers.embedded.scorer import EmbeddedScorer
from vlmsafe.signals.scorers.make import make_scorer

TEXTS = ("the kiln glows evenly", "the glaze melts", "the glaze is cracking")
PROMPTS = PromptSet(TEXTS[:2], TEXTS[2:])
SMALL = Architecture(size=32, widths=(8, 16), depths=(0, 1), dimension=16)


def distilled(seed: int = 0) -> Embedding:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Embedding((), SMALL, TEXTS).eval()
    model.table.centres.copy_(torch.tensor([0.2, -0.1, 0.5]))
    model.table.scales.copy_(torch.tensor([0.01, 0.5, 0.2]))
    model.worlds = {"gym:kiln:Kiln-v0": None}
    return model


def stacks(count: int = 5, size: tuple[int, int] = (20, 33)) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *size, 6), np.uint8)


def test_similarities_stay_within_the_reach_of_each_prompt_around_its_centre() -> None:
    found = EmbeddedScorer(distilled(), PROMPTS, device="cpu").score(stacks(40))
    centres, scales = np.array([0.2, -0.1, 0.5]), np.array([0.01, 0.5, 0.2])
    assert (np.abs(found - centres) <= scales + 1e-6).all()
    assert (found.std(axis=0) > 0.0).all()


def test_a_file_keeps_prompts_table_and_worlds(tmp_path: Path) -> None:
    model = distilled()
    before = EmbeddedScorer(model, PROMPTS, device="cpu").score(stacks())
    save(model, tmp_path / "mine.safetensors")
    again = load(tmp_path / "mine.safetensors")
    assert (again.prompts, again.worlds) == (TEXTS, {"gym:kiln:Kiln-v0": None})
    torch.testing.assert_close(again.table.centres, torch.tensor([0.2, -0.1, 0.5]), rtol=0.0, atol=0.0)
    scorer = make_scorer(f"embedded:{tmp_path / 'mine.safetensors'}", PROMPTS, device="cpu")
    np.testing.assert_allclose(scorer.score(stacks()), before, atol=2e-3)
    # The narrow column is as precise as it is narrow.
    np.testing.assert_allclose(scorer.score(stacks())[:, 0], before[:, 0], atol=2e-5)


def test_prompts_are_found_in_any_order_whatever_their_case_and_spaces() -> None:
    tokens = find_prompts(["The glaze  is cracking", TEXTS[0]], TEXTS)
    assert tokens.tolist() == [[3], [1]]


def test_any_other_prompt_is_refused_in_one_line_that_names_the_nearest() -> None:
    other = PromptSet(TEXTS[:1], ("the glaze is cracked",))
    with pytest.raises(InputError, match=r"'the glaze is cracked' is not one of .* such as 'the glaze is cracking'"):
        EmbeddedScorer(distilled(), other, device="cpu")
    scorer = EmbeddedScorer(distilled(), PROMPTS, device="cpu")
    with pytest.raises(InputError, match="it knows no others"):
        scorer.with_prompts(PromptSet(("bananas",), ("apples",)))


def test_a_subset_of_its_prompts_gives_the_same_columns() -> None:
    scorer = EmbeddedScorer(distilled(), PROMPTS, device="cpu")
    some = scorer.with_prompts(PromptSet(TEXTS[1:2], TEXTS[2:]))
    np.testing.assert_array_equal(some.score(stacks()), scorer.score(stacks())[:, 1:])


def test_it_says_where_it_was_not_trained() -> None:
    scorer = EmbeddedScorer(distilled(), PROMPTS, device="cpu")
    assert scorer.notes("gym:kiln:Kiln-v0") == scorer.notes("gym:kiln:Kiln-v0@/some/python") == []
    assert ["not trained on frames of" in note for note in scorer.notes("braking")] == [True]
    assert ["not trained on frames of" in note for note in scorer.notes("gym:Pendulum-v1")] == [True]
