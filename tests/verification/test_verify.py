"""A replay finds what was changed in a run, names it, and changes nothing itself."""

import json
import os
import shutil
import signal
import sys
import tempfile

import numpy as np
import pytest
import yaml
from verified_runs import change_checkpoint, edit_rows, make_run, tree_digest, without_digests

import vlmsafe
from vlmsafe import kernels
from vlmsafe.errors import EXIT_ERRORS, EXIT_WARNINGS, InputError
from vlmsafe.io.locks import DirectoryLock
from vlmsafe.runs.checkpoint import load_checkpoint, path_of
from vlmsafe.runs.digest import record_digest
from vlmsafe.runs.run import Run


@pytest.fixture
def run(made_once, tmp_path):
    """A finished run that a test may change."""
    return Run.open(shutil.copytree(made_once("verified-run", make_run), tmp_path / "run"))


def set_and_digest(name, epoch, value):
    """Change a quantity of an epoch's row, and the digest of the row with it."""

    def change(rows):
        row = rows[epoch - 1]
        row[name] = value
        row["digest"]["row"] = record_digest(row, [])["row"]

    return change


def test_an_intact_run_is_equal_at_both_ends_and_stays_untouched(run):
    before = tree_digest(run.path)
    result = vlmsafe.verify(run.path)
    assert (result.outcome, result.exit_code, result.differences) == ("equal", 0, ())
    assert [(one.start, one.last) for one in result.replays] == [(0, 2), (4, 6)]
    assert "not replayed: epochs 3 to 4" in " ".join(result.notes)
    assert not any(one.differs for one in result.surroundings)
    assert tree_digest(run.path) == before


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [(0, []), (1, [(0, 1), (5, 6)]), (3, [(0, 3), (4, 6)]), (4, [(0, 4), (4, 6)]), (9, [(0, 6)])],
)
def test_the_number_of_epochs_holds_at_both_ends_as_far_as_checkpoints_are_kept(run, epochs, expected):
    result = vlmsafe.verify(run, epochs=epochs)
    assert [(one.start, one.last) for one in result.replays] == expected
    assert result.outcome == "equal"


def test_the_first_quantity_that_differs_is_named_with_both_values(run):
    true = run.rows("epochs")[1]["episode_cost"]
    edit_rows(run, "epochs", set_and_digest("episode_cost", 2, 31.5))
    before = tree_digest(run.path)
    result = vlmsafe.verify(run)
    assert (result.outcome, result.exit_code) == ("different", EXIT_ERRORS)
    first = result.differences[0]
    assert str(first).startswith(f"epoch 2, episode_cost: 31.5 in the run, {true} in the replay")
    assert "the row was changed and not the training" in str(first)
    assert (first.in_run, first.in_replay) == (31.5, true)
    assert [(one.start, one.last) for one in result.replays] == [(0, 2), (4, 6)]  # the state is equal: it goes on
    assert tree_digest(run.path) == before


def test_a_column_of_episodes_that_only_one_side_has_is_said_not_to_be_compared(run):
    without_digests(run)
    edit_rows(run, "episodes", lambda rows: [row.pop("cost") for row in rows])
    result = vlmsafe.verify(run, epochs=1)
    assert result.outcome == "equal"
    assert "only one of the two versions records it: cost of episodes" in " ".join(result.notes)


def test_a_quantity_of_the_last_epoch_that_differs_is_found_from_a_checkpoint(run):
    edit_rows(run, "epochs", set_and_digest("kl", 6, 0.5))
    (difference,) = vlmsafe.verify(run).differences
    assert (difference.epoch, difference.quantity, difference.in_run) == (6, "kl", 0.5)


def test_an_episode_that_differs_is_named(run):
    def change(rows):
        rows[0]["cost"] += 2.0

    cost = run.rows("episodes")[0]["cost"]
    edit_rows(run, "episodes", change)
    first, *_ = vlmsafe.verify(run, epochs=1).differences
    assert (first.epoch, first.quantity, first.in_run, first.in_replay) == (1, "episodes", cost + 2.0, cost)


