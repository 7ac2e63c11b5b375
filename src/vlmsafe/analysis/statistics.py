"""Summaries, rates, matched seeds, t-tests and correlations of runs.

The unit of every comparison is one run (one training seed), because episodes of one policy resemble each other. So the
rate of an arm is the mean of its runs' rates. Three conventions hold throughout. Standard deviations are population
deviations (divided by n). Thresholds are strict: an episode that costs exactly the budget is not a violation. A
difference is first arm minus second. Intervals are in `intervals` and `resampling`, permutation and sign-flip tests in
`exact_tests`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from vlmsafe.errors import InputError

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

CATASTROPHE = 4.0  # a catastrophe costs more than this many budgets
LEVEL = 0.95
"""The level of an interval where none is given."""


def checked_level(level: float) -> float:
    """The level of an interval, or an `InputError`."""
    if not 0 < level < 1:
        raise InputError(f"the level is {level}; expected a share between 0 and 1, such as {LEVEL}")
    return level


def finite_vector(values: ArrayLike, what: str, *, least: int = 1) -> Float64:
    """`values` as a vector of floats, or an `InputError` that names `what`: wrong shape, too few, NaN or infinite."""
    try:
        vector = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: expected numbers, one per run or episode; {error}") from error
    if vector.ndim != 1:
        raise InputError(f"{what}: expected a vector, one number per run or episode; got the shape {vector.shape}")
    if len(vector) < least:
        raise InputError(f"{what}: {_numbered(len(vector), 'value')}; at least {least} needed")
    bad = np.flatnonzero(~np.isfinite(vector))
    if len(bad):
        raise InputError(
            f"{what}: the value at position {bad[0]} is {vector[bad[0]]} ({len(bad)} of {len(vector)} are not finite); "
            "leave out the runs without a result, and report that you did"
        )
    return vector


@dataclass(frozen=True)
class Summary:
    """The number of values, their mean and their population standard deviation."""

    n: int
    mean: float
    std: float


def summary(values: ArrayLike) -> Summary:
    """Mean and population standard deviation, sqrt(sum (x - mean)² / n): the paper's `mean ± std` over seeds.

    >>> summary([17.75, 36.37, 21.70, 23.07, 13.26])
    Summary(n=5, mean=22.43, std=7.762182682725265)
    """
    vector = finite_vector(values, "summary")
    return Summary(len(vector), float(np.mean(vector)), float(np.std(vector)))


@dataclass(frozen=True, eq=False)
class Clusters:
    """Episodes summed per run, for the rate or mean of each run and of all episodes together.

    For a rate, `totals` counts the episodes with the event. For a mean, it sums the values of the episodes.
    """

    totals: Float64
    episodes: Int64

    @property
    def per_run(self) -> Float64:
        """Each run's own rate or mean. A comparison takes these, with equal weight."""
        return self.totals / self.episodes

    @property
    def pooled(self) -> float:
        """The rate or mean over all episodes of all runs, as published. Runs with more episodes have more weight."""
        return float(self.totals.sum() / self.episodes.sum())

    @property
    def even(self) -> bool:
        """Whether all runs have equally many episodes, so that the pooled value is the mean over runs."""
        return len(set(self.episodes.tolist())) == 1


def clusters(values_by_run: Sequence[ArrayLike]) -> Clusters:
    """The clusters of some runs; `values_by_run` has one vector of episodes per run.

    >>> found = clusters([[True, False], [False, False, False, False]])
    >>> found.per_run.tolist(), found.pooled, found.even
    ([0.5, 0.0], 0.16666666666666666, False)
    """
    if not len(values_by_run):
        raise InputError("an arm without runs: expected one vector of episodes per run")
    runs = [finite_vector(run, f"episodes of run {i}") for i, run in enumerate(values_by_run)]
    return Clusters(np.array([run.sum() for run in runs]), np.array([len(run) for run in runs], np.int64))


def thresholds(budget: float) -> dict[str, float]:
    """The cost above which an episode is a violation (d), and above which it is a catastrophe (4 d).

    >>> thresholds(25.0)
    {'violation': 25.0, 'catastrophe': 100.0}
    """
    return {"violation": budget, "catastrophe": CATASTROPHE * budget}


@dataclass(frozen=True)
class BudgetCount:
    """How many runs are within the budget and how many are over it."""

    within: int
    over: int


