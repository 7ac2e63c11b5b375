"""Permutation and sign-flip tests that count every possibility, so that p is a fraction and not an estimate.

The splits need not be listed to be counted. Both tests cut the values into two halves, list the sums of each half, and
count the pairs of sums beyond the threshold by bisection. 20 against 20 runs have 137,846,528,820 splits and take less
than a second. Sums that differ only by rounding of the inputs count as equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from vlmsafe.analysis.statistics import Float64, Pairs, finite_vector
from vlmsafe.errors import InputError, unknown_name

Alternative = Literal["less", "greater", "two-sided"]

SAMPLES = 100_000
_HALF_SUMS = 1 << 21  # sums of one half; bounds time and memory
_DRAWS = 1 << 22  # numbers held at a time by the sampled tests


@dataclass(frozen=True)
class PermutationTest:
    """A difference with its p: `count` of `total` possibilities are at least as extreme as what was observed."""

    difference: float
    alternative: Alternative
    count: int
    total: int
    smallest: Fraction
    """The smallest p that this many values can give."""
    exact: bool
    """Whether all possibilities were counted; otherwise a sample of them."""

    @property
    def p(self) -> Fraction:
        return Fraction(self.count, self.total)

    def __str__(self) -> str:
        """The count over the total, not reduced, as published: 2/56."""
        return f"{self.count}/{self.total}"


def smallest_permutation_p(n: int, m: int, alternative: Alternative) -> Fraction:
    """The smallest p that n against m runs can give: 1 / C(n + m, n), if no other split is as extreme as the observed.

    For a two-sided test with n = m it is twice that, because exchanging the arms mirrors every split.

    >>> smallest_permutation_p(3, 3, "less")
    Fraction(1, 20)
    """
    if min(n, m) < 1:
        raise InputError(f"a test of {n} against {m} runs; each arm needs at least 1")
    return Fraction(2 if alternative == "two-sided" and n == m else 1, comb(n + m, n))


def smallest_sign_flip_p(n: int, alternative: Alternative) -> Fraction:
    """The smallest p that n pairs can give: 1 / 2^n, two-sided 2 / 2^n."""
    if n < 1:
        raise InputError(f"a test of {n} pairs; it needs at least 1")
    return Fraction(2 if alternative == "two-sided" else 1, 1 << n)


def permutation_test(first: ArrayLike, second: ArrayLike, alternative: Alternative) -> PermutationTest:
    """Exact test of mean(first) - mean(second) over all C(n + m, n) ways to split the values into n and m.

    p is the share of splits, including the observed one, with a difference at most (`less`), at least (`greater`) or in
    absolute value at least (`two-sided`) the observed one.

    >>> print(permutation_test([17.75, 36.37, 21.70, 23.07, 13.26], [53.89, 23.37, 43.23], "less"))
    2/56
    """
    a, b = finite_vector(first, "first arm"), finite_vector(second, "second arm")
    _check_alternative(alternative)
    total = comb(len(a) + len(b), len(a))
    small = min(len(a), len(b))
    half = (len(a) + len(b) + 1) // 2
    if sum(comb(half, k) for k in range(min(small, half) + 1)) > _HALF_SUMS:
        raise InputError(
            f"an exact test of {len(a)} against {len(b)} values has {total} splits, too many to count; "
            "use sampled_permutation_test"
        )
    # The difference is S (1/n + 1/m), where S is the first arm's sum after the pooled mean is subtracted. If the second
    # arm is smaller, the sum of its negated values is the same S with fewer terms.
    values = np.concatenate([a, b])
    values -= values.mean()
    signed, chosen = (values, slice(0, len(a))) if len(a) == small else (-values, slice(len(a), None))
    count = _extreme(
        lambda sign, limit: _count_subsets(sign * signed, small, limit),
        float(signed[chosen].sum()),
        _rounding(a, b),
        total,
        alternative,
    )
    smallest = smallest_permutation_p(len(a), len(b), alternative)
    return PermutationTest(_difference(a, b), alternative, count, total, smallest, True)


def sampled_permutation_test(
    first: ArrayLike, second: ArrayLike, alternative: Alternative, *, samples: int = SAMPLES, seed: int = 0
) -> PermutationTest:
    """`permutation_test` on `samples` random splits, for when there are too many to count.

    The observed split counts too, so p = (extreme + 1) / (samples + 1) is never 0.
    """
    a, b = finite_vector(first, "first arm"), finite_vector(second, "second arm")
    _check_alternative(alternative)
    if samples < 1:
        raise InputError(f"{samples} samples; expected at least 1, usually {SAMPLES}")
    values = np.concatenate([a, b])
    values -= values.mean()
    rng = np.random.default_rng(seed)
    portion = max(1, _DRAWS // len(values))
    sums = np.concatenate(
        [
            rng.permuted(np.tile(values, (min(portion, samples - start), 1)), axis=1)[:, : len(a)].sum(axis=1)
            for start in range(0, samples, portion)
        ]
    )
    count = _extreme(
        lambda sign, limit: int(np.count_nonzero(sign * sums <= limit)),
        float(values[: len(a)].sum()),
        _rounding(a, b),
        samples,
        alternative,
    )
    return PermutationTest(_difference(a, b), alternative, count + 1, samples + 1, Fraction(1, samples + 1), False)


def sign_flip_test(pairs: Pairs, alternative: Alternative) -> PermutationTest:
    """Exact test of the mean of first - second over matched seeds, over all 2^n choices of the differences' signs.

    p is the share of choices, including the observed one, with a mean at most (`less`), at least (`greater`) or in
    absolute value at least (`two-sided`) the observed one.
    """
    differences = finite_vector(pairs.differences, "sign-flip test")
    _check_alternative(alternative)
    total = 1 << len(differences)
    cut = (len(differences) + 1) // 2
    if 1 << cut > _HALF_SUMS:
        raise InputError(
            f"an exact test of {len(differences)} pairs has {total} choices of sign, too many to count; "
            "use paired_t_test or bootstrap_paired_difference instead"
        )
    left, right = _signed_sums(differences[:cut]), np.sort(_signed_sums(differences[cut:]))
    count = _extreme(  # flipping all signs mirrors the sums, so -differences have the same sums
        lambda _, limit: int(np.searchsorted(right, limit - left, side="right").sum()),
        float(differences.sum()),
        _rounding(pairs.first, pairs.second),
        total,
        alternative,
    )
    smallest = smallest_sign_flip_p(len(differences), alternative)
    return PermutationTest(float(differences.mean()), alternative, count, total, smallest, True)


def _extreme(
    count_at_most: Callable[[int, float], int], observed: float, rounding: float, total: int, alternative: Alternative
) -> int:
    """How many sums are as extreme as the observed one; `count_at_most(sign, limit)` counts sign * sum <= limit."""
    if alternative == "less":
        return count_at_most(1, observed + rounding)
    if alternative == "greater":
        return count_at_most(-1, rounding - observed)
    if abs(observed) <= rounding:
        return total
    return count_at_most(1, rounding - abs(observed)) + count_at_most(-1, rounding - abs(observed))


def _count_subsets(values: Float64, size: int, limit: float) -> int:
    """How many subsets of `size` values sum to at most `limit`."""
    cut = (len(values) + 1) // 2
    left, right = _sums_by_size(values[:cut], size), _sums_by_size(values[cut:], size)
    count = 0
    for k in range(size + 1):
        if k < len(left) and size - k < len(right):
            count += int(np.searchsorted(np.sort(right[size - k]), limit - left[k], side="right").sum())
    return count


def _sums_by_size(values: Float64, most: int) -> list[Float64]:
    """The sums of all subsets of `values` with 0, 1, ... up to `most` members."""
    sums = [np.zeros(1)]
    for value in values:
        larger = [group + value for group in sums]
        sums = [
            *(np.concatenate([stay, join]) for stay, join in zip(sums[1:], larger[:-1], strict=True)),
            larger[-1],
        ]
        sums = [np.zeros(1), *sums][: most + 1]
    return sums


def _signed_sums(values: Float64) -> Float64:
    """The sums of `values` under all choices of their signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def _rounding(*arms: Float64) -> float:
    """How far apart two sums of these values may be by rounding alone. Such sums count as equal."""
    values = np.concatenate(arms)
    return float(np.finfo(np.float64).eps * len(values) ** 2 * np.abs(values).max())


def _difference(first: Float64, second: Float64) -> float:
    return float(first.mean() - second.mean())


def _check_alternative(alternative: str) -> None:
    known = get_args(Alternative)
    if alternative not in known:
        raise unknown_name("alternative", alternative, known)
