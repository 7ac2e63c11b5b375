"""`vlmsafe study run` is killed at random, and started again: nothing is lost, repeated or mixed up."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from in_process import InProcess

from vlmsafe.cli import main
from vlmsafe.errors import EXIT_FAILED, EXIT_INTERRUPTED
from vlmsafe.io.locks import is_locked
from vlmsafe.runs.checkpoint import load_checkpoint, path_of
from vlmsafe.studies.execute import execute
from vlmsafe.studies.progress import run_progress
from vlmsafe.studies.schema import parse_study

pytestmark = pytest.mark.slow

BLIND = """
import vlmsafe


class Blind(vlmsafe.Scorer):
    looks_at = "observation"
    rules = ("decoupled",)
    groups = (1, 1)

    def __init__(self, prompts):
        pass

    def score(self, inputs):
        raise OSError("no eyes")
"""
STUDY = """\
name: speeding
question: Does the oracle lower the cost?
environments: [speeding]
seeds: [1, 2]
total_steps: 16000
settings: {steps_per_epoch: 400, learner.update_iters: 2}
arms:
  ppo-lag: {method: ppo-lag}
  oracle: {method: vlm-ppo-lag, settings: {signal.scorer: oracle}}
protocols: [{protocol: held-out, episodes: 4}]
"""
COMMAND = [sys.executable, "-m", "vlmsafe", "study", "run", "speeding.yaml"]


def start(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(COMMAND, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_until(condition, process=None, seconds=600.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.01)


def test_a_study_killed_at_random_equals_one_that_was_not(tmp_path):
    study = parse_study(STUDY, "speeding.yaml")
    whole, killed = tmp_path / "whole" / "speeding", tmp_path / "runs" / "speeding"
    assert len(execute(study, whole, InProcess()).done) == 4

    (tmp_path / "speeding.yaml").write_text(STUDY)
    specs, moments = study.expand(killed), random.Random(8)
    for _ in range(2):
        process = start(tmp_path)

        def epochs() -> int:
            return sum(run_progress(spec).epochs for spec in specs)

        until = epochs() + moments.randint(1, 70)
        wait_until(lambda until=until: epochs() >= until, process)
        time.sleep(moments.uniform(0.0, 0.3))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    final = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True, timeout=600.0)
    assert final.returncode == 0, final.stderr

    for spec, reference in zip(specs, study.expand(whole), strict=True):
        for record in ("epochs.jsonl", "episodes.jsonl"):
            assert (spec.path / record).read_bytes() == (reference.path / record).read_bytes(), (spec.name, record)
        one, other = (load_checkpoint(path_of(path / "checkpoints", 40)) for path in (spec.path, reference.path))
        assert all((array == other.arrays[name]).all() for name, array in one.arrays.items())
        tables = [pl.read_parquet(path / "evaluations" / "held-out.parquet") for path in (spec.path, reference.path)]
        assert tables[0].equals(tables[1])
        began = Counter(json.loads(line)["event"] for line in (spec.path / "events.jsonl").read_text().splitlines())
        assert (began["started"], began["finished"]) == (1, 1)
        assert not is_locked(spec.path)
    found = {str(path.parent.relative_to(killed)) for path in killed.rglob("config.yaml")}
    assert found == {spec.name for spec in specs}
    assert reported(killed) == reported(whole)


def reported(folder: Path) -> dict[str, bytes]:
    """The tables and figures of a study's report, as numbers; how long something took is left out."""
    main(["study", "report", str(folder)])
    tables = sorted((folder / "report").glob("*.csv"))
    return {path.name: path.read_bytes() for path in tables if "compute" not in path.name}


def test_ctrl_c_saves_what_is_running_and_says_how_to_go_on(tmp_path):
    (tmp_path / "speeding.yaml").write_text(STUDY.replace("16000", "400000"))
    specs = parse_study(STUDY, "").expand(tmp_path / "runs" / "speeding")
    process = start(tmp_path)
    wait_until(lambda: any(run_progress(spec).epochs > 2 for spec in specs), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=600.0) == EXIT_INTERRUPTED
    message = process.stderr.read()
    assert "the same command continues it" in message
    assert "Traceback" not in message
    assert not any(is_locked(spec.path) for spec in specs)
    begun = [spec for spec in specs if run_progress(spec).begun]
    assert begun
    events = [json.loads(line)["event"] for line in (begun[0].path / "events.jsonl").read_text().splitlines()]
    assert events[-1] == "interrupted"


def test_a_study_with_a_run_that_cannot_be_made_exits_with_an_error_and_finishes_the_others(tmp_path):
    text = (
        STUDY.replace("16000", "400")
        .replace("seeds: [1, 2]", "seeds: [1]")
        .replace("signal.scorer: oracle", "signal.scorer: 'python:blind:Blind'")
    )
    (tmp_path / "blind.py").write_text(BLIND)
    (tmp_path / "speeding.yaml").write_text(text)
    answer = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True, timeout=600.0)
    assert answer.returncode == EXIT_FAILED
    failed = "failed: speeding/oracle/seed-1: train: the scorer 'python:blind:Blind' raised OSError: no eyes"
    assert failed in answer.stderr
    assert "1 of 2 runs failed" in answer.stderr
    assert "speeding/ppo-lag/seed-1: evaluate held-out ended" in answer.stdout
    status = [sys.executable, "-m", "vlmsafe", "study", "status", "runs/speeding"]
    table = subprocess.run(status, cwd=tmp_path, capture_output=True, text=True, timeout=600.0).stdout
    rows = {line.split()[1]: line.split()[2:] for line in table.splitlines() if line.strip().startswith("speeding ")}
    assert rows["ppo-lag"] == ["1/1", "100", "%", "1/1", "-", "done"]
    assert rows["oracle"] == ["0/1", "0", "%", "0/1", "-", "1", "failed"]
    assert "no eyes" in table
