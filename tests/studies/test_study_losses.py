"""Runs whose machine is lost, the locks that such machines leave behind, and stores out of reach for a while."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from in_process import InProcess

from vlmsafe.errors import EXIT_FAILED, Interrupted, RunError
from vlmsafe.io.files import read_rows
from vlmsafe.io.interrupts import StopRequest
from vlmsafe.io.locks import DirectoryLock, break_lock, is_locked, lock_holder, process_name
from vlmsafe.studies import execute as execution
from vlmsafe.studies.execute import execute
from vlmsafe.studies.journal import JOURNAL
from vlmsafe.studies.launch.api import Handle, Lost
from vlmsafe.studies.remote import run_side, study_side
from vlmsafe.studies.remote.store import Store, Tree, Unreachable
from vlmsafe.studies.schema import parse_study

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
        "import sys, time\nfrom pathlib import Path\nfrom vlmsafe.io.locks import DirectoryLock\n"
        f"with DirectoryLock(Path({str(folder)!r})):\n    print('held', flush=True)\n    time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield folder, process
    process.kill()
    process.communicate()


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
        return execution.RunStep("train") if len(calls) == 1 else real(spec)

    return next_step


# -- a store that is out of reach for a while --


class AtStore(InProcess):
    """Does in this process what `run_side` does in one of its own."""

    def launch(self, command):
        url, run, _, *words = command.words[3:]
        with tempfile.TemporaryDirectory() as name:
            folder, configs, store = Path(name, "run", run), Path(name, "study"), Store(url)
            tree = store.tree(run)
            tree.claim("process")
            tree.fetch(folder)
            store.fetch_study(configs)
            places = {"@run": str(folder), "@config": str(configs / "configs" / f"{run}.yaml")}
            words = [places.get(word, word) for word in words]
            handle = super().launch(replace(command, words=("", "", "", *words)))
            tree.store(folder, "process")
            return handle


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "_RECHECK", 0.1)
    monkeypatch.setattr(study_side, "_AGAIN", 0.1)
    return Store(f"file://{tmp_path}/store")


def fails(monkeypatch, kind: type, name: str, numbers) -> None:
    """Let some calls of a method fail, counted from 0."""
    real, calls = getattr(kind, name), []

    def method(self, *arguments, **options):
        calls.append(name)
        if len(calls) - 1 in numbers:
            raise Unreachable("cannot reach s3://bucket: SlowDown")
        return real(self, *arguments, **options)

    monkeypatch.setattr(kind, name, method)


@pytest.mark.parametrize("numbers", [range(3), range(1, 4), range(2, 5)])
def test_a_store_that_does_not_take_the_journal_fails_no_run(store, tmp_path, monkeypatch, numbers):
    fails(monkeypatch, Store, "store_study", numbers)
    heard = []
    outcome = execute(parse_study(STUDY, ""), tmp_path / "runs", AtStore(), store=store, on_event=heard.append)
    assert (len(outcome.done), outcome.failed) == (1, {})
    told = [str(event) for event in heard if event.what == "waits"]
    assert told[:1] == ["study: copying waits: cannot reach s3://bucket: SlowDown"]
    assert len(told) <= 2  # once while it runs, once at the end
    assert "waits" not in {row["what"] for row in read_rows(tmp_path / "runs" / JOURNAL)}


def test_a_run_that_cannot_be_fetched_after_its_command_is_looked_at_once_it_can(store, tmp_path, monkeypatch):
    folder = tmp_path / "runs"
    study, launcher = parse_study(STUDY, ""), AtStore()
    armed = []

    def arm(event):
        if event.what == "began" and not armed:
            armed.append(1)
            fails(monkeypatch, Tree, "fetch", range(3))

    outcome = execute(study, folder, launcher, store=store, on_event=arm)
    assert (len(outcome.done), outcome.failed) == (1, {})
    assert len(launcher.launched) == 1
    assert [row["what"] for row in read_rows(folder / JOURNAL)] == ["began", "ended"]


def test_a_store_out_of_reach_does_not_hide_that_a_study_was_interrupted(store, tmp_path, monkeypatch):
    stop, heard = StopRequest(), []

    def interrupt(event):
        heard.append(event)
        if event.what == "began":
            fails(monkeypatch, Store, "store_study", range(1000))
            stop.reason = "SIGTERM"

    with pytest.raises(Interrupted, match="SIGTERM received"):
        execute(parse_study(STUDY, ""), tmp_path / "runs", AtStore(), store=store, stop=stop, on_event=interrupt)
    assert "waits" in {event.what for event in heard}


def test_the_store_knows_what_runs_while_it_runs(store, tmp_path):
    seen = []

    def look() -> None:
        there = tmp_path / "there"
        store.fetch_study(there)
        seen.append([row["what"] for row in read_rows(there / JOURNAL)])

    def began(event):
        if event.what == "began":
            time.sleep(0.1)  # the journal is copied no more often

    assert execute(parse_study(STUDY, ""), tmp_path / "runs", AtStore(), store=store, on_event=began, on_turn=look).done
    assert ["began"] in seen


def test_runs_that_only_the_folder_has_are_added_to_the_store(store, tmp_path):
    study, folder = parse_study(STUDY, ""), tmp_path / "runs"
    assert len(execute(study, folder, InProcess()).done) == 1
    launcher = AtStore()
    assert len(execute(study, folder, launcher, store=store).done) == 1
    assert launcher.launched == []
    assert "config.yaml" in store.tree("speeding/ppo-lag/seed-1").newest().files
    assert len(execute(study, tmp_path / "elsewhere", launcher, store=store).done) == 1
    assert launcher.launched == []


def test_a_copied_run_is_added_to_the_store_too_even_where_that_does_not_answer_at_once(store, tmp_path, monkeypatch):
    study = parse_study(STUDY, "")
    assert len(execute(study, tmp_path / "runs" / "first", InProcess()).done) == 1
    fails(monkeypatch, Tree, "claim", range(2))
    launcher = AtStore()
    outcome = execute(study, tmp_path / "runs" / "second", launcher, store=store)
    assert (len(outcome.done), outcome.failed, launcher.launched) == (1, {}, [])
    assert "config.yaml" in store.tree("speeding/ppo-lag/seed-1").newest().files


# -- the process beside a run that is kept at a URL --


@pytest.fixture
def beside(store, tmp_path, monkeypatch):
    """Its commands are Python here, in the run's folder, and its temporary folders those of the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(run_side, "_FIRST_PAUSE", 0.05)
    monkeypatch.setattr(run_side, "_PAUSE", 0.02)
    commands = []

    def start(words, output, environment, **options):
        commands.append(words[3:])
        return subprocess.Popen([sys.executable, "-c", code[0]], cwd=next(word for word in words if "/run/" in word))

    code = ["open('epochs.jsonl', 'w').write('1')"]
    monkeypatch.setattr(run_side, "start_process", start)
    monkeypatch.setattr(run_side, "make_directory", lambda path: (path / "seed-1").mkdir(parents=True, exist_ok=True))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield code, commands
    for number, handler in before.items():
        signal.signal(number, handler)


