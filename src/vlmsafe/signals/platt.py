"""Platt scaling: a logistic regression of danger on the margin, and what counts as danger.

J. Platt, "Probabilistic outputs for support vector machines", 1999. The targets are smoothed: with N+ dangerous and N-
safe frames they are (N+ + 1) / (N+ + 2) and 1 / (N- + 2) instead of 1 and 0, so that the fit is finite even if a margin
separates the two without error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import InputError
from vlmsafe.signals.gate import PlattGate

Float64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

DangerLabel = Literal["cost-ahead", "cost", "hazard"]
"""What counts as danger: cost within some steps, cost in the step itself, or the simulator's hazard."""
HAZARDOUS = 0.5
"""The hazard from which a frame counts as dangerous."""

_ITERATIONS = 100
_SLOPE_OF_NO_CHANGE = 1e-10  # of the mean loss


@dataclass(frozen=True, eq=False)
class Danger:
    """Which frames of a calibration buffer are dangerous."""

    dangerous: Mask
    known: Mask
    """False where it cannot be known, because the episode was left before its time was up."""
    what: str
    """What counts as danger, for messages."""


def in_words(label: DangerLabel, horizon: int) -> str:
    """What counts as danger, for messages."""
    if label == "hazard":
        return f"a hazard of at least {HAZARDOUS:g}"
    return f"cost within {horizon} steps" if label == "cost-ahead" else "cost in the step"


def cost_ahead(costs: Float64, path_ends: NDArray[np.int64], finished: Mask, horizon: int) -> tuple[Mask, Mask]:
    """For each step whether it, or one of the `horizon` steps after it, costs; and whether that is known.

    Paths end at `path_ends`. After the end of a `finished` episode nothing can cost. Where an episode was left earlier,
    the steps beyond its end are not known.
    """
    count = len(costs)
    steps = np.arange(count)
    lengths = np.diff(np.concatenate([[0], path_ends]))
    ends, ended = np.repeat(path_ends, lengths), np.repeat(finished, lengths)
    nowhere = count + horizon + 1
    # The first step with cost at or after each step; it may belong to a later path.
    first = np.minimum.accumulate(np.where(costs > 0.0, steps, nowhere)[::-1])[::-1]
    dangerous = (first < ends) & (first - steps <= horizon)
    return dangerous, dangerous | ended | (steps + horizon < ends)


def fit_platt(margins: Float64, danger: Danger) -> PlattGate:
    """The gate whose kappa is the probability that a frame is not dangerous, fitted on labelled frames."""
    margin, label = np.asarray(margins, np.float64)[danger.known], danger.dangerous[danger.known]
    positives, frames = int(label.sum()), len(label)
    if not 0 < positives < frames:
        few = "none" if not positives else "each"
        raise InputError(
            f"the gate 'platt' cannot be fitted: {few} of {frames} frames is dangerous ({danger.what}), and it needs "
            "both kinds; use more frames (--signal.calibration.frames), another label (--signal.calibration.label), "
            "another horizon, or the gate calibrated"
        )
    spread = float(margin.std())
    if not spread > 1e-12 * max(1.0, float(np.abs(margin).max())):
        raise InputError(
            f"the gate 'platt' cannot be fitted: all {frames} margins are {margin[0]:.6g}. The scorer does not tell "
            "these frames apart; use other prompts, or the prior-symmetric gate"
        )
    centre = float(margin.mean())
    targets = np.where(label, (positives + 1.0) / (positives + 2.0), 1.0 / (frames - positives + 2.0))
    slope, intercept = _newton((margin - centre) / spread, targets)
    return PlattGate(slope / spread, intercept - slope * centre / spread)


def _newton(x: Float64, targets: Float64) -> tuple[float, float]:
    """Slope and intercept that minimise the mean cross-entropy of sigma(a x + b) against targets between 0 and 1.

    The loss is convex, and smoothed targets keep its minimum finite. Steps that do not lower it enough are halved.
    """
    design = np.stack([x, np.ones_like(x)], axis=1)
    mean = float(targets.mean())
    found = np.array([0.0, np.log(mean / (1.0 - mean))])
    for _ in range(_ITERATIONS):
        odds = design @ found
        share = (1.0 + np.tanh(odds / 2.0)) / 2.0
        gradient = design.T @ (share - targets) / len(x)
        if np.abs(gradient).max() < _SLOPE_OF_NO_CHANGE:
            break
        # The small ridge keeps the matrix invertible where all shares are near 0 or 1.
        curvature = (design * (share * (1.0 - share))[:, None]).T @ design / len(x) + 1e-12 * np.eye(2)
        step = -np.linalg.solve(curvature, gradient)
        before, length = _loss(odds, targets), 1.0
        while length > 1e-10 and not _loss(design @ (found + length * step), targets) <= before + 1e-4 * length * float(
            gradient @ step
        ):
            length /= 2.0
        if length <= 1e-10:
            break  # rounding hides any further progress
        found = found + length * step
    return float(found[0]), float(found[1])


def _loss(odds: Float64, targets: Float64) -> float:
    """Mean cross-entropy of sigma(odds); log(1 + exp(x)) is computed without overflow."""
    return float((np.logaddexp(0.0, odds) - targets * odds).mean())
