"""Outcomes: the number that each run contributes to a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from vlmsafe.analysis.statistics import Clusters, Float64, clusters, thresholds
from vlmsafe.analysis.tables import floats
from vlmsafe.analysis.tails import distance_of
from vlmsafe.comparison.claims import RATES, WINDOWS, Outcome, Window
from vlmsafe.comparison.comparisons import Comparison
from vlmsafe.runs.records import ArmRecord, RunRecord

Values = Mapping[int | str, float]
"""Outcomes by the seed of their run."""

WORDS: dict[Outcome, str] = {
    "cost": "cost",
    "cost_per_distance": "cost per distance",
    "violation": "violation rate",
    "catastrophe": "catastrophe rate",
    "env_return": "environment return",
    "shaped_return": "logged return",
    "arrived": "arrival rate",
    "arrived_without_cost": "rate of arrivals without cost",
}


def shared_protocols(comparison: Comparison) -> list[str]:
    """The evaluations that every run of both arms has, held-out first."""
    runs = (*comparison.first.runs, *comparison.second.runs)
    names = set.intersection(*(set(run.evaluations) for run in runs))
    return sorted(names, key=lambda name: (name != "held-out", name))


def source_of(comparison: Comparison) -> str:
    """The source of a comparison's numbers: 'training' or a protocol."""
    claim = comparison.claim
    if claim.source != "auto":
        return claim.source
    protocols = shared_protocols(comparison)
    return protocols[0] if protocols and claim.outcome != "shaped_return" else "training"


def run_outcome(run: RunRecord, outcome: Outcome, source: str, window: Window = "final") -> float | None:
    """The outcome of one run; None if it has none or if it is not finite."""
    counted = rate_episodes(run, outcome, source, window) if outcome in RATES else None
    if counted is not None:
        value: float | None = float(np.mean(counted))
    else:
        value = _trained(run, outcome, WINDOWS[window]) if source == "training" else _evaluated(run, outcome, source)
    return value if value is not None and math.isfinite(value) else None


def _trained(run: RunRecord, outcome: Outcome, window: int) -> float | None:
    if outcome == "cost":
        return run.over("episode_cost", window)
    if outcome == "env_return":
        return run.over("env_return", window)
    if outcome == "shaped_return":
        shaped = run.over("shaped_return", window)
        return shaped if shaped is not None else run.over("env_return", window)
    rows = [row["progress"][outcome] for row in run.epochs if (row.get("progress") or {}).get(outcome) is not None]
    return float(np.mean(rows[-window:])) if rows else None


def _evaluated(run: RunRecord, outcome: Outcome, protocol: str) -> float | None:
    table = run.evaluations.get(protocol)
    if table is not None and outcome == "cost_per_distance":
        return _per_distance(table)
    if table is None or outcome == "shaped_return" or outcome not in table.columns:
        return None
    return float(np.mean(floats(table, outcome)))


def _per_distance(table: pl.DataFrame) -> float | None:
    """The cost of all episodes over the distance of all, in the unit that the environment's tables allow.

    Arms of one environment record the same columns, so they have the same unit (`vlmsafe.analysis.tails.DISTANCES`).
    """
    distance = distance_of([table])
    if distance is None or "cost" not in table.columns:
        return None
    return float(floats(table, "cost").sum() / floats(table, distance.column).sum() * distance.size)


def rate_episodes(run: RunRecord, outcome: Outcome, source: str, window: Window = "final") -> Float64 | None:
    """The episodes behind a run's rate: 1 for each that counts, 0 for each other; None if there are none.

    There are none for arrivals in training, which are read as shares from the record of epochs.
    """
    if source == "training":
        last = max((row["epoch"] for row in run.epochs), default=0) - WINDOWS[window]
        costs = np.array([row["cost"] for row in run.episodes if row.get("finished") and row["epoch"] > last])
    else:
        table = run.evaluations.get(source)
        if table is None or not {outcome, "cost"} & set(table.columns):
            return None
        if outcome in table.columns:
            return floats(table, outcome)
        costs = floats(table, "cost")
    assert run.config.budget is not None
    limit = thresholds(run.config.budget).get(outcome)
    return (costs > limit).astype(np.float64) if limit is not None and len(costs) else None


def rate_clusters(arm: ArmRecord, outcome: Outcome, source: str, window: Window = "final") -> Clusters | None:
    """The episodes behind an arm's rate, run by run; None if no run has such a rate."""
    found = [rate_episodes(run, outcome, source, window) for run in arm.runs]
    known = [episodes for episodes in found if episodes is not None and np.isfinite(episodes).all()]
    return clusters(known) if known else None


def against(values: Sequence[float]) -> str:
    """Two arms' numbers in words."""
    return f"{values[0]:.4g} against {values[1]:.4g}"


def values_of(arm: ArmRecord, outcome: Outcome, source: str, window: Window = "final") -> dict[int | str, float]:
    """The outcomes of the runs that have one, by seed (see `ArmRecord.matched_by`)."""
    found = {key: run_outcome(run, outcome, source, window) for key, run in arm.matched_by.items()}
    return {key: value for key, value in found.items() if value is not None}


def summarise_arm(arm: ArmRecord) -> Iterator[dict[str, Any]]:
    """The mean outcomes of an arm over its runs, from training and from each of its evaluations."""
    for source in ("training", *arm.protocols):
        figures: dict[str, float | None] = {}
        for outcome in WORDS:
            values = list(values_of(arm, outcome, source).values())
            figures[outcome] = float(np.mean(values)) if values else None
        yield {
            "env": arm.env,
            "arm": arm.name,
            "source": source,
            "seeds": arm.seeds if source == "training" else [run.seed for run in arm.runs if source in run.evaluations],
            "budget": arm.first.config.budget,
            **figures,
        }
