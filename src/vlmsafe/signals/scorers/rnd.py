"""Novelty of an observation by random network distillation: a learned signal that needs no frames.

A target network is drawn at random and never changes. A predictor learns to imitate it on the observations that come.
Where the two disagree, the observation is unlike the earlier ones. For each observation, in this order:

    1. the observation updates a running mean and deviation, and is standardised by them
    2. e = mean over the outputs of (predictor - target)^2, and e updates its own running deviation
    3. z = e / deviation, not centred, and the novelty is nu = 1 - exp(-max(z, 0))
    4. the predictor takes one Adam step on e

So the predictor has not seen the observation when its novelty is computed. A sum over outputs would give the same as
the mean: z has no scale, and neither has Adam's step.

Every observation is a step of its own. Batches would be faster, but results would depend on where the caller cuts them.
At this size most of the time is overhead and not arithmetic, so the networks are plain numpy.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import InputError
from vlmsafe.numerics.adam import Adam
from vlmsafe.numerics.normaliser import Array, Normaliser
from vlmsafe.signals.scorers.api import InputKind, Inputs, Rule, Scorer, Similarities

HIDDEN = (64, 64)
OUTPUTS = 32
LEARNING_RATE = 1e-4

_DEVIATION_FLOOR = 1e-12  # for the case that all errors so far are equal
_BELOW_ONE = np.nextafter(np.float32(1.0), np.float32(0.0))


class Network:
    """A ReLU network as views into one [1, parameters] row, the form that Adam takes."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.block: Array = np.zeros((1, sum(out * (inner + 1) for inner, out in pairwise(sizes))), np.float32)
        self.layers: list[tuple[Array, Array]] = []
        """Weight [out, in] and bias [out] of each layer."""
        offset = 0
        for inner, out in pairwise(sizes):
            weight = self.block[0, offset : offset + out * inner].reshape(out, inner)
            offset += out * inner
            self.layers.append((weight, self.block[0, offset : offset + out]))
            offset += out

    def initialise(self, rng: np.random.Generator) -> None:
        """Weights and biases uniform within 1/sqrt(inputs), torch's default for a linear layer."""
        for weight, bias in self.layers:
            bound = 1.0 / math.sqrt(weight.shape[1])
            weight[:] = rng.uniform(-bound, bound, weight.shape)
            bias[:] = rng.uniform(-bound, bound, bias.shape)

    def forward(self, inputs: Array) -> list[Array]:
        """The output of every layer for one input; the last entry is the network's output."""
        activations: list[Array] = []
        last = len(self.layers) - 1
        for depth, (weight, bias) in enumerate(self.layers):
            inputs = np.dot(weight, inputs)
            inputs += bias
            if depth < last:
                np.maximum(inputs, 0.0, out=inputs)
            activations.append(inputs)
        return activations

    def backward(self, inputs: Array, activations: list[Array], d_output: Array, gradient: Network) -> None:
        """Write the gradient of every weight and bias into `gradient`, given the gradient of the output."""
        delta = d_output
        for depth in reversed(range(len(self.layers))):
            into = activations[depth - 1] if depth else inputs
            d_weight, d_bias = gradient.layers[depth]
            np.multiply(delta[:, None], into, out=d_weight)
            d_bias[:] = delta
            if depth:
                delta = np.dot(delta, self.layers[depth][0])
                delta *= into > 0.0


