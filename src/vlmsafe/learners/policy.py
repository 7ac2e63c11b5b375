"""The policy as the simulators' processes run it, one observation at a time, and divergences between two policies.

Plain numpy: workers import this module and no torch, so they start quickly and stay small. The networks behind it,
and their training, are in `networks` and `learner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vlmsafe.numerics.normaliser import Array

LOG_SQRT_2PI = 0.5 * np.log(2.0 * np.pi)
_HALF = np.array(0.5, np.float32)


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
            hidden = inner_weight.dot(hidden)  # for vectors this has half the overhead of @, and the same kernel
            np.add(hidden, inner_bias, hidden)
            np.tanh(hidden, hidden)
        output: Array = weight.dot(hidden)
        return np.add(output, bias, output)

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Standard normal noise [count, actions] for random actions. Rows drawn together equal rows drawn in turn."""
        return rng.standard_normal((count, len(self.log_std)), dtype=np.float32)

    def act(self, observation: Array, noise: Array) -> Array:
        """The random action that a row of noise makes."""
        action = self.mean(observation)
        return np.add(action, self._std * noise, action)

    def sample(self, observation: Array, rng: np.random.Generator) -> Array:
        """A random action."""
        return self.act(observation, self.draw(rng, 1)[0])

    def log_probs(self, noise: Array) -> Array:
        """[N]: the logarithms of the densities of the actions that `noise` [N, actions] made."""
        densities: Array = np.sum(-0.5 * noise * noise - self.log_std - np.float32(LOG_SQRT_2PI), axis=1)
        return densities

    @cached_property
    def _std(self) -> Array:
        return np.exp(self.log_std)


class ActionMap:
    """From the policy's [-1, 1] to the bounds of an action space.

    Samples beyond the bounds are clipped to them, unless `clips` is false.
    """

    def __init__(self, low: NDArray[Any], high: NDArray[Any], *, clips: bool = True) -> None:
        self.low, self.high, self._clips = low, high, clips
        bounded = np.isfinite(low) & np.isfinite(high)
        self._bounds = np.stack([np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)])
        # Arrays of one shape for both bounds, allocated once: the map is a handful of tiny numpy calls.
        self._slopes = np.repeat(np.array([[-0.5], [0.5]], np.float32), len(low), axis=1)
        self._shares = np.empty_like(self._slopes)
        self._parts = np.empty(self._bounds.shape, np.result_type(self._bounds, np.float32))

    @classmethod
    def to(cls, space: gymnasium.spaces.Box, *, clips: bool = True) -> ActionMap:
        return cls(space.low, space.high, clips=clips)

    def __call__(self, action: Array) -> NDArray[Any]:
        """The environment's action, in a new array, for the policy's, which is float32."""
        shares, parts = self._shares, self._parts
        shares[...] = action
        np.multiply(shares, self._slopes, shares)
        np.add(shares, _HALF, shares)
        np.multiply(shares, self._bounds, parts)  # each bound in its share, because high - low could overflow
        # Clipped in the space's own type: a bound such as 0.7 is another number in float32.
        scaled: NDArray[Any] = np.add(parts[0], parts[1]).astype(self.low.dtype, copy=False)
        if not self._clips:
            return scaled
        np.maximum(scaled, self.low, out=scaled)
        return np.minimum(scaled, self.high, out=scaled)


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
