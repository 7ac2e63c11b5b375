"""A trace is the evaluation step by step, with what scorers made of the states it went through."""

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from frame_scorer import FailingScorer, FrameScorer, MotionScorer

from vlmsafe import evaluate, train
from vlmsafe.analysis.anticipation import anticipation, passes
from vlmsafe.envs.api import Env
from vlmsafe.envs.registry import ENVS
from vlmsafe.envs.small.braking import Braking
from vlmsafe.errors import InputError
from vlmsafe.evaluation.gated_scorers import default_scorers
from vlmsafe.evaluation.plan import Plan
from vlmsafe.evaluation.trace.record import trace
from vlmsafe.evaluation.trace.task import TraceTask
from vlmsafe.runs.traces import open_trace
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import ScorerFailure
from vlmsafe.signals.scorers.make import make_scorer

PROMPTS = PromptSet(("clear road",), ("a bump ahead", "too fast"))
BASE = ["protocol", "deterministic", "checkpoint_epoch", "episode", "scenario", "traffic_seed", "step", "reward",
        "cost", "hazard", "scored"]  # fmt: skip


def small_run(env, path):
    return train(env=env, total_steps=400, steps_per_epoch=400, learner={"update_iters": 2}, run_dir=str(path),
                 quiet=True)  # fmt: skip


@pytest.fixture(scope="module")
def braking(tmp_path_factory):
    return small_run("braking", tmp_path_factory.mktemp("runs") / "braking")


@pytest.fixture(scope="module")
def speeding(tmp_path_factory):
    return small_run("speeding", tmp_path_factory.mktemp("runs") / "speeding")


@pytest.mark.parametrize("env", ["braking", "speeding"])
def test_trace_adds_up_to_the_evaluation(env, request):
    run = request.getfixturevalue(env)
    episodes = evaluate(run, episodes=3, overwrite=True)
    steps = trace(run, make_scorer("oracle", None), episodes=3)
    sums = steps.group_by("episode", maintain_order=True).agg(
        pl.col("scenario").first(), pl.col("reward").sum(), pl.col("cost").sum(), pl.len()
    )
    assert sums["scenario"].to_list() == episodes["scenario"].to_list()
    assert sums["len"].to_list() == episodes["length"].to_list()
    np.testing.assert_allclose(sums["cost"], episodes["cost"], rtol=1e-12)
    np.testing.assert_allclose(sums["reward"], episodes["env_return"], rtol=1e-12)
    assert steps["cost"].sum() > 0.0
    for _, episode in steps.group_by("episode"):
        assert episode["step"].to_list() == list(range(1, len(episode) + 1))


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_trace_is_the_same_whatever_the_number_of_processes_and_the_batch(braking, batch):
    scorers = {"frames": FrameScorer(PROMPTS), "noise": make_scorer("noise", None)}
    one = trace(braking, scorers, episodes=3, processes=1, every=3)
    assert trace(braking, scorers, episodes=3, processes=2, every=3, batch=batch).equals(one)
    assert one["noise_positive"].drop_nulls().n_unique() == one["scored"].sum()  # no two episodes have the same dice


def test_similarities_are_those_of_the_frame_after_the_step(braking):
    """Driven again by hand, with the trace's own checkpoint."""
    table = trace(braking, FrameScorer(PROMPTS), episodes=2, every=4)
    task = Plan.of(braking, "held-out", episodes=2, epoch=None, processes=1, allow_untrained=False,
                   on_note=print).tasks[1]  # fmt: skip
    env = ENVS["braking"].make(ENVS["braking"].held_out)
    frames, hazards, distances = [], [], []
    for _, step in task.drive(env, lambda steps: None):
        hazards.append(env.hazard())
        distances.append(env.progress()["distance"])
        if step.number % 4 == 0:
            frames.append(env.frame())
    own = table.filter(pl.col("episode") == 1)
    assert own["hazard"].to_list() == hazards
    assert own["distance"].to_list() == distances
    assert (own["scored"] == (own["step"] % 4 == 0)).all()
    similarities = FrameScorer(PROMPTS).score(np.stack(frames))
    scored = own.filter("scored")
    np.testing.assert_array_equal(scored.select(f"similarity_{i}" for i in range(3)).to_numpy(), similarities)
    positive, negative = similarities[:, 0].astype(float), similarities[:, 1:].astype(float).mean(axis=1)
    np.testing.assert_allclose(scored["positive"], (positive + 1.0) / 2.0)
    np.testing.assert_allclose(scored["negative"], (negative + 1.0) / 2.0)
    np.testing.assert_allclose(scored["margin"], positive - negative)
    assert own.filter(~pl.col("scored"))["similarity_0", "negative", "margin"].null_count().row(0) == (150, 150, 150)


