"""Rows of the replay are steps with what followed them in their own episode."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmsafe.learners.advantages import Rollout
from vlmsafe.learners.recollection import Recollection, few_step_sums, rollout_arrays, rollout_from


def rollout(lengths, terminated, seed=0):
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    ends = -1.0 - np.arange(len(lengths), dtype=np.float32)[:, None]
    return Rollout(
        np.arange(n, dtype=np.float32)[:, None], rng.uniform(-1, 1, (n, 2)).astype(np.float32), np.zeros(n, np.float32),
        rng.normal(size=n), rng.random(n), np.cumsum(lengths), ends, np.array(terminated),
    )  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 5), st.integers(0, 99), st.data())
def test_every_row_is_what_a_loop_over_the_episode_gives(lengths, steps, seed, data):
    terminated = [data.draw(st.booleans()) for _ in lengths]
    part, gamma = rollout(lengths, terminated, seed), 0.9
    kept = Recollection(1, 2, gamma, steps)
    kept.add(part)
    assert len(kept) == sum(lengths)
    begin, row = 0, 0
    for path, (length, ends) in enumerate(zip(lengths, terminated, strict=True)):
        for t in range(length):
            count = min(steps, length - t)
            drawn = kept.at(np.array([row]))
            at = begin + t
            assert drawn.observations[0, 0] == part.observations[at, 0]
            np.testing.assert_array_equal(drawn.actions[0], part.actions[at])
            for found, values in ((drawn.rewards, part.rewards), (drawn.costs, part.costs)):
                assert found[0] == pytest.approx(
                    sum(gamma**k * values[at + k] for k in range(count)), rel=1e-5, abs=1e-6
                )
            over = t + count == length
            assert drawn.discounts[0] == pytest.approx(0.0 if over and ends else gamma**count, rel=1e-6)
            following = part.last[path, 0] if over else part.observations[at + count, 0]
            assert drawn.following[0, 0] == following
            row += 1
        begin += length


def test_it_grows_and_keeps_what_it_has():
    kept, whole = Recollection(1, 2, 0.9, 3), Recollection(1, 2, 0.9, 3)
    parts = [rollout([700, 300], [True, False], seed) for seed in range(4)]
    for part in parts:
        kept.add(part)
    joined = Rollout.join(parts)
    whole.add(joined)
    rows = np.arange(len(kept))
    for one, other in zip(vars(kept.at(rows)).values(), vars(whole.at(rows)).values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_draws_are_rows_and_equal_generators_draw_equal_ones():
    kept, part = Recollection(1, 2, 0.9, 1), rollout([5], [True])
    kept.add(part)
    one, other = (kept.draw(np.random.default_rng(3), 64) for _ in range(2))
    np.testing.assert_array_equal(one.observations, other.observations)
    assert set(one.observations[:, 0]) == set(range(5))


def test_a_rollout_survives_its_arrays():
    part = rollout([4, 2], [True, False])
    again = rollout_from(rollout_arrays(part))
    for name in ("observations", "actions", "rewards", "costs", "path_ends", "last", "terminated"):
        np.testing.assert_array_equal(getattr(part, name), getattr(again, name))
    assert again.terminated.dtype == np.bool_


def test_sums_of_one_step_are_the_values_and_long_ones_reach_the_end():
    values = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(few_step_sums(values, 0.5, 1), values)
    np.testing.assert_array_equal(few_step_sums(values, 1.0, 10), [6.0, 5.0, 3.0])
