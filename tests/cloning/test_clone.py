"""A clone is a run like any other: made exactly again, evaluated, started from, and never left half-written."""

import inspect
import os
import shutil
import signal

import numpy as np
import polars as pl
import pytest
from in_process import call

from vlmsafe import audit, clone, evaluate, report, resume, train, verify
from vlmsafe.cli.clone import CloneCommand
from vlmsafe.errors import EnvironmentFailure, InputError, Interrupted, RunError
from vlmsafe.numerics.normaliser import Normaliser
from vlmsafe.runs.run import Run

SMALL = {"steps": 4_500, "passes": 40, "hidden": (16, 16)}  # two tasks
START = {"env": "braking", "total_steps": 800, "steps_per_epoch": 400, "quiet": True, "learner": {"hidden": (16, 16)}}


@pytest.fixture(scope="module")
def made(made_once):
    """A clone that tests only read, or copy."""
    return Run.open(made_once("clone", lambda folder: clone("braking", **SMALL, run_dir=folder / "run")) / "run")


def networks(run, epoch=None):
    return run.checkpoint(epoch)[0].arrays["networks"]


def test_a_clone_drives(made, tmp_path):
    run = Run.open(shutil.copytree(made.path, tmp_path / "run"))
    table = evaluate(run, episodes=4, processes=1)
    assert table.select(pl.col("distance").min()).item() > 400.0
    assert table.select(pl.col("cost").mean()).item() < run.config.budget
    assert run.status() == "finished"


def test_it_can_be_made_exactly_again_with_another_number_of_processes(made, tmp_path):
    again = clone("braking", **SMALL, processes=1, run_dir=tmp_path / "again")
    assert (again.path / "epochs.jsonl").read_bytes() == (made.path / "epochs.jsonl").read_bytes()
    np.testing.assert_array_equal(networks(again), networks(made))
    other = clone("braking", **SMALL, seed=1, run_dir=tmp_path / "other")
    assert (networks(other) != networks(made)).any()


def test_a_round_adds_the_clones_own_states(made, tmp_path):
    run = clone("braking", **SMALL, rounds=1, run_dir=tmp_path / "run")
    first, second = run.rows("epochs")
    assert first["digest"] == made.rows("epochs")[0]["digest"]
    assert (second["steps"], run.config.epochs, run.epochs_done()) == (9_000, 2, 2)
    assert run.checkpoint()[0].arrays["normaliser.count"] == 9_000
    assert (networks(run) != networks(made)).any()


def test_a_clone_keeps_the_floor_that_it_was_fitted_with(made, tmp_path):
    run = clone("braking", **SMALL, observation_floor=0.5, run_dir=tmp_path / "run")
    assert run.config.observation_floor == 0.5
    normaliser, default = (Normaliser.from_arrays(one.checkpoint()[0].arrays) for one in (run, made))
    np.testing.assert_array_equal(normaliser.mean, default.mean)
    state = (default.mean + 0.1).astype(np.float32)
    assert np.abs(normaliser.normalise(state)).max() < 0.21
    assert np.abs(default.normalise(state)).max() > 0.25


def test_its_row_tells_what_was_recorded_and_claims_no_training(made):
    (row,) = made.rows("epochs")
    assert row["recorded_episodes"] > 0
    assert row["recorded_return"] > 0.0
    assert row["policy_loss"] == row["imitation_error"] ** 2
    assert row["env_return"] is row["episode_cost"] is row["kl"] is None
    assert [event["event"] for event in made.events()] == ["cloned"]
    assert (made.config.method, made.config.learner.update_iters) == ("clone", 40)


def test_a_run_that_starts_from_it_trains_and_resumes_exactly(made, tmp_path):
    settings = {**START, "init_from": str(made.path), "init_std": 0.1}
    whole, cut = (train(**settings, run_dir=str(tmp_path / name)) for name in ("whole", "cut"))
    np.testing.assert_array_equal(networks(whole, 0)[0][:-1], networks(made)[0][:-1])
    for epoch in (1, 2):
        (cut.checkpoints / f"epoch-{epoch:05d}.safetensors").unlink()
    resume(cut.path, quiet=True)
    assert (cut.path / "epochs.jsonl").read_bytes() == (whole.path / "epochs.jsonl").read_bytes()
    with pytest.raises(InputError, match="has no critics; drop it"):
        train(**settings, init_critics=True, run_dir=str(tmp_path / "critics"))