def left(tmp_path) -> list[Path]:
    return list((tmp_path / "tmp").iterdir())


def test_a_store_that_does_not_answer_at_first_or_at_the_end_is_tried_again(store, tmp_path, monkeypatch, beside):
    fails(monkeypatch, Tree, "claim", range(2))
    fails(monkeypatch, Tree, "store", range(2))
    assert run_side.main(store.url, "env/arm/seed-1", ["evaluate", "@run"]) == 0
    assert "epochs.jsonl" in store.tree("env/arm/seed-1").newest().files
    assert left(tmp_path) == []


def test_what_could_not_be_copied_stays_and_is_named(store, tmp_path, monkeypatch, beside, capsys):
    fails(monkeypatch, Tree, "store", range(1000))
    monkeypatch.setattr(run_side, "_LAST_COPY", 0.2)
    assert run_side.main(store.url, "env/arm/seed-1", ["evaluate", "@run"]) == EXIT_FAILED
    (scratch,) = left(tmp_path)
    folder = scratch / "run" / "env" / "arm" / "seed-1"
    said = capsys.readouterr().err
    assert f"the run could not be copied and stays in {folder}" in said
    assert said.count("SlowDown") == 2  # at the first try and at the end
    assert (folder / "epochs.jsonl").read_text() == "1"
    os.utime(scratch, (0, 0))
    run_side.remove_left_behind(tmp_path / "tmp")
    assert folder.exists()


def test_a_second_request_to_stop_ends_the_wait_for_the_store(store, tmp_path, monkeypatch):
    fails(monkeypatch, Tree, "store", range(1000))
    with pytest.raises(Unreachable):
        run_side._store_at_last(tmp_path, store.tree("run"), "me", tmp_path / "kept", [15, 15])
    assert (tmp_path / "kept").exists()


def test_folders_of_processes_that_were_killed_are_removed_and_no_others(tmp_path):
    names = ("vlmsafe-run-dead", "vlmsafe-run-alive", "vlmsafe-run-young", "other")
    dead, alive, _, other = folders = [tmp_path / name for name in names]
    for folder in folders:
        folder.mkdir()
    with DirectoryLock(alive):
        for folder in (dead, alive, other):
            os.utime(folder, (0, 0))
        run_side.remove_left_behind(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


def test_a_process_whose_run_was_taken_ends_its_command(store, tmp_path, monkeypatch, beside, capsys):
    code, _ = beside
    code[0] = "import time; open('pid', 'w').write(str(__import__('os').getpid())); time.sleep(20)"
    monkeypatch.setattr(run_side, "_EVERY", 0.5)
    pids, real = [], Tree.store

    def taken(self, folder, owner, *arguments):
        if (folder / "pid").exists():
            pids.append(int((folder / "pid").read_text()))
            self.claim("another")
        real(self, folder, owner, *arguments)

    monkeypatch.setattr(Tree, "store", taken)
    assert run_side.main(store.url, "env/arm/seed-1", ["evaluate", "@run"]) == EXIT_FAILED
    said = capsys.readouterr().err
    assert "worked on by another process now (another)" in said
    assert "will be tried again later" not in said
    assert left(tmp_path) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_a_run_that_was_begun_meanwhile_is_resumed_instead_of_begun_again(store, tmp_path, beside):
    _, commands = beside
    begun = tmp_path / "begun"
    begun.mkdir()
    words = ["train", "--config", "@config", "--quiet", "--signal.service", "unix:/x", "--run-dir", "@run"]
    assert run_side._resumed_if_begun(words, begun) == words
    (begun / "config.yaml").touch()
    expected = ["train", "--resume", "@run", "--quiet", "--signal.service", "unix:/x"]
    assert run_side._resumed_if_begun(words, begun) == expected
    assert run_side._resumed_if_begun(["evaluate", "@run"], begun) == ["evaluate", "@run"]
    store.tree("env/arm/seed-1").store(begun, "other")
    assert run_side.main(store.url, "env/arm/seed-1", ["train", "--config", "@config", "--run-dir", "@run"]) == 0
    assert commands[0][:2] == ("train", "--resume")
