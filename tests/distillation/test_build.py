"""The whole making of the scorer at a small scale, and what the shipped one says of itself."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from vlmsafe.distillation import grammar
from vlmsafe.distillation.build import AgentPlan, BuildPlan, _agent_run, _alike, _test, _write, _written, build
from vlmsafe.distillation.card import _indicators, card
from vlmsafe.distillation.data import Examples
from vlmsafe.distillation.facts import FACTS
from vlmsafe.distillation.measure import PROMPT_FACTS, anticipation_of, indicators_of, stated_facts, truth_of
from vlmsafe.distillation.pack import main as pack_build
from vlmsafe.distillation.plan import CandidatePlan, file_name
from vlmsafe.distillation.record import RecordTask
from vlmsafe.distillation.train import Schedule, draw_captions
from vlmsafe.envs.api import Scenarios
from vlmsafe.envs.registry import ENVS, env_spec
from vlmsafe.errors import EnvironmentFailure, InputError
from vlmsafe.signals.gate import Gate
from vlmsafe.signals.prompts import load_prompts
from vlmsafe.signals.scorers.embedded import SHIPPED, revision_of
from vlmsafe.signals.scorers.embedded.network import load
from vlmsafe.signals.scorers.embedded.tokenizer import Tokenizer
from vlmsafe.signals.scorers.make import make_scorer

SMALL = BuildPlan(
    recorded=(AgentPlan("rough", "braking", steps=200),),
    tested=(
        AgentPlan("kept", "braking", "driver:braking", choice="Nobody chose."),
        AgentPlan("elsewhere", "speeding", "driver:braking"),
    ),
    training_files=(("braking", 2), ("speeding", 1)),
    selection_files=(("braking", 1), ("speeding", 1)),
    held_out_files=(("braking", 1), ("speeding", 1)),
    candidates=(CandidatePlan(0), CandidatePlan(1, sets_weight=0.0)),
    steps=3,
    stacks_per_step=16,
    wordings=10,
    ceiling_steps=10,
    test_episodes=4,
)


def test_a_build_goes_from_nothing_to_a_scorer_and_its_card_and_is_not_repeated(tmp_path: Path) -> None:
    notes: list[str] = []
    plan = replace(SMALL, tested=SMALL.tested[:1])
    build(tmp_path, plan, stages=("agents", "record", "train"), device="cpu", processes=1, note=notes.append)
    build(tmp_path, plan, device="cpu", processes=1, note=notes.append)
    assert any(note.startswith("  recordings, braking: 50 episodes") for note in notes)
    scorer = make_scorer(f"embedded:{tmp_path / 'weights.safetensors'}", load_prompts("metadrive-v2"), device="cpu")
    assert scorer.score(np.zeros((2, 64, 64, 6), np.uint8)).shape == (2, 2)
    text, figures = (tmp_path / "card.md").read_text(), json.loads((tmp_path / "figures.json").read_text())
    assert all(
        part in text for part in ("### `braking`", "the car is in an unsafe situation", "K = 40", "sets_weight 0")
    )
    assert "Nobody chose." in text
    assert "What cost indicators give away" not in text, "neither world has any"
    assert [(test["env"], test["agent"]) for test in figures["anticipation"]] == [("braking", "kept")]
    with np.load(tmp_path / "recordings" / "speeding.0000.npz") as held:
        assert not len(held["agents"]), "agents drive in the worlds that the plan names"
    with np.load(tmp_path / "recordings" / "braking.0000.npz") as held:
        assert held["agents"].tolist() == ["rough"]
    assert "{" not in text
    data = json.loads((tmp_path / "data.json").read_text())
    assert not _overlap(data, figures)
    assert len(data["candidates"]) == 2
    best = data["candidates"][data["chosen"]]
    assert best["score"] == max(one["score"] for one in data["candidates"])
    assert (tmp_path / f"candidates/{data['chosen']}.safetensors").read_bytes() == (
        tmp_path / "weights.safetensors"
    ).read_bytes()
    with np.load(tmp_path / "selection" / "braking.0000.npz") as held:
        assert held["scenario"].min() >= 9000, "the last tenth of the training pool"
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "card.md"}
    build(tmp_path, plan, device="cpu", processes=1, note=notes.append)
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
    assert {agent.steps for agent in plan.recorded} == {0, 40, 50, 80, 120, 250}, (
        "a policy that is there needs no steps"
    )
    assert plan.tested == BuildPlan().tested
    assert BuildPlan().scaled(1.0) == BuildPlan()
    counts = [count for _, count in (*plan.training_files, *plan.selection_files, *plan.held_out_files)]
    assert min(counts) == 1
    with pytest.raises(InputError, match="greater than 0"):
        BuildPlan().scaled(0.0)


def test_training_takes_packed_recordings_where_there_are_no_others(tmp_path: Path) -> None:
    plan = replace(SMALL, recorded=(), candidates=SMALL.candidates[:1])
    build(tmp_path / "here", plan, stages=("record", "train"), device="cpu", processes=1, note=lambda text: None)
    pack_build(tmp_path / "here")
    (tmp_path / "there").mkdir()
    for name in ("recordings.pack", "selection.pack"):
        (tmp_path / "here" / name).rename(tmp_path / "there" / name)
    build(tmp_path / "there", plan, stages=("train",), device="cpu", note=lambda text: None)
    here, there = (json.loads((tmp_path / place / "data.json").read_text()) for place in ("here", "there"))
    assert {name: here[name] for name in ("versions", "scenarios", "frames", "drivers")} == {
        name: there[name] for name in ("versions", "scenarios", "frames", "drivers")
    }


def test_a_policy_of_the_repository_is_missed_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlmsafe.distillation.build._REPOSITORY", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="is no folder here; expected that of a run"):
        build(tmp_path, BuildPlan(), stages=("agents",), note=lambda text: None)


def test_every_agent_that_is_there_already_can_be_opened_in_its_world() -> None:
    for agent in (*BuildPlan().recorded, *BuildPlan().tested):
        if agent.policy:
            assert _agent_run(Path("nowhere"), agent).config.spec.name == agent.env


def test_every_prompt_of_an_environments_own_set_has_the_fact_it_describes() -> None:
    texts = {text for spec in ENVS.values() for text in load_prompts(str(spec.prompts)).texts}
    assert texts <= set(PROMPT_FACTS)
    assert {fact for stated in PROMPT_FACTS.values() for fact in stated_facts(stated)[0]} <= set(FACTS)


def test_the_plan_covers_every_environment_and_tests_no_agent_that_drives_in_recordings() -> None:
    plan = BuildPlan()
    for files in (plan.training_files, plan.held_out_files):
        assert {env.partition(":")[0] for env, _ in files} == set(ENVS)
    assert {agent.env for agent in plan.tested} <= {env for env, _ in plan.training_files}
    assert not {agent.policy for agent in plan.recorded} & {agent.policy for agent in plan.tested}
    assert not {agent.name for agent in plan.recorded} & {agent.name for agent in plan.tested}
    assert all(agent.choice for agent in plan.tested)
    assert len({agent.name for agent in plan.recorded}) == len(plan.recorded)


def test_agents_drive_where_the_plan_says() -> None:
    files = [env for env, _ in BuildPlan().training_files]
    drivers = {env: [agent.name for agent in BuildPlan().recorded if agent.drives_in(env)] for env in files}
    fast = ["fast-rough-clone", "fast-rougher-clone"]
    assert drivers["formula-one-l1:sighted"] == drivers["formula-one-l2:fast+sighted"] == fast
    assert len(drivers["metadrive-easy"]) == len(drivers["metadrive-hard"]) == 3
    assert not drivers["formula-one-l0:sighted"], "it observes less"
    assert not drivers["braking"]


def test_environments_of_any_name_have_file_names_of_their_own() -> None:
    names = [
        "gym:Pkg/Name-v0", "gym:Pkg:Name-v0", "gym:Pkg-Name-v0", "gym:Pkg/Name-v0@/opt/a/bin/python",
        "gym:Pkg/Name-v0@../b", "safety-gymnasium:Safety.One-v0", "braking",
    ]  # fmt: skip
    found = [file_name(name) for name in names]
    assert all(re.fullmatch(r"[\w-]+", name, re.ASCII) for name in found)
    assert len(set(found)) == len(names)
    assert found[-1] == "braking"


def test_anticipation_is_measured_with_and_without_a_ceiling() -> None:
    steps = np.tile(np.arange(1, 41), 3)
    trace = pl.DataFrame(
        {
            "episode": np.repeat([0, 1, 2], 40),
            "step": steps,
            "cost": (steps == 40).astype(float),
            "hazard": steps / 40.0,
            **{f"embedded_{name}": steps / 40.0 for name in ("positive", "negative", "margin")},
        }
    )
    told = anticipation_of(trace, Gate())
    assert {row["signal"] for row in told["rows"]} == {"negative", "kappa", "positive", "margin", "hazard", "step"}
    assert (told["onsets"], told["contact_steps"], told["hazard_passes"]) == (3, 3, False), "no better than the step"
    with_ceiling = anticipation_of(trace.with_columns(state_negative=pl.col("hazard")), Gate())
    assert "state" in {row["signal"] for row in with_ceiling["rows"]}


def _examples(env: str = "braking", **truths: list[float]) -> Examples:
    """Moments of which a few facts are known."""
    count = len(next(iter(truths.values())))
    table = np.full((count, len(FACTS)), np.nan, np.float32)
    for name, values in truths.items():
        table[:, list(FACTS).index(name)] = values
    names, rows = np.full(count, env), np.arange(count)
    return Examples(
        torch.empty((0, 6, 8, 8), dtype=torch.uint8), np.stack([rows, rows], axis=1), table, np.zeros(count, bool),
        np.full(count, np.inf, np.float32), [np.zeros(1, np.float32)] * count, np.zeros((count, 1), np.float32),
        names, rows, rows, names,
    )  # fmt: skip


def test_a_prompt_of_several_facts_is_as_true_as_the_least_of_them_or_as_the_most() -> None:
    examples = _examples(safe=[0.9, 0.2, np.nan], to_goal=[0.4, 1.0, 1.0])
    nan = np.float32("nan")
    np.testing.assert_array_equal(truth_of("safe and to_goal", examples), np.array([0.4, 0.2, nan], np.float32))
    np.testing.assert_array_equal(truth_of("safe or to_goal", examples), np.array([0.9, 1.0, nan], np.float32))
    np.testing.assert_array_equal(truth_of("to_goal", examples), examples.fact("to_goal"))


def _trace(margin: list[float], cost: list[float]) -> pl.DataFrame:
    steps = len(cost)
    columns = {"embedded_margin": margin, "embedded_negative": [-value for value in margin], "cost": cost}
    return pl.DataFrame(
        {"episode": [0] * (steps // 2) + [1] * (steps - steps // 2), "scenario": [0] * steps, **columns}
    )


def test_what_indicators_give_away_is_measured_on_the_same_steps_with_and_without_them() -> None:
    cost = [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    plain, drawn = [1.0, 1.0, -1.0, -1.0, 0.0, 0.0], [1.0, -3.0, 0.0, -2.0, 0.0, -3.0]
    found = indicators_of(_trace(plain, cost), _trace(drawn, cost))
    assert [row["signal"] for row in found["rows"]] == ["negative", "margin"]
    for row in found["rows"]:
        assert row["without"]["auc"] == 0.5
        assert row["with"]["auc"] == 1.0
        deviation = np.std(plain)
        assert row["moved_in_cost"] == pytest.approx((4.0 + 1.0 + 3.0) / 3 / deviation)
        assert row["moved_elsewhere"] == pytest.approx(-1.0 / 3 / deviation)
    assert (found["episodes"], found["steps"], found["cost_steps"]) == (2, 6, 3)
    with pytest.raises(EnvironmentFailure, match="changed the simulation"):
        indicators_of(_trace(plain, cost), _trace(drawn, cost[::-1]))


def test_an_agent_of_a_world_with_indicators_is_traced_with_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def traced(
        run: Path, scorers: dict[str, object], *, indicators: bool | None = None, **rest: object
    ) -> pl.DataFrame:
        asked.append(bool(indicators))
        assert ("state" in scorers) is (indicators is None)
        table = _trace([1.0, 0.5, -1.0, -0.5], [0.0, 1.0, 0.0, 1.0])
        others = {name: table["embedded_margin"] for name in ("embedded_positive", "state_negative", "hazard")}
        return table.with_columns(step=pl.Series([1, 2, 1, 2]), **others)

    task = RecordTask(tmp_path / "recordings" / "braking.0000.npz", "braking", 0.2, Scenarios(0, 9), False, 30, (0,))
    task.path.parent.mkdir()
    figures: dict[str, Any] = {"anticipation": [], "indicators": [], "scenarios": {}}
    replace(task, episodes=1).run(env_spec("braking").make(), lambda steps: None)
    with pytest.raises(InputError, match="has a random driver"):
        _test(tmp_path, SMALL, SMALL.tested[0], load(None), figures, processes=1)
    task.path.unlink()
    task.run(env_spec("braking").make(), lambda steps: None)
    monkeypatch.setattr("vlmsafe.evaluation.trace.record.trace", traced)
    monkeypatch.setattr("vlmsafe.envs.registry.env_spec", lambda name: replace(env_spec(name), indicators=False))
    _test(tmp_path, SMALL, SMALL.tested[0], load(None), figures, processes=1)
    assert asked == [False, True]
    assert figures["scenarios"] == {"braking": [0]}
    shown = _indicators(figures["indicators"])
    assert "| `braking` | `negative` | " in shown
    assert "{" not in shown
    figures["indicators"].clear()
    monkeypatch.setattr("vlmsafe.envs.registry.env_spec", env_spec)
    _test(tmp_path, SMALL, SMALL.tested[0], load(None), figures, processes=1)
    assert not figures["indicators"], "braking never drew any"
    with pytest.raises(InputError, match="no recordings of speeding"):
        _test(tmp_path, SMALL, SMALL.tested[1], load(None), figures, processes=1)


def test_the_ceiling_learns_from_its_own_world_and_from_equal_observations(tmp_path: Path) -> None:
    task = RecordTask(tmp_path / "one", "braking", 0.2, Scenarios(0, 9), False, 3, (0,))
    task.run(env_spec("braking").make(), lambda steps: None)
    with np.load(tmp_path / "one") as held:
        arrays = dict(held.items())
    paths = []
    for env, size in (("braking", 3), ("formula-one-l0", 4), ("formula-one-l1", 5), ("formula-one-l2", 5)):
        paths.append(tmp_path / f"{env}.0000.npz")
        observations = np.zeros((len(arrays["frame_step"]), size), np.float16)
        np.savez(paths[-1], **{**arrays, "env": np.array(env), "observations": observations})
    assert set(_alike(paths, "formula-one-l2").env) == {"formula-one-l1", "formula-one-l2"}
    assert set(_alike(paths, "formula-one-l0").env) == {"formula-one-l0"}


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
            assert all(scenario in getattr(ENVS[env.partition(":")[0]], pool) for scenario in scenarios)
    assert {env.partition(":")[0] for env in figures["scenarios"]} == set(ENVS)


def test_no_wording_the_shipped_model_was_measured_on_is_among_its_captions() -> None:
    """Captions are drawn again, as for its training but fewer: what can be drawn at all does not depend on how many."""
    figures, data = _shipped("figures.json"), _shipped("data.json")
    measured = {row["text"] for key in ("prompts", "wordings") for row in figures[key]}
    assert measured == {text for spec in ENVS.values() for text in load_prompts(str(spec.prompts)).texts} | {
        text for texts in grammar.held_out().values() for text in texts
    }
    tokenizer = Tokenizer(load(None).words)
    assert tokenizer.words == grammar.vocabulary()
    seed = data["candidates"][data["chosen"]]["seed"]
    schedule = Schedule(**{**data["schedule"], "wordings": 300, "joint": 3000})
    captions = draw_captions(schedule, range(len(FACTS)), tokenizer, np.random.default_rng(seed))
    written = {tuple(row[row > 0].tolist()) for row in captions.tokens.numpy()}
    assert len(written) > 5000
    tokens = tokenizer.encode(sorted(measured))[0].numpy()
    assert not written & {tuple(row[row > 0].tolist()) for row in tokens}


def test_what_ships_belongs_together() -> None:
    assert _shipped("data.json")["revision"] == _shipped("figures.json")["revision"] == revision_of(SHIPPED)


def test_the_card_that_ships_is_the_one_its_figures_give() -> None:
    assert SHIPPED.with_name("card.md").read_text() == card(_shipped("data.json"), _shipped("figures.json"))


def test_the_shipped_model_is_small_enough_for_a_package() -> None:
    files = [path for path in SHIPPED.parent.iterdir() if path.suffix in (".safetensors", ".json", ".md")]
    assert sum(path.stat().st_size for path in files) < 10_000_000
