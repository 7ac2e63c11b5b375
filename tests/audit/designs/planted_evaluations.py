"""Defects of evaluations: missing, unlike each other, on training scenarios, out of date."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

from .editing import HELD_OUT, edit_claims, edit_table, judged, retrain, run_paths
from .planting import BASELINE, FIRST, ONE, OTHER_EPOCH, add, each_run, planted, table


# Evaluations.
def _without_table(path: Path) -> None:
    (path / "evaluations" / f"{HELD_OUT}.parquet").unlink()


add("a-run-not-evaluated", "missing-evaluation", each_run(BASELINE, _without_table, ONE))
add("an-arm-not-evaluated", "missing-evaluation", each_run(FIRST, _without_table))

_later = pl.col("scenario") + 50
add("other-scenarios", "evaluations-differ", each_run(BASELINE, table(lambda t: t.with_columns(scenario=_later))))
add("an-episode-missing", "evaluations-differ", each_run(FIRST, table(lambda own: own.head(49)), ONE))
add("fewer-episodes", "evaluations-differ", each_run(FIRST, table(lambda table: table.head(20))))
add(
    "one-run-other-scenarios", "evaluations-differ",
    each_run(FIRST, table(lambda t: t.with_columns(scenario=_later)), ONE),
)  # fmt: skip
add(
    "judged-by-another-budget", "evaluations-differ",
    each_run(BASELINE, table(lambda t: judged(t.with_columns(budget=pl.lit(20.0))))), also=["record-disagrees"],
)  # fmt: skip
_drawn = table(lambda table: table.with_columns(deterministic=pl.lit(False)))
add("one-arm-stochastic", "evaluations-differ", each_run(BASELINE, _drawn))

_in_pool = pl.col("scenario") < 10_000


def _in_training(count: int) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """The first scenarios of an evaluation taken from the training pool."""
    pool = pl.when(pl.col("episode") < count).then(100 + pl.col("episode")).otherwise("scenario")
    return lambda table: table.with_columns(scenario=pool).with_columns(in_training_pool=_in_pool)


add("all-in-the-pool", "evaluated-on-training-scenarios", each_run(None, table(_in_training(50))))
add("three-in-the-pool", "evaluated-on-training-scenarios", each_run(None, table(_in_training(3))))


add(
    "pool-denied", "evaluated-on-training-scenarios",
    each_run(None, table(lambda table: table.with_columns(scenario=pl.col("episode")))), also=["record-disagrees"],
)  # fmt: skip


@planted("visited-in-training", "evaluated-on-training-scenarios", "gate")
def _visited(folder: Path) -> None:
    """Ten scenarios that every run trained on."""
    for path in run_paths(folder):
        retrain(path, lambda row: row | {"scenario": 100 + row["epoch"] % 10})
        edit_table(path, _in_training(10))


@planted("trained-on-held-out-scenarios", "evaluated-on-training-scenarios", also=["record-disagrees"])
def _trained_on_held_out(folder: Path) -> None:
    """Scenarios from outside the pool, some of which were drawn in training all the same."""
    for path in run_paths(folder):
        retrain(path, lambda row: row | {"scenario": 10_000 + row["scenario"] % 100})


_old = table(lambda table: table.with_columns(checkpoint_epoch=pl.lit(10, pl.Int64)))
add("all-evaluated-early", "stale-evaluation", each_run(None, _old), also=OTHER_EPOCH)
add("an-arm-evaluated-early", "stale-evaluation", each_run(BASELINE, _old), also=OTHER_EPOCH)
add("a-run-evaluated-early", "stale-evaluation", each_run(FIRST, _old, ONE), also=OTHER_EPOCH)


def _earlier_protocol(path: Path) -> None:
    """Twenty scenarios of a small pool, random traffic, one simulator."""
    table = pl.read_parquet(path / "evaluations" / f"{HELD_OUT}.parquet").head(20)
    changed = {"scenario": pl.col("episode"), "traffic_seed": 1000 + pl.col("episode"), "protocol": pl.lit(_EARLY)}
    changed |= {"in_training_pool": pl.lit(True)}
    table.with_columns(**changed).write_parquet(path / "evaluations" / f"{_EARLY}.parquet")


_EARLY, _IN_POOL = "paper-early", ["evaluated-on-training-scenarios"]
add("earlier-protocol-beside", "shared-simulator", each_run(None, _earlier_protocol), also=_IN_POOL)


@planted("earlier-protocol", "shared-simulator", also=_IN_POOL)
def _only_earlier_protocol(folder: Path) -> None:
    for path in run_paths(folder):
        _earlier_protocol(path)
        _without_table(path)
    edit_claims(folder, lambda claims: [claim | {"source": _EARLY} for claim in claims if claim["source"] == HELD_OUT])


# The same episodes again.
add(
    "one-scenario-throughout", "repeated-episodes",
    each_run(None, table(lambda own: own.with_columns(scenario=pl.lit(10_000, pl.Int64)))),
)  # fmt: skip
_half = (pl.col("episode") // 2).cast(pl.Int64)
add(
    "each-scenario-twice", "repeated-episodes",
    each_run(None, table(lambda own: own.with_columns(pl.exclude("episode").gather(_half)).with_columns(
        scenario=10_000 + _half))),
)  # fmt: skip
