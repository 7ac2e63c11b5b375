"""What a scorer is: inputs of one kind in batches, one similarity per prompt out."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

Look = Literal["frame", "observation", "hazard", "noise", "nothing"]
"""What a scorer looks at: a rendered frame, the raw observation, the simulator's hazard, dice, or nothing at all."""

Rule = Literal["decoupled", "coupled", "clg", "yes-no", "novelty"]
"""How similarities become scores, see `vlmsafe.signals.rules`."""

Inputs = NDArray[Any]
Similarities = NDArray[np.float32]


class Scorer(abc.ABC):
    """Similarities of a batch of inputs to the positive prompts and, after them, the negative ones."""

    looks_at: ClassVar[Look]
    rules: ClassVar[tuple[Rule, ...]]
    """The scoring rules its similarities can be used with."""

    groups: tuple[int, int]
    """How many of the columns belong to positive and to negative prompts."""

    @abc.abstractmethod
    def score(self, inputs: Inputs) -> Similarities:
        """[N, ...] -> [N, positive + negative].

        Inputs are uint8 frames [N, height, width, 3], float32 observations [N, D], hazards [N] or dice [N, 2]. Never
        called by two threads at a time.
        """

    def describe(self) -> dict[str, Any]:
        """What a reader of the run wants to know: model, revision, device, precision. Plain values."""
        return {}

    def state(self) -> dict[str, NDArray[Any]]:
        """Whatever scoring changes, as named arrays; empty for a scorer that does not learn."""
        return {}

    def load_state(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Continue from `state`."""
        assert not arrays
