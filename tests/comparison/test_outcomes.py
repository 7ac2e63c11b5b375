"""Outcomes: the number that each run contributes to a comparison."""

import polars as pl
import pytest

from vlmsafe import evaluate, train
from vlmsafe.comparison.outcomes import run_outcome, values_of
from vlmsafe.runs.arms import open_arms
from vlmsafe.runs.records import read_arms
from vlmsafe.runs.tables import read_table


@pytest.fixture
def arm(tmp_path):
    run = train(
        env="speeding", method="ppo-lag", total_steps=80, steps_per_epoch=40, quiet=True,
        run_dir=str(tmp_path / "runs" / "one" / "seed-1"),
    )  # fmt: skip
    evaluate(run, episodes=4)

    def read():
        (found,) = read_arms(open_arms([tmp_path / "runs"])[0]).values()
        return found

    return read, run.evaluation_path("held-out")


def test_cost_per_distance_is_all_cost_over_all_distance_in_the_unit_of_the_table(arm):
    read, path = arm
    table = read_table(path)
    total = table["cost"].sum()
    columns = {"path": (250.0, 100.0), "route_completion": (0.5, 1.0), "length": (20.0, 1000.0)}
    for column, (each, unit) in columns.items():
        only = table.drop([name for name in ("path", "distance", "net_progress", "route_completion") if name in table])
        only.with_columns(pl.lit(each).alias(column)).write_parquet(path)
        found = values_of(read(), "cost_per_distance", "held-out")
        assert found == {0: pytest.approx(total / (4 * each) * unit)}


def test_a_run_that_got_nowhere_and_a_training_have_no_cost_per_distance(arm):
    read, path = arm
    table = read_table(path)
    table.with_columns(pl.lit(0.0).alias("path"), pl.lit(0).alias("length")).write_parquet(path)
    run = read().runs[0]
    assert run_outcome(run, "cost_per_distance", "training") is None
    assert run_outcome(run, "cost", "training") is not None
