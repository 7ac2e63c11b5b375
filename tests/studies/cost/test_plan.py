"""What a study will take: the arithmetic, and where the speeds come from."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from vlmsafe.envs.registry import ENVS
from vlmsafe.runs.run import Run
from vlmsafe.studies.cost.plan import Speeds, gpu_share, measured_on, plan, shipped_speeds
from vlmsafe.studies.schema import load_study, parse_study, shipped_studies

STUDY = """\
name: small
question: How long?
environments: [speeding]
seeds: [1, 2, 3]
total_steps: 3600
settings: {steps_per_epoch: 1200, num_envs: 2, learner.update_iters: 10}
arms:
  ppo-lag: {method: ppo-lag}
  embedded: {method: vlm-ppo-lag, settings: {signal.every: 4}}
protocols: [{protocol: held-out, episodes: 10}]
traces: [{protocol: held-out, episodes: 10, arms: [ppo-lag], every: 2}]
"""
PARTS = {
    ("speeding", "step"): 1.0,
    ("speeding", "frame"): 0.5,
    ("speeding", "start"): 7.0,
    ("speeding", "memory"): 100.0,
    ("ppo-lag", "pass"): 0.1,
    ("embedded", "score"): 1.5,
    ("embedded", "memory"): 30.0,
    ("main", "memory"): 1000.0,
}


def specs(folder: Path):
    return parse_study(STUDY, "small.yaml").expand(folder)


def test_hours_add_up_from_steps_frames_scores_and_passes(tmp_path):
    found = plan(specs(tmp_path / "small"), tmp_path, 4, 10**9, Speeds(PARTS, tmp_path))
    plain, signalled = found.rows
    # A step and ten passes, two workers to start; ten episodes of 20 steps, with a start each; the trace scores half.
    training, evaluation, trace = 3600 * (1 + 1.0) + 14, 10 * (20 + 7), 10 * (20 * (1 + 1.0) + 7)
    assert plain.run_hours == pytest.approx((training + evaluation + trace) / 3600 / 2)
    assert plain.core_hours_left == pytest.approx(3 * (training + evaluation + trace) / 3600)
    assert signalled.run_hours == pytest.approx((3600 * (1 + 1.0 + 2.0 / 4) + 14 + evaluation) / 3600 / 2)
    assert (plain.memory, signalled.memory) == (1200, 1230)
    assert {row.source for row in found.rows} == {"table"}
    assert (found.runs, found.done, found.steps) == (6, 0, 6 * 3600)
    assert found.core_hours == pytest.approx(plain.core_hours_left + signalled.core_hours_left)
    assert found.hours == pytest.approx(found.core_hours / 4)


def test_a_repeated_action_takes_as_many_steps_of_the_simulator(tmp_path):
    speeds, (spec, *_) = Speeds(PARTS, tmp_path), specs(tmp_path / "small")
    plain, repeated = (speeds.training(replace(spec.config, action_repeat=times))[0] for times in (1, 3))
    assert repeated - plain == pytest.approx(3600 * 2 * 1.0)


def test_memory_and_workers_limit_how_much_runs_at_a_time(tmp_path):
    runs = specs(tmp_path / "small")
    assert plan(runs, tmp_path, 8, 10**9, Speeds(PARTS)).at_a_time == 8
    assert plan(runs, tmp_path, 8, 2500, Speeds(PARTS)).at_a_time == 4
    assert plan(runs, tmp_path, 1, 10, Speeds(PARTS)).at_a_time == 2


@pytest.mark.parametrize("place", ["first", "plain/seed-1", "speeding/plain/seed-1", "other/speeding/ppo-lag/seed-1"])
def test_speeds_of_runs_of_the_same_kind_win_over_the_table(tmp_path, place):
    (tmp_path / "small").mkdir()
    first = next(spec for spec in specs(tmp_path / "other") if spec.arm == "ppo-lag")
    (tmp_path / place).mkdir(parents=True)
    run = Run.create(replace(first.config, run_dir=tmp_path / place))
    run.append("timing", [{"epoch": epoch, "collect": 500.0, "update": 100.0} for epoch in (1, 2)])
    plain, signalled = plan(specs(tmp_path / "small"), tmp_path, 4, 10**9, Speeds(PARTS, tmp_path)).rows
    assert (plain.source, signalled.source) == ("runs", "table")
    # 1200 seconds for 2400 steps with two workers are one core's second a step.
    looking = 10 * (20 + 7) + 10 * (20 * 2.0 + 7)
    assert plain.run_hours == pytest.approx((3600 + looking) / 3600 / 2)


def evaluated(spec, episodes=10):
    """Write an evaluation of a run's last checkpoint."""
    path = spec.path / "evaluations" / "held-out.parquet"
    path.parent.mkdir(exist_ok=True)
    pl.DataFrame({"checkpoint_epoch": [spec.config.epochs] * episodes}).write_parquet(path)


def test_an_evaluation_with_too_few_episodes_is_left_to_do(tmp_path):
    runs = [spec for spec in specs(tmp_path / "small") if spec.arm == "embedded"]
    for spec, episodes in zip(runs, (10, 9, 10), strict=True):
        spec.path.mkdir(parents=True)
        Run.create(spec.config).append("epochs", [{"epoch": n} for n in range(3)])
        evaluated(spec, episodes)
    (row,) = plan(runs, tmp_path, 4, 10**9, Speeds(PARTS)).rows
    assert row.done == 2
    assert row.core_hours_left == pytest.approx(10 * 27 / 3600)


