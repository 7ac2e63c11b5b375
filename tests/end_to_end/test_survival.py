"""A run survives being killed, stopped, started twice and damaged."""

import json
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from in_process import call
from processes import start_vlmsafe, vlmsafe

from vlmsafe.errors import EXIT_FAILED, EXIT_INTERRUPTED
from vlmsafe.runs.checkpoint import load_checkpoint, path_of
from vlmsafe.runs.run import Run

SPEEDING = ("--env", "speeding", "--seed", "7", "--learner.update-iters", "2", "--quiet")
RECORDS = ("epochs.jsonl", "episodes.jsonl")


def rows(run: Path) -> int:
    file = run / "epochs.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_for(condition, process, seconds=600.0):
    """Wait until the condition holds while the process lives."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.01)


def assert_equal_runs(one: Path, other: Path) -> None:
    """Parameters, optimiser, multiplier, normaliser and records are the same bit for bit."""
    for record in RECORDS:
        assert (one / record).read_bytes() == (other / record).read_bytes(), record
    epochs = Run.open(one).config.epochs
    a, b = (load_checkpoint(path_of(run / "checkpoints", epochs)) for run in (one, other))
    assert a.values["multiplier"] == b.values["multiplier"]
    assert a.arrays.keys() == b.arrays.keys()
    for name, array in a.arrays.items():
        np.testing.assert_array_equal(array, b.arrays[name], err_msg=name)


def test_run_killed_ten_times_equals_uninterrupted_run(tmp_path):
    size = (*SPEEDING, "--total-steps", "60000", "--steps-per-epoch", "400", "--num-envs", "2")
    assert vlmsafe("train", *size, "--run-dir", tmp_path / "whole").returncode == 0
    moments, killed = random.Random(0), tmp_path / "killed"
    for kill in range(10):
        arguments = ("--resume", killed, "--quiet") if kill else (*size, "--run-dir", killed)
        process = start_vlmsafe("train", *arguments)
        until = rows(killed) + moments.randint(0, 5)
        wait_for(lambda until=until: (killed / "config.yaml").exists() and rows(killed) >= until, process)
        time.sleep(moments.uniform(0.0, 0.25))
        process.kill()
        process.wait()
    assert Run.open(killed).status() in ("stopped early", "untrained")
    final = vlmsafe("train", "--resume", killed)
    assert final.returncode == 0, final.stderr
    assert_equal_runs(tmp_path / "whole", killed)
    assert [row["epoch"] for row in Run.open(killed).rows("epochs")] == list(range(1, 151))
    assert [row["epoch"] for row in Run.open(killed).rows("timing")] == list(range(1, 151))


def test_metadrive_run_killed_and_resumed_equals_uninterrupted_run(tmp_path):
    pytest.importorskip("metadrive")
    size = ("--env", "metadrive-easy", "--seed", "3", "--total-steps", "900", "--steps-per-epoch", "300",
            "--num-envs", "2", "--learner.update-iters", "2", "--quiet")  # fmt: skip
    assert vlmsafe("train", *size, "--run-dir", tmp_path / "whole").returncode == 0
    killed = tmp_path / "killed"
    for until in (0, 1, 2):
        process = start_vlmsafe("train", *(("--resume", killed, "--quiet") if until else (*size, "--run-dir", killed)))
        wait_for(lambda until=until: (killed / "checkpoints").exists() and rows(killed) >= until, process)
        time.sleep(0.7)
        process.kill()
        process.wait()
    assert vlmsafe("train", "--resume", killed).returncode == 0
    assert_equal_runs(tmp_path / "whole", killed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_and_exits_with_its_own_code(tmp_path, number):
    run = tmp_path / "run"
    process = start_vlmsafe(
        "train", *SPEEDING, "--total-steps", "400000", "--steps-per-epoch", "400", "--checkpoint.every", "1000",
        "--run-dir", run,
    )  # fmt: skip
    wait_for(lambda: rows(run) >= 3, process)
    process.send_signal(number)
    assert process.wait(timeout=600.0) == EXIT_INTERRUPTED
    message = process.stderr.read()
    assert signal.Signals(number).name in message
    assert f"--resume {run}" in message
    assert "Traceback" not in message
    # With a checkpoint due only every 1000 epochs, this one was written because of the signal.
    stopped = Run.open(run)
    assert stopped.epochs_done() == len(stopped.rows("epochs")) >= 3
    assert stopped.status() == "stopped early"
    assert stopped.events()[-1]["event"] == "interrupted"


def test_second_process_on_a_run_directory_is_refused(tmp_path):
    run = tmp_path / "run"
    process = start_vlmsafe("train", *SPEEDING, "--total-steps", "400000", "--steps-per-epoch", "400", "--run-dir", run)
    try:
        wait_for(lambda: rows(run) >= 1, process)
        assert Run.open(run).status() == "running"
        config = (run / "config.yaml").read_bytes()
        for arguments in (("--resume", run), ("--env", "speeding", "--seed", "8", "--run-dir", run)):
            second = call("train", *arguments)
            assert second.returncode == EXIT_FAILED
            assert "in use by another process" in second.stderr
            assert str(process.pid) in second.stderr
            assert "Traceback" not in second.stderr
        assert (run / "config.yaml").read_bytes() == config
    finally:
        process.kill()
        process.wait()
    assert Run.open(run).status() == "stopped early"


@pytest.mark.parametrize("damage", ["truncated", "bit flipped", "empty"])
def test_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path, damage):
    size = (*SPEEDING, "--total-steps", "2000", "--steps-per-epoch", "400")
    assert call("train", *size, "--run-dir", tmp_path / "whole").returncode == 0
    run = shutil.copytree(tmp_path / "whole", tmp_path / "damaged")
    newest = path_of(run / "checkpoints", 5)
    content = bytearray(newest.read_bytes())
    if damage == "truncated":
        del content[len(content) // 2 :]
    elif damage == "bit flipped":
        content[-100] ^= 1
    else:
        content.clear()
    newest.write_bytes(content)
    answer = call("train", "--resume", run, "--no-quiet")
    assert answer.returncode == 0, answer.stderr
    assert "epoch-00005.safetensors is damaged" in answer.stderr
    assert "going back to epoch 4" in answer.stderr
    assert_equal_runs(tmp_path / "whole", run)


def test_unfinished_run_is_never_mistaken_for_a_finished_one(tmp_path, monkeypatch):
    run = tmp_path / "run"
    process = start_vlmsafe("train", *SPEEDING, "--total-steps", "400000", "--steps-per-epoch", "400", "--run-dir", run)
    wait_for(lambda: rows(run) >= 2, process)
    process.kill()
    process.wait()
    monkeypatch.chdir(tmp_path)
    listing = call("runs", ".")
    assert "stopped early" in listing.stdout
    assert "finished" not in listing.stdout
    evaluated = call("evaluate", run, "--episodes", "4")
    assert evaluated.returncode == 0, evaluated.stderr
    assert "of 1000, stopped early" in evaluated.stdout


def test_events_tell_the_story_of_a_run(tmp_path):
    run = tmp_path / "run"
    process = start_vlmsafe("train", *SPEEDING, "--total-steps", "12000", "--steps-per-epoch", "400", "--run-dir", run)
    wait_for(lambda: rows(run) >= 2, process)
    process.terminate()
    process.wait()
    assert call("train", "--resume", run).returncode == 0
    events = [json.loads(line)["event"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert events == ["started", "interrupted", "resumed", "finished"]


def test_signal_before_training_begins_changes_nothing(tmp_path, monkeypatch):
    run, begun = tmp_path / "run", tmp_path / "begun"
    monkeypatch.setenv("SLOW_START_MARK", str(begun))
    process = start_vlmsafe("train", "--env", "gym:slow_start:Slow-v0", "--run-dir", run, cwd=Path(__file__).parent)
    wait_for(begun.exists, process)
    process.terminate()
    assert process.wait(timeout=600.0) == EXIT_INTERRUPTED
    assert "before training began" in process.stderr.read()
    assert not run.exists()


def test_run_whose_checkpoints_are_gone_starts_over_without_doubling_rows(tmp_path):
    size = (*SPEEDING, "--total-steps", "1200", "--steps-per-epoch", "400", "--run-dir", tmp_path / "run")
    assert call("train", *size).returncode == 0
    before = (tmp_path / "run" / "epochs.jsonl").read_bytes()
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        checkpoint.unlink()
    assert call("train", "--resume", tmp_path / "run").returncode == 0
    assert (tmp_path / "run" / "epochs.jsonl").read_bytes() == before
