"""The confidence gate kappa, which weighs the bonus of a frame, and its calibration without labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import InputError
from vlmsafe.signals.rules import Scores
from vlmsafe.signals.scorers.api import GateKind

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Gate:
    """kappa = |2 sigma(s (m - c)) - 1|: 0 where the margin m equals the centre c, and close to 1 far from it."""

    scale: float = 100.0
    """s."""
    centre: float = 0.0
    """c. The defaults are the prior-symmetric gate."""

    def kappa(self, margin: Float64) -> Float64:
        """Eq. 3: confidence in [0, 1] per margin. It uses 2 sigma(x) - 1 = tanh(x / 2), which does not overflow."""
        return np.abs(np.tanh(self.scale * (np.asarray(margin, np.float64) - self.centre) / 2.0))

    def __call__(self, scores: Scores) -> Float64:
        return self.kappa(scores.margin)

    @classmethod
    def calibrated(cls, margins: Float64, target: float = 0.5) -> Gate:
        """Eq. 5: the gate with kappa = 0 at the median of the margins, and `target` one interquartile range away."""
        if not 0.0 < target < 1.0:
            raise InputError(f"the gate's target is {target}; it must lie between 0 and 1")
        low, centre, high = np.quantile(np.asarray(margins, np.float64), [0.25, 0.5, 0.75])
        spread = float(high - low)
        if not spread > 0.0:
            raise InputError(
                f"the gate cannot be calibrated: the middle half of {len(margins)} margins are all {centre:.6g}, so "
                "their interquartile range is 0. The scorer does not tell these frames apart; use more frames, other "
                "prompts, or the prior-symmetric gate"
            )
        return cls(math.log((1.0 + target) / (1.0 - target)) / spread, float(centre))


@dataclass(frozen=True)
class OpenGate:
    """kappa = 1 everywhere: the gate is off."""

    def __call__(self, scores: Scores) -> Float64:
        return np.ones_like(scores.positive)


@dataclass(frozen=True)
class ProbabilityGate:
    """kappa = |2 r / (r + c) - 1|, for scores that are probabilities. It needs no calibration.

    Where both scores are 0, neither answer is more likely, so kappa is 0.
    """

    def __call__(self, scores: Scores) -> Float64:
        total = scores.positive + scores.negative
        share = np.divide(scores.positive, total, out=np.full_like(total, 0.5), where=total > 0.0)
        return np.abs(2.0 * share - 1.0)


AnyGate = Gate | OpenGate | ProbabilityGate

GATES: dict[str, AnyGate] = {"off": OpenGate(), "prior-symmetric": Gate(), "probability": ProbabilityGate()}
"""The gates that need no calibration, by name."""


def uncalibrated(kind: GateKind) -> AnyGate:
    """A scorer's own gate where nothing calibrates one, as in a trace of a run that has another scorer, or no gate."""
    return GATES["prior-symmetric" if kind == "calibrated" else kind]
