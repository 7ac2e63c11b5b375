"""The whole making of the scorer at a small scale, and what the shipped one says of itself."""

import json
from pathlib import Path

import numpy as np
import pytest

from vlmsafe.embedded import grammar
from vlmsafe.embedded.build import AgentPlan, BuildPlan, _write, _written, build
from vlmsafe.embedded.facts import FACTS
from vlmsafe.embedded.measure import PROMPT_FACTS
from vlmsafe.embedded.train import Schedule, draw_captions
from vlmsafe.envs import ENVS
from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import load_prompts
from vlmsafe.signals.scorers import make_scorer
from vlmsafe.signals.scorers.embedded import SHIPPED, revision_of
from vlmsafe.signals.scorers.embedded.model import load
from vlmsafe.signals.scorers.embedded.tokenizer import Tokenizer

SMALL = BuildPlan(
    recorded=(AgentPlan("ppo", 1, 400),),
    tested=AgentPlan("ppo-lag", 2, 400),
    env="braking",
    training_files=(("braking", 1), ("speeding", 1)),
    held_out_files=(("braking", 1), ("speeding", 1)),
    steps=3,
    moments_per_step=16,
    wordings=10,
    ceiling_steps=10,
    test_episodes=4,
)


def test_a_build_goes_from_nothing_to_a_scorer_and_its_card_and_is_not_repeated(tmp_path: Path) -> None:
    notes: list[str] = []
    build(tmp_path, SMALL, stages=("agents", "record", "train"), device="cpu", processes=1, note=notes.append)
    build(tmp_path, SMALL, device="cpu", processes=1, note=notes.append)
    assert any(note.startswith("  recordings, braking: 25 episodes") for note in notes)
    scorer = make_scorer(f"embedded:{tmp_path / 'weights.safetensors'}", load_prompts("metadrive-v2"), device="cpu")
    assert scorer.score(np.zeros((2, 64, 64, 6), np.uint8)).shape == (2, 2)
    card, figures = (tmp_path / "card.md").read_text(), json.loads((tmp_path / "figures.json").read_text())
    assert all(text in card for text in ("`braking`", "`speeding`", "the car is in an unsafe situation", "K = 40"))
    assert "{" not in card
    assert not _overlap(json.loads((tmp_path / "data.json").read_text()), figures)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "card.md"}
    build(tmp_path, SMALL, device="cpu", processes=1, note=notes.append)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert {path: time for path, time in after.items() if path.name != "card.md"} == {
        path: time for path, time in before.items() if path.is_file()
    }


def test_figures_of_other_weights_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(b"one model")
    _write(tmp_path, "figures.json", {"passes": True})
    assert _written(tmp_path, "figures.json") is not None
    (tmp_path / "weights.safetensors").write_bytes(b"another model")
    assert _written(tmp_path, "figures.json") is None
    with pytest.raises(InputError, match="run the stages 'train' and 'measure' first"):
        build(tmp_path, SMALL, stages=("card",), note=lambda text: None)


def test_training_without_recordings_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run the stage 'record' first"):
        build(tmp_path, SMALL, stages=("train",), note=lambda text: None)


def test_a_smaller_plan_has_less_of_everything_and_nothing_of_none() -> None:
    plan = BuildPlan().scaled(0.01)
    assert plan.tested.steps == 2400
    assert plan.recorded[2].initial_std == BuildPlan().recorded[2].initial_std
    assert min(count for _, count in (*plan.training_files, *plan.held_out_files)) == 1
    assert BuildPlan().scaled(0.1).tested.steps % 4000 == 0
    with pytest.raises(InputError, match="greater than 0"):
        BuildPlan().scaled(0.0)


def test_every_prompt_of_an_environments_own_set_has_the_fact_it_describes() -> None:
    texts = {text for spec in ENVS.values() for text in load_prompts(str(spec.prompts)).texts}
    assert texts <= set(PROMPT_FACTS)
    assert set(PROMPT_FACTS.values()) <= set(FACTS)


def _shipped(name: str) -> dict[str, object]:
    return json.loads(SHIPPED.with_name(name).read_text())


def _overlap(data: dict[str, dict[str, list[int]]], figures: dict[str, dict[str, list[int]]]) -> set[tuple[str, int]]:
    train, test = ({(env, i) for env, held in part["scenarios"].items() for i in held} for part in (data, figures))
    assert train
    assert test
    return train & test


def test_the_shipped_model_was_measured_on_scenarios_it_never_saw() -> None:
    data, figures = _shipped("data.json"), _shipped("figures.json")
    assert not _overlap(data, figures)
    for part, pool in ((data, "training"), (figures, "held_out")):
        for env, scenarios in part["scenarios"].items():
            assert all(scenario in getattr(ENVS[env], pool) for scenario in scenarios)
    assert set(figures["scenarios"]) == set(ENVS)


def test_no_wording_the_shipped_model_was_measured_on_is_among_its_captions() -> None:
    """Captions are drawn again, as for its training but fewer: what can be drawn at all does not depend on how many."""
    figures, data = _shipped("figures.json"), _shipped("data.json")
    measured = {row["text"] for key in ("prompts", "wordings") for row in figures[key]}
    assert measured == {text for spec in ENVS.values() for text in load_prompts(str(spec.prompts)).texts} | {
        text for texts in grammar.held_out().values() for text in texts
    }
    tokenizer = Tokenizer(load(None).words)
    assert tokenizer.words == grammar.vocabulary()
    schedule = Schedule(**{**data["schedule"], "wordings": 300, "joint": 3000})
    captions = draw_captions(schedule, range(len(FACTS)), tokenizer, np.random.default_rng(data["seed"]))
    written = {tuple(row[row > 0].tolist()) for row in captions.tokens.numpy()}
    assert len(written) > 5000
    tokens = tokenizer.encode(sorted(measured))[0].numpy()
    assert not written & {tuple(row[row > 0].tolist()) for row in tokens}


def test_what_ships_belongs_together() -> None:
    assert _shipped("data.json")["revision"] == _shipped("figures.json")["revision"] == revision_of(SHIPPED)


def test_the_card_that_ships_is_the_one_its_figures_give() -> None:
    from vlmsafe.embedded.card import card

    assert SHIPPED.with_name("card.md").read_text() == card(_shipped("data.json"), _shipped("figures.json"))


def test_the_shipped_model_is_small_enough_for_a_package() -> None:
    files = [path for path in SHIPPED.parent.iterdir() if path.suffix in (".safetensors", ".json", ".md")]
    assert sum(path.stat().st_size for path in files) < 10_000_000
