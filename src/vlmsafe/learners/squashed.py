"""The policy of an off-policy learner: actions squashed into their bounds, with a deviation of its own in every state.

As `policy`, plain numpy for one observation at a time, because workers import it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vlmsafe.numerics.normaliser import Array, Normaliser

LOWEST, HIGHEST = np.float32(-5.0), np.float32(0.5)
"""Bounds of the log standard deviation before squashing."""
_SPAN = np.float32(0.5) * (HIGHEST - LOWEST)


def log_std_of(raw: Array) -> tuple[Array, Array]:
    """The log standard deviation within its bounds for what a network puts out, and its slope."""
    bent = np.tanh(raw)
    return LOWEST + _SPAN * (bent + np.float32(1.0)), _SPAN * (np.float32(1.0) - bent * bent)


def raw_of(log_std: Array) -> Array:
    """What a network must put out for a log standard deviation.

    >>> bool(np.isclose(log_std_of(raw_of(np.log(np.float32(0.3))))[0], np.log(0.3)))
    True
    """
    return np.arctanh((log_std - LOWEST) / _SPAN - np.float32(1.0))


@dataclass(frozen=True)
class SquashedPolicy:
    """tanh of a Gaussian whose mean and deviation are the outputs of a relu network of the normalised observation."""

    layers: Sequence[tuple[Array, Array]]
    """Weight [out, in] and bias [out] of each layer; the last has the means, then the raw log deviations."""
    normaliser: Normaliser | None = None
    """Standardises the observations here, for a collector that keeps them as they are; None if others do."""

    @property
    def actions(self) -> int:
        return len(self.layers[-1][1]) // 2

    def mean(self, observation: Array) -> Array:
        """The deterministic action."""
        return np.tanh(self._output(observation)[: self.actions])

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Standard normal noise [count, actions]."""
        return rng.standard_normal((count, self.actions), dtype=np.float32)

    def act(self, observation: Array, noise: Array) -> Array:
        """The random action that a row of noise makes."""
        output = self._output(observation)
        log_std, _ = log_std_of(output[self.actions :])
        return np.tanh(output[: self.actions] + np.exp(log_std) * noise)

    def sample(self, observation: Array, rng: np.random.Generator) -> Array:
        """A random action."""
        return self.act(observation, self.draw(rng, 1)[0])

    def log_probs(self, noise: Array) -> Array:
        """Nothing: an off-policy learner does not ask how probable an action was when it was taken."""
        return np.zeros(len(noise), np.float32)

    def _output(self, observation: Array) -> Array:
        hidden = observation if self.normaliser is None else self.normaliser.normalise(observation)
        *inner, (weight, bias) = self.layers
        for inner_weight, inner_bias in inner:
            hidden = inner_weight.dot(hidden)
            np.add(hidden, inner_bias, hidden)
            np.maximum(hidden, np.float32(0.0), out=hidden)
        output: Array = weight.dot(hidden)
        return np.add(output, bias, output)
