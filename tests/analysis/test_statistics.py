"""Bootstraps, exact tests and summaries agree with brute force and with scipy, and say what is wrong with bad input."""

from dataclasses import astuple
from fractions import Fraction
from itertools import combinations, product
from math import comb
from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vlmsafe.analysis import exact_tests, resampling
from vlmsafe.analysis.exact_tests import (
    permutation_test,
    sampled_permutation_test,
    sign_flip_test,
    smallest_permutation_p,
    smallest_sign_flip_p,
)
from vlmsafe.analysis.resampling import bootstrap_mean, bootstrap_mean_difference, bootstrap_paired_difference
from vlmsafe.analysis.statistics import (
    clusters,
    correlation,
    pair_by_seed,
    paired_t_test,
    relative_reduction,
    seeds_within,
    summary,
    thresholds,
    welch_t_test,
    wins,
)
from vlmsafe.errors import InputError

ALTERNATIVES = ("less", "greater", "two-sided")
hundredths = st.integers(-3000, 3000)
few = st.integers(-3, 3)  # so few levels that ties are the rule
numbers = st.one_of(st.lists(hundredths, min_size=1, max_size=5), st.lists(few, min_size=1, max_size=5))


def decimals(hundreds: list[int]) -> np.ndarray:
    """Numbers that floats cannot hold exactly, though their ties are ties."""
    return np.array(hundreds) / 100


def paired(first, second):
    return pair_by_seed(range(len(first)), first, range(len(second)), second)


def as_extreme(value: Fraction, observed: Fraction, alternative: str) -> bool:
    if alternative == "two-sided":
        return abs(value) >= abs(observed)
    return value <= observed if alternative == "less" else value >= observed


# Permutation tests.


@given(numbers, numbers, st.sampled_from(ALTERNATIVES), st.sampled_from([0, 10**9]))
@settings(max_examples=200, deadline=None)
def test_permutation_test_counts_every_split_as_exact_arithmetic_does(first, second, alternative, shift):
    first, second = [x + shift for x in first], [x + shift for x in second]
    values, n, m = first + second, len(first), len(second)
    observed = Fraction(sum(first), n) - Fraction(sum(second), m)
    count = 0
    for chosen in combinations(range(n + m), n):
        part = sum(values[i] for i in chosen)
        count += as_extreme(Fraction(part, n) - Fraction(sum(values) - part, m), observed, alternative)
    found = permutation_test(decimals(first), decimals(second), alternative)
    assert (found.count, found.total, found.exact) == (count, comb(n + m, n), True)
    assert found.p == Fraction(count, comb(n + m, n))
    assert found.difference == pytest.approx(float(observed) / 100, abs=1e-8)


@given(st.integers(2, 4), st.integers(2, 4), st.integers(0, 2**32), st.sampled_from(ALTERNATIVES))
@settings(max_examples=25, deadline=None)
def test_permutation_test_agrees_with_scipy(n, m, seed, alternative):
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=n), rng.normal(size=m)
    sides = {"two-sided": (lambda a, b, axis: np.abs(a.mean(axis) - b.mean(axis)), "greater")}
    statistic, side = sides.get(alternative, (lambda a, b, axis: a.mean(axis) - b.mean(axis), alternative))
    theirs = stats.permutation_test((first, second), statistic, n_resamples=np.inf, alternative=side, vectorized=True)
    assert float(permutation_test(first, second, alternative).p) == pytest.approx(theirs.pvalue, abs=1e-12)


@given(numbers, numbers)
@settings(max_examples=50, deadline=None)
def test_exchanged_arms_mirror_the_permutation_test(first, second):
    first, second = decimals(first), decimals(second)
    for one, other in (("less", "greater"), ("greater", "less"), ("two-sided", "two-sided")):
        forth, back = permutation_test(first, second, one), permutation_test(second, first, other)
        assert (forth.count, forth.total, forth.smallest) == (back.count, back.total, back.smallest)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 3), (5, 3), (3, 5), (2, 5), (4, 4)])
