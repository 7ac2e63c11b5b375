"""The policy as the simulators' processes run it, one observation at a time, and divergences between two policies.

Plain numpy: workers import this module and no torch, so they start quickly and stay small. The networks behind it,
and their training, are in `networks` and `learner`.
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


# Divergences of policies whose standard deviation is the same in every state.


def kl_per_action(mean: Array, log_std: Array, new_mean: Array, new_log_std: Array) -> Array:
    """[N, actions]: KL(old || new) of each action's distribution in each state."""
    ratio = np.exp(2.0 * (log_std - new_log_std))
    shift = ((mean - new_mean) * np.exp(-new_log_std)) ** 2
    return 0.5 * (ratio + shift - 1.0) + new_log_std - log_std


def mean_kl(mean: Array, log_std: Array, new_mean: Array, new_log_std: Array) -> float:
    """KL(old || new) summed over actions, mean over states."""
    return float(np.mean(kl_per_action(mean, log_std, new_mean, new_log_std).sum(axis=1), dtype=np.float64))


def reverse_kl(mean: Array, log_std: Array, old_mean: Array, old_log_std: Array) -> tuple[Array, Array, Array]:
    """KL(new || old) per state, summed over actions, with its derivatives.

    `mean` and `log_std` are the new policy's: returns [N], [N, actions] with respect to the mean, and [actions] with
    respect to the log standard deviation, which is the same for every state.
    """
    divergence = kl_per_action(mean, log_std, old_mean, old_log_std).sum(axis=1)
    inverse_variance = np.exp(-2.0 * old_log_std)
    return divergence, (mean - old_mean) * inverse_variance, np.exp(2.0 * (log_std - old_log_std)) - np.float32(1.0)