def test_looking_changes_nothing_in_metadrive(tmp_path):
    pytest.importorskip("metadrive")
    run = train(env="metadrive-easy", total_steps=200, steps_per_epoch=200, learner={"update_iters": 1},
                run_dir=str(tmp_path / "run"), quiet=True)  # fmt: skip
    episode = evaluate(run, episodes=1)
    steps = trace(run, FrameScorer(PROMPTS), episodes=1, every=50, facts=True)
    assert (len(steps), steps["cost"].sum()) == (episode["length"][0], episode["cost"][0])
    assert steps["reward"].sum() == pytest.approx(episode["env_return"][0], rel=1e-12)
    assert {"speed", "x", "y", "route_completion"} < set(steps.columns)


def test_several_scorers_have_columns_of_their_own(speeding):
    two = FrameScorer(PROMPTS), FrameScorer(PromptSet(("a",), ("b",)))
    scorers = {"wide": two[0], "oracle": make_scorer("oracle", None), "narrow": two[1]}
    table = trace(speeding, scorers, episodes=2, facts=True)
    assert table.columns[: len(BASE)] == BASE
    alone = trace(speeding, two[1], episodes=2)
    for column in ("similarity_0", "similarity_1", "positive", "negative", "margin"):
        assert table[f"narrow_{column}"].equals(alone[column]), column
    assert "wide_similarity_2" in table.columns
    assert "narrow_similarity_2" not in table.columns
    np.testing.assert_allclose(table["oracle_negative"], table["hazard"], atol=1e-6)
    assert alone["checkpoint_epoch"].unique().to_list() == [1]


def test_scorer_that_learns_is_left_as_it_came(speeding):
    scorer = make_scorer("rnd", None, observation=2)
    before = {name: array.copy() for name, array in scorer.state().items()}
    first, again = (trace(speeding, scorer, episodes=2) for _ in range(2))
    assert first.equals(again)
    for name, array in scorer.state().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


class Telling(Braking):
    """Facts that are not there at every step, and no hazard."""

    hazard = Env.hazard

    def facts(self):
        return {"late": 2.0} if self._step > 190 else {"early": 1.0}


def test_facts_become_columns_null_where_absent_and_so_does_a_missing_hazard(braking):
    task = Plan.of(braking, "held-out", episodes=1, epoch=None, processes=1, allow_untrained=False,
                   on_note=print).tasks[0]  # fmt: skip
    env = Telling(ENVS["braking"].held_out, 200)
    table = TraceTask(dataclasses.replace(task, first=5), (), 1, facts=True).run(env, lambda steps: None).steps
    assert table["fact_early"].to_list() == [1.0] * 190 + [None] * 10
    assert table["fact_late"].to_list() == [None] * 190 + [2.0] * 10
    assert table["hazard"].null_count() == 200
    assert set(table["episode"]) == {5}
    assert not table["scored"].any()
    silent = TraceTask(task, (), 1, facts=False).run(env, lambda steps: None).steps
    assert not [name for name in silent.columns if name.startswith("fact_")]


def test_episodes_that_share_a_simulator_are_told_apart(speeding):
    task = Plan.of(speeding, "held-out", episodes=1, epoch=None, processes=1, allow_untrained=False,
                   on_note=print).tasks[0]  # fmt: skip
    shared = dataclasses.replace(task, scenarios=[10_000, 10_007], traffic_seeds=[3, 4], isolate=False,
                                 first=2)  # fmt: skip
    env = ENVS["speeding"].make(ENVS["speeding"].held_out)
    table = TraceTask(shared, ("hazard",), 15, facts=False).run(env, lambda steps: None).steps
    firsts = table.filter(pl.col("step") == 1).select("episode", "scenario", "traffic_seed")
    assert firsts.rows() == [(2, 10_000, 3), (3, 10_007, 4)]
    assert table.filter("scored").select("episode", "step").rows() == [(2, 15), (3, 15)]


