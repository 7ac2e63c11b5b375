"""Controls: scorers that see nothing, or everything, to compare a vision-language signal with.

They return two similarities, one per group, so gate, rules and shaping treat them like any other scorer.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.api import ALL_RULES, InputKind, Inputs, Rule, Scorer, Similarities


class _Control(Scorer):
    rules: ClassVar[tuple[Rule, ...]] = ALL_RULES  # a control can take the place of any method's scorer
    groups = (1, 1)


class ConstantScorer(_Control):
    """The same scores at every step: a bonus that does not depend on the state."""

    looks_at: ClassVar[InputKind] = "nothing"

    def __init__(self, positive: float, negative: float) -> None:
        self._pair = np.array([positive, negative])

    @classmethod
    def parse(cls, text: str) -> ConstantScorer:
        """From one score for both groups, or from two with a comma."""
        try:
            values = [float(value) for value in text.split(",")]
        except ValueError:
            values = []
        if not 1 <= len(values) <= 2 or not all(0.0 <= value <= 1.0 for value in values):
            raise InputError(f"the scorer 'constant' takes one score in [0, 1], or two with a comma, got '{text}'")
        return cls(values[0], values[-1])

    def score(self, inputs: Inputs) -> Similarities:
        return np.tile(_similarities(self._pair), (len(inputs), 1))

    def describe(self) -> dict[str, Any]:
        positive, negative = self._pair.tolist()
        return {"positive": positive, "negative": negative}


class NoiseScorer(_Control):
    """Two independent scores, uniform in [0, 1]: a bonus that varies and means nothing.

    The random numbers are drawn in the simulator's process, with its seed.
    """

    looks_at: ClassVar[InputKind] = "noise"

    def score(self, inputs: Inputs) -> Similarities:
        return _similarities(np.asarray(inputs))


class OracleScorer(_Control):
    """The simulator's own hazard as the negative score, and its complement as the positive score."""

    looks_at: ClassVar[InputKind] = "hazard"

    def score(self, inputs: Inputs) -> Similarities:
        hazard = np.asarray(inputs, np.float64).reshape(-1)
        return _similarities(np.stack([1.0 - hazard, hazard], axis=1))


def _similarities(scores: np.ndarray[Any, Any]) -> Similarities:
    """Scores in [0, 1] as similarities in [-1, 1]; the decoupled rule reverses this."""
    return (2.0 * scores - 1.0).astype(np.float32)
