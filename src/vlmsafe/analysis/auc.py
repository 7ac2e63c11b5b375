"""Areas under ROC curves pooled over episodes, with intervals from resampling whole episodes.

Steps of one episode resemble each other, so an interval must resample episodes and not steps. All functions use one
matrix C, from `concordance`: how often a positive step of episode i scores above a negative step of episode j. A
resample that contains episode i `w[i]` times has the AUC w C w / ((w n+) (w n-)), so the steps are read only once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from vlmsafe.errors import InputError

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

RESAMPLES = 2000
_TAILS = (0.025, 0.975)
_PAIRS = 1 << 22  # compared at a time; bounds the memory


@dataclass(frozen=True)
class Auc:
    """An AUC with its 95 % percentile interval over resampled episodes; None if a class is empty."""

    auc: float | None
    low: float | None
    high: float | None
    positives: int
    negatives: int
    episodes: int
    left_out: int
    """Resamples without a positive or without a negative step. They have no AUC."""


AUC_SCHEMA: dict[str, Any] = {
    "auc": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "positives": pl.Int64,
    "negatives": pl.Int64,
    "episodes": pl.Int64,
    "left_out": pl.Int64,
}
"""The fields of `Auc` as columns of a table."""


def auc(scores: ArrayLike, labels: ArrayLike) -> float | None:
    """The chance that a positive scores above a negative; ties count half. None if there are no pairs.

    >>> auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.75
    """
    values, positive = _checked(scores, labels)
    wins = concordance(values, positive, np.zeros(len(values), np.int64), 1)
    pairs = int(positive.sum()) * int((~positive).sum())
    return float(wins[0, 0]) / pairs if pairs else None


def auc_interval(
    scores: ArrayLike, labels: ArrayLike, episodes: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0
) -> Auc:
    """The AUC pooled over episodes, with an interval over them. `episodes` names the episode of each step."""
    values, positive = _checked(scores, labels)
    numbers, count = number_episodes(episodes, len(values))
    return pooled(values, positive, numbers, draw_resamples(count, resamples, seed))


def number_episodes(episodes: ArrayLike, steps: int) -> tuple[Int64, int]:
    """The number of each step's episode, from 0 in the order of the names, and the number of episodes."""
    names = np.asarray(episodes)
    if names.shape != (steps,):
        raise InputError(f"the episodes have the shape {names.shape}; expected one per step, ({steps},)")
    known, numbers = np.unique(names, return_inverse=True)
    return numbers.astype(np.int64), len(known)


def draw_resamples(episodes: int, resamples: int, seed: int) -> Float64:
    """How often each episode occurs in each resample, [resamples, episodes].

    Signals that are compared should share the resamples, so that their intervals differ only by the signals.
    """
    if episodes < 1 or resamples < 1:
        raise InputError(f"{resamples} resamples of {episodes} episodes; both must be at least 1")
    if seed < 0:
        raise InputError(f"the seed of the resamples is {seed}; it must be at least 0")
    shares = np.full(episodes, 1.0 / episodes)
    return np.random.default_rng(seed).multinomial(episodes, shares, size=resamples).astype(np.float64)


def pooled(values: Float64, positive: Mask, episodes: Int64, resamples: Float64) -> Auc:
    """The AUC of numbered episodes over all steps, and its interval over `resamples`."""
    count = resamples.shape[1]
    wins = concordance(values, positive, episodes, count)
    above, below = (np.bincount(episodes[which], minlength=count).astype(np.float64) for which in (positive, ~positive))
    pairs = (resamples @ above) * (resamples @ below)
    usable = pairs > 0.0
    low, high = None, None
    if usable.any():
        chosen = resamples[usable]
        spread = ((chosen @ wins) * chosen).sum(axis=1) / pairs[usable]
        low, high = (float(value) for value in np.quantile(spread, _TAILS))
    total = above.sum() * below.sum()
    return Auc(
        float(wins.sum() / total) if total else None, low, high,
        int(above.sum()), int(below.sum()), count, int((~usable).sum()),
    )  # fmt: skip


def concordance(values: Float64, positive: Mask, episodes: Int64, count: int) -> Float64:
    """C[i, j]: pairs of a positive step of episode i and a negative one of j in which the positive scores higher.

    Ties count half. Steps are sorted and cut into bins of whole groups of ties. Pairs in different bins are counted per
    episode, as one matrix product. Only pairs within a bin are compared one by one. If a bin has about as many steps as
    there are episodes (E), both cost N E for N steps; comparing all pairs would cost N^2.
    """
    order = np.argsort(values, kind="stable")
    ranked, positive, episodes = values[order], positive[order], episodes[order]
    fresh = np.concatenate([[True], ranked[1:] != ranked[:-1]])[: len(ranked)]
    rank = np.cumsum(fresh) - 1  # equal for ties
    starts = np.flatnonzero(fresh)
    sizes = np.diff(np.append(starts, len(ranked)))
    size = min(max(count // 4, 16), 1024)
    # A group of ties that does not fit into a bin gets its own bin: it has no pairs to compare.
    large = sizes > size
    keys = 2 * (starts // size) + large
    bins = np.unique(keys, return_inverse=True)[1][rank]
    bins_in_all = int(bins[-1]) + 1 if len(bins) else 0

    def histogram(chosen: Mask) -> Float64:
        cells = episodes[chosen] * bins_in_all + bins[chosen]
        return np.bincount(cells, minlength=count * bins_in_all).reshape(count, bins_in_all).astype(np.float64)

    below = histogram(~positive)
    # Lower bins count fully, and the own bin counts as if it were one tie. The loop below corrects this pair by pair.
    wins = histogram(positive) @ (np.cumsum(below, axis=1) - below / 2.0).T
    first, second = np.flatnonzero(positive & ~large[rank]), np.flatnonzero(~positive)
    begin, end = (np.searchsorted(bins[second], bins[first], side=side) for side in ("left", "right"))
    for left, right in _pairs(begin, end):
        one, other = first[left], second[right]
        higher = np.sign(rank[one] - rank[other]) / 2.0
        cells = episodes[one] * count + episodes[other]
        wins += np.bincount(cells, weights=higher, minlength=count * count).reshape(count, count)
    return wins


def _pairs(begin: Int64, end: Int64) -> Iterator[tuple[Int64, Int64]]:
    """All pairs (i, j) with begin[i] <= j < end[i], in portions that fit into memory."""
    lengths = end - begin
    portion = np.cumsum(lengths) // _PAIRS
    for rows in np.split(np.arange(len(lengths)), np.flatnonzero(np.diff(portion)) + 1):
        taken = lengths[rows]
        before = np.cumsum(taken) - taken
        yield np.repeat(rows, taken), np.arange(taken.sum()) + np.repeat(begin[rows] - before, taken)


def _checked(scores: ArrayLike, labels: ArrayLike) -> tuple[Float64, Mask]:
    values, truth = np.asarray(scores, np.float64), np.asarray(labels)
    if values.ndim != 1 or truth.shape != values.shape:
        raise InputError(f"scores {values.shape} and labels {truth.shape} differ in shape; expected one each per step")
    if np.isnan(values).any():
        raise InputError("a score is not a number; leave out the steps that were not scored")
    if not np.isin(truth, (0, 1)).all():
        raise InputError("a label is neither true nor false")
    return values, truth.astype(np.bool_)