def test_a_state_that_differs_while_all_figures_are_equal_is_named_by_its_part(run):
    def change(rows):
        rows[0]["digest"]["optimiser"] = "0" * 16

    edit_rows(run, "epochs", change)
    result = vlmsafe.verify(run)
    assert str(result.differences[0]).startswith("epoch 1, state: all figures are equal, but the digests of optimiser")
    assert [(one.start, one.last) for one in result.replays] == [(0, 1), (4, 6)]  # later epochs would differ too


def test_a_run_with_another_history_differs_from_its_replay(run):
    """As if the last epochs had been computed by other code: rows, digests and checkpoints agree with each other."""
    networks = load_checkpoint(path_of(run.checkpoints, 6)).arrays["networks"]
    change_checkpoint(run, 6, {"networks": networks + np.float32(1e-6)})
    digest = load_checkpoint(path_of(run.checkpoints, 6)).digest()

    def change(rows):
        rows[5]["digest"] |= digest

    edit_rows(run, "epochs", change)
    (difference,) = vlmsafe.verify(run).differences
    assert (difference.epoch, difference.quantity) == (6, "state")
    assert "networks" in difference.text


def test_a_changed_checkpoint_is_found_and_not_replayed_from(run):
    change_checkpoint(run, 4, {"window": np.zeros((3, 4))})
    before = tree_digest(run.path)
    result = vlmsafe.verify(run)
    assert [(one.epoch, one.quantity) for one in result.differences] == [(4, "checkpoint")]
    assert [(one.start, one.last) for one in result.replays] == [(0, 2), (5, 6)]
    assert result.checkpoints == (5, 6)
    assert tree_digest(run.path) == before


def test_another_version_of_a_package_is_named_and_the_run_is_replayed(run):
    config = run.path / "config.yaml"
    document = yaml.safe_load(config.read_text())
    document["recorded"]["packages"]["numpy"] = "1.26.4"
    document["recorded"]["processor"] = "another processor"
    config.write_text(yaml.safe_dump(document))
    result = vlmsafe.verify(run)
    assert result.outcome == "equal"
    other = {one.name: one.in_run for one in result.surroundings if one.differs}
    assert other == {"numpy": "1.26.4", "processor": "another processor"}
    assert json.loads(json.dumps(result.to_dict()))["outcome"] == "equal"


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ["baseline", "native"])
def test_a_run_is_replayed_with_its_own_kernels(tmp_path, chosen):
    seen = []
    run = make_run(tmp_path / "run", kernels=chosen)
    result = vlmsafe.verify(run, epochs=1, on_steps=lambda done, total: seen.append(done))
    (surrounding,) = [one for one in result.surroundings if one.name == "kernels"]
    expected = "native" if kernels.unavailable() else chosen
    assert (result.outcome, surrounding.in_run, surrounding.here) == ("equal", expected, expected)
    assert seen[-1] == 400


def test_an_interrupted_and_resumed_run_is_equal_and_names_what_it_was_resumed_with(run):
    path_of(run.checkpoints, 6).unlink()
    vlmsafe.resume(run.path, quiet=True)

    def change(rows):
        (resumed,) = [row for row in rows if row["event"] == "resumed"]
        resumed["python"] = "3.10.0"

    edit_rows(run, "events", change)
    result = vlmsafe.verify(run)
    assert result.outcome == "equal"
    (python,) = [one for one in result.surroundings if one.name == "python"]
    assert python.in_run == f"{python.here}, then 3.10.0"


def test_an_unfinished_run_is_verified_as_far_as_it_goes(run):
    for name in ("epochs", "episodes", "timing"):
        edit_rows(run, name, lambda rows: rows.__setitem__(slice(None), [row for row in rows if row["epoch"] < 6]))
    edit_rows(run, "events", lambda rows: rows.pop())
    path_of(run.checkpoints, 6).unlink()
    result = vlmsafe.verify(run)
    assert (result.outcome, result.epochs, result.planned) == ("equal", 5, 6)
    assert "the run is stopped early, with 5 of its 6 epochs" in " ".join(result.notes)