def seeds_within(costs: ArrayLike, budget: ArrayLike) -> BudgetCount:
    """Runs with a cost at most the budget (within) and strictly above it (over); one budget for all, or each its own.

    >>> seeds_within([25.0, 25.01, 3.0], 25)
    BudgetCount(within=2, over=1)
    """
    vector = finite_vector(costs, "costs per run")
    budgets = finite_vector(np.atleast_1d(np.asarray(budget)), "budgets")
    if len(budgets) not in (1, len(vector)):
        raise InputError(f"{len(budgets)} budgets for {len(vector)} runs; expected one for each, or one for all")
    over = int(np.count_nonzero(vector > budgets))
    return BudgetCount(len(vector) - over, over)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Two arms matched by seed, in the order of the seeds."""

    first: Float64
    second: Float64

    @property
    def differences(self) -> Float64:
        return self.first - self.second


def pair_by_seed(first_seeds: ArrayLike, first: ArrayLike, second_seeds: ArrayLike, second: ArrayLike) -> Pairs:
    """Match two arms by seed (a number or any name of the pair); both must have the same seeds, each once."""
    a, b = _by_seed(first_seeds, first, "first arm"), _by_seed(second_seeds, second, "second arm")
    if a.keys() != b.keys():
        only_a = ", ".join(str(seed) for seed in a if seed not in b) or "none"
        only_b = ", ".join(str(seed) for seed in b if seed not in a) or "none"
        raise InputError(
            f"a paired comparison needs the same seeds in both arms; only in the first: {only_a}; only in the second: "
            f"{only_b}. Restrict both to the shared seeds, or compare them unpaired"
        )
    seeds = sorted(a)
    return Pairs(np.array([a[seed] for seed in seeds]), np.array([b[seed] for seed in seeds]))


@dataclass(frozen=True)
class Wins:
    """On how many matched seeds the first arm is lower, the second arm is lower, and both are equal."""

    first_lower: int
    second_lower: int
    ties: int


def wins(pairs: Pairs) -> Wins:
    """Count seed by seed which arm has the lower value. For a cost or a rate, lower wins."""
    below = int(np.count_nonzero(pairs.first < pairs.second))
    above = int(np.count_nonzero(pairs.first > pairs.second))
    return Wins(below, above, len(pairs.first) - below - above)


def relative_reduction(baseline: float, value: float) -> float:
    """(baseline - value) / baseline: positive if the value is lower. The paper prints it as relative change.

    >>> relative_reduction(0.14, 0.07)
    0.5
    """
    if not np.isfinite([baseline, value]).all() or baseline <= 0:
        raise InputError(
            f"relative reduction: expected a positive baseline and finite numbers, got {baseline}, {value}"
        )
    return (baseline - value) / baseline


@dataclass(frozen=True)
class TTest:
    """A t-test's statistic (positive if the first arm is higher), degrees of freedom and two-sided p."""

    statistic: float
    df: float
    p: float


def welch_t_test(first: ArrayLike, second: ArrayLike) -> TTest:
    """Two-sided t-test of two means without assuming equal variances; degrees of freedom by Welch and Satterthwaite."""
    a, b = finite_vector(first, "first arm", least=2), finite_vector(second, "second arm", least=2)
    if np.ptp(a) == 0 and np.ptp(b) == 0:
        raise InputError("Welch's t-test: all values of each arm are equal, so there is no variation to compare with")
    result = stats.ttest_ind(a, b, equal_var=False)
    return TTest(float(result.statistic), float(result.df), float(result.pvalue))


def paired_t_test(pairs: Pairs) -> TTest:
    """Two-sided t-test of the mean of the differences first - second over matched seeds, with n - 1 degrees."""
    differences = finite_vector(pairs.differences, "paired t-test", least=2)
    if np.ptp(differences) == 0:
        raise InputError("paired t-test: all differences are equal, so there is no variation to compare with")
    result = stats.ttest_1samp(differences, 0.0)
    return TTest(float(result.statistic), float(result.df), float(result.pvalue))


@dataclass(frozen=True)
class Correlation:
    """Pearson's and Spearman's correlation of n points."""

    pearson: float
    spearman: float
    n: int


def correlation(x: ArrayLike, y: ArrayLike) -> Correlation:
    """Pearson's correlation, and Spearman's (Pearson's of the ranks; ties share their mean rank)."""
    a, b = finite_vector(x, "correlation, x", least=3), finite_vector(y, "correlation, y", least=3)
    if len(a) != len(b):
        raise InputError(f"correlation: {len(a)} values of x and {len(b)} of y; each point needs both")
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        raise InputError("correlation: all values of x or of y are equal, so it is not defined")
    return Correlation(float(stats.pearsonr(a, b).statistic), float(stats.spearmanr(a, b).statistic), len(a))


def _by_seed(seeds: ArrayLike, values: ArrayLike, what: str) -> dict[int | str, float]:
    names, vector = np.asarray(seeds), finite_vector(values, what)
    if names.shape != vector.shape:
        raise InputError(f"{what}: {names.size} seeds for {len(vector)} values; expected one seed per value")
    table: dict[int | str, float] = dict(zip(names.tolist(), vector.tolist(), strict=True))
    if len(table) < len(vector):
        raise InputError(f"{what}: a seed occurs twice among {names.tolist()}; expected each seed once")
    return table


def _numbered(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
