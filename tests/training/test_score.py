"""Deferred scoring gives what scoring inside the step gives, whatever the timing; calibration is recorded."""

import json

import numpy as np
import pytest

from vlmsafe import audit, resume, trace, train, verify
from vlmsafe.errors import InputError, RunError
from vlmsafe.learners.networks import Stack
from vlmsafe.runs.checkpoint import Checkpoint, load_checkpoint, path_of
from vlmsafe.runs.traces import read_about
from vlmsafe.signals.scorers.api import ScorerFailure

SIGNAL = {"scorer": "python:frame_scorer:FrameScorer", "prompts": "metadrive", "calibration": {"frames": 40}}
SMALL = {"env": "speeding", "method": "vlm-ppo-lag-conf", "total_steps": 708, "steps_per_epoch": 354, "quiet": True,
         "learner": {"update_iters": 2}}  # fmt: skip


def final(run):
    return load_checkpoint(path_of(run.checkpoints, run.config.epochs))


def assert_equal_runs(one, other):
    for record in ("epochs.jsonl", "episodes.jsonl"):
        assert (one.path / record).read_bytes() == (other.path / record).read_bytes()
    a, b = final(one), final(other)
    assert a.values["multiplier"] == b.values["multiplier"]
    for name in a.arrays:
        np.testing.assert_array_equal(a.arrays[name], b.arrays[name], err_msg=name)


@pytest.mark.parametrize("every", [1, 4, 7])  # speeding's episodes of 20 steps end anywhere in a cycle of 7
@pytest.mark.parametrize("gate", ["off", "prior-symmetric", "calibrated"])
def test_deferred_and_in_step_scoring_give_the_same_run_bit_for_bit(tmp_path, every, gate):
    runs = [
        train(
            **SMALL, num_envs=2, run_dir=str(tmp_path / scoring),
            signal={**SIGNAL, "every": every, "gate": gate, "scoring": scoring, "batch": 5},
        )
        for scoring in ("deferred", "in-step")
    ]  # fmt: skip
    assert_equal_runs(*runs)


@pytest.mark.parametrize("every", [1, 3, 4])
def test_a_scorer_of_two_frames_gives_the_same_run_deferred_and_in_step_and_resumed(tmp_path, every):
    signal = {**SIGNAL, "scorer": "python:frame_scorer:MotionScorer", "every": every, "batch": 5}
    deferred, in_step, cut = (
        train(**SMALL, num_envs=2, run_dir=str(tmp_path / name), signal={**signal, "scoring": scoring})
        for name, scoring in (("a", "deferred"), ("b", "in-step"), ("c", "deferred"))
    )
    assert_equal_runs(deferred, in_step)
    path_of(cut.checkpoints, cut.config.epochs).unlink()
    assert_equal_runs(deferred, resume(cut.path, quiet=True))
    still = {**SIGNAL, "every": every, "batch": 5}
    other = train(**SMALL, num_envs=2, run_dir=str(tmp_path / "d"), signal=still)
    assert other.rows("epochs")[0]["negative_score"] != deferred.rows("epochs")[0]["negative_score"]


