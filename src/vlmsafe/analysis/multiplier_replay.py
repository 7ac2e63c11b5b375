"""Multiplier replay: what the multiplier of a run would have been without the signal term.

A multiplier is a function of what `epochs.jsonl` records: the episode cost J_C, the budget d and the mean negative
score of each epoch in which an episode finished. Replayed with the run's own settings it must give the recorded values.
Replayed with eta_2 = 0 it gives what it would have been with the same costs. The costs are held fixed, so this is the
direct effect of the term. How the policy would have reacted to another multiplier is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from vlmsafe.analysis.auc import Float64
from vlmsafe.analysis.tables import floats, require_columns
from vlmsafe.config.learning import MultiplierConfig
from vlmsafe.errors import InputError
from vlmsafe.learners.multipliers import make_multiplier

Rows = Sequence[Mapping[str, Any]]

AGREEMENT = 1e-6
"""How far a replay may be from the record and still count as equal."""

_READ = ("epoch", "episodes", "budget", "episode_cost", "negative_score", "multiplier")

SCHEMA: dict[str, Any] = {
    "epoch": pl.Int64,
    "cost_gap": pl.Float64,  # J_C - d; null if no episode finished and the multiplier did not move
    "signal_term": pl.Float64,  # eta_2 (mean c_vlm - tau)
    "negative_score": pl.Float64,
    "recorded": pl.Float64,  # lambda after the epoch, as the run recorded it
    "step": pl.Float64,  # its change in the epoch
    "rebuilt": pl.Float64,
    "without_term": pl.Float64,
    "change": pl.Float64,  # rebuilt - without_term: what the term added up to here
}


def rebuild(rows: Rows, config: MultiplierConfig) -> Float64:
    """lambda after each epoch, from a run's rows of `epochs.jsonl` and the settings of its multiplier.

    This works for every run with a multiplier. Without a signal the scores are null and the term is zero.
    """
    _check(rows, config)
    multiplier = make_multiplier(config)
    assert multiplier is not None
    values = []
    for row in rows:
        if row["episodes"] and row["epoch"] > config.warmup_epochs:
            bracket = multiplier.bracket(row["episode_cost"], row["budget"], row["negative_score"])
            multiplier.update(bracket, row["episode_cost"])
        values.append(multiplier.value)
    return np.array(values)


def replay(rows: Rows, config: MultiplierConfig) -> pl.DataFrame:
    """One row per epoch: both terms of the bracket, and lambda as recorded, as rebuilt, and without the term.

    A run without a signal, or with eta_2 = 0, is refused: it has no term to remove.
    """
    rebuilt = rebuild(rows, config)
    if not config.signal_weight:
        raise InputError("multiplier replay: eta_2 (multiplier.signal_weight) is 0, so there is no term to remove")
    moved = [bool(row["episodes"]) for row in rows]
    if not any(moved):
        raise InputError(
            f"multiplier replay: no episode finished in any of the {len(rows)} epochs, so lambda was never updated"
        )
    if all(row["negative_score"] is None for row, own in zip(rows, moved, strict=True) if own):
        raise InputError(
            "multiplier replay: the run recorded no negative score, so there is no term to remove; "
            "expected a run of a method with a signal"
        )
    without = rebuild(rows, replace(config, signal_weight=0.0))
    multiplier = make_multiplier(config)
    assert multiplier is not None
    brackets = [
        multiplier.bracket(row["episode_cost"], row["budget"], row["negative_score"]) if own else None
        for row, own in zip(rows, moved, strict=True)
    ]
    recorded = np.array([row["multiplier"] for row in rows])
    return pl.DataFrame(
        {
            "epoch": [row["epoch"] for row in rows],
            "cost_gap": [own.cost_gap if own else None for own in brackets],
            "signal_term": [own.signal_term if own else None for own in brackets],
            "negative_score": [row["negative_score"] for row in rows],
            "recorded": recorded,
            "step": np.diff(recorded, prepend=multiplier.value),
            "rebuilt": rebuilt,
            "without_term": without,
            "change": rebuilt - without,
        },
        schema=SCHEMA,
    )


@dataclass(frozen=True)
class ReplaySummary:
    """What the signal term did to the multiplier of one run, or of several together.

    Sizes are absolute. `epochs` counts the epochs that updated the multiplier.
    """

    runs: int
    epochs: int
    error: float
    """Largest difference between the replayed and the recorded lambda."""
    largest_change: float
    """Largest difference that removing the term makes to lambda, in any epoch of any run."""
    median_largest_change: float
    """The median over runs of each run's largest change."""
    sign_reversals: int
    """Epochs in which the term changed the sign of a gap that is not zero."""
    at_budget: int
    """Epochs with J_C = d exactly, in which the term alone decides the sign of the bracket."""
    mean_term: float
    largest_term: float
    mean_gap: float
    median_gap: float
    smallest_gap: float
    largest_gap: float
    largest_step: float
    """Largest change of the recorded lambda in one epoch."""
    mean_score: float
    """Mean c_vlm over epochs."""
    budget_shift: float
    """eta_2 (tau - mean c_vlm). If lambda comes to rest, J_C is d plus this; a negative shift tightens the budget."""

    @property
    def agrees(self) -> bool:
        """Whether the replay gives the recorded lambda. If not, the other figures cannot be trusted."""
        return self.error <= AGREEMENT


