"""Runs of a learner that keeps every step: they resume exactly, are verified, evaluated, continued and refused."""

import numpy as np
import pytest
from in_process import call

from vlmsafe import evaluate, resume, train, verify
from vlmsafe.errors import InputError, RunError
from vlmsafe.runs.checkpoint import load_checkpoint, path_of

SMALL = {
    "env": "speeding", "method": "sac", "total_steps": 800, "steps_per_epoch": 200, "quiet": True,
    "learner": {"hidden": (16, 16), "batch_size": 32, "sac": {"first_steps": 100, "round_steps": 30}},
}  # fmt: skip

LEARNER = {"hidden": (32, 32), "batch_size": 64, "gamma": 0.9, "sac": {"reward_scale": 1.0, "first_steps": 200}}


def final(run):
    return load_checkpoint(path_of(run.checkpoints, run.config.epochs))


@pytest.mark.parametrize("settings", [{}, {"method": "sac-lag"}, {"action_repeat": 2, "fresh_workers": "always"},
                                      {"normalise_observations": False, "checkpoint": {"every": 2}}])  # fmt: skip
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, settings):
    settings = SMALL | settings
    whole, cut = (train(**settings, run_dir=str(tmp_path / name)) for name in ("whole", "cut"))
    for epoch in (3, 4):
        path_of(cut.checkpoints, epoch).unlink(missing_ok=True)
    resume(cut.path, quiet=True)
    for record in ("epochs.jsonl", "episodes.jsonl"):
        assert (whole.path / record).read_bytes() == (cut.path / record).read_bytes()
    a, b = final(whole), final(cut)
    assert a.values == {**b.values, "row_files": a.values["row_files"]}
    for name in a.arrays:
        np.testing.assert_array_equal(a.arrays[name], b.arrays[name], err_msg=name)


@pytest.mark.parametrize("method", ["sac", "sac-lag"])
def test_an_extended_run_equals_one_that_was_long_from_the_start(tmp_path, method):
    settings = SMALL | {"method": method}
    whole = train(**settings, run_dir=str(tmp_path / "whole"))
    short = train(**settings | {"total_steps": 400}, run_dir=str(tmp_path / "short"))
    longer = resume(short.path, total_steps=800, quiet=True)
    steps = [f"replay/epoch-0000{epoch}.safetensors" for epoch in (1, 2, 3, 4)]
    for record in ("epochs.jsonl", "episodes.jsonl", *steps):
        assert (whole.path / record).read_bytes() == (longer.path / record).read_bytes()
    a, b = final(whole), final(longer)
    assert a.values["replay"] == b.values["replay"]
    for name in a.arrays:
        np.testing.assert_array_equal(a.arrays[name], b.arrays[name], err_msg=name)


def test_an_extension_of_a_falling_entropy_keeps_what_was_done_and_is_verified(tmp_path):
    learner = {**SMALL["learner"], "sac": {**SMALL["learner"]["sac"], "final_entropy": -3.0}}
    run = train(**SMALL | {"total_steps": 400, "learner": learner}, run_dir=str(tmp_path / "run"))
    before = (run.path / "epochs.jsonl").read_bytes()
    longer = resume(run.path, total_steps=800, quiet=True)
    assert (longer.path / "epochs.jsonl").read_bytes().startswith(before)
    assert verify(longer.path, epochs=4).outcome == "equal"


def test_a_round_that_is_too_short_for_an_update_makes_none(tmp_path):
    sac = {"first_steps": 0, "round_steps": 10, "updates_per_step": 0.05}
    settings = SMALL | {"total_steps": 400, "learner": {**SMALL["learner"], "sac": sac}}
    run = train(**settings, run_dir=str(tmp_path / "run"))
    assert [row["passes"] for row in run.rows("epochs")] == [10, 10]


def test_both_ends_of_a_run_are_verified(tmp_path):
    run = train(**SMALL, run_dir=str(tmp_path / "run"))
    found = verify(run.path, epochs=1)
    assert found.outcome == "equal"
    assert [(one.start, one.last) for one in found.replays] == [(0, 1), (3, 4)]


def test_without_its_steps_a_run_is_verified_from_the_seed_only_and_can_be_evaluated(tmp_path):
    run = train(**SMALL, run_dir=str(tmp_path / "run"))
    for path in (run.path / "replay").iterdir():
        path.unlink()
    found = verify(run.path, epochs=1)
    assert found.outcome == "not replayed"
    assert "epoch-00001.safetensors is missing; a run of this method needs the steps" in found.summary
    assert len(evaluate(run.path, episodes=2)) == 2


