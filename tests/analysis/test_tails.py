"""Tails are what their definitions say, and their intervals over runs hold their level or are left out."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmsafe.analysis.exact_tests import permutation_test
from vlmsafe.analysis.tails import (
    RunEstimate,
    cost_per_distance,
    cvar,
    distance_of,
    over_runs,
    probability_of_improvement,
    quantile,
)
from vlmsafe.errors import InputError

costs = st.lists(st.floats(0, 1e4), min_size=1, max_size=40)
shares = st.floats(0.01, 1.0)


def test_the_cvar_is_the_mean_of_the_costliest_tenth():
    assert cvar(range(100)) == pytest.approx(np.mean(range(90, 100)))


def test_an_episode_at_the_boundary_counts_in_part():
    assert cvar([0.0, 4.0, 10.0], 0.5) == pytest.approx((10.0 + 0.5 * 4.0) / 1.5)
    assert cvar([3.0, 8.0], 0.1) == 8.0  # a tenth of two episodes is less than one


@given(costs, shares)
def test_the_cvar_lies_between_the_mean_and_the_worst_episode(values, share):
    found = cvar(values, share)
    assert np.mean(values) - 1e-6 <= found <= max(values) + 1e-6
    assert cvar(values, 1.0) == pytest.approx(np.mean(values))


@given(costs, shares, shares)
def test_a_smaller_share_never_has_a_smaller_cvar(values, one, other):
    assert cvar(values, min(one, other)) >= cvar(values, max(one, other)) - 1e-6


def test_the_interval_of_costs_is_the_t_interval_of_the_logarithm_of_the_mean():
    found = over_runs([10.0, 20.0, 30.0])
    reach = 4.302652729911275 * 10.0 / math.sqrt(3.0) / 20.0
    assert found.estimate == 20.0
    assert (found.low, found.high) == pytest.approx((20.0 * math.exp(-reach), 20.0 * math.exp(reach)))


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=8), st.floats(0.1, 100.0))
def test_an_interval_contains_its_estimate_and_scales_with_its_unit(values, unit):
    found, scaled = over_runs(values), over_runs([unit * value for value in values])
    assert scaled.estimate == pytest.approx(unit * found.estimate)
    if found.low is not None and scaled.low is not None:
        assert 0 <= found.low <= found.estimate <= found.high
        assert scaled.high == pytest.approx(unit * found.high, rel=1e-6)


@pytest.mark.parametrize("values", [[7.0], [7.0, 7.0, 7.0], [0.0, 0.0, 0.0, 0.0], [0.1 + 0.2, 0.3, 0.3]])
def test_one_run_or_equal_runs_have_an_estimate_and_no_interval(values):
    found = over_runs(values)
    assert found.estimate == pytest.approx(values[0])
    assert (found.low, found.high, found.runs) == (None, None, len(values))
    ratio = cost_per_distance(values, [10.0] * len(values))
    assert (ratio.low, ratio.high) == (None, None)
    assert probability_of_improvement(values, values).estimate == 0.5


def test_two_runs_are_too_few_for_an_interval():
    assert over_runs([1.0, 9.0]).low is None
    assert cost_per_distance([1.0, 9.0], [5.0, 6.0]).low is None


def test_a_run_without_cost_does_not_break_the_log_scale():
    found = over_runs([0.0, 10.0, 20.0])
    assert 0.0 < found.low < 10.0 < found.high


def test_ties_count_half_and_the_other_direction_is_the_complement():
    first, second = [1.0, 2.0, 3.0], [2.0, 3.0, 4.0]
    found, turned = probability_of_improvement(first, second), probability_of_improvement(second, first)
    assert found.estimate == pytest.approx((3 + 2.5 + 1.5) / 9)
    assert found.estimate + turned.estimate == pytest.approx(1.0)
    assert (found.low, found.high) == pytest.approx((1.0 - turned.high, 1.0 - turned.low))


@pytest.mark.parametrize("runs", [2, 3, 4, 5, 10])
def test_no_improvement_is_found_that_the_exact_test_could_not_find(runs):
    first, second = np.arange(runs, dtype=float), np.arange(runs, dtype=float) + 100.0
    found = probability_of_improvement(first, second)
    assert (found.estimate, found.high) == (1.0, 1.0)
    assert (found.low > 0.5) == (float(permutation_test(first, second, "two-sided").p) < 0.05)


def test_a_ratio_is_of_totals_and_not_a_mean_of_ratios():
    found = cost_per_distance([10.0, 0.0, 20.0], [100.0, 10.0, 100.0])
    assert found.estimate == pytest.approx(30.0 / 210.0)
    assert found.low < found.estimate < found.high


def test_cost_that_is_proportional_to_distance_has_no_spread():
    found = cost_per_distance([1.0, 2.0, 3.0], [10.0, 20.0, 30.0])
    assert found == RunEstimate(0.1, None, None, 0.95, 3)


def test_equal_distances_give_the_interval_of_the_mean():
    costs = [10.0, 14.0, 30.0, 8.0]
    found, mean = cost_per_distance(costs, [50.0] * 4), over_runs(costs)
    assert (found.low, found.high) == pytest.approx((mean.low / 50.0, mean.high / 50.0))


@pytest.mark.parametrize("runs", [3, 5, 10])
def test_intervals_of_normal_runs_hold_their_level(runs):
    rng = np.random.default_rng(7)
    means = rng.normal(25.0, 6.0, (1000, runs))
    ways = rng.normal(500.0, 50.0, (1000, runs))
    others = rng.normal(30.0, 6.0, (1000, runs))
    truth = 0.7222  # of a normal difference of 5 with the deviation sqrt(72)
    held = {"mean": 25.0, "ratio": 0.05, "improvement": truth}
    counts = dict.fromkeys(held, 0)
    for mean, way, other in zip(means, ways, others, strict=True):
        found = {
            "mean": over_runs(mean),
            "ratio": cost_per_distance(mean, way),
            "improvement": probability_of_improvement(mean, other),
        }
        for name, one in found.items():
            counts[name] += one.low <= held[name] <= one.high
    assert min(counts.values()) >= 930  # 950 are expected, with a deviation of 7


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cvar([1.0], 0.0), "the share is 0.0; expected more than 0 and at most 1"),
        (lambda: cvar([]), "0 values; at least 1 needed"),
        (lambda: quantile([1.0], 2.0), "the share is 2.0; expected 0 to 1"),
        (lambda: over_runs([1.0, float("nan")]), "is nan"),
        (lambda: over_runs([1.0, -2.0]), "-2 is negative; expected costs"),
        (lambda: over_runs([1.0], level=95), "the level is 95; expected a share between 0 and 1"),
        (lambda: probability_of_improvement([1.0, 2.0], [1.0, 2.0], level=0.0), "the level is 0.0"),
        (lambda: cost_per_distance([1.0], [1.0, 2.0]), "1 costs and 2 distances"),
        (lambda: cost_per_distance([1.0], [0.0]), "the distances sum to 0; expected more than 0"),
        (lambda: cost_per_distance([-1.0], [2.0]), "a run's cost is -1"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_a_reason(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_the_distance_is_the_first_that_all_tables_have_in_full():
    full = pl.DataFrame({"path": [3.0, 4.0], "route_completion": [0.2, 0.4], "length": [10, 20]})
    assert distance_of([full]).column == "path"
    gap = full.with_columns(path=pl.Series([None, 4.0]))
    assert distance_of([full, gap]).column == "route_completion"
    assert distance_of([full, full.select("length")]).column == "length"
    assert distance_of([full, full.select(path=pl.lit(0.0))]) is None
    assert distance_of([]) is None