def test_what_is_done_is_not_planned_again(tmp_path):
    runs = specs(tmp_path / "small")
    done, half = [spec for spec in runs if spec.arm == "embedded"][:2]
    for spec, epochs in ((done, 3), (half, 1)):
        spec.path.mkdir(parents=True)
        Run.create(spec.config).append("epochs", [{"epoch": n} for n in range(epochs)])
    evaluated(done)
    row = plan(runs, tmp_path, 4, 10**9, Speeds(PARTS)).rows[1]
    training, evaluation = 3600 * 2.5 + 14, 10 * 27
    assert row.done == 1
    assert row.core_hours_left == pytest.approx((training * (1 + 2 / 3) + 2 * evaluation) / 3600)


def test_a_trace_of_some_seeds_is_planned_for_these_seeds_only(tmp_path):
    runs = parse_study(STUDY.replace("every: 2", "every: 2, seeds: [1]"), "small.yaml").expand(tmp_path / "small")
    for spec in runs:
        spec.path.mkdir(parents=True)
        Run.create(spec.config).append("epochs", [{"epoch": n} for n in range(3)])
        evaluated(spec)
    found = plan(runs, tmp_path, 4, 10**9, Speeds(PARTS))
    assert [row.done for row in found.rows] == [2, 3]
    assert found.core_hours == pytest.approx(10 * (20 * 2.0 + 7) / 3600)


def test_what_was_never_measured_is_said_and_not_guessed(tmp_path):
    parts = {key: value for key, value in PARTS.items() if key[0] != "embedded"}
    found = plan(specs(tmp_path / "small"), tmp_path, 4, 10**9, Speeds(parts))
    assert [row.source for row in found.rows] == ["table", "not measured"]
    assert found.rows[1].run_hours is None
    assert found.core_hours == pytest.approx(found.rows[0].core_hours_left + 3 * 10 * (20 + 7) / 3600)
    assert found.incomplete
    assert any("not measured" in note for note in found.notes)
    nothing = plan(specs(tmp_path / "small"), tmp_path, 4, 10**9, Speeds({}))
    assert (nothing.core_hours, nothing.hours) == (None, None)


def test_episodes_of_an_unknown_environment_take_the_steps_of_its_runs(tmp_path):
    first = next(spec for spec in specs(tmp_path / "other") if spec.arm == "ppo-lag")
    first.path.mkdir(parents=True)
    Run.create(first.config).append("timing", [{"epoch": 1, "collect": 500.0, "update": 100.0}])
    speeds = Speeds({}, tmp_path)
    assert speeds.episodes(first, first.evaluations[0], trace=False) == pytest.approx(10 * 20 * 1.0)
    assert speeds.episodes(first, first.traces[0], trace=True) is None  # the time of its scorer was not measured


def test_a_variant_takes_the_speed_of_its_environment_and_a_model_never_that_of_another():
    speeds = Speeds({**PARTS, ("clip:small", "score"): 1.0, ("constant", "score"): 0.5, ("constant", "memory"): 0.0})
    assert speeds._env("speeding:fast", "step") == 1.0
    assert speeds._scorer("constant:0.3", "score") == 0.5
    assert speeds._scorer("clip:large", "score") is None


def test_the_shipped_table_knows_every_environment_learner_and_scorer_of_the_package():
    parts = shipped_speeds()
    for env in ENVS:
        assert all(parts[env, quantity] > 0.0 for quantity in ("step", "frame", "start", "memory")), env
    for learner in ("ppo", "ppo-lag", "cppo-pid", "focops", "cup", "p3o", "cpo"):
        assert 0.0 < parts[learner, "pass"] < 1e-3
    for scorer in ("embedded", "rnd", "constant", "noise", "oracle", "clip:openai/clip-vit-base-patch32"):
        assert parts[scorer, "score"] > 0.0
    assert measured_on().startswith("measured by benchmarks/speeds.py on ")


@pytest.mark.parametrize("name", shipped_studies())
def test_every_shipped_study_can_be_planned(name, tmp_path):
    study = load_study(name)
    found = plan(study.expand(tmp_path / name), tmp_path, 8, 2**35, replace(Speeds.of(tmp_path), root=None))
    unknown = {row.arm for row in found.rows if row.source == "not measured"}
    assert unknown <= {"qwen2-vl-conf"}  # no CPU runs it in reasonable time
    assert found.hours > 0.0


def test_only_a_run_that_computes_a_large_model_on_a_gpu_holds_a_share_of_one(tmp_path):
    text = STUDY.replace("signal.every: 4", "signal.every: 4, signal.scorer: clip, signal.prompts: metadrive")
    shares = {spec.arm: gpu_share(spec, 0.5) for spec in parse_study(text, "").expand(tmp_path)}
    assert shares == {"ppo-lag": 0.0, "embedded": 0.5}
    on_cpu = parse_study(text.replace("signal.every: 4", "signal.every: 4, signal.device: cpu"), "").expand(tmp_path)
    assert {gpu_share(spec, 0.5) for spec in on_cpu} == {0.0}
    assert {gpu_share(spec, 0.5) for spec in specs(tmp_path)} == {0.0}
