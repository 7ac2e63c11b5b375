"""Studies on Ray: two real nodes on this machine, one of which dies; and what becomes of a single command."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from in_process import InProcess

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'vlmsafe[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402 - only where there is Ray

from vlmsafe.studies.execution import JOURNAL, execute  # noqa: E402
from vlmsafe.studies.launchers import Command, Lost  # noqa: E402
from vlmsafe.studies.progress import glance  # noqa: E402
from vlmsafe.studies.ray_launcher import RayLauncher  # noqa: E402
from vlmsafe.studies.study_yaml import parse_study  # noqa: E402
from vlmsafe.training.checkpoint import load_checkpoint, path_of  # noqa: E402
from vlmsafe.training.files import read_rows  # noqa: E402

STUDY = """\
name: speeding
question: Does the oracle lower the cost?
environments: [speeding]
seeds: [1, 2, 3, 4]
total_steps: 40000
settings: {steps_per_epoch: 400, learner.update_iters: 2, checkpoint.every: 5}
arms:
  ppo-lag: {method: ppo-lag}
  oracle: {method: vlm-ppo-lag, settings: {signal.scorer: oracle}}
protocols: [{protocol: held-out, episodes: 4}]
"""
EPOCHS = 100
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
SLEEP = (sys.executable, "-c", "import time; print('began', flush=True); time.sleep(60)")


@pytest.fixture
def cluster():
    made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    yield made
    ray.shutdown()
    made.shutdown()


def test_a_study_that_loses_one_of_two_nodes_half_way_equals_one_that_was_left_alone(tmp_path, cluster):
    study = parse_study(STUDY, "speeding.yaml")
    whole, disturbed = tmp_path / "whole" / "speeding", tmp_path / "runs" / "speeding"
    assert len(execute(study, whole, InProcess()).done) == 8
    second = cluster.add_node(**NODE)
    specs, killed = study.expand(disturbed), []

    def kill_half_way() -> None:
        if killed or sum(glance(spec).epochs for spec in specs) < 4 * EPOCHS:
            return
        running = now_on(disturbed, second.node_id)
        if running:
            killed.extend(running)
            cluster.remove_node(second, allow_graceful=False)

    launcher = RayLauncher(cluster.address, patience=4.0)
    assert "2 nodes, 2 cores" in launcher.describe()
    outcome = execute(study, disturbed, launcher, on_turn=kill_half_way)
    assert killed
    assert not outcome.failed
    assert len(outcome.done) == 8
    rows = read_rows(disturbed / JOURNAL)
    assert {row["run"] for row in rows if row["what"] == "lost"} == set(killed)
    assert len({row["node"] for row in rows if row["what"] == "began"}) == 2
    for spec, reference in zip(specs, study.expand(whole), strict=True):
        same_run(spec.path, reference.path)
        assert (disturbed / "logs" / f"{spec.name}.log").stat().st_size > 0


def now_on(folder: Path, node: str) -> list[str]:
    """Runs that are trained on a node now, well after a checkpoint, by the study's journal."""
    last = {row["run"]: row for row in read_rows(folder / JOURNAL)}
    return [
        run
        for run, row in last.items()
        if row["what"] == "began"
        and row["step"] == "train"
        and row["node"].endswith(node[:6])
        and 10 < len(read_rows(folder / run / "epochs.jsonl")) < 90
    ]


def same_run(one: Path, other: Path) -> None:
    """Every epoch once, and everything that was learned and measured equal to the last bit."""
    assert [row["epoch"] for row in read_rows(one / "epochs.jsonl")] == list(range(1, EPOCHS + 1))
    for record in ("epochs.jsonl", "episodes.jsonl"):
        assert (one / record).read_bytes() == (other / record).read_bytes(), (one, record)
    states = [load_checkpoint(path_of(path / "checkpoints", EPOCHS)) for path in (one, other)]
    assert all((array == states[1].arrays[name]).all() for name, array in states[0].arrays.items())
    tables = [pl.read_parquet(path / "evaluations" / "held-out.parquet") for path in (one, other)]
    assert tables[0].equals(tables[1])
    events = Counter(row["event"] for row in read_rows(one / "events.jsonl"))
    assert (events["started"], events["finished"]) == (1, 1)
