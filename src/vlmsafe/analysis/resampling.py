"""Percentile bootstrap intervals: what the estimate might have been with other seeds, or other episodes.

An interval that resamples runs covers new training runs. An interval that resamples the episodes of given runs covers
only new episodes of the same policies, and is narrower. Every result says what was resampled. With n runs an arm has
only n^n resamples, so the ends lie on a coarse grid and may move by one step of it if the seed changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from vlmsafe.analysis.statistics import LEVEL, Float64, Int64, Pairs, checked_level, finite_vector
from vlmsafe.errors import InputError

Unit = Literal["runs", "episodes"]

RESAMPLES = 10_000
LEAST = 3
"""The least number of runs for an interval. Two runs have only three different resamples."""
_DRAWS = 1 << 22  # indices held at a time; bounds the memory


@dataclass(frozen=True)
class PercentileInterval:
    """An estimate with its percentile bootstrap interval."""

    estimate: float
    low: float
    high: float
    level: float
    resamples: int
    unit: Unit
    """What was resampled."""


def bootstrap_mean(
    values: ArrayLike, *, unit: Unit = "runs", resamples: int = RESAMPLES, seed: int = 0, level: float = LEVEL
) -> PercentileInterval:
    """The mean of one sample: draw n of the n values with replacement, take the mean, `resamples` times."""
    vector = finite_vector(values, "bootstrap of a mean")
    means = _resampled(vector.size, resamples, np.random.default_rng(seed), lambda rows: vector[rows].mean(axis=1))
    return _interval(float(vector.mean()), means, level, unit)


def bootstrap_mean_difference(
    first: ArrayLike,
    second: ArrayLike,
    *,
    unit: Unit = "runs",
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> PercentileInterval:
    """mean(first) - mean(second), with each arm resampled by itself and independently of the other.

    The values are one per run, and all runs have equal weight. With `unit="episodes"` they are one per episode of a run
    or a pool; true and false give a rate.
    """
    a, b = finite_vector(first, "first arm"), finite_vector(second, "second arm")
    rng = np.random.default_rng(seed)
    means = _resampled(a.size, resamples, rng, lambda rows: a[rows].mean(axis=1))
    means -= _resampled(b.size, resamples, rng, lambda rows: b[rows].mean(axis=1))
    return _interval(float(a.mean() - b.mean()), means, level, unit)


def bootstrap_paired_difference(
    pairs: Pairs, *, resamples: int = RESAMPLES, seed: int = 0, level: float = LEVEL
) -> PercentileInterval:
    """The mean of first - second over matched seeds. Seeds are drawn, so both arms always have the same ones.

    The interval is narrower than the unpaired one if a seed moves both arms alike. The paper's intervals are unpaired.
    """
    return bootstrap_mean(pairs.differences, resamples=resamples, seed=seed, level=level)


def _resampled(size: int, resamples: int, rng: np.random.Generator, statistic: Callable[[Int64], Float64]) -> Float64:
    """`statistic` of index rows [some, size], a portion at a time. Portions do not change the draws."""
    if resamples < 1:
        raise InputError(f"{resamples} resamples; expected at least 1, usually {RESAMPLES}")
    portion = max(1, _DRAWS // size)
    counts = [min(portion, resamples - start) for start in range(0, resamples, portion)]
    return np.concatenate([statistic(rng.integers(0, size, (count, size))) for count in counts])


def _interval(estimate: float, resampled: Float64, level: float, unit: Unit) -> PercentileInterval:
    checked_level(level)
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2])
    return PercentileInterval(estimate, float(low), float(high), level, len(resampled), unit)