def test_episodes_of_any_length_are_scored_alike(tmp_path, monkeypatch):
    """Episodes that end at random steps, so that every phase of the k-cycle occurs at their end."""
    from pathlib import Path

    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "end_to_end")
    settings = {**SMALL, "env": "gym:broken_envs:Uneven-v0"}
    runs = [
        train(**settings, run_dir=str(tmp_path / scoring), signal={**SIGNAL, "every": 4, "scoring": scoring})
        for scoring in ("deferred", "in-step")
    ]
    assert_equal_runs(*runs)
    episodes = runs[0].rows("episodes")
    assert {row["length"] % 4 for row in episodes} == {0, 1, 2, 3}
    assert all(row["scored"] == row["length"] // 4 for row in episodes)
    short = [row for row in episodes if row["length"] < 4]
    assert short
    assert all(row["bonus"] == 0.0 and row["kappa"] is None and row["negative_score"] == 0.0 for row in short)


def test_the_size_of_batches_does_not_change_a_run(tmp_path):
    runs = [train(**SMALL, run_dir=str(tmp_path / str(n)), signal={**SIGNAL, "batch": n}) for n in (3, 64)]
    assert_equal_runs(*runs)


def test_returns_and_bonus_are_recorded_apart(tmp_path):
    run = train(**SMALL, run_dir=str(tmp_path / "run"), signal={**SIGNAL, "every": 4})
    rows, episodes = run.rows("epochs"), run.rows("episodes")
    for row in rows:
        finished = [e for e in episodes if e["epoch"] <= row["epoch"] and e["finished"]]
        assert row["env_return"] == pytest.approx(np.mean([e["return"] for e in finished]))
        assert row["bonus"] == pytest.approx(np.mean([e["bonus"] for e in finished]))
        assert row["shaped_return"] == pytest.approx(row["env_return"] + row["bonus"])
        own = [e for e in finished if e["epoch"] == row["epoch"]]
        assert row["negative_score"] == pytest.approx(np.mean([e["negative_score"] for e in own]))
        assert row["signal_term"] == pytest.approx(0.01 * (row["negative_score"] - 0.5))
        assert row["bracket"] == row["cost_gap"] + row["signal_term"]
        every = [e for e in episodes if e["epoch"] == row["epoch"]]
        assert row["kappa"] == pytest.approx(
            np.average([e["kappa"] for e in every], weights=[e["scored"] for e in every])
        )
        assert 0.0 < row["kappa"] < 1.0
    assert all(e["bonus"] > 0.0 for e in episodes if e["length"] >= 4)


def test_signals_leave_the_rollout_of_the_first_epoch_as_it_is(tmp_path):
    """A scorer does not act: the policy alone decides what happens. Return and cost of the first epoch stay."""
    plain = train(**{**SMALL, "method": "ppo-lag"}, run_dir=str(tmp_path / "plain"))
    scored = train(**SMALL, run_dir=str(tmp_path / "scored"), signal=SIGNAL)
    keys = ("scenario", "return", "cost", "length", "finished")
    first = [[{k: e[k] for k in keys} for e in run.rows("episodes") if e["epoch"] == 1] for run in (plain, scored)]
    assert first[0] == first[1]


SHUFFLED = {**SIGNAL, "scorer": "shuffled:python:frame_scorer:FrameScorer", "every": 4}
ROUTES = {
    "bonus": {"reward_weight": 0.1},
    "critic": {"reward_weight": 0.0, "cost_weight": 0.5},
    "change": {"reward_weight": 0.0, "cost_weight": 5.0, "cost_form": "change"},
    "own": {"reward_weight": 0.0, "multiplier": {"kind": "adam"}},
}


@pytest.mark.parametrize("route", ROUTES)
def test_a_shuffled_run_is_the_same_deferred_in_step_and_resumed(tmp_path, route):
    signal = {**SHUFFLED, **ROUTES[route], "batch": 5}
    deferred, in_step, cut = (
        train(**SMALL, num_envs=2, run_dir=str(tmp_path / name), signal={**signal, "scoring": scoring})
        for name, scoring in (("a", "deferred"), ("b", "in-step"), ("c", "deferred"))
    )
    assert_equal_runs(deferred, in_step)
    path_of(cut.checkpoints, cut.config.epochs).unlink()
    assert_equal_runs(deferred, resume(cut.path, quiet=True))
    assert not verify(deferred, epochs=1).differences


@pytest.mark.parametrize("route", ROUTES)
def test_a_shuffled_run_begins_with_the_numbers_of_the_scorer_and_learns_otherwise(tmp_path, route):
    """Episodes of 20 steps all have 5 scores, so those of an epoch are the same numbers in another order."""
    settings = {**SMALL, "total_steps": 720, "steps_per_epoch": 360}
    plain, shuffled = (
        train(**settings, run_dir=str(tmp_path / scorer.partition(":")[0]),
              signal={**SHUFFLED, **ROUTES[route], "scorer": scorer})
        for scorer in (SIGNAL["scorer"], SHUFFLED["scorer"])
    )  # fmt: skip
    first = [[e for e in run.rows("episodes") if e["epoch"] == 1] for run in (plain, shuffled)]
    assert [e["scenario"] for e in first[0]] == [e["scenario"] for e in first[1]]
    for name in ("kappa", "negative_score"):
        numbers = [[e[name] for e in rows] for rows in first]
        assert numbers[0] != numbers[1]
        np.testing.assert_allclose(np.sort(numbers[0]), np.sort(numbers[1]), rtol=1e-12)
    calibrated = [[e for e in run.events() if e["event"] == "calibrated"] for run in (plain, shuffled)]
    assert [{**e, "time": 0} for e in calibrated[0]] == [{**e, "time": 0} for e in calibrated[1]]
    assert (final(plain).arrays["networks"] != final(shuffled).arrays["networks"]).any()


def test_a_run_with_shuffled_scores_is_traced_with_the_scorer_that_looked(tmp_path):
    run = train(**SMALL, run_dir=str(tmp_path / "run"), signal=SHUFFLED)
    assert run.config.signal.scorer == SHUFFLED["scorer"]
    assert "scorer" in run.recorded()["source"]
    steps = trace(run, episodes=2, every=4, write=True)
    assert steps["negative"].drop_nulls().len()
    about = read_about(run.trace_path("held-out"))
    assert [entry["scorer"] for entry in about["scorers"]] == [SIGNAL["scorer"]]
    unchecked = [entry for entry in audit(run.path).unchecked if "no-lead-time" in entry.codes]
    assert [entry.reason.partition(":")[0] for entry in unchecked] == ["a control"]


def test_calibration_is_recorded_and_kept_on_resume(tmp_path):
    settings = {**SMALL, "method": "vlm-ppo-lag-conf-calibrated", "num_envs": 2}
    run = train(**settings, run_dir=str(tmp_path / "run"), signal=SIGNAL)
    event = next(event for event in run.events() if event["event"] == "calibrated")
    assert event["frames"] == 40
    assert event["episodes"] >= 5
    assert event["gate_scale"] > 0.0
    before = (run.path / "epochs.jsonl").read_bytes()
    path_of(run.checkpoints, 2).unlink()
    resume(run.path, quiet=True)
    assert (run.path / "epochs.jsonl").read_bytes() == before
    assert [event["event"] for event in run.events()].count("calibrated") == 1
    assert final(run).values["calibration"]["gate_centre"] == event["gate_centre"]


def test_calibration_may_use_the_policy_that_the_run_begins_with(tmp_path):
    """The oracle scores the speed: a policy that always goes fast sees more danger than random actions do."""
    settings = {**SMALL, "method": "vlm-ppo-lag-conf-calibrated"}
    fast = {"update_iters": 1, "initial_mean": 1.0, "initial_std": 0.05}
    source = train(**{**SMALL, "method": "ppo", "learner": fast}, run_dir=str(tmp_path / "source"))
    levels = {}
    for name, start in (("random", {}), ("initial", {}), ("taken", {"init_from": str(source.path)})):
        policy = "random" if name == "random" else "initial"
        signal = {"scorer": "oracle", "calibration": {"frames": 40, "policy": policy}, "cost_weight": 0.5}
        run = train(**settings, **start, run_dir=str(tmp_path / name), signal=signal)
        levels[name] = next(one for one in run.events() if one["event"] == "calibrated")["negative_median"]
        assert run.config.signal.calibration.policy == policy
    assert levels["taken"] > 2 * levels["random"]
    assert levels["initial"] != levels["random"]
    before = (run.path / "epochs.jsonl").read_bytes()
    for epoch in (0, 1, 2):
        path_of(run.checkpoints, epoch).unlink()
    resume(run.path, quiet=True)  # calibrates again, equally
    assert (run.path / "epochs.jsonl").read_bytes() == before
    assert not verify(run, epochs=1).differences


def test_calibration_with_the_initial_policy_shows_it_observations_as_it_knows_them(tmp_path):
    """A policy that goes fast only where standardised observations are far below its mean."""
    source = train(**{**SMALL, "method": "ppo"}, run_dir=str(tmp_path / "source"))
    found = final(source)
    stack = Stack(found.shape, found.arrays["networks"] * 0)
    stack.weights[0][0, 0, 0], stack.biases[0][0, 0, 0] = -1.0, -3.0  # positive only below -3
    stack.weights[1][0, 0, 0] = stack.weights[2][0, 0, 0] = 5.0
    stack.log_std[:] = -5.0
    mean = {"normaliser.mean": found.arrays["normaliser.mean"] + 100.0}
    state = Checkpoint(2, {**found.arrays, **mean, "networks": stack.block}, found.values)
    (tmp_path / "start.safetensors").write_bytes(state.to_bytes())
    signal = {"scorer": "oracle", "calibration": {"frames": 40, "policy": "initial"}, "cost_weight": 0.5}
    run = train(**SMALL, signal=signal, init_from=str(tmp_path / "start.safetensors"), run_dir=str(tmp_path / "run"))
    assert next(one for one in run.events() if one["event"] == "calibrated")["negative_median"] > 0.3


def test_one_stream_is_an_option(tmp_path):
    signal = {**SIGNAL, "calibration": {"frames": 40, "episodes": 1}, "every": 1, "gate": "calibrated"}
    run = train(**SMALL, run_dir=str(tmp_path / "run"), signal=signal)
    event = next(event for event in run.events() if event["event"] == "calibrated")
    assert event["episodes"] == 2, "two whole episodes of 20 steps"


def test_a_constant_scorer_cannot_be_calibrated_and_says_so(tmp_path):
    settings = {**SMALL, "method": "vlm-ppo-lag-conf-calibrated"}
    with pytest.raises(InputError, match="interquartile range is 0"):
        train(**settings, run_dir=str(tmp_path / "run"), signal={"scorer": "constant:0.6"})
    # The request was wrong, so nothing is left that would be in the way of a better one.
    better = {"scorer": "constant:0.6", "gate": "off"}
    assert train(**settings, run_dir=str(tmp_path / "run"), signal=better).status() == "finished"


@pytest.mark.parametrize(
    ("scorer", "check"),
    [
        ("constant:0.6", lambda row: row["positive_score"] == pytest.approx(0.6) == row["negative_score"]),
        ("constant:0.7,0.2", lambda row: row["negative_score"] == pytest.approx(0.2)),
        ("noise", lambda row: 0.4 < row["negative_score"] < 0.6),
        ("oracle", lambda row: 0.0 < row["negative_score"] < 1.0),
    ],
)
def test_controls_go_through_the_same_path(tmp_path, scorer, check):
    settings = {**SMALL, "method": "vlm-ppo-lag"}
    runs = [train(**settings, run_dir=str(tmp_path / name), signal={"scorer": scorer}) for name in ("one", "same")]
    assert_equal_runs(*runs)
    assert all(check(row) for row in runs[0].rows("epochs"))


def test_noise_leaves_the_policys_own_dice_alone(tmp_path):
    settings = {**SMALL, "method": "vlm-ppo-lag"}
    runs = [train(**settings, run_dir=str(tmp_path / s[:5]), signal={"scorer": s}) for s in ("noise", "constant:0.5")]
    first = [[e["return"] for e in run.rows("episodes") if e["epoch"] == 1] for run in runs]
    assert first[0] == first[1]


def test_the_bonus_changes_what_is_learned_and_not_what_is_reported(tmp_path):
    """The same first epoch, a reward critic that learns a larger reward, and another policy after it (Eq. 4)."""
    settings = {**SMALL, "method": "vlm-ppo-lag"}
    plain, paid = (
        train(**settings, run_dir=str(tmp_path / str(weight)), signal={"scorer": "noise", "reward_weight": weight})
        for weight in (0.0, 5.0)
    )
    first, second = ([run.rows("epochs")[epoch] for run in (plain, paid)] for epoch in (0, 1))
    for name in ("env_return", "episode_cost", "multiplier"):
        assert first[0][name] == first[1][name]
    assert first[1]["reward_critic_loss"] > 2 * first[0]["reward_critic_loss"]
    assert first[1]["cost_critic_loss"] == pytest.approx(first[0]["cost_critic_loss"], rel=0.01)
    assert second[0]["env_return"] != second[1]["env_return"]


def test_the_cost_route_changes_what_the_critic_learns_and_not_what_is_reported(tmp_path):
    settings = {**SMALL, "method": "vlm-ppo-lag"}
    signal = {"scorer": "oracle", "reference": 0.1}
    plain, routed = (
        train(**settings, run_dir=str(tmp_path / str(weight)), signal={**signal, "cost_weight": weight})
        for weight in (0.0, 5.0)
    )
    first = [[(e["cost"], e["return"]) for e in run.rows("episodes") if e["epoch"] == 1] for run in (plain, routed)]
    assert first[0] == first[1]
    rows = [run.rows("epochs")[0] for run in (plain, routed)]
    for name in ("episode_cost", "cost_gap", "multiplier", "env_return", "bonus"):
        assert rows[0][name] == rows[1][name]
    assert rows[1]["cost_critic_loss"] > rows[0]["cost_critic_loss"]
    assert rows[1]["signal_excess"] > 0.0


def test_a_change_of_the_excess_is_another_run_than_its_level_and_reports_the_same_cost(tmp_path):
    settings = {**SMALL, "method": "vlm-ppo-lag"}
    signal = {"scorer": "oracle", "reference": 0.1, "cost_weight": 5.0}
    level, moving = (
        train(**settings, run_dir=str(tmp_path / form), signal={**signal, "cost_form": form})
        for form in ("level", "change")
    )
    rows = [run.rows("epochs")[0] for run in (level, moving)]
    for name in ("episode_cost", "multiplier", "env_return", "bonus", "signal_excess"):
        assert rows[0][name] == rows[1][name]
    assert rows[0]["cost_critic_loss"] > rows[1]["cost_critic_loss"]  # a level adds up over an episode
    assert level.rows("epochs")[1]["env_return"] != moving.rows("epochs")[1]["env_return"]
    with pytest.raises(InputError, match=r"signal\.cost_form is 'change', but signal\.cost_weight is 0"):
        train(**settings, run_dir=str(tmp_path / "none"), signal={"scorer": "oracle", "cost_form": "change"})


def test_the_signals_own_multiplier_has_its_own_critic_and_constraint(tmp_path):
    settings = {**SMALL, "method": "vlm-ppo-lag"}
    signal = {"scorer": "oracle", "calibration": {"frames": 40}, "multiplier": {"kind": "adam", "budget": 0.0}}
    run, cut = (train(**settings, run_dir=str(tmp_path / name), signal=signal) for name in ("whole", "cut"))
    rows = run.rows("epochs")
    assert [row["signal_multiplier"] for row in rows] == pytest.approx([0.035, 0.07], abs=5e-3)
    for row in rows:
        assert row["signal_gap"] == pytest.approx(row["signal_excess"])
        assert row["signal_critic_loss"] is not None
    assert final(run).arrays["networks"].shape[0] == 4
    path_of(cut.checkpoints, 2).unlink()
    resume(cut.path, quiet=True)
    assert_equal_runs(run, cut)


def test_the_signals_own_multiplier_stays_within_its_bound(tmp_path):
    multiplier = {"kind": "gradient", "budget": 0.0, "upper_bound": 0.01, "learning_rate": 10.0}
    signal = {"scorer": "oracle", "reference": 0.0, "multiplier": multiplier}
    run = train(**{**SMALL, "method": "vlm-ppo-lag"}, run_dir=str(tmp_path / "run"), signal=signal)
    assert [row["signal_multiplier"] for row in run.rows("epochs")] == [0.01, 0.01]


@pytest.mark.parametrize(("batch", "epochs"), [(8, 0), (400, 1)])  # its third batch is in epoch 1 or 2
def test_a_scorer_that_fails_is_one_line_with_its_place_and_only_an_epoch_leaves_a_run(tmp_path, batch, epochs):
    settings = {**SMALL, "signal": {**SIGNAL, "scorer": "python:frame_scorer:FailingScorer", "batch": batch}}
    line = r"the scorer 'python:frame_scorer:FailingScorer' raised MemoryError: out of .*frame_scorer.py, line \d+, in"
    with pytest.raises(ScorerFailure, match=line):
        train(**settings, run_dir=str(tmp_path / "run"))
    assert (tmp_path / "run").exists() == bool(epochs)
    if epochs:
        events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
        assert "Traceback" in events[-1]["traceback"]


def test_a_scorer_that_leaves_is_a_failure_like_any_other(tmp_path):
    signal = {**SIGNAL, "scorer": "python:frame_scorer:LeavingScorer", "batch": 8}
    with pytest.raises(ScorerFailure, match="raised SystemExit: 3"):
        train(**SMALL, run_dir=str(tmp_path / "run"), signal=signal)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("WideScorer", r"similarities of shape \(\d+, 9\) for \d+ inputs and 8 prompts; expected"),
        ("LongScorer", r"similarities of shape"),
        ("NanScorer", r"from nan to nan; they must lie between -1 and 1"),
        ("LoudScorer", r"they must lie between -1 and 1"),
        ("LearningScorer", "looks at frames and learns"),
        ("MisspeltScorer", "looks at 'frames'; expected one of frame,"),
    ],
)
def test_a_scorer_that_breaks_its_promises_is_named_and_leaves_no_run(tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        train(**SMALL, run_dir=str(tmp_path / "run"), signal={**SIGNAL, "scorer": f"python:frame_scorer:{name}"})
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_another_model_in_the_place_of_the_first_is_noticed_on_resume(tmp_path, monkeypatch):
    import frame_scorer

    signal = {**SIGNAL, "scorer": "python:frame_scorer:RestlessScorer"}
    run = train(**SMALL, run_dir=str(tmp_path / "run"), signal=signal)
    path_of(run.checkpoints, 2).unlink()
    with pytest.raises(RunError, match=r"is not the one this run began with: similarities .* differ by"):
        resume(run.path, quiet=True)
    monkeypatch.setattr(frame_scorer.RestlessScorer, "made", 0)
    assert resume(run.path, quiet=True).status() == "finished"


def test_what_enters_the_multiplier_is_the_raw_score_whatever_the_gate(tmp_path):
    run = train(**SMALL, run_dir=str(tmp_path / "run"), signal={"scorer": "constant:0.64,0.62"})
    kappa = np.tanh(100 * 0.04 / 2)
    for row in run.rows("epochs"):
        assert row["kappa"] == pytest.approx(kappa, abs=1e-6)
        assert row["negative_score"] == pytest.approx(0.62, abs=1e-6)
        assert row["signal_term"] == pytest.approx(0.01 * 0.12, abs=1e-8)
        assert row["bonus"] == pytest.approx(20 * 0.1 * kappa * 0.64, rel=1e-6)


@pytest.mark.parametrize(("frames", "episodes", "num_envs"), [(12, 5, 1), (16, 5, 2), (9, 4, 2), (40, 7, 2)])
def test_the_calibration_buffer_holds_at_least_as_many_episodes_as_asked_for(tmp_path, frames, episodes, num_envs):
    """On episodes of 200 steps, far longer than the buffer."""
    calibration = {"frames": frames, "episodes": episodes}
    signal = {"scorer": "noise", "calibration": calibration, "gate": "calibrated", "every": 2}
    settings = {**SMALL, "env": "braking", "total_steps": 400, "steps_per_epoch": 400, "num_envs": num_envs}
    run = train(**settings, run_dir=str(tmp_path / "run"), signal=signal)
    event = next(event for event in run.events() if event["event"] == "calibrated")
    assert event["frames"] == frames
    assert event["episodes"] >= episodes


def test_a_users_scorer_gets_the_environments_prompts(tmp_path):
    signal = {key: value for key, value in SIGNAL.items() if key != "prompts"}
    run = train(**SMALL, run_dir=str(tmp_path / "run"), signal=signal)
    assert run.prompts().texts == ("the car is driving safely", "the car is in an unsafe situation")


def test_an_epoch_without_a_look_says_so(tmp_path, capsys):
    settings = {**SMALL, "quiet": False}
    train(**settings, run_dir=str(tmp_path / "run"), signal={**SIGNAL, "every": 50})
    assert "nothing was scored; no episode lasts the 50 steps" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["qwen2-vl-conf", "ppo-lag-rnd", "cpo-coupled", "ppo-clg"])
