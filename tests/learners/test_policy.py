"""What workers do with an observation: standardise, sample, map to the environment's bounds."""

from itertools import pairwise

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from vlmsafe.learners.policy import ActionMap, Policy
from vlmsafe.numerics.normaliser import Normaliser, RunningNormaliser

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def observations(seed: int, count: int, dimension: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centre, spread = rng.normal(size=dimension) * 20, rng.uniform(0.1, 10, dimension)
    return (centre + spread * rng.normal(size=(count, dimension))).astype(np.float32)


def seen(rows: np.ndarray) -> Normaliser:
    normaliser = Normaliser.empty(rows.shape[1])
    for row in rows:
        normaliser.update(row)
    return normaliser


@quick
@given(seeds, st.integers(2, 200))
def test_statistics_are_the_sample_mean_and_unbiased_deviation(seed, count):
    rows = observations(seed, count)
    normaliser, exact = seen(rows), rows.astype(np.float64)
    assert normaliser.count == count
    np.testing.assert_allclose(normaliser.mean, exact.mean(axis=0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(normaliser.std, np.maximum(exact.std(axis=0, ddof=1), 1e-2), rtol=1e-9)


@quick
@given(seeds, st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_merging_parts_in_order_equals_seeing_everything(seed, sizes):
    rows = observations(seed, sum(sizes) + 1)
    whole, merged = seen(rows), seen(rows[:1])
    start = 1
    for size in sizes:
        merged.merge(seen(rows[start : start + size]))
        start += size
    assert merged.count == whole.count
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(merged.m2, whole.m2, rtol=1e-7, atol=1e-7)


def test_merging_into_and_from_nothing():
    rows = observations(0, 5)
    empty, part = Normaliser.empty(3), seen(rows)
    empty.merge(Normaliser.empty(3))
    assert empty.count == 0
    assert np.isfinite(empty.mean).all()
    empty.merge(part)
    np.testing.assert_allclose(empty.std, part.std, rtol=1e-12)
    np.testing.assert_allclose(empty.mean, part.mean, rtol=1e-12)


def test_merging_leaves_the_other_part_alone():
    whole, part = seen(observations(0, 5)), seen(observations(1, 5))
    before = part.copy()
    whole.merge(part)
    whole.update(observations(2, 1)[0])
    assert part.count == before.count
    np.testing.assert_array_equal(part.mean, before.mean)
    np.testing.assert_array_equal(part.m2, before.m2)


@quick
@given(seeds, st.integers(2, 50))
def test_an_observation_is_standardised_by_what_was_seen(seed, count):
    rows = observations(seed, count)
    exact = rows.astype(np.float64)
    expected = (exact[0] - exact.mean(axis=0)) / np.maximum(exact.std(axis=0, ddof=1), 1e-2)
    result = seen(rows).normalise(rows[0])
    np.testing.assert_allclose(result, np.clip(expected, -5, 5), rtol=1e-5, atol=1e-5)
    assert result.dtype == np.float32


@quick
@given(seeds, st.integers(0, 20))
def test_standardising_changes_no_statistic(seed, count):
    normaliser = seen(observations(seed, count))
    before, row = normaliser.copy(), observations(seed + 1, 1)[0]
    kept = row.copy()
    normaliser.normalise(row)
    assert normaliser.count == before.count
    np.testing.assert_array_equal(normaliser.mean, before.mean)
    np.testing.assert_array_equal(normaliser.m2, before.m2)
    np.testing.assert_array_equal(row, kept)


def test_the_first_observation_passes_unchanged_the_second_does_not():
    rows = np.array([[7.0, -3.0], [9.0, -3.0]], np.float32)
    np.testing.assert_array_equal(seen(rows[:1]).normalise(rows[0]), rows[0])
    np.testing.assert_allclose(seen(rows).normalise(rows[1]), [1 / np.sqrt(2), 0.0], rtol=1e-6)


def test_constant_inputs_stay_finite_and_extremes_are_clipped():
    normaliser = seen(np.tile(np.array([[5.0, 1.0]], np.float32), (10, 1)))
    np.testing.assert_array_equal(normaliser.std, 1e-2)
    np.testing.assert_allclose(normaliser.normalise(np.array([5.01, 1.0], np.float32)), [1.0, 0.0], atol=1e-4)
    np.testing.assert_array_equal(normaliser.normalise(np.array([9.0, -9.0], np.float32)), [5.0, -5.0])


def test_a_copy_goes_its_own_way():
    original = seen(observations(0, 4))
    copy = original.copy()
    copy.update(observations(1, 1)[0])
    assert original.count == 4
    np.testing.assert_array_equal(original.mean, seen(observations(0, 4)).mean)


@quick
@given(seeds, st.integers(0, 3), st.integers(1, 40))
def test_a_running_normaliser_gives_the_numbers_of_updating_and_standardising_in_turn(seed, before, count):
    rows = observations(seed, before + count)
    start = seen(rows[:before]) if before else Normaliser.empty(3)
    kept, plain, running, out = start.copy(), start.copy(), RunningNormaliser(start), np.empty(3, np.float32)
    for row in rows[before:]:
        plain.update(row)
        running.see(row, out)
        np.testing.assert_array_equal(out, plain.normalise(row))
    for ours, expected in ((running.seen(), seen(rows[before:])), (start, kept)):
        assert ours.count == expected.count
        np.testing.assert_array_equal(ours.mean, expected.mean)
        np.testing.assert_array_equal(ours.m2, expected.m2)


def test_a_running_normaliser_clips_extremes_and_keeps_constant_inputs_finite():
    running, out = RunningNormaliser(seen(np.tile(np.array([[5.0, 1.0, 1.0]], np.float32), (99, 1)))), np.ones(3, "f4")
    running.see(np.array([9.0, -9.0, 1.0], np.float32), out)
    np.testing.assert_array_equal(out, [5.0, -5.0, 0.0])


def make_policy(seed: int, dimension: int, actions: int) -> Policy:
    rng = np.random.default_rng(seed)
    sizes = [dimension, 4, 5, actions]
    layers = [
        (rng.normal(size=(out, inner)).astype(np.float32), rng.normal(size=out).astype(np.float32))
        for inner, out in pairwise(sizes)
    ]
    return Policy(layers, rng.uniform(-1.5, 0.5, actions).astype(np.float32))


@quick
@given(seeds, st.integers(1, 4))
def test_a_samples_log_probability_is_torchs(seed, actions):
    policy, observation = make_policy(seed, 3, actions), np.random.default_rng(seed).normal(size=3).astype(np.float32)
    noise = policy.draw(np.random.default_rng(seed), 1)
    action, log_prob = policy.act(observation, noise[0]), policy.log_probs(noise)[0]
    mean, deviation = torch.tensor(policy.mean(observation)), torch.tensor(policy.log_std).exp()
    expected = torch.distributions.Normal(mean, deviation).log_prob(torch.tensor(action)).sum()
    assert log_prob == pytest.approx(expected.item(), rel=1e-4, abs=1e-4)
    assert action.dtype == log_prob.dtype == np.float32


@quick
@given(seeds, st.integers(1, 4))
def test_the_mean_is_torchs_tanh_network(seed, actions):
    policy, observation = make_policy(seed, 3, actions), np.random.default_rng(seed).normal(size=3).astype(np.float32)
    hidden = torch.tensor(observation)
    for depth, (weight, bias) in enumerate(policy.layers):
        hidden = torch.tensor(weight) @ hidden + torch.tensor(bias)
        hidden = torch.tanh(hidden) if depth < 2 else hidden
    np.testing.assert_allclose(policy.mean(observation), hidden, rtol=1e-4, atol=1e-5)


@quick
@given(seeds, st.integers(1, 40))
def test_acting_gives_the_numbers_of_the_plain_formulas(seed, actions):
    """Bit for bit. Acting avoids temporaries and half of the calls, and may not change a trajectory by that."""
    policy, rng = make_policy(seed, 3, actions), np.random.default_rng(seed)
    rows = rng.normal(size=(5, 3)).astype(np.float32)
    low, high = rng.uniform(-3, 0, actions).astype(np.float32), rng.uniform(0, 3, actions).astype(np.float32)
    to_env, std = ActionMap(low, high), np.exp(policy.log_std)
    draws = np.random.default_rng(seed)
    noise = policy.draw(np.random.default_rng(seed), len(rows))
    for row, ours, log_prob in zip(rows, noise, policy.log_probs(noise), strict=True):
        drawn = draws.standard_normal(actions, dtype=np.float32)
        hidden = row
        for weight, bias in policy.layers[:-1]:
            hidden = np.tanh(weight @ hidden + bias)
        mean = policy.layers[-1][0] @ hidden + policy.layers[-1][1]
        expected = mean + std * drawn
        np.testing.assert_array_equal(ours, drawn)
        np.testing.assert_array_equal(policy.mean(row), mean)
        np.testing.assert_array_equal(policy.act(row, ours), expected)
        assert log_prob == np.sum(-0.5 * drawn * drawn - policy.log_std - np.float32(0.5 * np.log(2 * np.pi)))
        scaled = low * (0.5 - 0.5 * expected) + high * (0.5 + 0.5 * expected)
        np.testing.assert_array_equal(to_env(expected), np.clip(scaled, low, high))


def test_samples_follow_the_mean_and_deviation_and_the_seed():
    policy, observation = make_policy(0, 3, 2), np.ones(3, np.float32)
    rng = np.random.default_rng(1)
    samples = np.array([policy.act(observation, noise) for noise in policy.draw(rng, 4000)])
    np.testing.assert_allclose(samples.mean(axis=0), policy.mean(observation), atol=5 * np.exp(0.5) / np.sqrt(4000))
    np.testing.assert_allclose(samples.std(axis=0), np.exp(policy.log_std), rtol=0.06)
    again = policy.sample(observation, np.random.default_rng(1))
    np.testing.assert_array_equal(again, samples[0])


finite = st.floats(-1e3, 1e3, width=32)


@quick
@given(st.lists(st.tuples(finite, st.floats(0.125, 100, width=32)), min_size=1, max_size=4))
def test_the_ends_of_the_policys_range_are_the_bounds(sides):
    low = np.array([side[0] for side in sides], np.float32)
    high = low + np.array([side[1] for side in sides], np.float32)
    action_map = ActionMap.to(gymnasium.spaces.Box(low, high))
    ones = np.ones(len(sides), np.float32)
    np.testing.assert_allclose(action_map(-ones), low, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(action_map(ones), high, rtol=1e-6, atol=1e-3)
    np.testing.assert_allclose(action_map(0 * ones), (low + high) / 2, rtol=1e-5, atol=1e-3)
    np.testing.assert_array_equal(action_map(-9 * ones), low)
    np.testing.assert_array_equal(action_map(9 * ones), high)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@quick
@given(npst.arrays(np.float32, 3, elements=st.floats(-20, 20, width=32)))
def test_a_mapped_action_is_one_of_the_space(dtype, action):
    """Environments assert `action_space.contains(action)`, in the space's own type."""
    space = gymnasium.spaces.Box(np.array([-0.1, 0.2, -1.0], dtype), np.array([0.1, 0.7, 1.0], dtype), dtype=dtype)
    assert space.contains(ActionMap.to(space)(action).astype(space.dtype))


def test_actions_are_passed_on_beyond_the_bounds_of_an_environment_that_takes_them():
    action_map = ActionMap.to(gymnasium.spaces.Box(-1.0, np.array([1.0, 3.0], np.float32)), clips=False)
    np.testing.assert_allclose(action_map(np.array([-2.5, 2.0], np.float32)), [-2.5, 5.0])


def test_unbounded_dimensions_are_left_alone():
    space = gymnasium.spaces.Box(
        np.array([-np.inf, -2.0, -np.inf, 0.5], np.float32), np.array([np.inf, 2.0, 3.0, np.inf], np.float32)
    )
    action_map = ActionMap.to(space)
    np.testing.assert_allclose(action_map(np.array([0.7, 0.7, 0.7, 0.7], np.float32)), [0.7, 1.4, 0.7, 0.7], rtol=1e-6)
    np.testing.assert_allclose(action_map(np.array([-30, -30, 30, -30], np.float32)), [-30, -2, 3, 0.5])


def test_mapping_does_not_change_the_sampled_action():
    action = np.array([3.0], np.float32)
    to_env = ActionMap.to(gymnasium.spaces.Box(0.0, 1.0, (1,)))
    first = to_env(action)
    to_env(np.array([-1.0], np.float32))
    assert action[0] == 3.0
    assert first[0] == 1.0, "an environment may keep an action"
