"""Returns: how much of a return is bonus, and whether low cost comes from little driving.

A run with a bonus logs a return that contains it, so arms can only be compared by the environment's return. Low cost
can mean careful driving or little driving. Two signs of little driving are cost that rises with the distance travelled,
and episodes that cost nothing and achieve nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from vlmsafe.analysis.auc import Float64
from vlmsafe.analysis.statistics import Clusters, clusters, correlation, finite_vector
from vlmsafe.analysis.tables import floats, require_columns
from vlmsafe.errors import InputError

Rows = Sequence[Mapping[str, Any]]

AGAINST = ("path", "distance", "net_progress", "route_completion", "env_return")
"""What cost is compared with by default, if a table has it: distance, progress in the task, return."""

_EPISODES_HINT = "expected evaluation tables (vlmsafe.evaluate), stacked with vlmsafe.analysis.tables.stacked"


@dataclass(frozen=True)
class ReturnParts:
    """The parts of a run's training return. `last_5` and `last_10` are means over its last recorded epochs.

    The fields are named as in the published table.
    """

    epochs: int
    """Recorded epochs with a return. If a run stopped early, its windows end at its last recorded epoch."""
    logged_return_final: float
    """With the bonus: what the learner maximised, and what logs usually show."""
    bonus_final: float
    environment_return_last_5: float
    environment_return_last_10: float
    environment_return_final: float


def return_parts(rows: Rows) -> ReturnParts:
    """The parts of one run's return, from its rows of `epochs.jsonl`.

    A run without a signal logs the environment return, and its bonus is 0.
    """
    for place, row in enumerate(rows, 1):
        missing = [name for name in ("env_return", "bonus", "shaped_return") if name not in row]
        if missing:
            raise InputError(f"returns: row {place} has no {', '.join(missing)}; expected the rows of epochs.jsonl")
    known = [row for row in rows if row["env_return"] is not None]
    if not known:
        raise InputError("returns: no epoch has a return; expected the rows of a run in which an episode finished")
    own = [float(row["env_return"]) for row in known]
    last = known[-1]
    shaped = last["bonus"] is not None
    return ReturnParts(
        epochs=len(known),
        logged_return_final=float(last["shaped_return"]) if shaped else own[-1],
        bonus_final=float(last["bonus"]) if shaped else 0.0,
        environment_return_last_5=float(np.mean(own[-5:])),
        environment_return_last_10=float(np.mean(own[-10:])),
        environment_return_final=own[-1],
    )


def return_table(arms: Mapping[str, Mapping[str, Rows]]) -> pl.DataFrame:
    """`return_parts` of each run. Rows with a null `run` are means over the runs of the arm."""
    rows: list[dict[str, Any]] = []
    for arm, runs in arms.items():
        if not runs:
            raise InputError(f"returns: arm '{arm}' has no runs")
        parts = {run: asdict(return_parts(epochs)) for run, epochs in runs.items()}
        names = [name for name in next(iter(parts.values())) if name != "epochs"]
        means = {name: float(np.mean([own[name] for own in parts.values()])) for name in names}
        rows.append({"arm": arm, "run": None, "epochs": None, **means})
        rows += [{"arm": arm, "run": run, **own} for run, own in parts.items()]
    kinds = {"arm": pl.String, "run": pl.String, "epochs": pl.Int64}
    return pl.DataFrame(rows, schema={name: kinds.get(name, pl.Float64) for name in rows[0]} if rows else kinds)


CORRELATION_SCHEMA: dict[str, Any] = {
    "level": pl.String,
    "against": pl.String,
    "pearson": pl.Float64,
    "spearman": pl.Float64,
    "n": pl.Int64,
}


def cost_correlations(episodes: pl.DataFrame, against: Sequence[str] | None = None) -> pl.DataFrame:
    """Pearson's and Spearman's correlation of cost with other quantities over episodes, runs and arms.

    `episodes` has one row per evaluation episode. A run counts with its mean over episodes, an arm with the mean of its
    runs. By default cost is compared with the columns of `AGAINST` that the table has. Correlations of fewer than three
    points, or with a constant, are null.
    """
    chosen = [name for name in AGAINST if name in episodes.columns] if against is None else list(against)
    require_columns(episodes, ("arm", "run", "cost", *chosen), "returns", _EPISODES_HINT)
    if not chosen:
        raise InputError(f"returns: nothing to compare cost with; the table has none of {', '.join(AGAINST)}")
    runs = episodes.group_by("arm", "run", maintain_order=True).agg(pl.col("cost", *chosen).mean())
    levels = {
        "episodes": episodes,
        "runs": runs,
        "arms": runs.group_by("arm", maintain_order=True).agg(pl.col("cost", *chosen).mean()),
    }
    rows = []
    for level, table in levels.items():
        for name in chosen:
            pairs = table.select("cost", name).drop_nulls()
            cost, other = floats(pairs, "cost"), floats(pairs, name)
            row: dict[str, Any] = {"level": level, "against": name, "n": len(pairs)}
            if len(pairs) >= 3 and np.ptp(cost) > 0.0 and np.ptp(other) > 0.0:
                row |= asdict(correlation(other, cost))
            rows.append(row)
    return pl.DataFrame(rows, schema=CORRELATION_SCHEMA)


def passive(costs_by_run: Sequence[Float64], returns_by_run: Sequence[Float64], threshold: float) -> Clusters:
    """Episodes that cost nothing and return strictly less than `threshold`, as clusters for rates and intervals."""
    if len(costs_by_run) != len(returns_by_run):
        raise InputError(f"passivity: costs of {len(costs_by_run)} runs and returns of {len(returns_by_run)}")
    marks = []
    for run, pair in enumerate(zip(costs_by_run, returns_by_run, strict=True)):
        costs, returns = (finite_vector(values, f"passivity, run {run}") for values in pair)
        if len(costs) != len(returns):
            raise InputError(f"passivity: run {run} has {len(costs)} costs and {len(returns)} returns")
        marks.append((costs == 0.0) & (returns < threshold))
    return clusters(marks)


def passive_episodes(episodes: pl.DataFrame, threshold: float) -> pl.DataFrame:
    """Passive episodes of each run. Rows with a null `run` pool the runs of an arm.

    Which return is too low to count as driving depends on the task, so `threshold` has no default; the paper uses 20 on
    MetaDrive. Rates that differ much between runs show that the behaviour belongs to single seeds.
    """
    require_columns(episodes, ("arm", "run", "cost", "env_return"), "passivity", _EPISODES_HINT)
    rows: list[dict[str, Any]] = []
    for (arm,), own in episodes.group_by("arm", maintain_order=True):
        runs = own.partition_by("run", maintain_order=True, as_dict=True)
        found = passive(
            [floats(table, "cost") for table in runs.values()],
            [floats(table, "env_return") for table in runs.values()],
            threshold,
        )
        counts = [int(total) for total in found.totals]
        rows.append({"arm": arm, "run": None, "episodes": len(own), "passive": sum(counts), "rate": found.pooled})
        rows += [
            {"arm": arm, "run": run, "episodes": len(table), "passive": count, "rate": count / len(table)}
            for ((run,), table), count in zip(runs.items(), counts, strict=True)
        ]
    kinds = {"arm": pl.String, "run": pl.String, "episodes": pl.Int64, "passive": pl.Int64, "rate": pl.Float64}
    return pl.DataFrame(rows, schema=kinds)
