"""Run directories of version 0.1.0 still open, and give what they gave."""

import shutil
from pathlib import Path

import polars as pl
import pytest

import vlmsafe
from vlmsafe.config.methods import config_from_yaml

OLD = Path(__file__).parents[1] / "reference" / "run-0.1.0"


@pytest.fixture
def old(tmp_path):
    shutil.copytree(OLD, tmp_path / "runs")
    return tmp_path / "runs" / "oracle" / "seed-3"


def test_an_old_run_opens_with_its_rows_events_and_checkpoint(old):
    run = vlmsafe.Run.open(old)
    assert run.status() == "finished"
    assert [row["epoch"] for row in run.rows("epochs")] == [1, 2, 3, 4]
    assert run.events()[0]["event"] == "started"
    assert run.checkpoint()[0].epoch == run.config.epochs == 4


def test_a_configuration_of_an_old_run_starts_a_new_one(old):
    config = config_from_yaml(old / "config.yaml")
    assert (config.env, config.method, config.signal.scorer, config.learner.hidden) == (
        "braking", "vlm-ppo-lag", "oracle", (8, 8),
    )  # fmt: skip


def test_an_old_policy_drives_as_it_did(old):
    before = pl.read_parquet(old / "evaluations" / "held-out.parquet")
    notes = []
    after = vlmsafe.evaluate(old, episodes=3, processes=1, on_note=notes.append)
    for column in ("scenario", "env_return", "cost", "length"):  # processors round differently
        assert after[column].to_list() == pytest.approx(before[column].to_list(), rel=1e-4)
    assert any("version" in note for note in notes)  # why it was evaluated again


def test_an_old_run_is_audited_and_reported(old):
    codes = {finding.code for finding in vlmsafe.audit([old.parents[1]]).findings}
    assert "unreadable-run" not in codes
    assert vlmsafe.report(old.parents[1], files=False).page.stat().st_size > 10_000
