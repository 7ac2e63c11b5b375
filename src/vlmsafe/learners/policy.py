"""The policy as the simulators' processes run it: plain numpy, one observation at a time.

Workers import this module and no torch, so they start quickly and stay small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vlmsafe.numerics.normaliser import Array

LOG_SQRT_2PI = 0.5 * np.log(2.0 * np.pi)


@dataclass(frozen=True)
class Policy:
    """A diagonal Gaussian over actions whose mean is a tanh network of the normalised observation."""

    layers: Sequence[tuple[Array, Array]]
    """Weight [out, in] and bias [out] of each layer."""
    log_std: Array

    def mean(self, observation: Array) -> Array:
        """The deterministic action."""
        hidden = observation
        *inner, (weight, bias) = self.layers
        for inner_weight, inner_bias in inner:
            hidden = np.tanh(inner_weight @ hidden + inner_bias)
        return weight @ hidden + bias

    def sample(self, observation: Array, rng: np.random.Generator) -> tuple[Array, np.float32]:
        """A random action and the logarithm of its density."""
        noise = rng.standard_normal(self.log_std.shape[0], dtype=np.float32)
        action = self.mean(observation) + np.exp(self.log_std) * noise
        log_prob = np.sum(-0.5 * noise * noise - self.log_std - np.float32(LOG_SQRT_2PI))
        return action.astype(np.float32, copy=False), np.float32(log_prob)


@dataclass(frozen=True)
class ActionMap:
    """From the policy's [-1, 1] to the bounds of an action space; samples beyond them are clipped to them."""

    low: NDArray[Any]
    high: NDArray[Any]

    @classmethod
    def to(cls, space: gymnasium.spaces.Box) -> ActionMap:
        return cls(space.low, space.high)

    def __call__(self, action: Array) -> NDArray[Any]:
        bounded = np.isfinite(self.low) & np.isfinite(self.high)
        low, high = np.where(bounded, self.low, -1.0), np.where(bounded, self.high, 1.0)
        scaled = low * (0.5 - 0.5 * action) + high * (0.5 + 0.5 * action)  # high - low could overflow
        # Clipped in the space's own type: a bound such as 0.7 is another number in float32.
        return np.clip(scaled.astype(self.low.dtype), self.low, self.high)
