"""The power of a test of two arms: before any run is made, and for a result that is not significant.

A `Design` says how a difference will be tested: by which test, with how many runs, at which level, and how much runs of
one arm differ. `power` is the probability that the test is significant for a true difference. `detectable_difference`
and `runs_needed` turn this around. Claims with a margin have functions of their own.

Runs are taken to be normal. The power of t-tests is an integral over the estimated variances. Exact permutation and
sign-flip tests are simulated while their possibilities can be listed, and approximated by the t-test that they approach
beyond that. Every result names its basis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import comb
from typing import Literal, get_args

import numpy as np
from scipy import special, stats

from vlmsafe.analysis.exact_tests import Alternative, smallest_permutation_p, smallest_sign_flip_p
from vlmsafe.analysis.statistics import Float64
from vlmsafe.errors import InputError, unknown_name

PowerTest = Literal["permutation", "sign-flip", "welch", "paired-t"]
Basis = Literal["integrated", "simulated", "approximated", "impossible"]
Goal = Literal["difference", "non-inferiority", "equivalence"]

POWER = 0.8
MOST_RUNS = 1000
"""Numbers of runs beyond this are not looked for."""
_PAIRED = ("sign-flip", "paired-t")
_LEAST_RUNS = 2
_LISTED = 13_000  # splits or signs that are listed, such as those of 8 against 8 runs; 9 against 9 have 48,620
_SUMS = 40_000_000  # of one simulation, over all its experiments: about a second
_EXPERIMENTS = 20_000
_AT_A_TIME = 4_000_000
_NODES = 64
_SEED = 0


@dataclass(frozen=True)
class Design:
    """How a difference between two arms is tested."""

    test: PowerTest
    runs: tuple[int, ...]
    """Runs of each arm. A paired test has one number, the seeds that both arms have."""
    deviations: tuple[float, ...]
    """Sample standard deviation between runs of each arm. A paired test has one, that of the differences."""
    sides: Alternative = "two-sided"
    alpha: float = 0.05
    """The level, corrected for the number of tests. The test is significant if p is below it."""

    def __post_init__(self) -> None:
        for what, value, known in (("test", self.test, PowerTest), ("alternative", self.sides, Alternative)):
            if value not in get_args(known):
                raise unknown_name(what, value, get_args(known))
        wanted = 1 if self.paired else 2
        if not len(self.runs) == len(self.deviations) == wanted:
            raise InputError(
                f"power of a {self.test} test: expected {wanted} numbers of runs and as many deviations, got "
                f"{len(self.runs)} and {len(self.deviations)}"
            )
        if min(self.runs) < 0:
            raise InputError(f"power: the number of runs is {min(self.runs)}; it must be 0 or greater")
        if not all(math.isfinite(one) and one >= 0.0 for one in self.deviations) or not any(self.deviations):
            given = " and ".join(f"{one:g}" for one in self.deviations)
            raise InputError(f"power: the standard deviation is {given}; expected finite numbers, one of them above 0")
        if not 0.0 < self.alpha < 1.0:
            raise InputError(f"power: alpha is {self.alpha}; it must lie between 0 and 1")

    @property
    def paired(self) -> bool:
        return self.test in _PAIRED

    @property
    def smallest_p(self) -> float:
        """The smallest p that this many runs can give; 0 for t-tests, 1 if there are too few runs for the test."""
        if min(self.runs) < _LEAST_RUNS:
            return 1.0
        if self.test == "permutation":
            return float(smallest_permutation_p(self.runs[0], self.runs[1], self.sides))
        return float(smallest_sign_flip_p(self.runs[0], self.sides)) if self.test == "sign-flip" else 0.0

    @property
    def basis(self) -> Basis:
        """How the power of this design is found."""
        if self.smallest_p >= self.alpha:
            return "impossible"
        if self.test in ("welch", "paired-t"):
            return "integrated"
        return "simulated" if self._possibilities <= _LISTED else "approximated"

    @property
    def standard_error(self) -> float:
        """The true standard error of the difference of the means."""
        parts = zip(self.deviations, self.runs, strict=True)
        return math.sqrt(math.fsum(deviation**2 / runs for deviation, runs in parts))

    @property
    def _possibilities(self) -> int:
        return 2 ** self.runs[0] if self.paired else comb(sum(self.runs), self.runs[0])

    def with_runs(self, number: int) -> Design:
        """The same test with this many runs of each arm."""
        return replace(self, runs=(number,) * len(self.runs))


@dataclass(frozen=True)
class Computed:
    """A power, a difference or a number of runs, and how it was found."""

    value: float | None
    """None where no difference, or no number of runs up to `MOST_RUNS`, reaches the wanted power."""
    basis: Basis
    """`integrated` is exact for normal runs. `simulated` is a seeded simulation of the exact test. `approximated` is
    the t-test that the exact test approaches. `impossible` means that p cannot fall below the level."""


def power(design: Design, difference: float) -> Computed:
    """The probability of a significant result if the true difference is this large, in the claimed direction.

    For a two-sided test either direction counts.

    >>> round(power(Design("paired-t", (10,), (1.0,)), 1.0).value, 3)
    0.803
    """
    return _power(design, "difference", _checked(difference, "difference"), 0.0)


def power_of_non_inferiority(design: Design, margin: float, loss: float = 0.0) -> Computed:
    """The probability to show that the first arm is worse by less than `margin`, if it is truly worse by `loss`.

    This is the one-sided test at level alpha of a difference of `margin - loss`. A negative loss is an advantage.
    """
    return _power(design, "non-inferiority", _checked(margin, "margin"), loss)


def power_of_equivalence(design: Design, margin: float, difference: float = 0.0) -> Computed:
    """The probability that both one-sided tests at level alpha show a difference of less than `margin`.

    >>> design = Design("welch", (12, 12), (1.0, 1.0))
    >>> round(power_of_equivalence(design, 1.5).value, 3)
    0.943
    """
    return _power(design, "equivalence", _checked(margin, "margin"), difference)


def detectable_difference(design: Design, wanted: float = POWER, goal: Goal = "difference") -> Computed:
    """The smallest true difference that is significant with the wanted power; None if the design can show none.

    For non-inferiority and equivalence, the smallest margin that can be kept by two arms that do not differ.

    >>> detectable_difference(Design("permutation", (3, 3), (1.0, 1.0)))
    Computed(value=None, basis='impossible')
    """
    design = _tested(design, goal)
    wanted = _checked_power(wanted)
    if design.basis == "impossible":
        return Computed(None, "impossible")
    found = _smallest(lambda distance: _reached(design, goal, distance, 0.0), wanted, design.standard_error)
    return Computed(found, design.basis)


def runs_needed(
    design: Design, difference: float, wanted: float = POWER, goal: Goal = "difference", most: int = MOST_RUNS
) -> Computed:
    """The smallest number of runs per arm with which a difference (or a margin) reaches the wanted power.

    The runs of `design` do not matter.

    >>> runs_needed(Design("welch", (2, 2), (1.0, 1.0)), 1.0)
    Computed(value=17, basis='integrated')
    """
    difference, wanted = _checked(difference, "difference"), _checked_power(wanted)
    design = _tested(design, goal)
    if difference == 0.0:
        raise InputError("power: no number of runs detects a difference of 0; give a difference above 0")

    def enough(runs: int, *, like: PowerTest) -> bool:
        planned = replace(design.with_runs(runs), test=like)
        return planned.basis != "impossible" and _reached(planned, goal, difference, 0.0) >= wanted

    # The t-test needs about as many runs and is quick to compute, so that only its neighbours are simulated.
    near: PowerTest = "paired-t" if design.paired else "welch"
    low, high = _LEAST_RUNS, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle, like=near) else (middle + 1, high)
    while low > _LEAST_RUNS and enough(low - 1, like=design.test):
        low -= 1
    while low <= most and not enough(low, like=design.test):
        low += 1
    found = design.with_runs(min(low, most))
    return Computed(low if low <= most else None, found.basis)


def least_runs(design: Design) -> int | None:
    """The smallest number of runs per arm with which the test can be significant; None if it is above `MOST_RUNS`.

    >>> least_runs(Design("permutation", (3, 3), (1.0, 1.0)))
    4
    """
    numbers = range(_LEAST_RUNS, MOST_RUNS + 1)
    return next((number for number in numbers if design.with_runs(number).basis != "impossible"), None)


def _power(design: Design, goal: Goal, distance: float, shift: float) -> Computed:
    if not math.isfinite(shift):
        raise InputError(f"power: the true difference is {shift}; expected a finite number")
    design = _tested(design, goal)
    if design.basis == "impossible":
        return Computed(0.0, "impossible")
    return Computed(_reached(design, goal, distance, shift), design.basis)


def _tested(design: Design, goal: Goal) -> Design:
    """The design of the tests that are made: claims with a margin test one side at a time."""
    if goal not in get_args(Goal):
        raise unknown_name("goal of a test", goal, get_args(Goal))
    return design if goal == "difference" or design.sides != "two-sided" else replace(design, sides="greater")


def _reached(design: Design, goal: Goal, distance: float, shift: float) -> float:
    curve = _curve(design)
    if goal == "equivalence":
        return curve.within(distance, shift)
    if design.sides == "two-sided":
        return curve.beyond(distance) + curve.beyond(-distance)
    return curve.beyond(distance - shift)


def _smallest(reached: Callable[[float], float], wanted: float, scale: float) -> float:
    """The smallest distance with the wanted power, to six digits; power rises with the distance."""
    if reached(0.0) >= wanted:
        return 0.0
    low, high = 0.0, scale
    while reached(high) < wanted:
        low, high = high, 2.0 * high
    while high - low > 1e-7 * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if reached(middle) >= wanted else (middle, high)
    return high


# -- power curves ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Integrated:
    """A t-test: the mean difference has to exceed a limit that depends on the estimated variances."""

    limits: Float64
    weights: Float64
    error: float

    def beyond(self, distance: float) -> float:
        """The probability that the test is significant in the positive direction."""
        return float(self.weights @ special.ndtr((distance - self.limits) / self.error))

    def within(self, margin: float, difference: float) -> float:
        """The probability that both one-sided tests against -margin and margin are significant."""
        high = special.ndtr((margin - self.limits - difference) / self.error)
        low = special.ndtr((self.limits - margin - difference) / self.error)
        return float(self.weights @ np.maximum(high - low, 0.0))


@dataclass(frozen=True, eq=False)
class _Simulated:
    """Experiments without a true difference, each with the shifts that would make it significant."""

    above: Float64
    """A shift above this makes an experiment significant in the positive direction."""
    below: Float64
    """A shift below this makes it significant in the negative direction."""

    def beyond(self, distance: float) -> float:
        # Normal runs are symmetric, so each experiment counts a second time with all signs exchanged.
        return float((np.mean(self.above < distance) + np.mean(self.below > -distance)) / 2.0)

    def within(self, margin: float, difference: float) -> float:
        return float(np.mean((self.above < difference + margin) & (self.below > difference - margin)))


@lru_cache(maxsize=64)
def _curve(design: Design) -> _Integrated | _Simulated:
    if design.basis == "simulated":
        return _simulated(design)
    alpha = design.alpha / 2.0 if design.sides == "two-sided" else design.alpha
    share, weight = _nodes()
    runs, degrees = np.array(design.runs), np.array(design.runs) - 1
    # Estimated variances are the true ones times chi-squared variables.
    variances = [
        deviation**2 * stats.chi2.ppf(share, df) / df for deviation, df in zip(design.deviations, degrees, strict=True)
    ]
    if design.paired:
        squared, df, weights = variances[0] / runs[0], float(degrees[0]), weight
    else:
        first, second = variances[0][:, None], variances[1][None, :]
        weights = weight[:, None] * weight[None, :]
        if design.test == "welch":
            parts = first / runs[0], second / runs[1]
            squared = parts[0] + parts[1]
            df = squared**2 / (parts[0] ** 2 / degrees[0] + parts[1] ** 2 / degrees[1])
        else:  # the permutation distribution has the variance of all runs together, which the pooled t-test uses
            df = float(degrees.sum())
            squared = (degrees[0] * first + degrees[1] * second) / df * (1.0 / runs).sum()
    limits = stats.t.isf(alpha, df) * np.sqrt(squared)
    return _Integrated(limits.ravel(), weights.ravel(), design.standard_error)


@cache
def _nodes() -> tuple[Float64, Float64]:
    """Probabilities with weights, for integrals over quantiles; dense near 0 and 1, where quantiles change fast."""
    place, weight = np.polynomial.legendre.leggauss(_NODES)
    place = (place + 1.0) / 2.0
    return place**3 * (10.0 - 15.0 * place + 6.0 * place**2), weight * 15.0 * (place * (1.0 - place)) ** 2


def _simulated(design: Design) -> _Simulated:
    """Simulate the exact test.

    With a shift added to the first arm (or to the differences), the statistic of each split (or choice of signs) is
    linear in the shift. The one observed rises fastest. So every other split has a shift above which it is less extreme
    than the observed one, and p falls as the shift grows. The shift at which p falls below alpha is a quantile of
    these, and one simulation gives the power for all differences.
    """
    choices, slopes, scales = _signs(design) if design.paired else _splits(design)
    observed, others = choices[0], choices[1:]
    slope, others_slope = float(slopes[0]), slopes[1:]
    # As `judge` does, p = count / total is compared as a float. The observed split counts too.
    count = int(design.alpha * len(choices)) + 1
    while count / len(choices) >= design.alpha:
        count -= 1
    rank = count - 1  # of the other splits, this many may be as extreme as the observed one
    experiments = max(1, min(_EXPERIMENTS, _SUMS // len(choices)))
    generator = np.random.default_rng(_SEED)
    above, below = [], []
    for begin in range(0, experiments, per := max(1, _AT_A_TIME // len(choices))):
        noise = scales[:, None] * generator.standard_normal((len(scales), min(per, experiments - begin)))
        sums, own = others @ noise, observed @ noise
        rises = (sums - own) / (slope - others_slope)[:, None]
        if design.sides == "two-sided":
            opposite = slope + others_slope
            mirrored = opposite <= 1e-9 * slope  # the mirror image of the observed split is always as extreme
            falls = -(sums + own) / np.where(mirrored, np.inf, opposite)[:, None]
            falls[mirrored] = np.inf
            above.append(_largest(np.maximum(rises, falls), rank))
            continue
        above.append(_largest(rises, rank))
        below.append(-_largest(-rises, rank))
    high = np.concatenate(above)
    return _Simulated(high, np.concatenate(below) if below else -high)


def _splits(design: Design) -> tuple[Float64, Float64, Float64]:
    """All splits of the runs, the observed one first; how each sum changes with the first arm; each run's deviation.

    A row weights the runs so that its sum is that of the chosen runs, with the mean of all runs subtracted.
    """
    n, m = design.runs
    chosen = np.array(list(itertools.combinations(range(n + m), n)))
    rows = np.zeros((len(chosen), n + m))
    np.put_along_axis(rows, chosen, 1.0, axis=1)
    rows -= n / (n + m)
    return rows, rows[:, :n].sum(axis=1), np.repeat(design.deviations, design.runs)


def _signs(design: Design) -> tuple[Float64, Float64, Float64]:
    """All choices of signs, the observed one first; how each sum changes with the differences; their deviations."""
    n = design.runs[0]
    rows = np.array(list(itertools.product((1.0, -1.0), repeat=n)))
    return rows, rows.sum(axis=1), np.repeat(design.deviations, n)


def _largest(values: Float64, rank: int) -> Float64:
    """The value of each column that `rank` others exceed."""
    place = len(values) - 1 - rank
    return np.partition(values, place, axis=0)[place]


def _checked(value: float, what: str) -> float:
    if not (math.isfinite(value) and value >= 0.0):
        raise InputError(f"power: the {what} is {value:g}; expected a finite number, 0 or greater")
    return value


def _checked_power(wanted: float) -> float:
    if not 0.0 < wanted < 1.0:
        raise InputError(f"the wanted power is {wanted:g}; it must lie between 0 and 1, such as 0.8")
    return wanted