@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_smallest_p_is_reached_by_separated_arms_and_by_no_others(n, m, alternative):
    low, high = 0.1 * np.arange(n), 100 + 0.1 * np.arange(m)
    found = permutation_test(low if alternative != "greater" else low + 200, high, alternative)
    assert found.p == found.smallest
    rng = np.random.default_rng(0)
    for _ in range(20):
        other = permutation_test(rng.normal(size=n), rng.normal(size=m), alternative)
        assert other.p >= other.smallest == found.smallest


def test_counts_are_exact_where_listing_all_splits_is_out_of_reach():
    """20 + 20 values: each split and its mirror image lie on opposite sides, and only the observed one is as low."""
    ordered = np.arange(40.0)
    assert permutation_test(ordered[:20], ordered[20:], "less").count == 1
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=20), rng.normal(size=20)
    less, greater = (permutation_test(first, second, side) for side in ("less", "greater"))
    assert less.count + greater.count == comb(40, 20) + 1
    sampled = sampled_permutation_test(first, second, "less", samples=20_000)
    assert float(less.p) == pytest.approx(float(sampled.p), abs=0.02)
    assert not sampled.exact


def test_one_value_against_very_many_is_counted():
    assert str(permutation_test([-1.0], np.arange(500.0), "less")) == "1/501"


@given(st.lists(hundredths, min_size=2, max_size=3), st.lists(few, min_size=2, max_size=3))
@settings(max_examples=20, deadline=None)
def test_sampled_permutations_approach_the_exact_share(first, second):
    first, second = decimals(first), decimals(second)
    for alternative in ALTERNATIVES:
        exact = permutation_test(first, second, alternative)
        sampled = sampled_permutation_test(first, second, alternative, samples=4000, seed=3)
        assert float(sampled.p) == pytest.approx(float(exact.p), abs=0.045)
        assert sampled.p >= sampled.smallest == Fraction(1, 4001)


def test_sampled_p_counts_the_observed_split_and_is_never_zero():
    separated = sampled_permutation_test(np.arange(10.0), np.arange(10.0) + 100, "less", samples=50)
    assert str(separated) == "1/51"
    assert separated.p == separated.smallest


def test_sampled_permutations_do_not_depend_on_portions(monkeypatch):
    first, second = np.arange(6.0), np.arange(7.0) + 0.5
    whole = sampled_permutation_test(first, second, "less", samples=500)
    monkeypatch.setattr(exact_tests, "_DRAWS", 40)
    assert sampled_permutation_test(first, second, "less", samples=500) == whole


# Sign flips.


@given(st.lists(st.tuples(few, few), min_size=1, max_size=7), st.sampled_from(ALTERNATIVES))
@settings(max_examples=150, deadline=None)
def test_sign_flip_test_counts_every_choice_of_signs(pairs, alternative):
    first, second = (list(arm) for arm in zip(*pairs, strict=True))
    differences = [a - b for a, b in pairs]
    choices = [
        sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in product((1, -1), repeat=len(pairs))
    ]
    count = sum(as_extreme(Fraction(value), Fraction(sum(differences)), alternative) for value in choices)
    found = sign_flip_test(paired(decimals(first), decimals(second)), alternative)
    assert (found.count, found.total) == (count, 2 ** len(pairs))
    assert found.difference == pytest.approx(sum(differences) / len(pairs) / 100)


def test_sign_flip_test_agrees_with_scipy():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=7), rng.normal(size=7) + 0.3
    theirs = stats.permutation_test(
        (first, second),
        lambda a, b, axis: (a - b).mean(axis),
        permutation_type="samples",
        n_resamples=np.inf,
        alternative="less",
        vectorized=True,
    )
    assert float(sign_flip_test(paired(first, second), "less").p) == pytest.approx(theirs.pvalue, abs=1e-12)