def test_audits_reports_and_lists_open_it(made, tmp_path):
    evaluate(shutil.copytree(made.path, tmp_path / "runs" / "clone" / "seed-0"), episodes=1)
    assert not audit(tmp_path / "runs").findings
    report(tmp_path / "runs", tmp_path / "report.html")
    listed = call("runs", tmp_path / "runs").stdout
    assert "clone" in listed
    assert "finished" in listed
    assert call("published", "compare", tmp_path / "runs").returncode == 0


def test_it_cannot_be_continued_verified_or_trained_as_a_method(made, tmp_path):
    with pytest.raises(RunError, match=r"is a clone .* train it on with: vlmsafe train --env braking --init-from"):
        resume(made.path, total_steps=9_000)
    with pytest.raises(InputError, match=r"is a clone .* no training to replay"):
        verify(made)
    with pytest.raises(InputError, match="'clone' is not trained: make one with vlmsafe clone braking"):
        train(env="braking", method="clone", run_dir=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_an_own_environment_with_a_scripted_driver_is_cloned(tmp_path):
    run = clone("gym:driven_envs:Driven-v0", steps=1_500, passes=200, hidden=(16,), run_dir=tmp_path / "run")
    assert run.rows("epochs")[-1]["imitation_error"] < 0.05


@pytest.mark.parametrize(
    ("env", "message"),
    [("speeding", "no scripted driver to clone"), ("gym:driven_envs:Undriven-v0", "no scripted driver to clone"),
     ("gym:driven_envs:Confused-v0", "expert\\(\\) gave the action")],
)  # fmt: skip
def test_an_environment_that_cannot_be_cloned_is_named_and_leaves_nothing(env, message, tmp_path):
    with pytest.raises(EnvironmentFailure, match=message):
        clone(env, steps=100, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"passes": 0}, {"rounds": -1}, {"processes": 0}])
def test_a_number_that_cannot_be_is_named(wrong, tmp_path):
    ((name, value),) = wrong.items()
    with pytest.raises(InputError, match=f"{name} is {value}; expected"):
        clone("braking", **wrong, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_is_never_overwritten(made):
    before = {path: path.read_bytes() for path in made.path.rglob("*") if path.is_file()}
    answer = call("clone", "braking", "--steps", "100", "--run-dir", made.path)
    assert answer.returncode == 2
    assert "already holds a run; choose another --run-dir" in " ".join(answer.stderr.split())
    assert {path: path.read_bytes() for path in made.path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("stage", ["record the scripted driver", "fit the clone"])
def test_an_interruption_leaves_nothing(stage, tmp_path):
    def interrupt(now, done, total):
        if now == stage and done == total:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="stopped by SIGTERM before the clone was ready; nothing was written"):
        clone("braking", **{**SMALL, "steps": 300}, run_dir=tmp_path / "run", on_progress=interrupt)
    assert not (tmp_path / "run").exists()


def test_what_a_killed_process_left_is_replaced(made, tmp_path):
    left = shutil.copytree(made.path, tmp_path / "run")
    (left / "config.yaml").unlink()  # it is written last
    run = clone("braking", **SMALL, run_dir=left)
    assert (run.path / "epochs.jsonl").read_bytes() == (made.path / "epochs.jsonl").read_bytes()


def test_the_command_makes_one_and_says_how_to_evaluate_it(tmp_path):
    words = ("--steps", "300", "--passes", "2", "--hidden", "8", "--seed", "3", "--processes", "1")
    answer = call("clone", "braking", *words, "--run-dir", tmp_path / "run")
    assert answer.returncode == 0, answer.stderr
    assert f"vlmsafe evaluate {tmp_path / 'run'}" in answer.stdout
    config = Run.open(tmp_path / "run").config
    assert (config.seed, config.total_steps, config.learner.hidden, config.learner.update_iters) == (3, 300, (8,), 2)


def test_the_command_has_the_functions_defaults():
    own, function = CloneCommand("braking"), inspect.signature(clone).parameters
    shared = [name for name in function if hasattr(own, name) and name != "env"]
    assert {name: getattr(own, name) for name in shared} == {name: function[name].default for name in shared}
    assert len(shared) == 11