@pytest.mark.parametrize("scorer", ["oracle", "noise", "constant:0.6,0.4"])
def test_every_path_can_be_run_with_a_control(tmp_path, method, scorer):
    run = train(**{**SMALL, "method": method}, run_dir=str(tmp_path / "run"), signal={"scorer": scorer})
    bonus = run.rows("epochs")[-1]["bonus"]
    assert bonus > 0.0 if method != "ppo-lag-rnd" else bonus == 0.0


def test_a_model_folder_is_recorded_in_full(tmp_path, models, monkeypatch):
    folder = models["clip"].removeprefix("clip:")
    monkeypatch.chdir(folder)
    run = train(**SMALL, run_dir=str(tmp_path / "run"), signal={"scorer": "clip:.", "every": 4})
    assert run.config.signal.scorer == f"clip:{folder}"


def test_a_rule_the_scorer_cannot_give_is_refused_before_anything_is_written(tmp_path):
    settings = {**SMALL, "method": "qwen2-vl-conf"}
    with pytest.raises(InputError, match="'clip:no/model' cannot be used with the rule 'yes-no'"):
        train(**settings, run_dir=str(tmp_path / "run"), signal={"scorer": "clip:no/model"})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        ("clap", "unknown scorer 'clap'; did you mean"),
        ("constant", "needs something after it: constant:<value>"),
        ("constant:2", r"takes one score in \[0, 1\]"),
        ("oracle:3", "takes nothing after it"),
        ("python:no_such_module:X", "cannot import the scorer"),
        ("python:frame_scorer:Nothing", "cannot import the scorer"),
        ("python:builtins:repr", "gave a str; expected a vlmsafe"),
        ("python:builtins:int", "raised TypeError"),
    ],
)
def test_scorers_that_cannot_be_had_are_named(tmp_path, scorer, message):
    with pytest.raises(InputError, match=message):
        train(**SMALL, run_dir=str(tmp_path / "run"), signal={"scorer": scorer, "prompts": None})
    assert not (tmp_path / "run").exists()