def test_smallest_sign_flip_p_is_one_of_all_choices():
    below = paired([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert sign_flip_test(below, "less").p == sign_flip_test(below, "less").smallest == Fraction(1, 8)
    assert sign_flip_test(below, "two-sided").p == sign_flip_test(below, "two-sided").smallest == Fraction(1, 4)
    assert sign_flip_test(below, "greater").p == 1


# Bootstraps.


@given(st.lists(hundredths, min_size=1, max_size=4), st.lists(hundredths, min_size=1, max_size=4), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_interval_ends_are_quantiles_of_all_resamples(first, second, seed):
    """Against every one of the n^n m^m resamples: the shares below the ends are 2.5 % and 97.5 % up to sampling."""
    means = [np.array(list(product(decimals(arm), repeat=len(arm)))).mean(axis=1) for arm in (first, second)]
    everything = np.subtract.outer(*means).ravel()
    found = bootstrap_mean_difference(decimals(first), decimals(second), seed=seed)
    for end, share in ((found.low, 0.025), (found.high, 0.975)):
        assert (everything < end - 1e-9).mean() <= share + 0.008
        assert (everything <= end + 1e-9).mean() >= share - 0.008
    assert found.estimate == pytest.approx(decimals(first).mean() - decimals(second).mean())


def test_intervals_agree_with_scipys_percentile_bootstrap():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=10), rng.normal(size=12) + 1
    settings_ = {"n_resamples": 10_000, "method": "percentile", "rng": np.random.default_rng(1)}
    theirs = stats.bootstrap(
        (first, second), lambda a, b, axis: a.mean(axis) - b.mean(axis), **settings_
    ).confidence_interval
    ours = bootstrap_mean_difference(first, second)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.05)
    theirs = stats.bootstrap((first,), np.mean, **settings_).confidence_interval
    ours = bootstrap_mean(first)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.04)


@given(numbers, numbers, st.integers(-500, 500), st.sampled_from([0.25, 2.0, 1024.0]))
@settings(max_examples=50, deadline=None)
def test_intervals_move_with_a_shift_and_grow_with_a_scale(first, second, shift, scale):
    a, b = decimals(first), decimals(second)
    plain = bootstrap_mean_difference(a, b, resamples=300)
    moved = bootstrap_mean_difference(scale * a + shift, scale * b, resamples=300)
    for name in ("estimate", "low", "high"):
        assert getattr(moved, name) == pytest.approx(scale * getattr(plain, name) + shift, abs=1e-7 * scale)


def test_exchanged_arms_negate_the_interval():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=10), rng.normal(size=10) + 1
    forth, back = bootstrap_mean_difference(first, second), bootstrap_mean_difference(second, first)
    assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low), abs=0.05)
    forth, back = (bootstrap_paired_difference(paired(*arms)) for arms in ((first, second), (second, first)))
    assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low), abs=1e-12)


@given(st.integers(1, 6), st.integers(1, 6), hundredths, hundredths)
@settings(max_examples=30, deadline=None)
def test_equal_runs_give_an_interval_of_no_width(n, m, first, second):
    found = bootstrap_mean_difference(np.full(n, first / 100), np.full(m, second / 100), resamples=50)
    assert (found.low, found.high) == pytest.approx((found.estimate, found.estimate), abs=1e-9)


def test_resampling_runs_is_wider_than_resampling_their_episodes_where_runs_differ():
    rng = np.random.default_rng(0)
    runs = [rng.random(50) < rate for rate in (0.05, 0.2, 0.6, 0.9)]
    other = [rng.random(50) < 0.5 for _ in range(4)]
    by_run = bootstrap_mean_difference(clusters(runs).per_run, clusters(other).per_run)
    by_episode = bootstrap_mean_difference(np.concatenate(runs), np.concatenate(other), unit="episodes")
    assert by_run.estimate == pytest.approx(by_episode.estimate)
    assert by_run.high - by_run.low > 2 * (by_episode.high - by_episode.low)
    assert (by_run.unit, by_episode.unit) == ("runs", "episodes")