def summarise(*tables: pl.DataFrame) -> ReplaySummary:
    """The figures of one table of `replay`, or of the tables of several runs together."""
    if not tables:
        raise InputError("multiplier replay: no tables; expected the table of at least one run")
    for table in tables:
        require_columns(table, SCHEMA, "multiplier replay", "expected what `replay` returns")
    table = pl.concat(tables)
    moved = table.drop_nulls("cost_gap")
    gap, term = floats(moved, "cost_gap"), floats(moved, "signal_term")
    changes = [float(np.abs(floats(own, "change")).max()) for own in tables]
    return ReplaySummary(
        runs=len(tables),
        epochs=len(moved),
        error=float(np.abs(floats(table, "rebuilt") - floats(table, "recorded")).max()),
        largest_change=max(changes),
        median_largest_change=float(np.median(changes)),
        sign_reversals=int(np.count_nonzero(np.sign(gap) * np.sign(gap + term) < 0)),
        at_budget=int(np.count_nonzero(gap == 0.0)),
        mean_term=float(np.abs(term).mean()),
        largest_term=float(np.abs(term).max()),
        mean_gap=float(np.abs(gap).mean()),
        median_gap=float(np.median(np.abs(gap))),
        smallest_gap=float(np.abs(gap).min()),
        largest_gap=float(np.abs(gap).max()),
        largest_step=float(np.abs(floats(table, "step")).max()),
        mean_score=float(np.nanmean(floats(moved, "negative_score"))),
        budget_shift=float(-term.mean()),
    )


def _check(rows: Rows, config: MultiplierConfig) -> None:
    if config.kind == "none":
        raise InputError("multiplier replay: the run's method has no multiplier (multiplier.kind is 'none')")
    if not rows:
        raise InputError("multiplier replay: no epochs; expected the rows of a run's epochs.jsonl")
    for place, row in enumerate(rows, 1):
        missing = [name for name in _READ if name not in row]
        if missing:
            raise InputError(
                f"multiplier replay: row {place} has no {', '.join(missing)}; expected the rows of a run's epochs.jsonl"
            )
        if row["epoch"] != place:
            raise InputError(
                f"multiplier replay: row {place} is of epoch {row['epoch']}; lambda depends on all earlier epochs, "
                "so the rows must begin with the first and be in order"
            )
        numbers = [row["multiplier"], *([row["episode_cost"], row["budget"]] if row["episodes"] else [])]
        if any(value is None or not np.isfinite(value) for value in numbers):
            raise InputError(
                f"multiplier replay: epoch {place} has no finite multiplier, episode_cost or budget; "
                "expected a run of a method with a multiplier"
            )
