"""Policy and critics as one block of numbers, and their forward and backward passes written out.

The networks of an on-policy learner are small (two layers of 64) and get some ten thousand tiny updates per epoch.
At that size autograd spends most of the time on bookkeeping. So all networks share one shape and are stacked: one
batched product per layer serves policy and critics together. The backward pass of a tanh network is a dozen lines
(`Stack.backward`), which tests check against autograd. `benchmarks/update.py` measures the gain.

Row 0 of the stack is the policy, the rows after it are critics. Critics have one output; they carry the policy's
output width with the surplus held at zero, so that the stack stays rectangular.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmsafe.learners.policy import Policy
from vlmsafe.learners.schedules import PerAction

POLICY = 0
NAMES = ("policy", "reward_critic", "cost_critic", "signal_critic")
"""What the rows of a stack are."""

Array = NDArray[Any]
"""float32 for training; float64 where second-order steps need it."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a stack of networks."""

    observation: int
    hidden: tuple[int, ...]
    action: int
    critics: int

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(outputs, inputs) of each layer."""
        sizes = [self.observation, *self.hidden, self.action]
        return list(zip(sizes[1:], sizes[:-1], strict=True))

    @property
    def networks(self) -> int:
        return 1 + self.critics

    @property
    def parameters(self) -> int:
        """Numbers per network: weights, biases, and the policy's log standard deviation."""
        return sum(out * (inner + 1) for out, inner in self.layers) + self.action


class Stack:
    """Views into one [networks, parameters] block: a weight [K, out, in] and a bias [K, 1, out] per layer."""

    def __init__(self, shape: Shape, block: Array | None = None) -> None:
        self.shape = shape
        self.block = np.zeros((shape.networks, shape.parameters), np.float32) if block is None else block
        self.weights: list[Array] = []
        self.biases: list[Array] = []
        offset = 0
        for out, inner in shape.layers:
            self.weights.append(self._view(offset, out, inner))
            self.biases.append(self._view(offset + out * inner, 1, out))
            offset += out * (inner + 1)
        self._log_std_at = offset

    def _view(self, offset: int, rows: int, columns: int) -> Array:
        view = self.block[:, offset : offset + rows * columns].reshape(-1, rows, columns)
        assert np.shares_memory(view, self.block)
        return view

    @property
    def log_std(self) -> Array:
        """The policy's log standard deviation, one per action."""
        return self.block[POLICY, self._log_std_at :]

    def initialise(
        self,
        rng: np.random.Generator,
        std: PerAction = 1.0,
        mean: PerAction = 0.0,
        gain: float = 1.0,
    ) -> None:
        """Weights and biases uniform within 1/sqrt(inputs), the policy's standard deviation as given.

        `gain` scales the policy's last layer, and then `mean` is added to its bias.

        One network after another, so that a policy does not depend on the number of critics: methods that differ in
        nothing else start equal, and stay equal on an environment without cost.
        """
        for row in range(self.shape.networks):
            for weight, bias, (_, inner) in zip(self.weights, self.biases, self.shape.layers, strict=True):
                bound = 1.0 / np.sqrt(inner)
                weight[row] = rng.uniform(-bound, bound, weight[row].shape)
                bias[row] = rng.uniform(-bound, bound, bias[row].shape)
        self.weights[-1][1:, 1:] = 0.0  # the surplus outputs of the critics
        self.biases[-1][1:, :, 1:] = 0.0
        self.log_std[:] = np.log(std)
        self.weights[-1][POLICY] *= np.float32(gain)
        self.biases[-1][POLICY] *= np.float32(gain)
        self.biases[-1][POLICY] += np.asarray(mean, np.float32)

    def policy(self) -> Policy:
        """A copy of the policy for the workers."""
        layers = [(w[POLICY].copy(), b[POLICY, 0].copy()) for w, b in zip(self.weights, self.biases, strict=True)]
        return Policy(layers, self.log_std.copy())

    def forward(self, observations: Array, rows: slice = slice(None)) -> list[Array]:
        """Activations of every layer for the chosen networks; the last entry is the output [K, N, actions]."""
        activations: list[Array] = []
        inputs = observations
        for depth, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            outputs = np.matmul(inputs, weight[rows].transpose(0, 2, 1))
            outputs += bias[rows]
            if depth < len(self.weights) - 1:
                np.tanh(outputs, out=outputs)
            activations.append(outputs)
            inputs = outputs
        return activations

    def backward(
        self,
        observations: Array,
        activations: Sequence[Array],
        d_output: Array,
        gradient: Stack,
        rows: slice = slice(None),
    ) -> None:
        """Write the gradient of every weight and bias into `gradient`, given that of the output [K, N, actions].

        Overwrites the hidden activations, which are not needed afterwards.
        """
        delta = d_output
        for depth in reversed(range(len(self.weights))):
            inputs = activations[depth - 1] if depth else observations
            np.matmul(delta.transpose(0, 2, 1), inputs, out=gradient.weights[depth][rows])
            delta.sum(axis=1, keepdims=True, out=gradient.biases[depth][rows])
            if depth:
                delta = np.matmul(delta, self.weights[depth][rows])
                np.multiply(inputs, inputs, out=inputs)
                np.subtract(1.0, inputs, out=inputs)  # tanh' = 1 - tanh^2
                delta *= inputs

    def named(self) -> Iterator[tuple[str, Array]]:
        """Every parameter under a readable name, as views: `policy.0.weight`, `reward_critic.1.bias`, ..."""
        for row, name in enumerate(NAMES[: self.shape.networks]):
            outputs = self.shape.action if row == POLICY else 1
            for depth, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
                final = depth == len(self.weights) - 1
                rows = slice(0, outputs) if final else slice(None)
                yield f"{name}.{depth}.weight", weight[row, rows]
                yield f"{name}.{depth}.bias", bias[row, 0, rows]
            if row == POLICY:
                yield f"{name}.log_std", self.log_std
