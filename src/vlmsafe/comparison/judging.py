"""Judging: what the claimed test says about the outcomes of two arms, and the interval of their difference.

The interval of a claim comes from its own test. For an exact test it consists of all differences that the test does not
reject, so that it excludes zero exactly where the test is significant at the claimed level. Where the runs are too few
for that, so that no difference can be rejected, it is a t interval. A one-sided claim at alpha has an interval of level
1 - 2 alpha. Intervals are not corrected for other claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vlmsafe.analysis.exact_tests import (
    Alternative,
    permutation_test,
    sampled_permutation_test,
    sign_flip_test,
    smallest_permutation_p,
    smallest_sign_flip_p,
)
from vlmsafe.analysis.intervals import (
    Interval,
    paired_interval,
    permutation_interval,
    sign_flip_interval,
    welch_interval,
)
from vlmsafe.analysis.resampling import LEAST, bootstrap_mean_difference
from vlmsafe.analysis.statistics import Float64, Pairs, pair_by_seed, paired_t_test, welch_t_test
from vlmsafe.comparison.claims import BETTER, Claim, Kind, Window
from vlmsafe.comparison.comparisons import Comparison
from vlmsafe.comparison.outcomes import Values, values_of
from vlmsafe.errors import InputError

PAIRED = ("sign-flip", "paired-t")
"""Tests of the differences between runs of equal seed."""
_COUNTABLE = 40  # up to this many runs of both arms, all splits are counted, in less than a second
_WORDS: dict[Kind, dict[int, str]] = {
    "difference": {-1: "lower", 0: "undecided", 1: "higher"},
    "non-inferiority": {0: "undecided", 1: "not worse"},
    "equivalence": {0: "undecided", 1: "the same"},
}


@dataclass(frozen=True)
class Verdict:
    """The result of a claimed test."""

    first: float
    """Means over runs."""
    second: float
    p: float | None
    """None where a percentile interval only describes the runs."""
    text: str
    direction: int
    """What a significant test shows: -1 that the first arm is lower, 1 that it is higher, or that the margin holds."""
    decided: int
    """The direction if p is below the claim's level, otherwise 0."""
    leans: int
    """-1 or 1 if the difference is larger than two standard errors, for runs that are too few for the test."""
    kind: Kind = "difference"

    @property
    def difference(self) -> float:
        return self.first - self.second

    @property
    def word(self) -> str:
        return _WORDS[self.kind][self.decided]


def verdict(comparison: Comparison, source: str, window: Window = "final") -> Verdict | None:
    """The verdict of the claimed test on a comparison; None if an arm has too few runs for it."""
    outcome = comparison.claim.outcome
    first, second = (values_of(arm, outcome, source, window) for arm in (comparison.first, comparison.second))
    return judge(comparison.claim, first, second)


def compared(claim: Claim, first: Values, second: Values) -> tuple[Values, Values]:
    """The outcomes that the claimed test compares: for a paired test, those of the seeds that both arms have."""
    if claim.test not in PAIRED:
        return first, second
    shared = [key for key in first if key in second]
    return {key: first[key] for key in shared}, {key: second[key] for key in shared}


def judge(claim: Claim, first: Values, second: Values) -> Verdict | None:
    """The verdict of the claimed test on the outcomes of two arms; None if they are too few."""
    first, second = compared(claim, first, second)
    if min(len(first), len(second)) < (LEAST if claim.test == "bootstrap" else 2):
        return None
    try:
        p, text = _tested(claim, first, second)
    except InputError:  # a test that these numbers do not allow: no variation, or seeds that do not pair
        return None
    a, b = _arrays(first, second)
    difference = float(a.mean() - b.mean())
    direction = int(np.sign(difference)) if claim.kind == "difference" else 1
    error = float(np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)))
    leans = int(np.sign(difference)) if abs(difference) > 2 * error else 0
    decided = direction if p is not None and p < claim.alpha else 0
    return Verdict(float(a.mean()), float(b.mean()), p, text, direction, decided, leans, claim.kind)


