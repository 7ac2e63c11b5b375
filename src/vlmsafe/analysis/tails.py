"""Tails: what the costliest episodes cost, how probably one arm is lower than another, and cost per distance.

Episodes of one policy resemble each other, so intervals are over runs: each run gives one value, such as its CVaR, and
the interval says what new runs might give. One run has no interval, and neither have runs that are all equal.
`benchmarks/coverage_tails.py` measures how often the intervals hold, and docs/explanation/statistics.md has the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import ArrayLike
from scipy import special

from vlmsafe.analysis.statistics import LEVEL, checked_level, finite_vector
from vlmsafe.analysis.tables import floats
from vlmsafe.errors import InputError

SHARE = 0.1
"""The share of the costliest episodes that a CVaR averages."""
LEAST = 3
"""The least number of runs for a t interval on the log scale. With two, its ends can be a factor of 10^5 apart."""
_ROUNDING = 1e-12  # values that differ by a smaller share are equal
_WIDEST = 1e6  # an interval that reaches further up and down, as a factor, says nothing and is left out


@dataclass(frozen=True)
class RunEstimate:
    """An estimate with its interval over runs."""

    estimate: float
    low: float | None
    """None, as `high`, if there is no interval: too few runs, or runs that are all equal."""
    high: float | None
    level: float
    runs: int
    """The runs it rests on; of two arms, those of the arm that has fewer."""


@dataclass(frozen=True)
class Distance:
    """A column of evaluation tables that says how far an episode got, and the unit that costs are divided by."""

    column: str
    unit: str
    """In words, such as 100 m of path."""
    size: float
    """How much of the column one such unit is."""


DISTANCES = (
    Distance("path", "100 m of path", 100.0),
    Distance("distance", "100 m of path", 100.0),
    Distance("net_progress", "100 m of progress", 100.0),
    Distance("route_completion", "whole route", 1.0),
    Distance("length", "1,000 steps", 1000.0),
)
"""What cost is divided by: the first of these that the evaluations have. MetaDrive records the share of the route."""


def distance_of(tables: Sequence[pl.DataFrame]) -> Distance | None:
    """The first distance that all these evaluation tables have without gaps, with a sum above 0; None without one."""
    for distance in DISTANCES:
        if tables and all(_covers(table, distance.column) for table in tables):
            return distance
    return None


def _covers(table: pl.DataFrame, column: str) -> bool:
    values = floats(table, column) if column in table.columns else np.array([np.nan])
    return bool(np.isfinite(values).all() and values.sum() > 0)


def cvar(costs: ArrayLike, share: float = SHARE) -> float:
    """The mean of the costliest `share` of the episodes: the conditional value at risk.

    If the share is not a whole number of episodes, the last one counts in part.

    >>> cvar([0, 1, 2, 3, 4, 5, 6, 7, 8, 10], 0.15)
    9.333333333333334
    """
    vector = np.sort(finite_vector(costs, "CVaR"))[::-1]
    if not 0 < share <= 1:
        raise InputError(f"CVaR: the share is {share}; expected more than 0 and at most 1, such as {SHARE}")
    counted = share * len(vector)
    weights = np.clip(counted - np.arange(len(vector)), 0.0, 1.0)
    return float(vector @ weights / counted)


def quantile(costs: ArrayLike, share: float) -> float:
    """The cost that a `share` of the episodes stays below, interpolated between episodes.

    >>> quantile([0, 1, 2, 3, 10], 0.5)
    2.0
    """
    if not 0 <= share <= 1:
        raise InputError(f"quantile: the share is {share}; expected 0 to 1, such as 0.9")
    return float(np.quantile(finite_vector(costs, "quantile"), share))


def over_runs(values: ArrayLike, *, level: float = LEVEL) -> RunEstimate:
    """The mean of one cost per run, with the t interval of its logarithm: mean * exp(+- t * standard error / mean).

    Costs are never negative and differ between runs by a long upper tail. On the log scale the interval holds more
    often than the plain one (`intervals.mean_interval`), which serves values of either sign. Single runs may be 0.

    >>> found = over_runs([10.0, 12.0, 14.0])
    >>> round(found.low, 2), round(found.high, 2)
    (7.93, 18.15)
    """
    vector = finite_vector(values, "costs per run")
    if vector.min() < 0:
        raise InputError(f"costs per run: {vector.min():g} is negative; expected costs")
    mean, runs = float(vector.mean()), len(vector)
    if runs < 2 or np.ptp(vector) <= _ROUNDING * vector.max():
        return _estimate(mean, 0.0, runs, level)
    return _estimate(mean, float(vector.std(ddof=1)) / math.sqrt(runs), runs, level)


def probability_of_improvement(first: ArrayLike, second: ArrayLike, *, level: float = LEVEL) -> RunEstimate:
    """How probably a run of the first arm is lower than one of the second (Agarwal et al. 2021). Ties count half.

    The estimate is the share of all pairs of runs in which the first is lower. Its variance is at most
    p (1 - p) / min(m, n), that of a rate of min(m, n) trials, for any two distributions (van Dantzig 1951).
    The interval is Wilson's for such a rate. It is wide: three runs that are all lower give 0.44 to 1.

    >>> round(probability_of_improvement([1.0, 2.0, 3.0], [3.0, 4.0, 5.0]).estimate, 3)
    0.944
    """
    a, b = finite_vector(first, "first arm"), finite_vector(second, "second arm")
    below = np.less.outer(a, b) + 0.5 * np.equal.outer(a, b)
    share, runs = float(below.mean()), min(len(a), len(b))
    if runs < 2 or np.ptp(np.concatenate([a, b])) == 0:
        return RunEstimate(share, None, None, checked_level(level), runs)
    z2 = float(special.ndtri((1 + checked_level(level)) / 2)) ** 2
    centre = (share + z2 / (2 * runs)) / (1 + z2 / runs)
    reach = math.sqrt(z2 * share * (1 - share) / runs + (z2 / (2 * runs)) ** 2) / (1 + z2 / runs)
    low, high = max(0.0, centre - reach), min(1.0, centre + reach)
    return RunEstimate(share, min(share, low), max(share, high), level, runs)  # rounding may leave 1 out


def cost_per_distance(costs: ArrayLike, distances: ArrayLike, *, level: float = LEVEL) -> RunEstimate:
    """The sum of the runs' costs over the sum of their distances, with the jackknife's t interval on the log scale.

    Both have one total per run. The jackknife computes the ratio without each run in turn, so it allows for distances
    that vary as well as costs, and for cost that grows with distance.

    >>> cost_per_distance([10.0, 20.0, 30.0], [100.0, 100.0, 200.0]).estimate
    0.15
    """
    c, d = finite_vector(costs, "costs per run"), finite_vector(distances, "distances per run")
    if len(c) != len(d):
        raise InputError(f"cost per distance: {len(c)} costs and {len(d)} distances; each run needs both")
    if c.min() < 0:
        raise InputError(f"cost per distance: a run's cost is {c.min():g}; expected no negative costs")
    if d.sum() <= 0:
        raise InputError(f"cost per distance: the distances sum to {d.sum():g}; expected more than 0")
    ratio, runs = float(c.sum() / d.sum()), len(c)
    others = d.sum() - d
    if runs < 2 or others.min() <= 0 or np.ptp(c - ratio * d) <= _ROUNDING * c.max():
        return _estimate(ratio, 0.0, runs, level)
    without = (c.sum() - c) / others
    error = (runs - 1) / math.sqrt(runs) * float(without.std(ddof=1))
    return _estimate(ratio, error, runs, level)


def _estimate(value: float, error: float, runs: int, level: float) -> RunEstimate:
    """A value with its t interval on the log scale; without one if the error is 0, or if it would say nothing."""
    place = (1 + checked_level(level)) / 2
    reach = float(special.stdtrit(runs - 1, place)) * error if error and runs >= LEAST else 0.0
    if not 0 < reach <= math.log(_WIDEST) * value:
        return RunEstimate(value, None, None, level, runs)
    factor = math.exp(reach / value)
    return RunEstimate(value, value / factor, value * factor, level, runs)
