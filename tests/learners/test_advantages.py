"""Advantages are what the textbook's loop gives, path by path."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmsafe.learners.advantages import Rollout, combine_costs, discounted_sums, gae, rollout_gae, standardise

quick = settings(max_examples=40, deadline=None)
unit = st.floats(0.0, 1.0)
seeds = st.integers(0, 2**32 - 1)


def naive_gae(rewards, values, bootstrap, gamma, lam):
    """One step at a time, backwards, in Python floats."""
    advantages, following, running = [], float(bootstrap), 0.0
    for reward, value in zip(reversed(rewards.tolist()), reversed(values.tolist()), strict=True):
        running = reward + gamma * following - value + gamma * lam * running
        advantages.append(running)
        following = value
    advantages.reverse()
    return np.array(advantages), np.array(advantages) + values


def make_rollout(lengths, terminated, seed):
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    return Rollout(
        observations=rng.normal(size=(n, 2)).astype(np.float32),
        actions=rng.normal(size=(n, 1)).astype(np.float32),
        log_probs=rng.normal(size=n).astype(np.float32),
        rewards=rng.normal(size=n),
        costs=rng.uniform(size=n),
        path_ends=np.cumsum(lengths),
        last=rng.normal(size=(len(lengths), 2)).astype(np.float32),
        terminated=np.array(terminated),
    )


@quick
@given(seeds, st.integers(1, 60), unit, unit, st.floats(-100, 100))
def test_gae_equals_the_naive_loop(seed, length, gamma, lam, bootstrap):
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=length) * 3, rng.normal(size=length).astype(np.float32) * 10
    advantages, targets = gae(rewards, values, bootstrap, gamma, lam)
    expected, expected_targets = naive_gae(rewards, values, bootstrap, gamma, lam)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(targets, expected_targets, rtol=1e-5, atol=1e-5)
    assert advantages.dtype == targets.dtype == np.float32


@quick
@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), unit)
def test_discounted_sums_satisfy_their_recursion(values, factor):
    sums = discounted_sums(np.array(values), factor)
    following = np.append(sums[1:], 0.0)
    np.testing.assert_allclose(sums, np.array(values) + factor * following, rtol=1e-12, atol=1e-12)


@quick
@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=6), unit, unit, seeds)
def test_every_path_of_a_rollout_stands_alone(paths, gamma, lam, seed):
    lengths, terminated = zip(*paths, strict=True)
    rollout = make_rollout(lengths, terminated, seed)
    rng = np.random.default_rng(seed + 1)
    values = rng.normal(size=len(rollout)).astype(np.float32)
    last_values = rng.normal(size=len(lengths)).astype(np.float32)
    for signal in (rollout.rewards, rollout.costs):
        advantages, targets = rollout_gae(rollout, signal, values, last_values, gamma, lam)
        start = 0
        for path, length in enumerate(lengths):
            part = slice(start, start + length)
            bootstrap = 0.0 if terminated[path] else last_values[path]
            expected, expected_targets = naive_gae(signal[part], values[part], bootstrap, gamma, lam)
            np.testing.assert_allclose(advantages[part], expected, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(targets[part], expected_targets, rtol=1e-5, atol=1e-5)
            start += length


def test_a_terminal_state_is_worth_nothing_and_a_cut_path_goes_on():
    rollout = make_rollout([2, 2, 2], [True, False, True], 0)
    zeros, last_values = np.zeros(6, np.float32), np.array([100.0, 100.0, 100.0], np.float32)
    advantages, _ = rollout_gae(rollout, np.zeros(6), zeros, last_values, gamma=0.5, lam=1.0)
    np.testing.assert_allclose(advantages, [0, 0, 25, 50, 0, 0])


def test_a_value_of_nan_after_a_terminal_state_is_not_used():
    """Nothing is promised about an observation after the end; its value must not leak in."""
    rollout = make_rollout([3], [True], 0)
    advantages, targets = rollout_gae(
        rollout, rollout.rewards, np.zeros(3, np.float32), np.array([np.nan], np.float32), 0.99, 0.95
    )
    assert np.isfinite(advantages).all()
    assert np.isfinite(targets).all()


def test_values_of_the_wrong_number_of_paths_are_refused():
    rollout = make_rollout([2, 2], [False, False], 0)
    with pytest.raises(ValueError, match="zip"):
        rollout_gae(rollout, rollout.rewards, np.zeros(4, np.float32), np.zeros(1, np.float32), 0.99, 0.95)


def test_without_discount_and_lambda_the_target_is_the_return_to_go():
    rewards = np.array([1.0, 2.0, 3.0])
    _, targets = gae(rewards, np.array([5.0, -7.0, 9.0], np.float32), 4.0, gamma=1.0, lam=1.0)
    np.testing.assert_allclose(targets, [10.0, 9.0, 7.0], rtol=1e-6)


@quick
@given(seeds, st.integers(2, 500), st.floats(-50, 50), st.floats(0.1, 50))
def test_standardised_advantages_have_mean_zero_and_deviation_one(seed, count, centre, spread):
    advantages = (centre + spread * np.random.default_rng(seed).normal(size=count)).astype(np.float32)
    divided, centred = standardise(advantages, divide=True), standardise(advantages, divide=False)
    exact = advantages.astype(np.float64)
    np.testing.assert_allclose(divided, (exact - exact.mean()) / exact.std(), rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(centred, exact - exact.mean(), rtol=1e-3, atol=1e-4)
    assert divided.dtype == centred.dtype == np.float32


@pytest.mark.parametrize("value", [0.0, 0.1, 0.3, 7.7])
def test_equal_advantages_give_no_direction(value):
    """Rounding of the mean must not be blown up by a deviation of zero."""
    assert np.abs(standardise(np.full(20_000, value, np.float32), divide=True)).max() < 1e-2


@given(st.floats(0.0, 5.0), st.floats(0.0, 5.0), st.integers(0, 1000))
def test_two_priced_advantages_are_one(price, signal_price, seed):
    """(A_r - lambda A_c - mu A_s) / (1 + lambda + mu), through the one cost advantage that learners take."""
    reward, cost, signal = np.random.default_rng(seed).normal(size=(3, 7)).astype(np.float32)
    combined = combine_costs(cost, price, signal, signal_price)
    total = price + signal_price
    expected = (reward - price * cost - signal_price * signal) / (1.0 + total)
    np.testing.assert_allclose((reward - total * combined) / (1.0 + total), expected, atol=1e-5)
    if signal_price == 0.0:
        np.testing.assert_array_equal(combined, cost)
