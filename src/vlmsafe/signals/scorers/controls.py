"""Scorers that see nothing, or too much: what a vision-language signal has to be compared with.

Their scores are given as two similarities, one per group, so that gate, rules and shaping treat them as any others.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from vlmsafe.signals.scorers.api import (
    Inputs,
    Look,
    Rule,
    Scorer,
    Similarities,
)


class _Control(Scorer):
    rules: ClassVar[tuple[Rule, ...]] = ("decoupled", "coupled", "clg", "yes-no", "novelty")  # in any method's place
    groups = (1, 1)


class ConstantScorer(_Control):
    """The same scores whatever happens: a bonus that pays for being there."""

    looks_at: ClassVar[Look] = "nothing"

    def __init__(self, positive: float, negative: float) -> None:
        self._pair = np.array([positive, negative])

    def score(self, inputs: Inputs) -> Similarities:
        return np.tile(_similarities(self._pair), (len(inputs), 1))

    def describe(self) -> dict[str, Any]:
        positive, negative = self._pair.tolist()
        return {"positive": positive, "negative": negative}


class NoiseScorer(_Control):
    """Scores drawn uniformly from [0, 1], the two independently: a bonus that varies and means nothing.

    The dice are thrown where the simulator runs, seeded like everything else there.
    """

    looks_at: ClassVar[Look] = "noise"

    def score(self, inputs: Inputs) -> Similarities:
        return _similarities(np.asarray(inputs))


class OracleScorer(_Control):
    """The simulator's own hazard as negative score, its complement as positive one."""

    looks_at: ClassVar[Look] = "hazard"

    def score(self, inputs: Inputs) -> Similarities:
        hazard = np.asarray(inputs, np.float64).reshape(-1)
        return _similarities(np.stack([1.0 - hazard, hazard], axis=1))


def _similarities(scores: np.ndarray[Any, Any]) -> Similarities:
    """Scores in [0, 1] as similarities in [-1, 1]; the decoupled rule turns them back."""
    return (2.0 * scores - 1.0).astype(np.float32)
