"""Second-order tools: the policy's Fisher matrix as a product, conjugate gradients, a backtracking line search.

Everything is in float64, because conjugate gradients lose the step in float32 long before they converge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlmsafe.learners.networks import POLICY, Shape, Stack
from vlmsafe.learners.policy import LOG_SQRT_2PI, kl_per_action

Vector = NDArray[np.float64]


def conjugate_gradients(product: Callable[[Vector], Vector], target: Vector, iterations: int) -> Vector:
    """x with product(x) = target, approximately."""
    solution = np.zeros_like(target)
    residual, direction = target.copy(), target.copy()
    size = residual @ residual
    for _ in range(iterations):
        image = product(direction)
        step = size / (direction @ image + 1e-6)
        solution += step * direction
        residual -= step * image
        new_size = residual @ residual
        if np.sqrt(new_size) < 1e-10:
            break
        direction = residual + (new_size / (size + 1e-6)) * direction
        size = new_size
    return solution


@dataclass(frozen=True)
class Point:
    """The policy at some parameters: surrogates of reward and cost, and the divergence from where it started."""

    reward: float
    """mean(rho A_r)."""
    cost: float
    """mean(rho A_c)."""
    kl: float


class PolicySurface:
    """The policy's surrogates around its current parameters, on a whole batch."""

    def __init__(
        self,
        parameters: Vector,
        shape: Shape,
        observations: NDArray[np.float32],
        actions: NDArray[np.float32],
        log_probs: NDArray[np.float32],
        average_over_actions: bool,
    ) -> None:
        """`average_over_actions` takes the divergence's mean over actions; the usual definition is their sum."""
        self.start = parameters.astype(np.float64)
        self._shape = Shape(shape.observation, shape.hidden, shape.action, critics=0)
        self._observations, self._actions = observations.astype(np.float64), actions.astype(np.float64)
        self._log_probs = log_probs.astype(np.float64)
        self._share = 1.0 / shape.action if average_over_actions else 1.0
        self._policy = self._stack(self.start)
        self._activations = self._policy.forward(self._observations)
        self._mean = self._activations[-1][POLICY]

    def _stack(self, vector: Vector) -> Stack:
        return Stack(self._shape, vector[None])

    def gradient(self, advantages: NDArray[np.float32]) -> Vector:
        """Of mean(rho A) at the start."""
        inverse_std = np.exp(-self._policy.log_std)
        noise = (self._actions - self._mean) * inverse_std
        slope = (self._ratios(self._mean, self._policy.log_std) * advantages / len(advantages))[:, None]
        return self._pull_back(noise * inverse_std * slope, ((noise**2 - 1.0) * slope).sum(axis=0))

    def fisher_product(self, vector: Vector, damping: float) -> Vector:
        """(F + damping) v, where F is the Hessian of the mean divergence at the start.

        The divergence has no slope there, so its Hessian is J' S J, with the Jacobian J of the means and the inverse
        variance S. Each log standard deviation contributes 2.
        """
        log_std = self._policy.log_std
        weight = self._share / len(self._observations)
        pushed = self._push_forward(vector) * np.exp(-2.0 * log_std) * weight
        return self._pull_back(pushed, 2.0 * self._share * self._stack(vector).log_std) + damping * vector

    def at(self, step: Vector, rewards: NDArray[np.float32], costs: NDArray[np.float32]) -> Point:
        """Surrogates and divergence after a step from the start."""
        moved = self._stack(self.start + step)
        mean = moved.forward(self._observations)[-1][POLICY]
        ratios = self._ratios(mean, moved.log_std)
        divergence = kl_per_action(self._mean, self._policy.log_std, mean, moved.log_std)
        return Point(
            reward=float((ratios * rewards).mean()),
            cost=float((ratios * costs).mean()),
            kl=float(divergence.sum(axis=1).mean() * self._share),
        )

    def _ratios(self, mean: Vector, log_std: Vector) -> Vector:
        noise = (self._actions - mean) * np.exp(-log_std)
        log_probs = (-0.5 * noise**2 - log_std - LOG_SQRT_2PI).sum(axis=1)
        return np.exp(log_probs - self._log_probs)

    def _push_forward(self, vector: Vector) -> Vector:
        """How the means move, to first order, when the parameters move along `vector`."""
        along = self._stack(vector)
        hidden, moved = self._observations, None
        for depth, (weight, d_weight, d_bias) in enumerate(
            zip(self._policy.weights, along.weights, along.biases, strict=True)
        ):
            slope = hidden @ d_weight[POLICY].T + d_bias[POLICY]
            if moved is not None:
                slope += moved @ weight[POLICY].T
            hidden = self._activations[depth][POLICY]
            moved = slope * (1.0 - hidden**2) if depth < len(along.weights) - 1 else slope
        assert moved is not None
        return moved

    def _pull_back(self, d_mean: Vector, d_log_std: Vector) -> Vector:
        """Gradient of the parameters from that of the means and log standard deviations."""
        gradient = self._stack(np.zeros_like(self.start))
        # `backward` overwrites the hidden activations it is given.
        activations = [activation.copy() for activation in self._activations]
        self._policy.backward(self._observations, activations, d_mean[None], gradient)
        gradient.log_std[:] = d_log_std
        return gradient.block[POLICY]
