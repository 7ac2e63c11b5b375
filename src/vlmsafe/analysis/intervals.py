"""Intervals of means and differences that hold their level with 3 to 10 runs.

The percentile bootstrap (`resampling`) is too narrow for so few runs: of 95 % intervals of a mean over three runs,
about 75 % cover it (`benchmarks/coverage.py`). There are two kinds of intervals here:

- t intervals (`mean_interval`, `welch_interval`, `paired_interval`), which are exact for normal runs;
- inverted exact tests (`permutation_interval`, `sign_flip_interval`): all shifts between two arms that the test does
  not reject. They assume that the arms differ by a shift and nothing about the shape of the distribution (sign-flip:
  that differences are symmetric). An interval excludes a difference exactly where the test of it is significant.

A difference is first arm minus second.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from math import comb
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from vlmsafe.analysis.statistics import LEVEL, Float64, Pairs, checked_level, finite_vector

Method = Literal["t", "permutation", "sign-flip", "percentile bootstrap"]

_LISTED = 200_000  # splits or choices of sign that are listed; a sample of this size stands for more


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval."""

    estimate: float
    low: float
    """Minus infinity where so few runs exclude no difference, however large."""
    high: float
    level: float
    method: Method

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def mean_interval(
    values: ArrayLike, *, level: float = LEVEL, least: float = -math.inf, most: float = math.inf
) -> Interval | None:
    """The t interval of a mean; None where it has no width, because there is one run or all runs are equal.

    `least` and `most` bound what the mean can be, such as 0 and 1 for a rate.

    >>> mean_interval([1.0, 2.0, 3.0])
    Interval(estimate=2.0, low=-0.484..., high=4.484..., level=0.95, method='t')
    """
    vector = finite_vector(values, "interval of a mean")
    if len(vector) < 2 or np.ptp(vector) == 0.0:
        return None
    mean, error = float(vector.mean()), float(vector.std(ddof=1)) / math.sqrt(len(vector))
    width = error * _t(level, len(vector) - 1)
    return Interval(mean, max(mean - width, least), min(mean + width, most), level, "t")


def welch_interval(first: ArrayLike, second: ArrayLike, *, level: float = LEVEL) -> Interval | None:
    """The t interval of mean(first) - mean(second) without assuming equal variances; None where it has no width."""
    a, b = finite_vector(first, "first arm"), finite_vector(second, "second arm")
    if min(len(a), len(b)) < 2 or (np.ptp(a) == 0.0 and np.ptp(b) == 0.0):
        return None
    return contrast_interval([a, b], [1.0, -1.0], level=level)


def contrast_interval(groups: list[Float64], weights: list[float], *, level: float = LEVEL) -> Interval | None:
    """The t interval of the weighted sum of the groups' means, with degrees of freedom by Welch and Satterthwaite."""
    found = contrast_of(groups, weights)
    if found is None:
        return None
    estimate, error, df = found
    width = error * _t(level, df)
    return Interval(estimate, estimate - width, estimate + width, level, "t")


def contrast_of(groups: list[Float64], weights: list[float]) -> tuple[float, float, float] | None:
    """A weighted sum of means, its standard error and its degrees of freedom; None where it has no error."""
    if any(len(group) < 2 for group in groups):
        return None
    parts = [weight**2 * group.var(ddof=1) / len(group) for group, weight in zip(groups, weights, strict=True)]
    total = float(sum(parts))
    if total == 0.0:
        return None
    df = total**2 / sum(part**2 / (len(group) - 1) for part, group in zip(parts, groups, strict=True))
    estimate = sum(weight * group.mean() for group, weight in zip(groups, weights, strict=True))
    return float(estimate), math.sqrt(total), float(df)


def paired_interval(pairs: Pairs, *, level: float = LEVEL) -> Interval | None:
    """The t interval of the mean difference over matched seeds; None where it has no width."""
    return mean_interval(pairs.differences, level=level)


def permutation_interval(
    first: ArrayLike, second: ArrayLike, *, level: float = LEVEL, one_sided: bool = False, seed: int = 0
) -> Interval:
    """The shifts that the permutation test of mean(first) - mean(second) does not reject.

    The test is two-sided at 1 - `level`, or with `one_sided` each of both one-sided tests at half of that.

    If the first arm's values were shifted by d, a split that exchanges k runs of each arm would be as extreme as the
    observed one for all d up to a threshold. So the count of such splits falls from one sorted threshold to the next,
    and each end of the interval is one of them. Beyond 200,000 splits a sample of them is used.

    >>> permutation_interval([1.0, 2.0, 3.0], [11.0, 12.0, 13.0], level=0.8)
    Interval(estimate=-10.0, low=-11.99..., high=-8.0, level=0.8, method='permutation')
    >>> permutation_interval([1.0, 2.0, 3.0], [11.0, 12.0, 13.0]).bounded  # three against three runs: p is 0.1 or more
    False
    """
    a, b = finite_vector(first, "first arm"), finite_vector(second, "second arm")
    checked_level(level)
    exchanged, gains = _exchanges(a, b, np.random.default_rng(seed))
    high = _upper_shift(a, b, exchanged, gains, 1.0 - level, one_sided)
    low = -_upper_shift(-a, -b, exchanged, -gains, 1.0 - level, one_sided)
    return Interval(float(a.mean() - b.mean()), low, high, level, "permutation")


