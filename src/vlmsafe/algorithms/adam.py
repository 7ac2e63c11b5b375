"""Adam on rows of a block, in place.

The same rule as `torch.optim.Adam`, to rounding. Written out because an update takes ten thousand steps on arrays so
small that an optimiser object's bookkeeping would cost more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vlmsafe.algorithms.acting import Array

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8


class Adam:
    """Moments for every row, and one step count for all of them."""

    def __init__(self, parameters: Array) -> None:
        self._parameters = parameters
        self._mean = np.zeros_like(parameters)
        self._square = np.zeros_like(parameters)
        self._scratch = np.empty_like(parameters[0])
        self._steps = 0

    def step(self, gradient: Array, learning_rates: list[float]) -> None:
        """Move each row against its gradient with its own learning rate."""
        self._steps += 1
        bias_1, bias_2 = 1.0 - _BETA_1**self._steps, 1.0 - _BETA_2**self._steps
        scratch = self._scratch
        # Row by row, so that everything an operation touches is still in the cache from the one before.
        for parameters, mean, square, slope, rate in zip(
            self._parameters, self._mean, self._square, gradient, learning_rates, strict=True
        ):
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
            scratch *= np.float32(rate / bias_1)
            parameters -= scratch

    def state(self) -> dict[str, Array]:
        """Moments and step count as arrays."""
        return {
            "mean": self._mean.copy(),
            "square": self._square.copy(),
            "steps": np.array([self._steps], np.int64),
        }

    def load_state(self, state: Mapping[str, Array]) -> None:
        self._mean[:], self._square[:] = state["mean"], state["square"]
        self._steps = int(state["steps"][0])
