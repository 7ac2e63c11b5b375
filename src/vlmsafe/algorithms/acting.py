"""The policy as the simulators' processes run it: plain numpy, one observation at a time.

Workers import this module and no torch, so they start quickly and stay small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

LOG_SQRT_2PI = 0.5 * np.log(2.0 * np.pi)
_STD_FLOOR = 1e-2
_CLIP = 5.0


@dataclass
class Normaliser:
    """Running mean and unbiased variance of observations, and the standardisation they give.

    Updated one observation at a time while acting, merged over workers at the end of an epoch (Chan's formula in
    both cases). The very first observation has no deviation yet and passes through unchanged.
    """

    count: float
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]
    """Sum of squared deviations from the mean."""

    @classmethod
    def empty(cls, dimension: int) -> Normaliser:
        return cls(0.0, np.zeros(dimension), np.zeros(dimension))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Normaliser:
        """The normaliser that gave `arrays`."""
        count, mean, m2 = (arrays[f"normaliser.{name}"].copy() for name in ("count", "mean", "m2"))
        return cls(float(count[0]), mean, m2)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything it knows, for a checkpoint."""
        return {"normaliser.count": np.array([self.count]), "normaliser.mean": self.mean, "normaliser.m2": self.m2}

    def copy(self) -> Normaliser:
        return Normaliser(self.count, self.mean.copy(), self.m2.copy())

    def update(self, observation: Array) -> None:
        """Take in one observation."""
        self.count += 1.0
        delta = observation - self.mean
        self.mean += delta / self.count
        self.m2 += delta * (observation - self.mean)

    def merge(self, other: Normaliser) -> None:
        """Take in everything another normaliser has seen."""
        total = self.count + other.count
        if other.count == 0:
            return
        delta = other.mean - self.mean
        self.mean += delta * (other.count / total)
        self.m2 += other.m2 + delta**2 * (self.count * other.count / total)
        self.count = total

    @property
    def std(self) -> NDArray[np.float64]:
        """Deviation, never below a floor that keeps constant inputs finite."""
        variance = self.m2 / max(self.count - 1.0, 1.0)
        return np.maximum(np.sqrt(variance), _STD_FLOOR)

    def normalise(self, observation: Array) -> Array:
        """The observation as the networks see it; changes no statistic."""
        if self.count <= 1:
            return observation.astype(np.float32)
        standardised = (observation - self.mean) / self.std
        return np.clip(standardised, -_CLIP, _CLIP).astype(np.float32)


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
