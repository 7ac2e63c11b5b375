"""Rewards are divided by the deviation of their discounted sums."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmsafe.numerics.return_scale import ReturnScale, running_sums

seeds = st.integers(0, 2**32 - 1)


def epochs_of(seed, count=4):
    """Rewards of some epochs, each cut into paths."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        lengths = rng.integers(1, 9, rng.integers(1, 6))
        yield rng.normal(1.0, 3.0, lengths.sum()), np.cumsum(lengths)


@given(seeds, st.floats(0.0, 1.0))
def test_a_sum_is_the_discounted_past_of_its_own_path(seed, gamma):
    for rewards, ends in epochs_of(seed):
        sums, start = running_sums(rewards, ends, gamma), 0
        for end in ends:
            for t in range(start, end):
                past = sum(gamma ** (t - s) * rewards[s] for s in range(start, t + 1))
                assert sums[t] == pytest.approx(past)
            start = end


@given(seeds)
def test_rewards_are_divided_by_the_deviation_of_all_sums_so_far(seed):
    scale, seen = ReturnScale(0.9), []
    for rewards, ends in epochs_of(seed):
        seen.extend(running_sums(rewards, ends, 0.9))
        deviation = max(np.std(seen, ddof=1), 1e-2) if len(seen) > 1 else 1e-2
        np.testing.assert_allclose(scale.scaled(rewards, ends), rewards / deviation)


@given(seeds, st.floats(0.1, 1000.0))
def test_rewards_in_another_unit_come_out_the_same(seed, unit):
    plain, other = ReturnScale(0.99), ReturnScale(0.99)
    for rewards, ends in epochs_of(seed):
        if len(rewards) > 1:
            np.testing.assert_allclose(
                plain.scaled(100 * rewards, ends), other.scaled(100 * unit * rewards, ends), rtol=1e-6, atol=1e-9
            )


@given(seeds)
def test_it_continues_from_its_arrays_to_the_last_bit(seed):
    whole, cut = ReturnScale(0.99), ReturnScale(0.99)
    for rewards, ends in epochs_of(seed):
        again = ReturnScale(0.99)
        again.load(cut.arrays())
        cut = again
        np.testing.assert_array_equal(whole.scaled(rewards, ends), cut.scaled(rewards, ends))
