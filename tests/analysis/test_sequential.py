"""Group-sequential levels: published constants, a simulation, and that all looks together hold the level."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vlmsafe.analysis.sequential import bounds, crossing, levels, spent
from vlmsafe.errors import InputError

FIVE = (0.2, 0.4, 0.6, 0.8, 1.0)


@pytest.mark.parametrize(
    ("spending", "two_sided", "alpha", "published"),
    [
        # Lan-DeMets bounds for five equally spaced looks, as published tables and the usual programs print them.
        ("obrien-fleming", True, 0.05, (4.877, 3.357, 2.680, 2.290, 2.031)),
        ("obrien-fleming", False, 0.025, (4.877, 3.357, 2.680, 2.290, 2.031)),
        ("pocock", True, 0.05, (2.438, 2.427, 2.410, 2.397, 2.386)),
    ],
)
def test_the_bounds_are_the_published_ones(spending, two_sided, alpha, published):
    found = bounds(FIVE, alpha, two_sided=two_sided, spending=spending)
    assert found == pytest.approx(published, abs=0.0015)


def test_one_look_is_the_usual_test():
    assert levels([1.0], 0.05)[0] == pytest.approx(0.05)
    assert levels([1.0], 0.05, two_sided=False, spending="pocock")[0] == pytest.approx(0.05)


@pytest.mark.parametrize(("looks", "total"), [(2, 0.083), (3, 0.107), (4, 0.126), (5, 0.142), (10, 0.193)])
def test_repeated_tests_at_the_same_level_reject_as_often_as_armitage_found(looks, total):
    shares = np.arange(1, looks + 1) / looks
    assert crossing(shares, [1.959964] * looks).sum() == pytest.approx(total, abs=0.0006)


@pytest.mark.parametrize("two_sided", [True, False])
@pytest.mark.parametrize("spending", ["obrien-fleming", "pocock"])
def test_a_simulation_agrees(spending, two_sided):
    shares, draws = np.array([0.3, 0.6, 0.7, 1.0]), 400_000
    limits = bounds(shares, 0.05, two_sided=two_sided, spending=spending)
    steps = np.random.default_rng(1).normal(0.0, np.sqrt(np.diff(shares, prepend=0.0)), (draws, 4))
    z = steps.cumsum(axis=1) / np.sqrt(shares)
    passed = (np.abs(z) if two_sided else z) > limits
    first = np.where(passed.any(axis=1), passed.argmax(axis=1), 4)
    simulated = np.bincount(first, minlength=5)[:4] / draws
    assert simulated == pytest.approx(crossing(shares, limits, two_sided=two_sided), abs=0.0012)
    assert simulated.sum() == pytest.approx(0.05, abs=0.0015)


def test_a_difference_that_exists_is_found_as_often_as_simulated():
    shares, drift, draws = np.array([0.5, 1.0]), 2.8, 200_000
    limits = bounds(shares, 0.05)
    steps = np.random.default_rng(2).normal(drift * 0.5, np.sqrt(0.5), (draws, 2))
    simulated = (np.abs(steps.cumsum(axis=1) / np.sqrt(shares)) > limits).any(axis=1).mean()
    assert crossing(shares, limits, drift=drift).sum() == pytest.approx(simulated, abs=0.004)


@settings(max_examples=25, deadline=None)
@given(
    st.sets(st.integers(1, 39), max_size=4),
    st.sampled_from([0.001, 0.01, 0.05, 0.2]),
    st.booleans(),
    st.sampled_from(["obrien-fleming", "pocock"]),
)
def test_all_looks_together_hold_the_level_and_each_spends_its_part(places, alpha, two_sided, spending):
    shares = [*(place / 40 for place in sorted(places)), 1.0]
    limits = bounds(shares, alpha, two_sided=two_sided, spending=spending)
    probabilities = crossing(shares, limits, two_sided=two_sided)
    assert probabilities.sum() == pytest.approx(alpha, rel=1e-3)
    assert (levels(shares, alpha, two_sided=two_sided, spending=spending) <= alpha + 1e-9).all()
    sides = 2 if two_sided else 1
    parts = [sides * spent(share, alpha / sides, spending) for share in shares]
    assert probabilities.cumsum() == pytest.approx(parts, abs=alpha * 1e-3)


def test_a_look_that_may_spend_nothing_decides_nothing():
    found = levels([0.01, 1.0], 0.05)
    assert found[0] == 0.0
    assert found[1] == pytest.approx(0.05)


@pytest.mark.parametrize("shares", [[], [0.5], [0.5, 0.5, 1.0], [0.6, 0.4, 1.0], [0.0, 1.0], [0.5, 1.2], [-0.1, 1.0]])
def test_looks_that_do_not_rise_to_one_are_refused(shares):
    with pytest.raises(InputError, match="rise and end at 1"):
        bounds(shares, 0.05)


def test_an_unknown_spending_function_and_an_impossible_level_are_refused():
    with pytest.raises(InputError, match="unknown spending function 'obrien'; did you mean 'obrien-fleming'"):
        bounds([1.0], 0.05, spending="obrien")
    for alpha, two_sided in ((0.0, True), (1.0, True), (0.5, False)):
        with pytest.raises(InputError, match="expected a level between"):
            bounds([1.0], alpha, two_sided=two_sided)
    with pytest.raises(InputError, match="1 limits for 2 looks"):
        crossing([0.5, 1.0], [2.0])


def test_normal_means_with_an_estimated_deviation_hold_the_level_nearly():
    """Ten runs per arm, a look at five: a t-test at the group-sequential level, which knows no deviation."""
    rng, draws = np.random.default_rng(3), 20_000
    first, second = rng.normal(size=(2, draws, 10))
    early, late = levels([0.5, 1.0], 0.05)
    at_five = stats.ttest_ind(first[:, :5], second[:, :5], axis=1).pvalue < early
    at_ten = stats.ttest_ind(first, second, axis=1).pvalue < late
    assert 0.043 < (at_five | at_ten).mean() < 0.058
