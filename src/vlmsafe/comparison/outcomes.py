"""Outcomes: the number that each run contributes to a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vlmsafe.analysis.statistics import CATASTROPHE
from vlmsafe.analysis.tables import floats
from vlmsafe.comparison.claims import WINDOWS, Outcome, Window
from vlmsafe.comparison.comparisons import Comparison
from vlmsafe.runs.records import ArmRecord, RunRecord
from vlmsafe.runs.tables import SUCCESS

Values = Mapping[int | str, float]
"""Outcomes by the seed of their run."""

WORDS: dict[Outcome, str] = {
    "cost": "cost",
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
    if outcome in SUCCESS:
        rows = [row["progress"][outcome] for row in run.epochs if (row.get("progress") or {}).get(outcome) is not None]
        return float(np.mean(rows[-window:])) if rows else None
    limit = _limit(run, outcome)
    last = max((row["epoch"] for row in run.epochs), default=0)
    costs = [row["cost"] for row in run.episodes if row.get("finished") and row["epoch"] > last - window]
    return float(np.mean([cost > limit for cost in costs])) if costs else None


def _evaluated(run: RunRecord, outcome: Outcome, protocol: str) -> float | None:
    table = run.evaluations.get(protocol)
    if table is None or outcome == "shaped_return":
        return None
    if outcome in table.columns:
        return float(np.mean(floats(table, outcome)))
    if outcome not in ("violation", "catastrophe") or "cost" not in table.columns:
        return None
    return float(np.mean(floats(table, "cost") > _limit(run, outcome)))


def _limit(run: RunRecord, outcome: Outcome) -> float:
    """An episode counts if its cost is above this."""
    assert run.config.budget is not None
    return run.config.budget * (1.0 if outcome == "violation" else CATASTROPHE)


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
