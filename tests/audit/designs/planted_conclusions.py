"""Conclusions that do not hold: returns with a bonus, idleness, windows, protocols, baselines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vlmsafe.runs.run import Run

from .clean_design import DESIGNS, EPOCHS
from .editing import (
    HELD_OUT,
    copy_run,
    edit_claims,
    edit_table,
    freeze_claims,
    judged,
    retrain,
    run_paths,
    set_up_with,
    with_costs,
)
from .planting import BASELINE, FIRST, UNGATED, Plant, add, each_run, planted, table

# Conclusions.
_claim_shaped = {"outcome": "shaped_return", "source": "training", "window": "final", "sides": "two-sided"}


def _claim_return(folder: Path) -> None:
    edit_claims(folder, lambda claims: [claims[0], claims[1] | _claim_shaped])


add("shaped-against-plain", "shaped-return", _claim_return)
add("gated-against-ungated", "shaped-return", _claim_return, "gate")


def _going_far(path: Path) -> None:
    names = DESIGNS["signal"].metrics
    edit_table(path, lambda table: table.with_columns((pl.col("cost") / 40.0).alias(name) for name in names))


add("further-costs-more", "cost-tracks-distance", each_run(None, _going_far))
add("further-costs-more-in-one-arm", "cost-tracks-distance", each_run(FIRST, _going_far), also=["progress-differs"])


def _staying_back(share: float) -> Callable[[Path], None]:
    """The way of every episode, shorter."""
    names = ("path", "net_progress", "route_completion")
    return table(lambda own: own.with_columns(pl.col(name) * share for name in names if name in own.columns))


_SHORT = ["cost-tracks-distance", "progress-differs"]
add("the-cheaper-arm-stays-back", "cost-tracks-distance", each_run(FIRST, _staying_back(0.3)), "gate", also=_SHORT)
add("the-cheaper-arm-gets-half-as-far", "progress-differs", each_run(FIRST, _staying_back(0.5)), also=_SHORT)
add("the-gated-arm-gets-less-far", "progress-differs", each_run(FIRST, _staying_back(0.6)), "gate", also=_SHORT)


def _costing(factor: float) -> Callable[[Path], None]:
    return table(with_costs(lambda cost: (cost * factor).round(0)))


add("both-arms-over-budget", "over-budget", each_run(None, _costing(1.7)))
add("the-baseline-over-budget", "over-budget", each_run(BASELINE, _costing(1.3)))
add(
    "one-seed-far-over-budget",
    "over-budget",
    each_run(BASELINE, _costing(3.0), slice(0, 1)),
    also=["few-episodes-decide"],
)


def _idle(count: int) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """The first episodes of a run without cost, return or way."""
    names = {"cost": 0.0, "env_return": 1.0, "route_completion": 0.02}
    still = pl.col("episode") < count
    return lambda table: judged(
        table.with_columns(pl.when(still).then(value).otherwise(name).alias(name) for name, value in names.items())
    )


_STILL = ["cost-tracks-distance"]
add("some-episodes-idle", "passive-policy", each_run(FIRST, table(_idle(15))), also=_STILL)
add("two-seeds-idle", "passive-policy", each_run(FIRST, table(_idle(50)), slice(0, 2)), also=_STILL)
add("an-idle-arm", "passive-policy", each_run(FIRST, table(_idle(48))), also=_STILL)


def _over_time(before: float, after: float) -> Callable[[Path], None]:
    """Mean costs before and in the last five epochs, with the deviations of the episodes as they were."""

    def change(path: Path) -> None:
        rows = Run.open(path).rows("episodes")
        late = float(np.mean([row["cost"] for row in rows if row["epoch"] > 10]))
        retrain(path, lambda row: row | {"cost": row["cost"] - late + (after if row["epoch"] > EPOCHS - 5 else before)})

    return change


add("only-the-end-is-better", "window-dependent", each_run(FIRST, _over_time(24.8, 20.0)))
add("better-until-the-end", "window-dependent", each_run(FIRST, _over_time(17.0, 24.0)))


def _another_table(protocol: str, costs: Callable[[str], Callable[[pl.Expr], pl.Expr]]) -> Plant:
    """A second evaluation, with other costs in each arm."""

    def plant(folder: Path) -> None:
        for path in run_paths(folder):
            table = pl.read_parquet(path / "evaluations" / f"{HELD_OUT}.parquet")
            changed = with_costs(costs(path.parent.name))(table).with_columns(protocol=pl.lit(protocol))
            first = {"paper-20": 10_000, "paper-task-metrics": 30_000}[protocol]
            moved = changed.with_columns(scenario=first + pl.col("episode"))
            moved.head(20 if protocol == "paper-20" else 50).write_parquet(path / "evaluations" / f"{protocol}.parquet")

    return plant


def _raised(arm: str, by: float) -> Callable[[str], Callable[[pl.Expr], pl.Expr]]:
    return lambda name: lambda cost: cost + by if name == arm else cost


add("another-protocol-disagrees", "protocol-dependent", _another_table("paper-20", _raised(FIRST, 9.0)), "gate")
add("task-metrics-disagree", "protocol-dependent", _another_table("paper-task-metrics", _raised(FIRST, 12.0)), "gate")


def _another_baseline(settings: dict[str, Any], cost: float) -> Plant:
    """A second baseline that is better than the signal, under its own name and with settings of its own."""

    def plant(folder: Path) -> None:
        name = "ppo-lag-other"
        for path in run_paths(folder, BASELINE):
            to = path.parent.parent / name / path.name
            copy_run(path, to, Run.open(path).config.seed)
            set_up_with(to, settings)
            retrain(to, lambda row: row | {"cost": row["cost"] * cost, "return": row["return"] + 0.5})
            edit_table(to, with_costs(lambda own: (own * cost).round(0)))
            edit_table(to, lambda table: table.with_columns(env_return=pl.col("env_return") + 0.5))
        edit_claims(folder, lambda claims: claims + [claim | {"second": name} for claim in claims])

    return plant


_BETTER = ["unmatched-arms", "duplicate-runs"]
add("two-baselines", "baseline-dependent", _another_baseline({"learner.update_iters": 10}, 0.5), also=_BETTER)
add("a-tuned-baseline", "baseline-dependent", _another_baseline({"learner.actor_lr": 0.001}, 0.6), also=_BETTER)


@planted("three-episodes-decide", "few-episodes-decide", also=["over-budget"])
def _three_episodes(folder: Path) -> None:
    """Both arms cost the same, but for three catastrophes in one run."""
    for path in run_paths(folder, BASELINE):
        edit_table(path, with_costs(lambda cost: (cost * 17.0 / 22.0).round(0)))
    disaster = pl.when(pl.col("episode") < 3).then(900.0)
    edit_table(run_paths(folder, BASELINE)[0], with_costs(lambda cost: disaster.otherwise(cost)))


@planted("an-episode-per-run-decides", "few-episodes-decide", "gate")
def _one_each(folder: Path) -> None:
    for path in run_paths(folder, UNGATED):
        edit_table(path, with_costs(lambda cost: (cost * 16.5 / 20.5).round(0)))
        disaster = pl.when(pl.col("episode") == 5).then(250.0)
        edit_table(path, with_costs(lambda cost, disaster=disaster: disaster.otherwise(cost)))


# Claims that were not decided before the results were there.
def _two_sided(claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [claim | {"sides": "two-sided"} if claim["test"] != "none" else claim for claim in claims]


@planted("sides-chosen-afterwards", "claims-changed")
def _sides_afterwards(folder: Path) -> None:
    freeze_claims(folder, (8, _two_sided))


@planted("a-claim-added-afterwards", "claims-changed", "gate")
def _added_afterwards(folder: Path) -> None:
    freeze_claims(folder, (12, lambda claims: [*claims, claims[0] | {"outcome": "violation"}]))


@planted("a-claim-dropped-afterwards", "claims-changed")
def _dropped_afterwards(folder: Path) -> None:
    freeze_claims(folder, (5, lambda claims: claims[:1]))


@planted("claims-edited-without-a-record", "claims-changed", "gate")
def _edited_afterwards(folder: Path) -> None:
    freeze_claims(folder)
    edit_claims(folder, _two_sided)
