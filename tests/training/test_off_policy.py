"""Runs of a learner that keeps every step: they resume exactly, are verified, evaluated, continued and refused."""

import numpy as np
import pytest

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


def test_both_ends_of_a_run_are_verified(tmp_path):
    run = train(**SMALL, run_dir=str(tmp_path / "run"))
    found = verify(run.path, epochs=1)
    assert found.outcome == "equal"
    assert [(one.start, one.last) for one in found.replays] == [(0, 1), (3, 4)]


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


@pytest.mark.parametrize("settings", [{"learner": {"final_std": 0.1}}, {"learner": {"scale_rewards": True}}])
def test_settings_without_an_effect_are_refused(tmp_path, settings):
    with pytest.raises(InputError, match="has no use for it"):
        train(**(SMALL | settings), run_dir=str(tmp_path / "run"))
