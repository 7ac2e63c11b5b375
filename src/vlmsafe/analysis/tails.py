"""Tails: what the costliest episodes cost, how probably one arm is lower than another, and cost per distance.

Episodes of one policy resemble each other, so intervals are over runs: each run gives one value, such as its CVaR, and
the interval says what new runs might give. A value of one run, or of runs that are all equal, has no interval.
`benchmarks/coverage_tails.py` measures how often the intervals hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from vlmsafe.analysis.statistics import Float64, finite_vector
from vlmsafe.errors import InputError

SHARE = 0.1
"""The share of the costliest episodes that a CVaR averages."""
LEVEL = 0.95


@dataclass(frozen=True)
class RunEstimate:
    """An estimate with its interval over runs."""

    estimate: float
    low: float | None
    """None, as `high`, if there is no interval: one run, equal runs, or runs too few to bound a ratio."""
    high: float | None
    level: float
    runs: int
    """The runs it rests on; of two arms, those of the arm that has fewer."""


def cvar(costs: ArrayLike, share: float = SHARE) -> float:
    """The mean of the costliest `share` of the episodes: the conditional value at risk.

    If the share is no whole number of episodes, the last one counts in part.

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


def over_runs(values: ArrayLike, *, level: float = LEVEL, least: float = -math.inf) -> RunEstimate:
    """The mean of one value per run, with its t interval. The interval is cut at `least`, 0 for costs.

    It holds for runs of any number if their values are about normal. Runs that differ by a long upper tail make its
    upper end too low.

    >>> round(over_runs([10.0, 12.0, 14.0]).high, 2)
    16.97
    """
    vector = finite_vector(values, "values per run")
    mean, error = float(vector.mean()), _standard_error(vector, vector)
    if not error:
        return _without_interval(mean, level, len(vector))
    reach = _t_quantile(level, len(vector)) * error
    return RunEstimate(mean, max(least, mean - reach), mean + reach, _checked(level), len(vector))


def probability_of_improvement(first: ArrayLike, second: ArrayLike, *, level: float = LEVEL) -> RunEstimate:
    """How probably a run of the first arm is lower than one of the second (Agarwal et al. 2021). Ties count half.

    The estimate is the share of all pairs of runs in which the first is lower. For any two distributions its variance
    is at most p (1 - p) / min(m, n) (van Dantzig 1951), that of a rate of min(m, n) trials. The interval is Wilson's for
    such a rate, so it assumes no distribution, and is wide: three runs that are all lower give 0.44 to 1.

    >>> round(probability_of_improvement([1.0, 2.0, 3.0], [3.0, 4.0, 5.0]).estimate, 3)
    0.944
    """
    a, b = finite_vector(first, "first arm"), finite_vector(second, "second arm")
    below = np.less.outer(a, b) + 0.5 * np.equal.outer(a, b)
    share, runs = float(below.mean()), min(len(a), len(b))
    if runs < 2 or np.ptp(np.concatenate([a, b])) == 0:
        return _without_interval(share, level, runs)
    z2 = float(special.ndtri((1 + _checked(level)) / 2)) ** 2
    centre = (share + z2 / (2 * runs)) / (1 + z2 / runs)
    reach = math.sqrt(z2 * share * (1 - share) / runs + (z2 / (2 * runs)) ** 2) / (1 + z2 / runs)
    return RunEstimate(share, max(0.0, centre - reach), min(1.0, centre + reach), level, runs)


def cost_per_distance(costs: ArrayLike, distances: ArrayLike, *, level: float = LEVEL) -> RunEstimate:
    """The sum of the runs' costs over the sum of their distances, with Fieller's interval.

    Both have one total per run, or one mean per run if all runs have equally many episodes. Fieller's interval knows
    that the distance varies too. It is unbounded if the runs do not tell their mean distance from 0; such a ratio has no
    interval.

    >>> cost_per_distance([10.0, 20.0], [100.0, 100.0]).estimate
    0.15
    """
    c, d = finite_vector(costs, "costs per run"), finite_vector(distances, "distances per run")
    if len(c) != len(d):
        raise InputError(f"cost per distance: {len(c)} costs and {len(d)} distances; each run needs both")
    if d.sum() <= 0:
        raise InputError(f"cost per distance: the distances sum to {d.sum():g}; expected more than 0")
    ratio = float(c.sum() / d.sum())
    if not _standard_error(c - ratio * d, c):
        return _without_interval(ratio, level, len(c))
    t2 = _t_quantile(level, len(c)) ** 2 / len(c)
    covariance = np.cov(c, d)
    # The ratios r for which the mean of c - r d is not told from 0: quadratic - 2 linear r + constant <= 0.
    quadratic = float(d.mean() ** 2 - t2 * covariance[1, 1])
    linear = float(c.mean() * d.mean() - t2 * covariance[0, 1])
    constant = float(c.mean() ** 2 - t2 * covariance[0, 0])
    if quadratic <= 0:
        return _without_interval(ratio, level, len(c))
    root = math.sqrt(max(0.0, linear**2 - quadratic * constant))
    low = (linear - root) / quadratic
    return RunEstimate(ratio, max(0.0, low), (linear + root) / quadratic, level, len(c))


def _without_interval(estimate: float, level: float, runs: int) -> RunEstimate:
    return RunEstimate(estimate, None, None, _checked(level), runs)


def _standard_error(vector: Float64, scale: Float64) -> float:
    """Of the mean; 0 for one value, and for values whose differences are rounding errors of numbers like `scale`."""
    if len(vector) < 2 or np.ptp(vector) <= 1e-12 * np.abs(scale).max():
        return 0.0
    return float(vector.std(ddof=1)) / math.sqrt(len(vector))


def _t_quantile(level: float, runs: int) -> float:
    return float(special.stdtrit(runs - 1, (1 + _checked(level)) / 2))


def _checked(level: float) -> float:
    if not 0 < level < 1:
        raise InputError(f"the level is {level}; expected a share between 0 and 1, such as {LEVEL}")
    return level
