"""The base of all learners: networks with their optimisers, and passes of minibatches over an epoch.

A first-order learner contributes its policy loss (`PolicyLoss`); minibatches, clipping and early stopping are here.
CPO, which is second-order, takes its policy step itself and uses the passes for its critics alone.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from vlmsafe.config.learning import LearnerConfig
from vlmsafe.learners.advantages import Batch
from vlmsafe.learners.networks import POLICY, Shape, Stack
from vlmsafe.learners.policy import LOG_SQRT_2PI, Policy, mean_kl
from vlmsafe.learners.schedules import PerAction, falling_share
from vlmsafe.numerics.adam import Adam
from vlmsafe.numerics.normaliser import Array

Index = NDArray[np.int64]


class Samples(NamedTuple):
    """A minibatch as a policy loss sees it."""

    rows: Index
    """Which rows of the batch these are."""
    ratios: Array
    """Probability of each action taken, new over old."""
    mean: Array
    """[n, actions], of the current policy."""
    log_std: Array


class Slope(NamedTuple):
    """A policy loss and its derivatives; the parameters follow by the chain rule."""

    loss: float
    log_probs: Array
    """With respect to each action's log-probability."""
    mean: Array | None = None
    """With respect to the means directly, for losses that contain a divergence."""
    log_std: Array | None = None


PolicyLoss = Callable[[Samples], Slope]


@dataclass(frozen=True)
class Losses:
    """The result of an update: means over its minibatches, and how far the policy moved."""

    policy_loss: float
    critic_losses: tuple[float, ...]
    kl: float
    """Divergence of the new policy from the one that collected the samples, summed over actions."""
    passes: int
    entropy: float

    @classmethod
    def mean(cls, parts: Sequence[Losses]) -> Losses:
        """Those of several updates together; zeros if there was none."""
        if not parts:
            return cls(0.0, (0.0,), 0.0, 0, 0.0)
        weights = [part.passes for part in parts]
        columns = zip(*((part.policy_loss, part.kl, part.entropy, *part.critic_losses) for part in parts), strict=True)
        policy, kl, entropy, *critics = (float(np.average(column, weights=weights)) for column in columns)
        return cls(policy, tuple(critics), kl, sum(weights), entropy)


def clipped_errors(error: Array, moved: Array, clip: float) -> tuple[Array, Array]:
    """A critic's errors and their slopes where its values count only up to `clip` away from what they were.

    As PPO's ratio, a value is clipped and the larger of both errors counts. A clipped error is flat, so a value that
    has moved beyond the range towards its target moves no further.
    """
    clipped = error + (np.clip(moved, np.float32(-clip), np.float32(clip)) - moved)
    larger = clipped * clipped > error * error
    return np.where(larger, clipped, error), np.where(larger, np.float32(0.0), error)