def test_matched_seeds_narrow_the_interval_where_a_seed_moves_both_arms():
    seeds = np.arange(10)
    first, second = 10.0 * seeds, 10.0 * seeds + 1 + 0.1 * (seeds % 3)
    matched, apart = bootstrap_paired_difference(paired(first, second)), bootstrap_mean_difference(first, second)
    assert matched.high < 0
    assert apart.low <= 0 <= apart.high


def test_intervals_repeat_with_their_seed_and_do_not_depend_on_portions(monkeypatch):
    values = np.random.default_rng(0).normal(size=7)
    whole = bootstrap_mean_difference(values, values + 1, seed=3)
    assert bootstrap_mean_difference(values, values + 1, seed=3) == whole
    assert bootstrap_mean_difference(values, values + 1, seed=4) != whole
    monkeypatch.setattr(resampling, "_DRAWS", 100)
    assert bootstrap_mean_difference(values, values + 1, seed=3) == whole


def test_ten_thousand_resamples_of_ten_and_ten_seeds_take_well_under_a_second():
    arms = np.random.default_rng(0).normal(size=(2, 10))
    start = process_time()
    assert bootstrap_mean_difference(*arms).resamples == 10_000
    assert process_time() - start < 0.5


# Summaries.


@given(st.lists(hundredths, min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_summary_is_the_population_one(values):
    x = decimals(values)
    found = summary(x)
    assert found.n == len(x)
    assert found.std**2 * len(x) == pytest.approx(((x - found.mean) ** 2).sum(), abs=1e-9)


def test_a_pooled_rate_weighs_runs_by_their_episodes_and_is_the_mean_over_runs_where_they_are_equally_many():
    costs = [np.array([25.0, 25.5, 100.0, 101.0]), np.array([0.0, 400.0])]
    limits = thresholds(25.0)
    violation, catastrophe = (clusters([run > limit for run in costs]) for limit in limits.values())
    assert violation.totals.tolist() == [3, 1]  # 25.0 is within the budget
    assert catastrophe.per_run.tolist() == [0.25, 0.5]
    assert violation.pooled == pytest.approx(4 / 6)
    assert np.mean(violation.per_run) == pytest.approx(5 / 8)
    assert not violation.even
    equal = clusters([costs[0][:2] > 25.0, costs[1] > 25.0])
    assert equal.even
    assert equal.pooled == np.mean(equal.per_run)
    assert clusters(costs).pooled == pytest.approx(np.mean(np.concatenate(costs)))


def test_a_cost_equal_to_the_budget_is_within_it():
    assert astuple(seeds_within([24.9, 25.0, 25.1], 25)) == (2, 1)
    assert astuple(seeds_within([24.9, 25.0, 25.1], [20, 25, 30])) == (2, 1)


def test_wins_count_matched_seeds_in_any_order():
    pairs = pair_by_seed([42, 7, 9], [1.0, 5.0, 3.0], [9, 42, 7], [3.0, 2.0, 4.0])
    assert astuple(wins(pairs)) == (1, 1, 1)
    assert pairs.differences.tolist() == [1.0, 0.0, -1.0]  # seeds 7, 9 and 42


def test_relative_reduction_is_positive_where_the_value_is_lower():
    assert relative_reduction(0.316, 0.194) == pytest.approx(0.386, abs=5e-4)
    assert relative_reduction(0.14, 0.28) == pytest.approx(-1.0)


def test_t_tests_are_the_textbook_formulas():
    a, b = np.array([1.0, 4.0, 2.5, 3.0]), np.array([5.0, 3.5, 9.0])
    va, vb = a.var(ddof=1) / 4, b.var(ddof=1) / 3
    found = welch_t_test(a, b)
    assert found.statistic == pytest.approx((a.mean() - b.mean()) / np.sqrt(va + vb))
    assert found.df == pytest.approx((va + vb) ** 2 / (va**2 / 3 + vb**2 / 2))
    assert found.p == pytest.approx(2 * stats.t.sf(abs(found.statistic), found.df))
    d = a[:3] - b
    found = paired_t_test(paired(a[:3], b))
    assert (found.statistic, found.df) == pytest.approx((d.mean() / (d.std(ddof=1) / np.sqrt(3)), 2))
    assert found.p == pytest.approx(2 * stats.t.sf(abs(found.statistic), 2))


def test_correlations_tell_straight_from_monotone():
    x = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    found = correlation(x, np.exp(x))
    assert found.spearman == pytest.approx(1.0)
    assert found.pearson == pytest.approx(np.corrcoef(x, np.exp(x))[0, 1])
    assert found.n == 5


# Bad input.


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: permutation_test([], [1.0], "less"), "first arm: 0 values; at least 1 needed"),
        (lambda: permutation_test([1.0], [np.nan, 2.0], "less"), "second arm: the value at position 0 is nan"),
        (lambda: permutation_test([1.0], [2.0], "lower"), "unknown alternative 'lower'"),
        (lambda: permutation_test(np.arange(30), np.arange(30), "less"), f"{comb(60, 30)} splits"),
        (lambda: permutation_test(np.arange(30), np.arange(30), "less"), "use sampled_permutation_test"),
        (lambda: smallest_permutation_p(0, 3, "less"), "a test of 0 against 3 runs; each arm needs at least 1"),
        (lambda: smallest_sign_flip_p(0, "less"), "a test of 0 pairs"),
        (lambda: sampled_permutation_test([1.0], [2.0], "less", samples=0), "0 samples; expected at least 1"),
        (lambda: sign_flip_test(paired(np.arange(50), np.arange(50)), "less"), f"{2**50} choices of sign"),
        (lambda: bootstrap_mean([]), "bootstrap of a mean: 0 values"),
        (lambda: bootstrap_mean([1.0, np.inf]), "the value at position 1 is inf"),
        (lambda: bootstrap_mean([1.0], resamples=0), "0 resamples; expected at least 1"),
        (lambda: bootstrap_mean([1.0], level=95), "the level is 95; expected a share between 0 and 1"),
        (lambda: bootstrap_mean([[1.0]]), "expected a vector"),
        (lambda: bootstrap_mean(["a"]), "expected numbers"),
        (lambda: seeds_within([1.0, 2.0], [5, 5, 5]), "3 budgets for 2 runs"),
        (lambda: clusters([]), "an arm without runs"),
        (lambda: clusters([[1.0], []]), "episodes of run 1: 0 values"),
        (lambda: pair_by_seed([1, 2], [0.0, 0.0], [2, 3], [0.0, 0.0]), "only in the first: 1; only in the second: 3"),
        (lambda: pair_by_seed([1, 1], [0.0, 0.0], [1, 2], [0.0, 0.0]), "a seed occurs twice"),
        (lambda: pair_by_seed([1], [0.0, 0.0], [1, 2], [0.0, 0.0]), "1 seeds for 2 values"),
        (lambda: welch_t_test([1.0], [1.0, 2.0]), "first arm: 1 value; at least 2 needed"),
        (lambda: welch_t_test([1.0, 1.0], [2.0, 2.0]), "no variation"),
        (lambda: paired_t_test(paired([1.0, 2.0], [2.0, 3.0])), "no variation"),
        (lambda: correlation([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]), "not defined"),
        (lambda: correlation([1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]), "3 values of x and 4 of y"),
        (lambda: relative_reduction(0.0, 1.0), "expected a positive baseline"),
    ],
)
def test_bad_input_is_told_in_one_line(call, says):
    with pytest.raises(InputError) as caught:
        call()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
