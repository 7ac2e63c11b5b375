"""The control `shuffled`: each episode of an epoch gets the scores of another one, at the same place in the episode.

The numbers of an epoch stay the same, and so do their distribution, the order in which they follow each other and what
the clock alone tells of them. What they say of the episode that gets them is lost. Nothing has to be remembered
between epochs: which episode gets which scores depends on the epoch's own draws, so a resumed run is exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import InputError
from vlmsafe.signals.rules import Scores

Indices = NDArray[np.int64]


def of_other_episodes(
    scores: Scores, scored: NDArray[np.bool_], path_ends: NDArray[np.int64], rng: np.random.Generator
) -> Scores:
    """The scores of an epoch with those of every path given to another one."""
    ends = np.cumsum(scored)[path_ends - 1] if len(path_ends) else path_ends
    source = other_places(np.diff(ends, prepend=0), rng)
    return Scores(scores.positive[source], scores.negative[source], scores.margin[source])


def other_places(counts: Indices, rng: np.random.Generator) -> Indices:
    """For paths with so many scores each, the index of the score that each place gets.

    Paths stand in a circle, in random order. A path takes its k-th score from the next one that has a k-th score, so
    all k-th scores are used once. The end of the longest path, which no other one reaches, gets the scores of the next
    ones from their beginning.

    >>> other_places(np.array([2, 3, 2]), np.random.default_rng(0))
    array([2, 3, 5, 6, 5, 0, 1])
    """
    circle = rng.permutation(np.flatnonzero(counts))
    if not len(circle):
        return np.empty(0, np.int64)
    if len(circle) == 1:
        raise InputError(
            "the scorer 'shuffled' gives an episode the scores of another one, and only one episode of this epoch has "
            "scores; raise steps_per_epoch"
        )
    starts = np.cumsum(counts) - counts
    source = np.empty(int(counts.sum()), np.int64)
    longest, reached = int(counts.argmax()), int(np.sort(counts)[-2])
    for place in range(reached):
        reaching = circle[counts[circle] > place]
        source[starts[reaching] + place] = starts[np.roll(reaching, -1)] + place
    following = np.roll(circle, -int(np.flatnonzero(circle == longest)[0]))[1:]
    others = np.concatenate([starts[path] + np.arange(counts[path]) for path in following])
    alone = starts[longest] + np.arange(reached, counts[longest])
    source[alone] = np.resize(others, len(alone))
    return source