def test_prompts_are_kept_with_the_run_whatever_becomes_of_their_file(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("positive: [a clear road]\nnegative: [a crash]\n")
    run = train(**SMALL, run_dir=str(tmp_path / "run"), signal={**SIGNAL, "prompts": str(mine)})
    assert run.prompts().texts == ("a clear road", "a crash")
    before = (run.path / "epochs.jsonl").read_bytes()
    mine.unlink()
    path_of(run.checkpoints, 2).unlink()
    resume(run.path, quiet=True)
    assert (run.path / "epochs.jsonl").read_bytes() == before
    (run.path / "prompts.yaml").write_text("positive: [something else]\nnegative: [a crash]\n")
    path_of(run.checkpoints, 2).unlink()
    with pytest.raises(RunError, match=r"prompts.yaml was changed after the run began"):
        resume(run.path, quiet=True)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Small random models of the real classes on disk, by the name of their scorer."""
    from small_models import save_small_clip, save_small_siglip
    from small_qwen import save_small_qwen

    makers = {"clip": save_small_clip, "siglip": save_small_siglip, "qwen2-vl": save_small_qwen}
    folders = {name: tmp_path_factory.mktemp(name) for name in makers}
    for name, save in makers.items():
        save(folders[name])
    kind = {"siglip": "clip"}
    return {name: f"{kind.get(name, name)}:{folder}" for name, folder in folders.items()}


@pytest.mark.parametrize(("model", "method"), [("clip", "vlm-ppo-lag-conf-calibrated"), ("siglip", "cpo-coupled"),
                                               ("qwen2-vl", "qwen2-vl-conf")])  # fmt: skip
def test_a_real_model_scores_a_run_and_resumes_exactly(tmp_path, models, model, method):
    settings = {**SMALL, "method": method, "num_envs": 2}
    signal = {"scorer": models[model], "calibration": {"frames": 40}, "batch": 8, "precision": "float32", "every": 4}
    whole, cut = (train(**settings, run_dir=str(tmp_path / name), signal=signal) for name in ("whole", "cut"))
    path_of(cut.checkpoints, 2).unlink()
    resume(cut.path, quiet=True)
    assert_equal_runs(whole, cut)
    assert all(row["bonus"] > 0.0 for row in whole.rows("epochs"))
    scorer = whole.events()[0]["scorer"]
    assert scorer["name"] == models[model]
    assert scorer["device"] == "cpu"


def test_a_real_models_scores_do_not_depend_on_when_they_are_computed(tmp_path, models):
    runs = [
        train(
            **SMALL, run_dir=str(tmp_path / scoring), signal={"scorer": models["clip"], "every": 4, "scoring": scoring}
        )
        for scoring in ("deferred", "in-step")
    ]
    first = [run.rows("epochs")[0] for run in runs]
    for name in ("positive_score", "negative_score", "margin", "bonus"):
        assert first[0][name] == pytest.approx(first[1][name], rel=1e-5)


def test_a_clip_of_several_frames_scores_a_run_and_resumes_exactly(tmp_path, models):
    settings = {**SMALL, "method": "qwen2-vl-conf", "num_envs": 2}
    signal = {"scorer": models["qwen2-vl"], "batch": 8, "precision": "float32", "every": 3}
    clip = {**signal, "frames": 3, "frame_distance": 2}
    whole, cut = (train(**settings, run_dir=str(tmp_path / name), signal=clip) for name in ("whole", "cut"))
    path_of(cut.checkpoints, 2).unlink()
    resume(cut.path, quiet=True)
    assert_equal_runs(whole, cut)
    assert whole.events()[0]["scorer"]["frames"] == 3
    single = train(**settings, run_dir=str(tmp_path / "single"), signal={**signal, "frames": 1})
    assert (single.config.signal.frames, single.config.signal.frame_distance) == (None, None)
    near = train(**settings, run_dir=str(tmp_path / "near"), signal={**clip, "frame_distance": 1})
    scores = [run.rows("epochs")[0]["negative_score"] for run in (whole, single, near)]
    assert len(set(scores)) == 3, "the number of frames and their distance matter"
    for frame_scorer, message in (("embedded", "'embedded' looks at 2 frames"), ("clip:x", "'clip' looks at 1 frame")):
        with pytest.raises(InputError, match=message):
            train(**SMALL, run_dir=str(tmp_path / "none"), signal={"scorer": frame_scorer, "frames": 5})
    assert not (tmp_path / "none").exists()