class RndScorer(Scorer):
    """One column: the novelty of each observation, in [0, 1). It learns from everything that it scores.

    The first observation has no statistics: it is its own mean, so it is standardised to zero, and its error is not
    divided. From the second observation on, errors are divided by the unbiased deviation of all errors so far,
    including the current one.
    """

    looks_at: ClassVar[InputKind] = "observation"
    rules: ClassVar[tuple[Rule, ...]] = ("novelty",)
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    groups = (0, 1)

    def __init__(self, observation: int, seed: int | tuple[int, ...]) -> None:
        if observation < 1:
            raise InputError(f"the scorer 'rnd' needs observations with at least one number, got {observation}")
        rng = np.random.default_rng(seed)
        sizes = (observation, *HIDDEN, OUTPUTS)
        self._target, self._predictor, self._gradient = Network(sizes), Network(sizes), Network(sizes)
        self._target.initialise(rng)
        self._predictor.initialise(rng)
        self._adam = Adam(self._predictor.block)
        self._normaliser = Normaliser.empty(observation)
        self._errors = _Deviation()

    def score(self, inputs: Inputs) -> Similarities:
        observations = np.asarray(inputs, np.float32)
        width = self._target.sizes[0]
        if observations.ndim != 2 or observations.shape[1] != width:
            raise InputError(f"expected observations of shape [N, {width}], got {list(observations.shape)}")
        if not np.isfinite(observations).all():  # such a number would never leave the statistics
            raise InputError("an observation holds a value that is not finite; its novelty cannot be scored")
        novelties = np.empty((len(observations), 1), np.float32)
        for row, observation in enumerate(observations):
            novelties[row] = self._novelty(observation)
        return np.minimum(novelties, _BELOW_ONE)  # a large z rounds to one

    def _novelty(self, observation: Array) -> float:
        """Update the statistics, compute the novelty, and train the predictor on the observation."""
        self._normaliser.update(observation)
        first = self._normaliser.count == 1
        inputs = np.zeros_like(observation) if first else self._normaliser.normalise(observation)
        activations = self._predictor.forward(inputs)
        difference = activations[-1] - self._target.forward(inputs)[-1]
        error = float(np.dot(difference, difference)) / OUTPUTS
        novelty = -math.expm1(-max(error / self._errors.update(error), 0.0))
        difference *= np.float32(2.0 / OUTPUTS)
        self._predictor.backward(inputs, activations, difference, self._gradient)
        self._adam.step(self._gradient.block, [LEARNING_RATE], range(1))
        return novelty

    def describe(self) -> dict[str, Any]:
        return {
            "model": "random network distillation",
            "networks": "-".join(str(size) for size in self._target.sizes),
            "parameters": self._predictor.block.size,
            "learning_rate": LEARNING_RATE,
        }

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that later steps depend on, including the target, so a checkpoint continues without the seed."""
        return {
            "target": self._target.block.copy(),
            "predictor": self._predictor.block.copy(),
            **{f"adam.{name}": array for name, array in self._adam.state().items()},
            **self._normaliser.copy().arrays(),
            "errors": self._errors.array(),
        }

    def load_state(self, arrays: dict[str, NDArray[Any]]) -> None:
        width, expected = arrays["normaliser.mean"].size, self._target.sizes[0]
        if width != expected:
            raise InputError(f"the saved novelty is of observations with {width} numbers; here they have {expected}")
        self._target.block[:] = arrays["target"]
        self._predictor.block[:] = arrays["predictor"]
        self._adam.load_state({name: arrays[f"adam.{name}"] for name in ("mean", "square", "steps")})
        self._normaliser = Normaliser.from_arrays(arrays)
        self._errors = _Deviation(*arrays["errors"].tolist())


class _Deviation:
    """The running unbiased standard deviation of numbers."""

    def __init__(self, count: float = 0.0, mean: float = 0.0, m2: float = 0.0) -> None:
        self._count, self._mean, self._m2 = count, mean, m2

    def update(self, value: float) -> float:
        """Add a number and return the deviation of all so far; 1 for the first number."""
        self._count += 1.0
        delta = value - self._mean
        self._mean += delta / self._count
        self._m2 += delta * (value - self._mean)
        if self._count < 2:
            return 1.0
        return max(math.sqrt(self._m2 / (self._count - 1.0)), _DEVIATION_FLOOR)

    def array(self) -> NDArray[np.float64]:
        return np.array([self._count, self._mean, self._m2])
