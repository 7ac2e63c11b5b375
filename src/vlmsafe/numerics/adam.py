"""Adam on rows of a block, in place.

The same rule as `torch.optim.Adam`, up to rounding. It is written out because an update takes ten thousand steps on
arrays so small that the bookkeeping of an optimiser object would cost more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vlmsafe.numerics.normaliser import Array

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8


class Adam:
    """Moments and a step count for every row, because each row is a network with its own optimiser."""

    def __init__(self, parameters: Array) -> None:
        self._parameters = parameters
        self._mean = np.zeros_like(parameters)
        self._square = np.zeros_like(parameters)
        self._scratch = np.empty_like(parameters[0])
        self._steps = [0] * len(parameters)

    def step(self, gradient: Array, learning_rates: Sequence[float], rows: range) -> None:
        """Move the chosen rows against their gradients, each with its own learning rate."""
        scratch = self._scratch
        # Row by row, so that an operation finds its operands in the cache.
        for row in rows:
            self._steps[row] += 1
            bias_1, bias_2 = 1.0 - _BETA_1 ** self._steps[row], 1.0 - _BETA_2 ** self._steps[row]
            mean, square, slope = self._mean[row], self._square[row], gradient[row]
            mean *= np.float32(_BETA_1)
            np.multiply(slope, np.float32(1.0 - _BETA_1), out=scratch)
            mean += scratch
            square *= np.float32(_BETA_2)
            np.multiply(slope, slope, out=scratch)
            scratch *= np.float32(1.0 - _BETA_2)
            square += scratch
            np.sqrt(square, out=scratch)
            scratch *= np.float32(1.0 / np.sqrt(bias_2))
            scratch += np.float32(_EPSILON)
            np.divide(mean, scratch, out=scratch)
            scratch *= np.float32(learning_rates[row] / bias_1)
            self._parameters[row] -= scratch

    def state(self) -> dict[str, Array]:
        """Moments and step counts as arrays."""
        return {
            "mean": self._mean.copy(),
            "square": self._square.copy(),
            "steps": np.array(self._steps, np.int64),
        }

    def load_state(self, state: Mapping[str, Array]) -> None:
        self._mean[:], self._square[:] = state["mean"], state["square"]
        self._steps = [int(count) for count in state["steps"]]