def _upper_shift(a: Float64, b: Float64, exchanged: Float64, gains: Float64, alpha: float, one_sided: bool) -> float:
    """The largest shift that the test does not reject.

    For a shift d above the observed difference D, a split that exchanges k runs is at least as extreme on the observed
    side for d <= g / k, where g is the sum that the first arm gives away less the one that it gets. On the other side
    it is for d <= (2 D - c g) / (2 - c k), where c = 1/n + 1/m.
    """
    same_side = gains / exchanged
    if one_sided:
        return _largest(np.append(same_side, math.inf), alpha / 2.0 * (len(gains) + 1))
    observed, factor = float(a.mean() - b.mean()), 1.0 / len(a) + 1.0 / len(b)
    room = 2.0 - factor * exchanged
    with np.errstate(divide="ignore", invalid="ignore"):
        other_side = np.where(room > 1e-9, (2.0 * observed - factor * gains) / room, math.inf)
    # The observed split is as extreme as itself for every shift.
    return _largest(np.concatenate([[math.inf], same_side, other_side]), alpha * (len(gains) + 1))


def _largest(thresholds: Float64, count: float) -> float:
    """The largest shift up to which at least `count` thresholds lie; p is below the level beyond it."""
    place = len(thresholds) - math.ceil(count - 1e-9)
    return float(np.partition(thresholds, place)[place])


def _exchanges(a: Float64, b: Float64, rng: np.random.Generator) -> tuple[Float64, Float64]:
    """For every split but the observed one: the runs that it exchanges, and what the first arm gives less what it gets.

    If there are more than can be listed, it is a sample of all splits.
    """
    n, values = len(a), np.concatenate([a, b])
    if comb(len(values), n) <= _LISTED:
        rows = _splits(len(values), n)
    else:
        rows = rng.permuted(np.tile(np.arange(len(values)), (_LISTED, 1)), axis=1)[:, :n]
        rows = rows[(rows >= n).any(axis=1)]
    exchanged = (rows >= n).sum(axis=1).astype(np.float64)
    return exchanged, a.sum() - values[rows].sum(axis=1)


@functools.lru_cache(maxsize=8)
def _splits(total: int, size: int) -> NDArray[np.int32]:
    """The members of the first arm in every split but the observed one."""
    return np.array(list(itertools.combinations(range(total), size)), np.int32)[1:]


def sign_flip_interval(pairs: Pairs, *, level: float = LEVEL, seed: int = 0) -> Interval:
    """The shifts that the two-sided sign-flip test over matched seeds does not reject at 1 - `level`.

    A choice of signs that flips some differences is as extreme as the observed one, for shifts above the mean, up to
    the mean of the flipped differences. Beyond 200,000 choices a sample of them is used.

    >>> sign_flip_interval(Pairs(np.array([1.0, 2.0, 3.0, 4.0, 6.0]), np.zeros(5)), level=0.9)
    Interval(estimate=3.2, low=1.0, high=6.0, level=0.9, method='sign-flip')
    """
    differences = finite_vector(pairs.differences, "sign-flip interval")
    checked_level(level)
    count = len(differences)
    if 1 << count <= _LISTED:
        flips = (np.arange(1, 1 << count)[:, None] >> np.arange(count)) & 1
    else:
        flips = np.random.default_rng(seed).integers(0, 2, (_LISTED, count))
        flips = flips[flips.any(axis=1)]
    means = (flips @ differences) / flips.sum(axis=1)
    needed = math.ceil((1.0 - level) / 2.0 * (len(means) + 1) - 1e-9)
    thresholds = np.sort(np.concatenate([[-math.inf], means, [math.inf]]))
    # The observed signs count for every shift: at the upper end, and mirrored at the lower one.
    low, high = float(thresholds[needed - 1]), float(thresholds[len(thresholds) - needed])
    return Interval(float(differences.mean()), low, high, level, "sign-flip")


def _t(level: float, df: float) -> float:
    return float(stats.t.ppf((1.0 + checked_level(level)) / 2.0, df))
