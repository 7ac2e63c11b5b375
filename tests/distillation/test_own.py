"""The built-in way for environments of the user's: plans and wordings from files."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from vlmsafe.distillation import grammar
from vlmsafe.distillation.own import build_own, env_prompts, read_plan, read_wordings
from vlmsafe.distillation.plan import BuildPlan
from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import load_prompts
from vlmsafe.signals.scorers.make import make_scorer

EXAMPLES = Path(__file__).parents[2] / "examples"
HARBOUR = "gym:harbour:Harbour-v0"
WORDINGS = f"""
parts: {{subject: "{{the|our}} boat", rock: "{{a|the}} rock"}}
predicates:
  hit_soon: ["is about to {{hit|strike}} <rock>"]
  touching: ["touches <rock>"]
  near_object: ["is near <rock>"]
held_out:
  hit_soon: [the boat will strike a rock any moment]
prompts: {{'{HARBOUR}': boat.yaml}}
prompt_facts: {{the boat is about to hit a rock: hit_soon}}
"""
PLAN = f"""
training_files: {{'{HARBOUR}': 1}}
held_out_files: {{'{HARBOUR}': 1}}
steps: 2
stacks_per_step: 8
wordings: 10
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    shutil.copy(EXAMPLES / "harbour.py", tmp_path)
    (tmp_path / "boat.yaml").write_text(
        "positive: [the boat has open water around it]\nnegative: [the boat is about to hit a rock]\n"
    )
    (tmp_path / "wordings.yaml").write_text(WORDINGS)
    (tmp_path / "plan.yaml").write_text(PLAN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    gymnasium.registry.pop("Harbour-v0", None)
    sys.modules.pop("harbour", None)


def test_a_plan_of_the_users_has_nothing_of_the_shipped_environments(here: Path) -> None:
    plan = read_plan(here / "plan.yaml")
    assert (plan.training_files, plan.held_out_files) == (((HARBOUR, 1),), ((HARBOUR, 1),))
    assert (plan.recorded, plan.tested, plan.steps) == ((), (), 2)
    assert (plan.selection_files, len(plan.candidates)) == ((), 1)
    assert plan.ceiling_steps == BuildPlan().ceiling_steps


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps: 2", "'training_files' is missing"),
        ("training_files: {nowhere: 1}\nheld_out_files: {braking: 1}", "unknown environment 'nowhere'"),
        ("training_files: {braking: 0}\nheld_out_files: {braking: 1}", "has 0 files of 'braking'"),
        (
            "training_files: {braking: 1}\nheld_out_files: {braking: 1}\ncandidates: [{seed: 0}, {seed: 1}]",
            "there are 2 candidates and no 'selection_files'",
        ),
        ("candidates: []", "'candidates' is empty"),
        ("stepps: 2", "unknown setting 'stepps'; did you mean 'steps'"),
        ("steps: many", "Expected `int`, got `str`"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_in_one_line(here: Path, text: str, said: str) -> None:
    (here / "plan.yaml").write_text(text)
    with pytest.raises(InputError, match=said):
        read_plan(here / "plan.yaml")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('hit_soon: ["is', 'hits: ["is', "unknown fact 'hits'"),
        ("predicates:", "predicate:", "unknown section 'predicate'"),
        ("parts:", "sentences: {danger: [peril]}\nparts:", "has sentences and no predicates"),
        ("touches <rock>", "touches <reef>", "<reef> of 'touching' is no part"),
        ('touching: ["touches <rock>"]', "touching: touches", "must be a list of sentences"),
        ("a rock: hit_soon", "a rock: sunk", "unknown fact 'sunk'"),
        ("about to hit a rock: hit", "about to hit a reef: hit", "unknown prompt 'the boat is about to hit a reef'"),
    ],
)
def test_wordings_that_make_no_sense_are_refused_in_one_line(here: Path, old: str, new: str, said: str) -> None:
    assert old in WORDINGS
    (here / "wordings.yaml").write_text(WORDINGS.replace(old, new))
    with pytest.raises(InputError, match=said):
        read_wordings(here / "wordings.yaml")


def test_own_wordings_are_laid_over_the_shipped_ones_and_leave_no_trace(here: Path) -> None:
    shipped, words = grammar.templates("hit_soon"), grammar.vocabulary()
    rng = np.random.default_rng(0)
    with grammar.using(read_wordings(here / "wordings.yaml")):
        captions = {grammar.caption("hit_soon", rng) for _ in range(200)}
        # The prompts of all sets, and held-out sentences, are not among captions.
        assert captions == {f"{a} boat is about to {b} {c} rock" for a in ("the", "our") for b in ("hit", "strike")
                            for c in ("a", "the")} - {"the boat is about to hit a rock"}  # fmt: skip
        assert grammar.caption("stopped", rng).startswith(("the boat", "our boat"))
        assert grammar.held_out()["hit_soon"] == ("the boat will strike a rock any moment",)
        assert "boat" in grammar.vocabulary()
        assert env_prompts(HARBOUR) == load_prompts("boat.yaml")
        assert env_prompts("braking") == load_prompts("metadrive-v2")
    assert (grammar.templates("hit_soon"), grammar.vocabulary()) == (shipped, words)
    with pytest.raises(InputError, match="has no prompts to measure the model with"):
        env_prompts(HARBOUR)


@pytest.mark.slow
def test_a_build_for_an_environment_of_the_users_ends_with_a_scorer_and_its_card(here: Path) -> None:
    with pytest.raises(InputError, match="has no prompts to measure the model with"):
        build_own(here / "made", here / "plan.yaml", device="cpu", processes=1, note=lambda text: None)
    assert not (here / "made").exists()
    build_own(
        here / "made", here / "plan.yaml", here / "wordings.yaml", device="cpu", processes=1, note=lambda text: None
    )
    weights = here / "made/weights.safetensors"
    scorer = make_scorer(f"embedded:{weights}", load_prompts("boat.yaml"), device="cpu")
    assert scorer.score(np.zeros((2, 96, 128, 6), np.uint8)).shape == (2, 2)
    assert scorer.notes(HARBOUR) == [], "every word is known, and so is the environment"
    card = (here / "made/card.md").read_text()
    assert card.startswith(f"# Model card: an embedded scorer for `{HARBOUR}`")
    assert "the only model that was trained" in card
    figures = json.loads((here / "made/figures.json").read_text())
    assert [(row["env"], row["fact"]) for row in figures["prompts"]] == [(HARBOUR, "hit_soon")]
    (here / "several.yaml").write_text(
        f"{PLAN}\nselection_files: {{'{HARBOUR}': 1}}\ncandidates: [{{seed: 0}}, {{seed: 1, foresight: 1.0}}]"
    )
    build_own(
        here / "several", here / "several.yaml", here / "wordings.yaml", stages=("record", "train"), device="cpu",
        processes=1, note=lambda text: None,
    )  # fmt: skip
    told = json.loads((here / "several/data.json").read_text())
    assert [list(one["worlds"]) for one in told["candidates"]] == [[HARBOUR], [HARBOUR]]
    [recording] = (here / "made/recordings").glob("*.npz")
    with np.load(recording) as held:
        assert float(held["step_seconds"]) == pytest.approx(0.1)