def test_table_is_written_only_when_asked(speeding):
    scorer, path = make_scorer("noise", None), speeding.path / "traces" / "held-out.parquet"
    trace(speeding, scorer, episodes=1)
    assert not path.exists()
    table = trace(speeding, scorer, episodes=1, write=True)
    assert pl.read_parquet(path).equals(table)
    trace(speeding, scorer, episodes=1, epoch=1, write=True)
    assert (speeding.path / "traces" / "held-out-epoch-00001.parquet").exists()


def test_episodes_shorter_than_k_are_traced_without_a_score(speeding):
    table = trace(speeding, FrameScorer(PROMPTS), episodes=1, every=1000)
    assert not table["scored"].any()
    assert table["negative"].null_count() == len(table) == 20


def test_failing_scorer_is_named(speeding):
    with pytest.raises(ScorerFailure, match="'mine' raised MemoryError: out of memory"):
        trace(speeding, {"mine": FailingScorer(PROMPTS)}, episodes=2, batch=4)
    with pytest.raises(ScorerFailure, match="'FailingScorer' raised MemoryError"):
        trace(speeding, FailingScorer(PROMPTS), episodes=2, batch=4)
    with pytest.raises(InputError, match="every is 0"):
        trace(speeding, FrameScorer(PROMPTS), every=0)


def test_oracle_of_braking_passes_the_test_of_anticipation_from_its_trace(braking):
    """The two halves fit together: a hazard that is felt before the bump warns of it."""
    table = trace(braking, make_scorer("oracle", None), episodes=8, every=2)
    result = anticipation(
        {"negative": table["negative"]}, table["cost"] > 0.0, table["episode"], scored=table["scored"], resamples=50
    )
    assert passes(result)


def test_scorers_of_one_frame_and_of_two_each_see_their_own(braking):
    still, motion = FrameScorer(PROMPTS), MotionScorer(PROMPTS)
    both = trace(braking, {"still": still, "motion": motion}, episodes=2, every=3)
    names = [f"similarity_{i}" for i in range(3)]
    alone = trace(braking, still, episodes=2, every=3)
    assert both.select(pl.col([f"still_{name}" for name in names])).rows() == alone.select(names).rows()
    task = Plan.of(braking, "held-out", episodes=2, epoch=None, processes=1, allow_untrained=False,
                   on_note=print).tasks[1]  # fmt: skip
    env = ENVS["braking"].make(ENVS["braking"].held_out)
    frames = [env.frame() for _ in task.drive(env, lambda steps: None)]
    scored = range(3, len(frames) + 1, 3)
    shown = [np.concatenate([frames[(n if n < 5 else n - 4) - 1], frames[n - 1]], axis=-1) for n in scored]
    own = both.filter((pl.col("episode") == 1) & pl.col("scored"))
    np.testing.assert_array_equal(own.select([f"motion_{name}" for name in names]).to_numpy(), motion.score(shown))


def test_a_run_without_a_signal_in_a_world_without_prompts_is_traced_without_scores(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "end_to_end")
    run = small_run("gym:broken_envs:Walk-v0", tmp_path / "walk")
    notes = []
    table = trace(run, episodes=2, every=4, frames=True, write=True, on_note=notes.append)
    assert any("no scorer looks at these episodes" in note for note in notes)
    assert "kappa" not in table.columns
    recorded = open_trace(run.path)
    assert recorded.scorers == ()
    assert recorded.pictures()["step"].to_list() == [4, 8, 4, 8]
    assert default_scorers(run.config, "metadrive-v2") == ["embedded"]


def test_scorer_and_protocol_have_the_names_of_the_command_line_too(braking):
    steps = trace(braking, scorer="oracle", protocol="selection", episodes=1)
    assert steps.equals(trace(braking, ["oracle"], "selection", episodes=1))
    assert steps.equals(trace(braking, "oracle", "selection", episodes=1))
    assert set(steps["protocol"]) == {"selection"}
    with pytest.raises(InputError, match="'scorer' and 'scorers' are one argument"):
        trace(braking, ["oracle"], scorer="noise")
    with pytest.raises(InputError, match="every is '2'; expected a whole number"):
        trace(braking, every="2")
