"""A trace that ends too early keeps what it has done, loses nothing of the old trace, and mixes nothing in."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from frame_scorer import FrameScorer

from vlmsafe import trace, train
from vlmsafe.errors import RunError
from vlmsafe.runs.layout import about_path, frames_path
from vlmsafe.runs.run import Run
from vlmsafe.runs.traces import open_trace, write_trace
from vlmsafe.signals.prompts import PromptSet


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(env="speeding", total_steps=800, steps_per_epoch=400, learner={"update_iters": 2}, quiet=True,
                 run_dir=str(tmp_path_factory.mktemp("runs") / "speeding"))  # fmt: skip


@pytest.fixture
def run(trained, tmp_path):
    shutil.copytree(trained.path, tmp_path / "run")
    return Run.open(tmp_path / "run")


class Stopped(KeyboardInterrupt):
    pass


def interrupt(run, after, scorers="oracle", **options):
    """Stop a trace once so many episodes are recorded."""

    def stop(done):
        if done >= after:
            raise Stopped

    with pytest.raises(Stopped):
        trace(run, scorers, processes=1, write=True, on_episode=stop, on_note=lambda note: None, **options)


def kept(run):
    return sorted(run.traces.glob("held-out.partial-*/*[0-9].parquet"))


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("scorers", ["oracle", "rnd", ["embedded", "noise"]])
def test_an_interrupted_trace_goes_on_and_equals_an_uninterrupted_one(run, tmp_path, scorers):
    shutil.copytree(run.path, tmp_path / "whole")
    options = {"episodes": 5, "every": 4, "facts": True, "frames": True}
    prompts = {"prompts": "metadrive"} if "embedded" in scorers else {}
    trace(tmp_path / "whole", scorers, write=True, **options, **prompts)
    interrupt(run, 3, scorers, **options, **prompts)
    assert 2 <= len(kept(run)) <= 3
    assert not (run.traces / "held-out.parquet").exists()
    progress, notes = [], []
    table = trace(run, scorers, write=True, on_episode=progress.append, on_note=notes.append, **options, **prompts)
    assert progress[0] >= 2
    assert f"{progress[0]} of 5 episodes are already done" in notes
    assert content(run.traces) == content(tmp_path / "whole" / "traces")
    assert table.equals(open_trace(run.path).steps)
    assert len(open_trace(run.path).pictures()) == table["scored"].sum()
    assert not kept(run)


def test_the_old_trace_stays_whole_until_the_new_one_is(run):
    trace(run, "oracle", episodes=3, write=True, frames=True)
    before = content(run.traces)
    interrupt(run, 2, "noise", episodes=4)
    assert content(run.traces) == before
    assert trace(run, "noise", episodes=4, write=True, on_note=print).equals(open_trace(run.path).steps)
    assert not frames_path(run.traces / "held-out.parquet").exists()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("frames", [True, False])
@pytest.mark.parametrize("earlier", [True, False])
def test_a_trace_that_is_killed_while_it_is_written_is_never_lost_or_mixed(run, tmp_path, monkeypatch, frames, earlier):
    """Killed at each step to the disk in turn. The table that is there fits the files next to it."""
    if earlier:
        trace(run, "noise", episodes=2, write=True, frames=True, every=5)
    path = run.traces / "held-out.parquet"
    old = open_trace(run.path).steps if earlier else None
    new = trace(run, "oracle", episodes=3)
    album = new.filter("scored").select("episode", "step", picture=pl.lit(b"x")) if frames else None
    real = {name: getattr(Path, name) for name in ("replace", "unlink", "open")}

    def killed_at(number):
        count = 0

        def step(name):
            def method(self, *arguments, **options):
                nonlocal count
                count += 1
                if count == number:
                    raise Killed
                return real[name](self, *arguments, **options)

            return method

        return {name: step(name) for name in real}

    seen = []
    for number in range(1, 20):
        folder = tmp_path / f"killed-{number}"
        shutil.copytree(run.path, folder)
        table = folder / "traces" / path.name
        table.parent.mkdir(exist_ok=True)
        with monkeypatch.context() as patch:
            for name, method in killed_at(number).items():
                patch.setattr(Path, name, method)
            try:
                write_trace(table, new, {"scorers": [], "every": 1}, album)
                finished = True
            except Killed:
                finished = False
        if earlier or table.exists():
            found = open_trace(folder)
            assert found.steps.equals(new) or found.steps.equals(old)
            seen.append(found.steps.equals(new))
            if about_path(table).exists():
                assert (found.about["every"] == 1) == found.steps.equals(new)
            if frames_path(table).exists():
                found.pictures()
        if finished:
            break
    assert finished
    assert number > 4
    assert seen == sorted(seen)
    assert seen[-1]
    assert frames_path(table).exists() == frames


def test_other_scorers_prompts_or_settings_are_not_mixed_in(run):
    interrupt(run, 2, episodes=4)
    for scorer, options in (
        ("noise", {}),
        ("oracle", {"every": 2}),
        ("oracle", {"facts": True}),
        ("oracle", {"epoch": 1}),
    ):
        progress, notes = [], []
        trace(run, scorer, episodes=2, write=True, on_episode=progress.append, on_note=notes.append, **options)
        assert progress[0] == 0
        if "epoch" not in options:
            assert any("holds episodes of another checkpoint, setting or version" in note for note in notes)
    assert len(kept(run)) == 2


def test_scorers_that_are_passed_and_not_named_leave_nothing_behind(run):
    scorer = FrameScorer(PromptSet(("a",), ("b",)))
    interrupt(run, 2, scorer, episodes=4)
    assert list(run.traces.iterdir()) == []
    assert len(trace(run, scorer, episodes=1, write=True)) == 20


def test_a_damaged_file_is_named(run):
    interrupt(run, 2, episodes=3)
    kept(run)[0].write_bytes(b"rubbish")
    with pytest.raises(RunError, match=r"00000-00000\.parquet is damaged: .*; remove .*, and its episodes are run"):
        trace(run, "oracle", episodes=3, write=True)


def test_a_trace_that_is_not_written_leaves_no_folder(run):
    trace(run, "oracle", episodes=2)
    assert not run.traces.exists() or not list(run.traces.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_command_that_is_killed_goes_on_when_it_is_given_again(run, tmp_path, how):
    shutil.copytree(run.path, tmp_path / "whole")
    words = ["trace", run.path, "--episodes", 60, "--scorer", "oracle", "--processes", 2]
    command = [sys.executable, "-m", "vlmsafe", *map(str, words)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        # A suite that runs in the background of a shell ignores Ctrl-C, and what it starts would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 600.0
    while len(kept(run)) < 3:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, how)
    _, said = process.communicate()
    assert ("finished episodes are kept; the same command goes on" in " ".join(said.split())) == (how == signal.SIGINT)
    assert 3 <= len(kept(run)) < 60
    assert not (run.traces / "held-out.parquet").exists()
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "of 60 episodes are already done" in " ".join(again.stderr.split())
    table = trace(tmp_path / "whole", "oracle", episodes=60)
    assert pl.read_parquet(run.traces / "held-out.parquet").equals(table)
    assert sorted(path.name for path in run.traces.iterdir()) == ["held-out.json", "held-out.parquet"]
