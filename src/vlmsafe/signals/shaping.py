"""Turns scores at some steps into what learning uses at every step.

Between two scored steps the newest values are reused. An episode begins with (0, 0, 1) for (r_vlm, c_vlm, kappa), so
the scores of its first k - 1 steps are 0. Everything here is a pure function of arrays over one epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vlmsafe.signals.rules import Scores

Float64 = NDArray[np.float64]
Mask = NDArray[np.bool_]
CostForm = Literal["level", "change"]


@dataclass(frozen=True)
class Signals:
    """An epoch's signals, one entry per step."""

    positive: Float64
    """r_vlm."""
    negative: Float64
    """c_vlm, before gate and weights."""
    kappa: Float64
    margin: Float64
    """NaN before an episode's first score."""
    scored: Mask
    """The steps that were scored; the others repeat the newest score."""


def due(step: int, every: int) -> bool:
    """Whether the state after step `step` of an episode, counted from 1, is scored: steps k, 2k, ..."""
    return step % every == 0


def hold(scores: Scores, kappa: Float64, scored: Mask, path_ends: NDArray[np.int64]) -> Signals:
    """The signals of every step: the newest score of the same path, or (0, 0, 1) before the first score."""
    steps = np.arange(len(scored))
    # The newest scored step at or before each step; -1 if there is none yet.
    newest = np.maximum.accumulate(np.where(scored, steps, -1)) if len(scored) else steps
    starts = np.concatenate([[0], path_ends[:-1]]).astype(np.int64)
    first_of_path = np.repeat(starts, np.diff(np.concatenate([[0], path_ends])))
    known = newest >= first_of_path
    place = np.cumsum(scored) - 1  # the index of each step's newest score

    def spread(values: Float64, before: float) -> Float64:
        filled = np.full(len(scored), before)
        filled[known] = values[place[known]]
        return filled

    return Signals(
        positive=spread(scores.positive, 0.0),
        negative=spread(scores.negative, 0.0),
        kappa=spread(kappa, 1.0),
        margin=spread(scores.margin, np.nan),
        scored=scored,
    )


def reward_bonus(signals: Signals, weight: float) -> Float64:
    """Eq. 4: lambda_r kappa r_vlm, which shaping adds to the environment's reward."""
    return weight * signals.kappa * signals.positive


def excess(signals: Signals, reference: float) -> Float64:
    """(c_vlm - reference)+ where there is a score. Raw similarities are far above 0 for every frame."""
    return np.where(np.isnan(signals.margin), 0.0, np.maximum(signals.negative - reference, 0.0))


def cost_bonus(signals: Signals, weight: float, reference: float) -> Float64:
    """lambda_c kappa (c_vlm - reference)+, which is added to the cost that the critic sees."""
    return weight * signals.kappa * excess(signals, reference)


@dataclass(frozen=True)
class Paths:
    """Where the episodes of an epoch end, and what a later cost is worth."""

    ends: NDArray[np.int64]
    """Index one past each path's last step. Every path begins with its episode."""
    terminated: Mask
    """Whether the path ended in a terminal state."""
    gamma: float


def change(levels: Float64, paths: Paths) -> Float64:
    """gamma times the level after a step, minus the level before it: a potential of Ng, Harada and Russell (1999).

    Before an episode and after its terminal state the level is 0, so the discounted sum over an episode that ended is 0
    whatever the levels were. A cost of this form says early that danger rises, and changes no policy's total.
    """
    after = levels.copy()
    after[paths.ends[paths.terminated] - 1] = 0.0
    before = np.concatenate([[0.0], levels[:-1]])
    before[np.concatenate([[0], paths.ends[:-1]])] = 0.0
    return paths.gamma * after - before


@dataclass(frozen=True)
class Shaped:
    """What an epoch's signals add to each step."""

    signals: Signals
    bonus: Float64
    """Added to the reward."""
    cost_bonus: Float64
    """Added to the cost that the critic sees."""
    excess: Float64 | None
    """Excess of the negative score over its reference; None where nothing uses it."""


def shape(
    signals: Signals, reward_weight: float, cost_weight: float, reference: float | None, form: CostForm, paths: Paths
) -> Shaped:
    """What the signals add to reward and cost; without a reference there is no excess and no bonus on the cost."""
    added = np.zeros_like(signals.kappa) if reference is None else cost_bonus(signals, cost_weight, reference)
    return Shaped(
        signals=signals,
        bonus=reward_bonus(signals, reward_weight),
        cost_bonus=change(added, paths) if form == "change" else added,
        excess=None if reference is None else excess(signals, reference),
    )


def path_sums(values: Float64, path_ends: NDArray[np.int64]) -> Float64:
    """The sum over each path."""
    starts = np.concatenate([[0], path_ends[:-1]]).astype(np.int64)
    return np.add.reduceat(values, starts)


def path_means(values: Float64, path_ends: NDArray[np.int64]) -> Float64:
    """The mean over all steps of each path."""
    return path_sums(values, path_ends) / np.diff(np.concatenate([[0], path_ends]))