class Learner(abc.ABC):
    """Networks, their optimisers and the minibatch loop; a subclass defines `_update`."""

    critics: int = 2
    """One for rewards and, where the learner uses it, one for costs; a run may add more."""

    def __init__(
        self, observation: int, action: int, config: LearnerConfig, rng: np.random.Generator, more_critics: int = 0
    ) -> None:
        self.config = config
        self.critics = type(self).critics + more_critics
        self.shape = Shape(observation, config.hidden, action, self.critics)
        self.networks = Stack(self.shape)
        self.networks.initialise(rng, config.initial_std, config.initial_mean, config.output_gain)
        self._lowest_log_std = math.log(config.std_floor) if config.std_floor else None
        self._raise_std()
        self._gradient = Stack(self.shape)
        # Allocated once: the system would otherwise map a temporary of this size page by page at every minibatch.
        self._scratch = np.empty_like(self.networks.block[POLICY + 1 :])
        self._adam = Adam(self.networks.block)
        self._learning_rates = [config.actor_lr] + [config.critic_lr] * self.critics

    def update(self, batch: Batch, multiplier: float, cost_gap: float, rng: np.random.Generator) -> Losses:
        """Improve the policy on one epoch's samples, and fit the critics to them.

        `multiplier` weighs cost advantages, as it stands after this epoch; it is zero for a learner without one.
        `cost_gap` is J_C - d.
        """
        # One thread: the products are too small to share, and the order of additions must not depend on the machine.
        # Numbers that overflow show in the losses, which the caller checks once, so warnings are switched off.
        with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
            return self._update(batch, multiplier, cost_gap, rng)

    @abc.abstractmethod
    def _update(self, batch: Batch, multiplier: float, cost_gap: float, rng: np.random.Generator) -> Losses:
        """The learner's own update."""

    def policy(self) -> Policy:
        """A copy of the current policy."""
        return self.networks.policy()

    def values(self, observations: Array) -> Array:
        """[critics, N]: the value that each critic gives to each observation."""
        with threadpool_limits(1):
            return self.networks.forward(observations, slice(POLICY + 1, None))[-1][:, :, 0]

    def policy_mean(self, observations: Array) -> Array:
        """[N, actions]: the policy's mean action for each observation."""
        return self.networks.forward(observations, slice(POLICY, POLICY + 1))[-1][0]

    def set_learning_rates(self, epoch: int, epochs: int) -> None:
        """The learning rates in epoch `epoch` (from 0) of `epochs`."""
        config = self.config
        falling = falling_share(epoch / epochs, config.lr_schedule, config.lr_floor)
        self._learning_rates[POLICY] = config.actor_lr * (falling if config.lr_decay else 1.0)
        self._learning_rates[POLICY + 1 :] = [config.critic_lr * (falling if config.critic_lr_decay else 1.0)] * (
            self.critics
        )

    def set_std(self, std: PerAction | NDArray[np.float64]) -> None:
        """Give the policy's actions another standard deviation."""
        self.networks.log_std[:] = np.log(std)
        self._raise_std()

    def shift_mean(self, shift: PerAction) -> None:
        """Add something to the mean of the policy's actions in every state."""
        self.networks.biases[-1][POLICY] += np.asarray(shift, np.float32)

    def _raise_std(self) -> None:
        """Keep the standard deviation above its floor."""
        if self._lowest_log_std is not None:
            np.maximum(self.networks.log_std, np.float32(self._lowest_log_std), out=self.networks.log_std)

    def fit_critics(self, batch: Batch, rng: np.random.Generator) -> Losses:
        """Fit the critics to one epoch's samples, and leave the policy as it is."""
        with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
            return self.minimise(batch, None, rng, networks=range(POLICY + 1, self.shape.networks))

    def minimise(
        self, batch: Batch, loss: PolicyLoss | None, rng: np.random.Generator, networks: range | None = None
    ) -> Losses:
        """Make up to `update_iters` passes over the batch in random minibatches, for all networks or some.

        After each pass the divergence on the whole batch decides whether another follows; the pass that overshot the
        target is kept.
        """
        config, count = self.config, len(batch)
        networks = range(self.shape.networks) if networks is None else networks
        old_mean, old_log_std = self.policy_mean(batch.observations), self.networks.log_std.copy()
        totals = np.zeros(self.shape.networks)
        minibatches, passes, kl = 0, 0, 0.0
        for _ in range(config.update_iters):
            order = rng.permutation(count)
            for start in range(0, count, config.batch_size):
                totals += self._minibatch(batch, loss, order[start : start + config.batch_size], networks)
                minibatches += 1
            passes += 1
            if loss is None:
                continue  # the policy does not move
            kl = mean_kl(old_mean, old_log_std, self.policy_mean(batch.observations), self.networks.log_std)
            if config.kl_early_stop and kl > config.target_kl:
                break
        policy_loss, *critic_losses = (totals / minibatches).tolist()
        return Losses(policy_loss, tuple(critic_losses), kl, passes, self.entropy())

    def entropy(self) -> float:
        """Entropy of the policy, the same in every state."""
        return float(np.sum(self.networks.log_std + 0.5 + LOG_SQRT_2PI))

    def _minibatch(self, batch: Batch, loss: PolicyLoss | None, rows: Index, networks: range) -> NDArray[np.float64]:
        """Take one step of the chosen networks on some rows of the batch; returns the loss of each network."""
        config, stack, gradient = self.config, self.networks, self._gradient
        first, chosen = networks.start, slice(networks.start, networks.stop)
        losses = np.zeros(self.shape.networks)
        observations = batch.observations.take(rows, axis=0)
        activations = stack.forward(observations, chosen)
        output = activations[-1]
        d_output = np.zeros_like(output)
        d_log_std: Array | None = None
        if loss is not None:
            losses[POLICY], d_log_std = self._policy_slope(batch, loss, rows, output[POLICY], d_output[POLICY])
        if networks.stop > POLICY + 1:
            # Critics: mean squared error; its gradient reaches the first output only.
            critics = slice(POLICY + 1 - first, None)
            error = output[critics, :, 0] - batch.targets[:, rows]
            slope = error
            if config.value_clip is not None:
                assert batch.values is not None
                error, slope = clipped_errors(error, output[critics, :, 0] - batch.values[:, rows], config.value_clip)
            d_output[critics, :, 0] = slope * np.float32(2.0 / len(rows))
            losses[POLICY + 1 :] = (error * error).sum(axis=1) / len(rows)
        stack.backward(observations, activations, d_output, gradient, chosen)
        if d_log_std is not None:
            gradient.log_std[:] = d_log_std if config.final_std is None else 0.0
        if networks.stop > POLICY + 1:
            # Weight penalty on all parameters of the critics.
            np.multiply(stack.block[POLICY + 1 :], np.float32(2.0 * config.critic_penalty), out=self._scratch)
            gradient.block[POLICY + 1 :] += self._scratch
        for row in gradient.block[chosen]:  # each network's gradient norm is clipped on its own
            norm = math.sqrt(np.dot(row, row))
            if norm > config.max_grad_norm:
                row *= np.float32(config.max_grad_norm / (norm + 1e-6))
        self._adam.step(gradient.block, self._learning_rates, networks)
        if loss is not None:
            self._raise_std()
        return losses

    def _policy_slope(
        self, batch: Batch, loss: PolicyLoss, rows: Index, mean: Array, d_mean: Array
    ) -> tuple[float, Array]:
        """The policy loss and the gradient of the log standard deviation; that of the mean is written to `d_mean`.

        The learner gives the derivative with respect to the log-probabilities of the actions taken; the chain rule of
        the Gaussian carries it on to the mean and the log standard deviation.
        """
        log_std = self.networks.log_std
        inverse_std = np.exp(-log_std)
        noise = (batch.actions[rows] - mean) * inverse_std
        squared = noise * noise
        log_probs = squared.sum(axis=1) * np.float32(-0.5)
        log_probs -= np.float32(log_std.sum() + LOG_SQRT_2PI * len(log_std))
        slope = loss(Samples(rows, np.exp(log_probs - batch.log_probs[rows]), mean, log_std))
        column = slope.log_probs[:, None]
        np.multiply(noise * inverse_std, column, out=d_mean)
        bonus = np.float32(self.config.entropy_coef / len(log_std))  # on the entropy's mean over actions
        d_log_std = ((squared - np.float32(1.0)) * column).sum(axis=0) - bonus
        if slope.mean is not None:
            d_mean += slope.mean
        if slope.log_std is not None:
            d_log_std += slope.log_std
        return slope.loss, d_log_std

    def take_over(self, networks: Array) -> None:
        """Begin with the first rows of another learner's networks: its policy, then as many critics as it has here."""
        shared = min(len(networks), self.shape.networks)
        self.networks.block[:shared] = networks[:shared]
        self._raise_std()

    def state(self) -> dict[str, Array]:
        """Networks and optimiser moments as named arrays."""
        moments = {f"adam.{name}": array for name, array in self._adam.state().items()}
        return {"networks": self.networks.block.copy(), **moments}

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        """Continue from `state`."""
        self.networks.block[:] = arrays["networks"]
        self._adam.load_state({name: arrays[f"adam.{name}"] for name in self._adam.state()})
