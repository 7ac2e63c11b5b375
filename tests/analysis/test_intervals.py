"""Intervals exclude a difference exactly where the test of it is significant, and hold their level for few runs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vlmsafe.analysis.exact_tests import permutation_test, sign_flip_test
from vlmsafe.analysis.intervals import (
    contrast_interval,
    mean_interval,
    paired_interval,
    permutation_interval,
    sign_flip_interval,
    welch_interval,
)
from vlmsafe.analysis.statistics import Pairs
from vlmsafe.errors import InputError

halves = st.integers(-20, 20).map(lambda value: value / 2)


def runs(least, most):
    return st.lists(halves, min_size=least, max_size=most).map(np.array)


@given(runs(2, 5), runs(2, 5), halves, st.sampled_from([0.8, 0.9, 0.95]), st.booleans())
def test_a_permutation_interval_holds_the_shifts_that_its_test_does_not_reject(first, second, shift, level, one_sided):
    found = permutation_interval(first, second, level=level, one_sided=one_sided)
    if one_sided:
        tests = [permutation_test(first - shift, second, sides) for sides in ("less", "greater")]
        rejected = any(test.p < (1 - level) / 2 - 1e-12 for test in tests)
    else:
        rejected = permutation_test(first - shift, second, "two-sided").p < 1 - level - 1e-12
    assert (found.low - 1e-9 <= shift <= found.high + 1e-9) == (not rejected)


@given(runs(2, 8), halves, st.sampled_from([0.8, 0.9, 0.95]))
def test_a_sign_flip_interval_holds_the_shifts_that_its_test_does_not_reject(differences, shift, level):
    found = sign_flip_interval(Pairs(differences, np.zeros(len(differences))), level=level)
    test = sign_flip_test(Pairs(differences - shift, np.zeros(len(differences))), "two-sided")
    assert (found.low - 1e-9 <= shift <= found.high + 1e-9) == (test.p >= 1 - level - 1e-12)


def test_too_few_runs_for_the_level_bound_nothing():
    found = permutation_interval([1.0, 2.0, 3.0], [7.0, 8.0, 9.0])
    assert (found.low, found.high, found.bounded, found.excludes_zero) == (-math.inf, math.inf, False, False)
    assert not sign_flip_interval(Pairs(np.arange(5.0), np.zeros(5))).bounded


def test_many_runs_are_sampled_close_to_the_t_interval():
    rng = np.random.default_rng(1)
    first, second = rng.normal(0.0, 1.0, 20), rng.normal(1.0, 1.0, 20)
    exact, t = permutation_interval(first, second), welch_interval(first, second)
    assert (exact.low, exact.high) == pytest.approx((t.low, t.high), abs=0.05)
    pairs = Pairs(first, second)
    exact, t = sign_flip_interval(pairs), paired_interval(pairs)
    assert (exact.low, exact.high) == pytest.approx((t.low, t.high), abs=0.08)


def test_t_intervals_are_those_of_scipy():
    first, second = np.array([1.0, 4.0, 2.0, 8.0]), np.array([3.0, 9.0, 5.0])
    found, theirs = welch_interval(first, second), stats.ttest_ind(first, second, equal_var=False)
    assert (found.low, found.high) == pytest.approx(tuple(theirs.confidence_interval()))
    one, theirs = mean_interval(first), stats.ttest_1samp(first, 0.0)
    assert (one.low, one.high) == pytest.approx(tuple(theirs.confidence_interval()))


def test_an_interval_without_variation_does_not_exist():
    assert mean_interval([3.0]) is None
    assert mean_interval([0.0, 0.0, 0.0]) is None
    assert welch_interval([1.0, 1.0], [2.0, 2.0]) is None
    assert welch_interval([1.0, 1.0], [2.0, 3.0]) is not None


def test_a_rate_stays_between_its_bounds():
    found = mean_interval([0.0, 0.1, 0.0], least=0.0, most=1.0)
    assert found.low == 0.0


def test_a_contrast_of_two_groups_is_their_difference():
    first, second = np.array([1.0, 4.0, 2.0]), np.array([3.0, 9.0, 5.0, 6.0])
    assert contrast_interval([first, second], [1.0, -1.0]) == welch_interval(first, second)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_a_level_that_is_no_share_is_refused(level):
    with pytest.raises(InputError, match="expected a share between 0 and 1"):
        permutation_interval([1.0, 2.0], [3.0, 4.0], level=level)


@pytest.mark.parametrize("count", [3, 5, 10])
def test_t_intervals_of_normal_runs_cover_and_percentile_intervals_do_not(count):
    from vlmsafe.analysis.resampling import bootstrap_mean

    rng = np.random.default_rng(count)
    samples = rng.normal(size=(1000, count))
    t = np.mean([found.low <= 0.0 <= found.high for found in map(mean_interval, samples)])
    percentile = [bootstrap_mean(sample, resamples=500) for sample in samples]
    assert t == pytest.approx(0.95, abs=0.02)
    assert np.mean([found.low <= 0.0 <= found.high for found in percentile]) < 0.925


def test_a_permutation_interval_of_many_runs_against_few_is_found():
    found = permutation_interval([200.0, 201.0], np.arange(130.0))
    assert found.bounded
    assert found.low > 0.0
