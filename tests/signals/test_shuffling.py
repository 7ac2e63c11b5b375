"""The control `shuffled` keeps the numbers of an epoch and gives every episode those of another one."""

import numpy as np
import pytest

from vlmsafe.errors import InputError
from vlmsafe.signals.rules import Scores
from vlmsafe.signals.shuffling import of_other_episodes, other_places


def paths_of(counts):
    return np.repeat(np.arange(len(counts)), counts)


def places_of(counts):
    return np.concatenate([np.arange(count) for count in counts])


@pytest.mark.parametrize("seed", range(20))
def test_no_episode_gets_a_score_of_its_own(seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 30, 12)
    path = paths_of(counts)
    assert (path[other_places(counts, rng)] != path).all()


@pytest.mark.parametrize("seed", range(20))
def test_a_score_keeps_its_place_in_the_episode_and_is_used_once(seed):
    """The longest episode alone may be longer than all others; its end is the only exception."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 30, 12)
    source, place = other_places(counts, rng), places_of(counts)
    shared = place < np.sort(counts)[-2]
    np.testing.assert_array_equal(place[source][shared], place[shared])
    np.testing.assert_array_equal(np.sort(source[shared]), np.flatnonzero(shared))


def test_the_end_of_the_longest_episode_gets_scores_of_the_others():
    counts = np.array([3, 40, 5])
    source = other_places(counts, np.random.default_rng(0))
    assert set(paths_of(counts)[source][paths_of(counts) == 1]) == {0, 2}


def test_an_episode_gets_those_of_one_other_episode_as_long_as_that_one_lasts():
    counts = np.array([10, 10, 10, 10])
    source = other_places(counts, np.random.default_rng(1))
    givers = paths_of(counts)[source].reshape(4, 10)
    assert (givers == givers[:, :1]).all()
    assert sorted(givers[:, 0]) == [0, 1, 2, 3]


def test_episodes_without_a_score_take_no_part():
    counts = np.array([0, 4, 0, 4])
    np.testing.assert_array_equal(other_places(counts, np.random.default_rng(0)), [4, 5, 6, 7, 0, 1, 2, 3])
    assert not len(other_places(np.array([0, 0]), np.random.default_rng(0)))


def test_a_single_episode_with_scores_is_refused():
    with pytest.raises(InputError, match="raise steps_per_epoch"):
        other_places(np.array([5, 0]), np.random.default_rng(0))


def test_the_three_numbers_of_a_frame_stay_together():
    scores = Scores(np.arange(8.0), np.arange(8.0) + 100.0, np.arange(8.0) + 200.0)
    scored = np.tile([False, True], 8)
    found = of_other_episodes(scores, scored, np.array([8, 16]), np.random.default_rng(0))
    np.testing.assert_array_equal(found.positive, [4, 5, 6, 7, 0, 1, 2, 3])
    np.testing.assert_array_equal(found.negative, found.positive + 100.0)
    np.testing.assert_array_equal(found.margin, found.positive + 200.0)