def test_a_run_without_digests_is_compared_by_its_figures_and_kept_checkpoints(run):
    without_digests(run)
    assert vlmsafe.verify(run).outcome == "equal"
    networks = load_checkpoint(path_of(run.checkpoints, 5)).arrays["networks"]
    change_checkpoint(run, 5, {"networks": networks + np.float32(1e-6)})
    (difference,) = vlmsafe.verify(run).differences
    assert (difference.epoch, difference.quantity) == (5, "state")


def test_a_run_without_checkpoints_is_replayed_from_its_seed_alone(run):
    for path in run.checkpoints.iterdir():
        path.unlink()
    result = vlmsafe.verify(run)
    assert (result.outcome, [(one.start, one.last) for one in result.replays]) == ("equal", [(0, 2)])
    assert "no checkpoint is kept" in " ".join(result.notes)


@pytest.mark.parametrize("method", ["ppo-lag-rnd", "vlm-ppo-lag-conf-calibrated"])
def test_a_run_with_a_scorer_that_learns_or_is_calibrated_is_equal(tmp_path, method):
    signal = {} if method == "ppo-lag-rnd" else {"scorer": "oracle", "calibration": {"frames": 40}}
    size = {"total_steps": 1600, "steps_per_epoch": 400, "num_envs": 2}
    run = make_run(tmp_path / "run", method=method, signal=signal, env="braking", **size)
    result = vlmsafe.verify(run, epochs=1)
    assert result.outcome == "equal", result.summary
    assert "signal" in run.rows("epochs")[0]["digest"]
    assert not any(one.differs for one in result.surroundings + vlmsafe.verify(run, epochs=0).surroundings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "needs"),
    [
        ("formula-one-l0", "mujoco"),
        ("bullet-car-reach", "pybullet"),
        pytest.param("metadrive-easy", "metadrive", marks=pytest.mark.soak),
    ],
)
def test_a_run_in_a_simulator_is_equal(tmp_path, env, needs):
    pytest.importorskip(needs)
    result = vlmsafe.verify(make_run(tmp_path / "run", env=env, total_steps=60, steps_per_epoch=60))
    assert (result.outcome, len(result.replays)) == ("equal", 1), result.summary


def test_a_scorer_that_cannot_be_loaded_here_is_said_in_one_line(tmp_path, monkeypatch):
    scorer = "python:frame_scorer:FrameScorer"
    run = make_run(tmp_path / "run", method="vlm-ppo-lag", signal={"scorer": scorer, "prompts": "metadrive"})
    monkeypatch.setitem(sys.modules, "frame_scorer", None)  # as if its module were not there
    result = vlmsafe.verify(run)
    assert (result.outcome, result.exit_code, result.replays) == ("not replayed", EXIT_WARNINGS, ())
    assert "epochs 1 to 2 from the seed could not be replayed here" in result.summary
    assert "put the folder of its module on PYTHONPATH" in result.summary
    assert "\n" not in result.summary


def test_a_folder_that_is_no_run_or_a_negative_number_is_refused(tmp_path, run):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"not a run directory: it has no config\.yaml"):
        vlmsafe.verify(tmp_path / "empty")
    with pytest.raises(InputError, match="expected 0 or more"):
        vlmsafe.verify(run, epochs=-1)


def test_a_run_that_is_training_can_be_verified(run):
    with DirectoryLock(run.path):
        before = tree_digest(run.path)
        assert vlmsafe.verify(Run.open(run.path), epochs=1).outcome == "equal"
        assert tree_digest(run.path) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_replay_and_leaves_nothing_behind(run, tmp_path, monkeypatch, number):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = tree_digest(run.path)
    with pytest.raises(KeyboardInterrupt):
        vlmsafe.verify(run, on_steps=lambda done, total: os.kill(os.getpid(), number))
    assert list(temporary.iterdir()) == []
    assert tree_digest(run.path) == before


def test_progress_counts_the_steps_of_both_replays(run):
    seen = []
    vlmsafe.verify(run, epochs=1, on_steps=lambda done, total: seen.append((done, total)))
    assert {total for _, total in seen} == {400}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (400, 400)
