"""AUCs and their intervals are those of comparing every pair, however ties and episodes fall."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from vlmsafe.analysis import auc as module
from vlmsafe.analysis.auc import auc, auc_interval, concordance, draw_resamples
from vlmsafe.errors import InputError


def brute_wins(values, positive, episodes, count):
    wins = np.zeros((count, count))
    for a in np.flatnonzero(positive):
        for b in np.flatnonzero(~positive):
            wins[episodes[a], episodes[b]] += (values[a] > values[b]) + 0.5 * (values[a] == values[b])
    return wins


@st.composite
def labelled(draw):
    """Scores with many ties or none, labels, and episodes, some of them without a step."""
    n, count = draw(st.integers(0, 70)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    levels = draw(st.sampled_from([1, 2, 7, 1000]))
    values = rng.integers(0, levels, n) / 7.0 - 1.0
    values[rng.random(n) < draw(st.sampled_from([0.0, 0.6]))] = 0.25  # a group too large for a bin, among others
    return values, rng.random(n) < draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])), rng.integers(0, count, n), count


@given(labelled(), st.sampled_from([3, 1 << 22]))
@settings(max_examples=300, deadline=None)
def test_concordance_counts_every_pair_ties_half(case, portion):
    values, positive, episodes, count = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PAIRS", portion)
        np.testing.assert_array_equal(concordance(values, positive, episodes, count), brute_wins(*case))


@given(labelled())
@settings(max_examples=100, deadline=None)
def test_auc_is_scipys_mann_whitney_statistic_per_pair(case):
    values, positive, _, _ = case
    above, below = values[positive], values[~positive]
    if not len(above) or not len(below):
        assert auc(values, positive) is None
    else:
        expected = mannwhitneyu(above, below).statistic / (len(above) * len(below))
        assert auc(values, positive) == pytest.approx(expected, abs=1e-12)


def test_large_inputs_agree_with_scipy():
    rng = np.random.default_rng(0)
    labels = rng.random(20_000) < 0.2
    scores = np.round(rng.normal(size=20_000) + 0.3 * labels, 2)
    expected = mannwhitneyu(scores[labels], scores[~labels]).statistic / (labels.sum() * (~labels).sum())
    assert auc(scores, labels) == pytest.approx(expected, abs=1e-12)
    whole = auc_interval(scores, labels, rng.integers(0, 200, 20_000), resamples=50)
    assert whole.auc == pytest.approx(expected, abs=1e-12)


@given(labelled(), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_interval_is_that_of_laying_resampled_episodes_end_to_end(case, seed):
    values, positive, episodes, _ = case
    if not len(values):
        return
    names, numbers = np.unique(episodes, return_inverse=True)
    spread, left_out = [], 0
    for times in draw_resamples(len(names), 40, seed).astype(int):
        taken = np.repeat(np.arange(len(values)), times[numbers])
        value = auc(values[taken], positive[taken])
        spread += [] if value is None else [value]
        left_out += value is None
    result = auc_interval(values, positive, episodes, resamples=40, seed=seed)
    assert (result.positives, result.negatives) == (positive.sum(), (~positive).sum())
    assert (result.episodes, result.left_out) == (len(names), left_out)
    assert result.auc == auc(values, positive)
    if spread:
        np.testing.assert_allclose([result.low, result.high], np.percentile(spread, [2.5, 97.5]), atol=1e-12)
    else:
        assert (result.low, result.high) == (None, None)


def test_resamples_draw_as_many_episodes_as_there_are_with_replacement():
    drawn = draw_resamples(30, 500, 3)
    assert (drawn.sum(axis=1) == 30).all()
    assert abs(drawn.var() - 29 / 30) < 0.05
    np.testing.assert_array_equal(drawn, draw_resamples(30, 500, 3))


def test_intervals_widen_when_steps_of_an_episode_agree():
    """What resampling single steps would miss."""
    rng = np.random.default_rng(1)
    levels, labels = rng.normal(size=2000), rng.random(2000) < 0.5
    alone = auc_interval(levels, labels, np.arange(2000), resamples=300)
    repeated = auc_interval(np.repeat(levels[:40], 50), np.repeat(labels[:40], 50), np.repeat(np.arange(40), 50))
    assert repeated.high - repeated.low > 4 * (alone.high - alone.low)


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([0.1, np.nan], [0, 1], "not a number"),
        ([0.1, 0.2], [0, 1, 1], "differ in shape"),
        ([0.1, 0.2], [0, 2], "neither true nor false"),
    ],
)
def test_what_has_no_auc_is_refused(scores, labels, message):
    with pytest.raises(InputError, match=message):
        auc(scores, labels)


def test_episodes_must_match_the_steps():
    with pytest.raises(InputError, match="one per step"):
        auc_interval([0.1, 0.2], [0, 1], [0])
    with pytest.raises(InputError, match="at least 1"):
        auc_interval([], [], [])
