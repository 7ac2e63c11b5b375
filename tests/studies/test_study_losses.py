"""Runs whose machine is lost, and the locks that such machines leave behind."""

import os
import subprocess
import sys

import pytest
from in_process import InProcess

from vlmsafe.errors import RunError
from vlmsafe.studies import execution
from vlmsafe.studies.execution import JOURNAL, execute
from vlmsafe.studies.launchers import Handle, Lost
from vlmsafe.studies.study_yaml import parse_study
from vlmsafe.training.files import DirectoryLock, break_lock, is_locked, lock_holder, process_name, read_rows

STUDY = """\
name: speeding
question: What is lost?
environments: [speeding]
seeds: [1]
total_steps: 800
settings: {steps_per_epoch: 400, learner.update_iters: 2}
arms:
  ppo-lag: {method: ppo-lag}
"""


class Gone(Handle):
    polled = True

    def __init__(self, process: str = "") -> None:
        self.process = process

    def poll(self):
        return Lost("the node is gone", self.process)

    def place(self) -> str:
        return "node-7"

    def stop(self, now: bool = False) -> None:
        pass


class LosesFirst(InProcess):
    """Loses so many commands before one gets through."""

    def __init__(self, losses: int, process: str = "") -> None:
        super().__init__()
        self.losses, self.process = losses, process

    def launch(self, command):
        if self.losses:
            self.losses -= 1
            return Gone(self.process)
        return super().launch(command)


def test_a_lost_run_is_started_again_and_the_journal_says_where_it_was(tmp_path):
    outcome = execute(parse_study(STUDY, ""), tmp_path / "runs", LosesFirst(2), restarts=2)
    assert outcome.done == ["speeding/ppo-lag/seed-1"]
    assert not outcome.failed
    rows = [(row["what"], row["node"]) for row in read_rows(tmp_path / "runs" / JOURNAL)]
    assert rows[:4] == [("began", "node-7"), ("lost", "node-7")] * 2
    assert [what for what, _ in rows[4:]] == ["began", "ended"]


def test_a_run_that_is_lost_again_and_again_is_given_up(tmp_path):
    outcome = execute(parse_study(STUDY, ""), tmp_path / "runs", LosesFirst(9), restarts=2)
    assert not outcome.done
    assert outcome.failed == {"speeding/ppo-lag/seed-1": "train: lost 3 times, the last time because the node is gone"}


@pytest.fixture
def stranger(tmp_path):
    """A process that holds the lock of a directory, as one on a machine that died would to all others."""
    folder = tmp_path / "runs" / "speeding" / "ppo-lag" / "seed-1"
    folder.mkdir(parents=True)
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom vlmsafe.training.files import DirectoryLock\n"
        f"with DirectoryLock(Path({str(folder)!r})):\n    print('held', flush=True)\n    time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield folder, process
    process.kill()
    process.wait()


def test_a_lock_is_broken_only_for_the_process_that_is_known_to_be_lost(stranger):
    folder, process = stranger
    assert lock_holder(folder) == process_name(process.pid)
    with pytest.raises(RunError, match=f"in use by another process \\(pid {process.pid}\\)"), DirectoryLock(folder):
        pass
    assert not break_lock(folder, f"{process.pid} elsewhere")
    assert is_locked(folder)
    assert break_lock(folder, process_name(process.pid))
    with DirectoryLock(folder):
        assert is_locked(folder)
        assert lock_holder(folder) == process_name(os.getpid())
    assert not break_lock(folder, process_name(os.getpid()))  # nobody holds it


def test_a_run_does_not_wait_for_ever_for_a_lock_that_a_lost_machine_left(stranger, tmp_path, monkeypatch):
    _, process = stranger
    monkeypatch.setattr(execution, "_STALE", 0.5)
    monkeypatch.setattr(execution, "_RECHECK", 0.2)
    # What is lost is the process that holds the lock: here the first command never began, so it is made to look so.
    monkeypatch.setattr(execution, "next_step", _locked_only_once_launched(execution.next_step))
    outcome = execute(parse_study(STUDY, ""), tmp_path / "runs", LosesFirst(1, process_name(process.pid)))
    assert not outcome.failed
    assert len(outcome.done) == 1
    rows = read_rows(tmp_path / "runs" / JOURNAL)
    assert [row["what"] for row in rows] == ["began", "lost", "unlocked", "began", "ended"]


def _locked_only_once_launched(real):
    calls = []

    def next_step(spec):
        calls.append(spec)
        return execution.Step("train") if len(calls) == 1 else real(spec)

    return next_step