def _tested(claim: Claim, first: Values, second: Values) -> tuple[float | None, str]:
    """p and its text; for an equivalence, the larger p of both sides."""
    if claim.test == "none":
        return 1.0, "no test"  # never significant
    if claim.test == "bootstrap":
        found = interval_of(claim, first, second)
        return None, f"percentile interval {found.low:.3g} to {found.high:.3g}" if found else ""
    # "Not worse than by the margin" is a one-sided difference once the margin is given to the first arm.
    margin, better = claim.margin_value, BETTER[claim.outcome]
    if claim.kind == "difference":
        return _p(claim, first, second, claim.sides)
    if claim.kind == "non-inferiority":
        return _p(claim, _shifted(first, better * margin), second, "less" if better < 0 else "greater")
    return max(
        _p(claim, _shifted(first, -margin), second, "less"), _p(claim, _shifted(first, margin), second, "greater")
    )


def _p(claim: Claim, first: Values, second: Values, sides: Alternative) -> tuple[float, str]:
    a, b = list(first.values()), list(second.values())
    if claim.test == "permutation":
        test = permutation_test if len(a) + len(b) <= _COUNTABLE else sampled_permutation_test
        result = test(a, b, sides)
        return float(result.p), f"p = {result if result.exact else format(float(result.p), '.2g')}"
    if claim.test == "welch":
        p = _one_sided(welch_t_test(a, b), sides)
        return p, f"p = {p:.2g}"
    pairs = _pairs(first, second)
    if claim.test == "sign-flip":
        result = sign_flip_test(pairs, sides)
        return float(result.p), f"p = {result}"
    p = _one_sided(paired_t_test(pairs), sides)
    return p, f"p = {p:.2g}"


def _shifted(values: Values, by: float) -> Values:
    return {key: value + by for key, value in values.items()}


def _one_sided(result: Any, sides: str) -> float:
    """A two-sided p of a t-test, for the alternative that was claimed."""
    if sides == "two-sided":
        return float(result.p)
    towards = result.statistic < 0 if sides == "less" else result.statistic > 0
    return float(result.p / 2 if towards else 1 - result.p / 2)


def interval_of(claim: Claim, first: Values, second: Values) -> Interval | None:
    """The interval of the difference that belongs to the claimed test; None if the runs are too few or all equal."""
    first, second = compared(claim, first, second)
    if min(len(first), len(second)) < 2:
        return None
    a, b = _arrays(first, second)
    if np.ptp(a) == 0.0 and np.ptp(b) == 0.0:
        return None
    sided = one_sided(claim)
    level = 1.0 - claim.alpha * (2.0 if sided else 1.0)
    if claim.test == "bootstrap":
        return percentile_interval(a, b, level) if min(len(a), len(b)) >= LEAST else None
    if claim.test in PAIRED:
        pairs = _pairs(first, second)
        exact = sign_flip_interval(pairs, level=level) if claim.test == "sign-flip" else None
        return exact if exact is not None and exact.bounded else paired_interval(pairs, level=level)
    exact = permutation_interval(a, b, level=level, one_sided=sided) if claim.test == "permutation" else None
    return exact if exact is not None and exact.bounded else welch_interval(a, b, level=level)


def percentile_interval(first: Float64, second: Float64, level: float) -> Interval:
    """The percentile bootstrap interval of the difference, as the paper publishes it. It is too narrow for few runs."""
    found = bootstrap_mean_difference(first, second, level=level)
    return Interval(found.estimate, found.low, found.high, level, "percentile bootstrap")


def one_sided(claim: Claim) -> bool:
    """Whether the claim is decided by one-sided tests."""
    return claim.kind != "difference" or claim.sides != "two-sided"


def smallest_p(claim: Claim, first: int, second: int, paired: int) -> float | None:
    """The smallest p that this many runs can give; None for tests without such a limit, 1 if no test is possible."""
    sides: Alternative = "less" if one_sided(claim) else "two-sided"
    if claim.test == "permutation":
        return float(smallest_permutation_p(first, second, sides)) if min(first, second) else 1.0
    if claim.test == "sign-flip":
        return float(smallest_sign_flip_p(paired, sides)) if paired else 1.0
    return None


def _arrays(first: Values, second: Values) -> tuple[Float64, Float64]:
    return np.array(list(first.values())), np.array(list(second.values()))


def _pairs(first: Values, second: Values) -> Pairs:
    return pair_by_seed(list(first), list(first.values()), list(second), list(second.values()))