@pytest.mark.parametrize("damage", ["missing", "changed", "cut"])
def test_a_run_whose_steps_are_not_those_of_its_checkpoint_is_not_continued(tmp_path, damage):
    run = train(**SMALL, run_dir=str(tmp_path / "run"))
    path_of(run.checkpoints, 4).unlink()
    files = sorted((run.path / "replay").iterdir())
    assert len(files) == 4
    if damage == "missing":
        files[0].unlink()
    elif damage == "changed":
        files[0].write_bytes(files[1].read_bytes())
    else:
        files[0].write_bytes(files[0].read_bytes()[:-5])
    with pytest.raises(RunError, match="cannot be read" if damage != "changed" else "not those that the checkpoint"):
        resume(run.path, quiet=True)


def test_it_learns_to_drive_at_the_best_speed_and_is_evaluated(tmp_path):
    settings = SMALL | {"total_steps": 3000, "steps_per_epoch": 500}
    settings["learner"] = LEARNER
    run = train(**settings, run_dir=str(tmp_path / "run"))
    assert evaluate(run.path, episodes=10)["env_return"].mean() > 19.0, "the best return is 20"


def test_a_multiplier_lowers_the_cost(tmp_path):
    settings = SMALL | {"method": "sac-lag", "total_steps": 8000, "steps_per_epoch": 500, "cost_window": "epoch"}
    settings["learner"] = LEARNER
    settings["multiplier"] = {"learning_rate": 0.1}
    rows = train(**settings, run_dir=str(tmp_path / "run")).rows("epochs")
    assert rows[-1]["multiplier"] > 0.05
    assert rows[-1]["episode_cost"] == pytest.approx(30.0, rel=0.3), "the budget; without a multiplier it pays 60"


def test_it_starts_from_its_own_kind_of_policy_only(tmp_path):
    first = train(**SMALL, run_dir=str(tmp_path / "first"))
    second = train(**SMALL, init_from=str(first.path), run_dir=str(tmp_path / "second"))
    start = (
        load_checkpoint(path_of(second.checkpoints, 0)) if path_of(second.checkpoints, 0).exists() else second.start()
    )
    np.testing.assert_array_equal(start.arrays["networks"], final(first).arrays["networks"])
    ppo = {"env": "speeding", "total_steps": 400, "steps_per_epoch": 200, "learner": {"hidden": (16, 16)}}
    with pytest.raises(InputError, match="a policy of the learner 'sac', which the learner 'ppo-lag' cannot train on"):
        train(**ppo, init_from=str(first.path), run_dir=str(tmp_path / "other"), quiet=True)


@pytest.mark.parametrize(("words", "message"), [
    (("--num-envs", "2"), "num_envs is 2; the learner 'sac' acts in one process: drop it"),
    (("--scorer", "oracle"), "signal.scorer is set, but the learner 'sac' has no use for it; drop it"),
    (("--init-from", "PPO"), "PPO, a policy of the learner 'ppo-lag', which the learner 'sac' cannot train on; "
                             "expected one of 'sac'"),
])  # fmt: skip
@pytest.mark.parametrize("method", ["sac", "sac-lag"])
def test_what_it_cannot_use_is_refused_in_one_line_before_anything_is_written(
    tmp_path, monkeypatch, method, words, message
):
    monkeypatch.chdir(tmp_path)
    if "PPO" in words:
        train(env="speeding", total_steps=200, steps_per_epoch=200, quiet=True, run_dir="PPO",
              learner={"hidden": (16, 16), "update_iters": 1})  # fmt: skip
    answer = call("train", "--env", "speeding", "--method", method, *words, "--run-dir", tmp_path / "run")
    assert answer.returncode == 2
    (line,) = answer.stderr.strip().splitlines()
    assert line.endswith(message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("std", [0.001, 2.0, (0.4, 2.0)])
def test_a_deviation_that_the_policy_cannot_have_is_refused(tmp_path, std):
    learner = {**SMALL["learner"], "initial_std": std}
    with pytest.raises(InputError, match=r"learner.initial_std is .* takes values from 0.01 to 1.6"):
        train(**(SMALL | {"learner": learner}), run_dir=str(tmp_path / "run"))


@pytest.mark.parametrize("settings", [{"learner": {"final_std": 0.1}}, {"learner": {"scale_rewards": True}}])
def test_settings_without_an_effect_are_refused(tmp_path, settings):
    with pytest.raises(InputError, match="has no use for it"):
        train(**(SMALL | settings), run_dir=str(tmp_path / "run"))
