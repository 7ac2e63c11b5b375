"""The k-step cache, the bonus and the epoch's mean, against a step-by-step reading of the paper's procedure."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmsafe.config.learning import MultiplierConfig
from vlmsafe.learners.multipliers import AdamMultiplier
from vlmsafe.signals.rules import Scores
from vlmsafe.signals.shaping import (
    Paths,
    Signals,
    change,
    cost_bonus,
    due,
    excess,
    hold,
    path_means,
    path_sums,
    reward_bonus,
    shape,
)

LENGTHS = st.lists(st.integers(1, 13), min_size=1, max_size=6)


def scored_steps(lengths, every):
    return np.array([due(step, every) for length in lengths for step in range(1, length + 1)], np.bool_)


def random_scores(count, seed=0):
    rng = np.random.default_rng(seed)
    return Scores(rng.random(count), rng.random(count), rng.normal(size=count)), rng.random(count)


@given(LENGTHS, st.integers(1, 5))
def test_the_cache_is_what_a_loop_over_steps_would_hold(lengths, every):
    mask = scored_steps(lengths, every)
    scores, kappas = random_scores(mask.sum())
    signals = hold(scores, kappas, mask, np.cumsum(lengths))
    expected, query, t = [], 0, 0
    for length in lengths:
        now = (0.0, 0.0, 1.0)  # the cache at an episode's boundary
        for step in range(1, length + 1):
            if step % every == 0:
                now = (scores.positive[query], scores.negative[query], kappas[query])
                query += 1
            expected.append(now)
            t += 1
    got = np.stack([signals.positive, signals.negative, signals.kappa], axis=1)
    np.testing.assert_array_equal(got, expected)


def test_queries_fall_on_steps_k_2k_and_the_first_steps_score_zero():
    mask = scored_steps([10, 3, 5], 4)
    assert np.flatnonzero(mask).tolist() == [3, 7, 16]
    scores, kappas = random_scores(3)
    signals = hold(scores, kappas, mask, np.array([10, 13, 18]))
    np.testing.assert_array_equal(signals.positive[[0, 1, 2, 10, 11, 12, 13]], 0.0)
    np.testing.assert_array_equal(signals.kappa[[0, 1, 2, 10, 11, 12, 13]], 1.0)
    assert signals.positive[8] == signals.positive[9] == scores.positive[1]
    assert np.isnan(signals.margin[:3]).all()


def test_an_epoch_without_any_score_is_all_cache():
    signals = hold(Scores(*(np.empty(0),) * 3), np.empty(0), np.zeros(5, np.bool_), np.array([2, 5]))
    np.testing.assert_array_equal(reward_bonus(signals, 0.1), np.zeros(5))
    np.testing.assert_array_equal(excess(signals, 0.0), np.zeros(5))


def test_bonus_is_gated_and_weighted():
    signals = Signals(np.array([0.6]), np.array([0.7]), np.array([0.5]), np.array([-0.2]), np.array([True]))
    assert reward_bonus(signals, 0.1)[0] == pytest.approx(0.1 * 0.5 * 0.6)
    assert cost_bonus(signals, 2.0, 0.62)[0] == pytest.approx(2.0 * 0.5 * 0.08)
    assert cost_bonus(signals, 2.0, 0.8)[0] == 0.0


def test_excess_counts_nothing_before_the_first_score():
    """The cache's zero is no score: below a reference it would pass for one, with a reference below zero count."""
    mask = scored_steps([4], 2)
    signals = hold(Scores(np.ones(2), np.full(2, 0.7), np.ones(2)), np.ones(2), mask, np.array([4]))
    np.testing.assert_allclose(excess(signals, 0.6), [0.0, 0.1, 0.1, 0.1])


@given(LENGTHS)
def test_path_means_weigh_every_step_of_an_episode(lengths):
    values = np.random.default_rng(1).random(sum(lengths))
    ends = np.cumsum(lengths)
    parts = np.split(values, ends[:-1])
    np.testing.assert_allclose(path_means(values, ends), [part.mean() for part in parts])
    np.testing.assert_allclose(path_sums(values, ends), [part.sum() for part in parts])


def test_the_effective_budget_shift_is_the_published_one():
    """eta_2 (mean c_vlm - tau) with the paper's 0.01, 0.624 and 0.5: the budget moves by 0.0012 of a cost unit."""
    multiplier = AdamMultiplier(MultiplierConfig(signal_weight=0.01, signal_reference=0.5))
    bracket = multiplier.bracket(25.0, 25.0, 0.624)
    assert bracket.signal_term == pytest.approx(1.2e-3, abs=5e-5)
    assert bracket.cost_gap == 0.0


@given(LENGTHS, st.data(), st.sampled_from([0.9, 0.99, 1.0]))
def test_changes_add_nothing_to_the_discounted_total_of_an_episode_that_ended(lengths, data, gamma):
    ends = np.cumsum(lengths)
    terminated = np.array(data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths))), np.bool_)
    levels = np.random.default_rng(sum(lengths)).random(ends[-1])
    added = change(levels, Paths(ends, terminated, gamma))
    for start, end, over in zip([0, *ends[:-1]], ends, terminated, strict=True):
        total = sum(gamma**t * value for t, value in enumerate(added[start:end]))
        left = 0.0 if over else gamma ** (end - start) * levels[end - 1]  # what a critic continues from
        assert total == pytest.approx(left, abs=1e-12)


def test_a_change_is_a_cost_where_danger_rises_and_a_refund_where_it_falls():
    levels = np.array([0.0, 0.4, 0.4, 0.1, 0.3])
    added = change(levels, Paths(np.array([3, 5]), np.array([True, False]), 1.0))
    np.testing.assert_allclose(added, [0.0, 0.4, -0.4, 0.1, 0.2])


def test_the_cost_takes_the_form_that_is_asked_for_and_the_rest_does_not_depend_on_it():
    mask, paths = scored_steps([4, 3], 1), Paths(np.array([4, 7]), np.array([True, False]), 0.99)
    scores, kappas = random_scores(7)
    signals = hold(scores, kappas, mask, paths.ends)
    level, moving = (shape(signals, 0.1, 2.0, 0.3, form, paths) for form in ("level", "change"))
    np.testing.assert_array_equal(level.cost_bonus, cost_bonus(signals, 2.0, 0.3))
    np.testing.assert_array_equal(moving.cost_bonus, change(level.cost_bonus, paths))
    np.testing.assert_array_equal(level.bonus, moving.bonus)
    np.testing.assert_array_equal(level.excess, moving.excess)
