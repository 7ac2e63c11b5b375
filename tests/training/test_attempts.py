"""An epoch that fails whenever it draws the same numbers is repeated with others, and the record says so."""

import shutil
from pathlib import Path

import pytest

from vlmsafe import resume, train, verify
from vlmsafe.errors import Divergence, EnvironmentFailure, VlmsafeError
from vlmsafe.runs.checkpoint import path_of
from vlmsafe.runs.run import Run
from vlmsafe.training.start import failed_attempts

ENVS = {"SometimesRaises-v0": EnvironmentFailure, "SometimesHuge-v0": Divergence}


@pytest.fixture(autouse=True)
def broken_envs(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "end_to_end")


@pytest.mark.parametrize("env", ENVS)
def test_a_run_that_fails_again_and_again_goes_on(tmp_path, env):
    settings = {"env": f"gym:broken_envs:{env}", "total_steps": 800, "steps_per_epoch": 200, "quiet": True,
                "learner": {"update_iters": 1}, "checkpoint": {"every": 2, "keep": 9}}  # fmt: skip
    path, failures = tmp_path / "run", []
    for seed in range(20):  # a run whose first epoch fails by its environment is not kept
        try:
            train(**settings, seed=seed, run_dir=str(path))
        except ENVS[env] as error:
            failures = [error] if path.exists() else []
        if path.exists():
            break
    while Run.open(path).status() != "finished":
        assert len(failures) < 40
        try:
            resume(path, quiet=True)
        except ENVS[env] as error:
            failures.append(error)
    run = Run.open(path)
    events = [event for event in run.events() if event["event"] == "failed"]
    assert len(events) == len(failures) > 0
    attempts = {row["epoch"]: row.get("attempt", 0) for row in run.rows("epochs")}
    assert attempts == {epoch: failed_attempts(run).get(epoch, 0) for epoch in range(1, 5)}
    assert sum(attempts.values()) == len(failures)
    # A later interruption repeats the same draws, also those of an attempt that succeeded.
    cut = Run.open(shutil.copytree(path, tmp_path / "cut"))
    for epoch in (2, 4):
        path_of(cut.checkpoints, epoch).unlink()
    resume(cut.path, quiet=True)
    for record in ("epochs.jsonl", "episodes.jsonl"):
        assert (run.path / record).read_bytes() == (cut.path / record).read_bytes()
    result = verify(run, epochs=9)
    assert (result.differences, result.obstacle) == ((), None)


def test_other_failures_and_interruptions_are_repeated_as_they_were(tmp_path):
    settings = {"env": "gym:broken_envs:Walk-v0", "total_steps": 400, "steps_per_epoch": 200, "quiet": True,
                "learner": {"update_iters": 1}}  # fmt: skip
    run = train(**settings, run_dir=str(tmp_path / "run"))
    for event in ("interrupted", "failed"):
        run_events = run.path / "events.jsonl"
        run_events.write_text(run_events.read_text() + f'{{"event": "{event}", "reason": "the disk was full"}}\n')
    assert failed_attempts(run) == {}
    (run.path / "events.jsonl").write_text("not a row\n{}\n")
    assert failed_attempts(run) == {}


def test_rows_of_runs_without_failures_have_no_attempt(tmp_path):
    run = train(env="speeding", total_steps=200, steps_per_epoch=200, learner={"update_iters": 1}, quiet=True,
                run_dir=str(tmp_path / "run"))  # fmt: skip
    assert all("attempt" not in row for row in run.rows("epochs"))
    assert issubclass(Divergence, VlmsafeError)
