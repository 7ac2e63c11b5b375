"""The update shared by every first-order learner: passes of minibatches over an epoch, critics and policy together.

A learner contributes its policy loss (`PolicyLoss`); networks, optimisers, clipping and early stopping are here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from vlmsafe.algorithms.acting import LOG_SQRT_2PI, Array, Policy
from vlmsafe.algorithms.adam import Adam
from vlmsafe.algorithms.advantages import Batch
from vlmsafe.algorithms.networks import POLICY, Shape, Stack
from vlmsafe.config import LearnerConfig

Index = NDArray[np.int64]
PolicyLoss = Callable[[Array, Array, Index], tuple[float, Array]]
"""(log-probabilities of the taken actions, their ratios to the old ones, rows) -> loss, d loss / d log-probability."""


@dataclass(frozen=True)
class Losses:
    """What an update did: means over its minibatches, and how far the policy moved."""

    policy_loss: float
    critic_losses: tuple[float, ...]
    kl: float
    """Divergence of the new policy from the one that collected the samples."""
    passes: int
    entropy: float


def gaussian_kl(mean: Array, log_std: Array, new_mean: Array, new_log_std: Array) -> float:
    """KL(old || new) of diagonal Gaussians, summed over actions, mean over states."""
    ratio = np.exp(2.0 * (log_std - new_log_std))
    shift = ((mean - new_mean) * np.exp(-new_log_std)) ** 2
    return float(np.mean(np.sum(0.5 * (ratio + shift - 1.0) + new_log_std - log_std, axis=1), dtype=np.float64))


class FirstOrderLearner:
    """Networks and their optimisers, and the minibatch loop."""

    def __init__(self, shape: Shape, config: LearnerConfig, rng: np.random.Generator) -> None:
        self.config = config
        self.networks = Stack(shape)
        self.networks.initialise(rng)
        self._gradient = Stack(shape)
        # Temporaries of this size would come from the system afresh, page by page, at every minibatch.
        self._scratch = np.empty_like(self.networks.block[POLICY + 1 :])
        self._adam = Adam(self.networks.block)
        self._learning_rates = [config.actor_lr] + [config.critic_lr] * shape.critics

    def policy(self) -> Policy:
        """A copy of the current policy."""
        return self.networks.policy()

    def values(self, observations: Array) -> Array:
        """[critics, N]: each critic's value of each observation."""
        critics = slice(POLICY + 1, None)
        return self.networks.forward(observations, critics)[-1][:, :, 0]

    def set_actor_lr(self, epoch: int, epochs: int) -> None:
        """The policy's learning rate in epoch `epoch` (from 0) of `epochs`: linear from its initial value to zero."""
        factor = 1.0 - epoch / epochs if self.config.lr_decay else 1.0
        self._learning_rates[POLICY] = self.config.actor_lr * factor

    def minimise(self, batch: Batch, loss: PolicyLoss, rng: np.random.Generator) -> Losses:
        """Up to `update_iters` passes over the batch in random minibatches.

        After each pass the divergence on the whole batch decides whether another follows; the pass that overshot the
        target is kept.
        """
        # One thread: the products are far too small to share, and the order of additions stays the same everywhere.
        # Numbers that overflow show in the losses, which the caller checks once instead of being warned many times.
        with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
            return self._minimise(batch, loss, rng)

    def _minimise(self, batch: Batch, loss: PolicyLoss, rng: np.random.Generator) -> Losses:
        config, count = self.config, len(batch)
        old_mean, old_log_std = self._policy_mean(batch.observations), self.networks.log_std.copy()
        totals = np.zeros(1 + self.networks.shape.critics)
        minibatches, passes, kl = 0, 0, 0.0
        for _ in range(config.update_iters):
            order = rng.permutation(count)
            for start in range(0, count, config.batch_size):
                totals += self._minibatch(batch, loss, order[start : start + config.batch_size])
                minibatches += 1
            passes += 1
            kl = gaussian_kl(old_mean, old_log_std, self._policy_mean(batch.observations), self.networks.log_std)
            if config.kl_early_stop and kl > config.target_kl:
                break
        policy_loss, *critic_losses = (totals / minibatches).tolist()
        entropy = float(np.sum(self.networks.log_std + 0.5 + LOG_SQRT_2PI))
        return Losses(policy_loss, tuple(critic_losses), kl, passes, entropy)

    def _policy_mean(self, observations: Array) -> Array:
        return self.networks.forward(observations, slice(POLICY, POLICY + 1))[-1][0]

    def _minibatch(self, batch: Batch, loss: PolicyLoss, rows: Index) -> NDArray[np.float64]:
        """One step of all networks on some rows of the batch; the loss of each network."""
        config, networks, gradient = self.config, self.networks, self._gradient
        observations = batch.observations.take(rows, axis=0)
        activations = networks.forward(observations)
        output = activations[-1]
        d_output = np.zeros_like(output)
        # Critics: mean squared error; its gradient reaches the first output only.
        error = output[POLICY + 1 :, :, 0] - batch.targets[:, rows]
        d_output[POLICY + 1 :, :, 0] = error * np.float32(2.0 / len(rows))
        # Policy: the learner gives the gradient with respect to the log-probabilities of the actions taken, the chain
        # rule of the Gaussian carries it on to the mean and the log standard deviation.
        inverse_std = np.exp(-networks.log_std)
        noise = (batch.actions[rows] - output[POLICY]) * inverse_std
        squared = noise * noise
        log_probs = squared.sum(axis=1) * np.float32(-0.5)
        log_probs -= np.float32(networks.log_std.sum() + LOG_SQRT_2PI * len(inverse_std))
        ratios = np.exp(log_probs - batch.log_probs[rows])
        policy_loss, d_log_probs = loss(log_probs, ratios, rows)
        column = d_log_probs[:, None]
        np.multiply(noise * inverse_std, column, out=d_output[POLICY])
        networks.backward(observations, activations, d_output, gradient)
        gradient.log_std[:] = ((squared - np.float32(1.0)) * column).sum(axis=0) - np.float32(config.entropy_coef)
        # Weight penalty of the critics, then each network's gradient norm clipped on its own.
        np.multiply(networks.block[POLICY + 1 :], np.float32(2.0 * config.critic_penalty), out=self._scratch)
        gradient.block[POLICY + 1 :] += self._scratch
        for row in gradient.block:
            norm = math.sqrt(np.dot(row, row))
            if norm > config.max_grad_norm:
                row *= np.float32(config.max_grad_norm / (norm + 1e-6))
        self._adam.step(gradient.block, self._learning_rates)
        critic_losses = (error * error).sum(axis=1) / len(rows)
        return np.array([policy_loss, *critic_losses])

    def state(self) -> dict[str, Array]:
        """Networks and optimiser moments as named arrays."""
        moments = {f"adam.{name}": array for name, array in self._adam.state().items()}
        return {"networks": self.networks.block.copy(), **moments}

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        """Continue from `state`."""
        self.networks.block[:] = arrays["networks"]
        self._adam.load_state({name: arrays[f"adam.{name}"] for name in self._adam.state()})
