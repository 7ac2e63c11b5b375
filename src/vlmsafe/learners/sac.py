"""Soft actor-critic: learn from every step that was ever made, not only from those of the last epoch.

Two critics estimate the return of an action, the smaller estimate counts, and the policy maximises it together with its
own entropy, whose weight (the temperature) moves so that the entropy meets a target. Cost enters as a reward of minus
the multiplier. Rewards and costs are kept apart in the replay, so the multiplier that counts is always the present one.

As in `networks`, forward and backward passes are written out; tests check them against autograd.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from vlmsafe.config.learning import LearnerConfig
from vlmsafe.learners.learner import Losses
from vlmsafe.learners.networks import POLICY, Array, Shape
from vlmsafe.learners.policy import LOG_SQRT_2PI
from vlmsafe.learners.recollection import Minibatch, Recollection
from vlmsafe.learners.schedules import PerAction, falling_share
from vlmsafe.learners.squashed import SquashedPolicy, log_std_of, raw_of
from vlmsafe.numerics.adam import Adam

_TINY = np.float32(1e-5)
_ZERO, _ONE, _TWO = np.float32(0.0), np.float32(1.0), np.float32(2.0)


class Layers:
    """Relu networks of one shape in a block [networks, parameters], with layer normalisation where it is asked for.

    A normalised layer has no scale of its own: relu(normalise(W x) + b).
    """

    def __init__(self, networks: int, sizes: tuple[int, ...], normalised: bool, block: Array | None = None) -> None:
        self.sizes, self.normalised = sizes, normalised
        parameters = sum(out * (inner + 1) for inner, out in itertools.pairwise(sizes))
        self.block = np.zeros((networks, parameters), np.float32) if block is None else block
        self.weights: list[Array] = []
        self.biases: list[Array] = []
        at = 0
        for inner, out in itertools.pairwise(sizes):
            self.weights.append(self.block[:, at : at + inner * out].reshape(networks, inner, out))
            self.biases.append(self.block[:, at + inner * out : at + (inner + 1) * out].reshape(networks, 1, out))
            at += (inner + 1) * out

    def initialise(self, rng: np.random.Generator) -> None:
        """Weights uniform within 1/sqrt(inputs), one network after another; biases of zero."""
        for row in range(len(self.block)):
            for weight, inner in zip(self.weights, self.sizes, strict=False):
                weight[row] = rng.uniform(-1.0, 1.0, weight[row].shape) / np.sqrt(inner)

    def forward(self, inputs: Array) -> Pass:
        """All outputs; `inputs` are shared by the networks."""
        hidden, outputs, scaled = inputs, [], []
        for depth, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            output = np.matmul(hidden, weight)
            if depth < len(self.weights) - 1 and self.normalised:
                output -= output.mean(axis=-1, keepdims=True)
                square = np.einsum("kni,kni->kn", output, output)
                inverse = (_ONE / np.sqrt(square / np.float32(output.shape[-1]) + _TINY))[..., None]
                output *= inverse
                scaled.append((output, inverse))
                output = output + bias
            else:
                output += bias
            if depth < len(self.weights) - 1:
                np.maximum(output, _ZERO, out=output)
            outputs.append(output)
            hidden = output
        return Pass(inputs, outputs, scaled)

    def backward(self, done: Pass, d_output: Array, gradient: Layers | None, last_inputs: int = 0) -> Array | None:
        """Write the gradients of all parameters, given those of the outputs; or return those of the last inputs."""
        delta = d_output
        for depth in reversed(range(len(self.weights))):
            inner = depth < len(self.weights) - 1
            if inner:
                delta = delta * (done.outputs[depth] > _ZERO)
            if gradient is not None:
                delta.sum(axis=1, keepdims=True, out=gradient.biases[depth])
            if inner and self.normalised:
                scaled, inverse = done.scaled[depth]
                along = (np.einsum("kni,kni->kn", delta, scaled) / np.float32(delta.shape[-1]))[..., None]
                delta = (delta - delta.mean(axis=-1, keepdims=True) - scaled * along) * inverse
            hidden = done.outputs[depth - 1] if depth else done.inputs
            if gradient is not None:
                np.matmul(np.swapaxes(hidden, -1, -2), delta, out=gradient.weights[depth])
            if depth:
                delta = np.matmul(delta, np.swapaxes(self.weights[depth], -1, -2))
        return np.matmul(delta, np.swapaxes(self.weights[0][:, -last_inputs:], -1, -2)) if last_inputs else None


class Pass(NamedTuple):
    """What a forward pass leaves for the backward pass."""

    inputs: Array
    outputs: list[Array]
    scaled: list[tuple[Array, Array]]
    """Normalised values and the inverse of their deviation, per normalised layer."""


class Drawn(NamedTuple):
    """Actions that the policy draws in some states."""

    done: Pass
    actions: Array
    log_probs: Array
    std: Array
    std_slope: Array
    noise: Array


class SAC:
    """Networks, targets and temperature, and the updates of an epoch."""

    critics = 2

    def __init__(
        self, observation: int, action: int, config: LearnerConfig, rng: np.random.Generator, more_critics: int = 0
    ) -> None:
        assert not more_critics
        self.config = config
        self.shape = Shape(observation, config.hidden, action, self.critics)
        self._action = action
        self.networks = Layers(1, (observation, *config.hidden, 2 * action), False)
        self._critics = Layers(2, (observation + action, *config.hidden, 1), config.sac.layer_norm)
        self._targets = Layers(2, self._critics.sizes, config.sac.layer_norm)
        self.networks.initialise(rng)
        self._critics.initialise(rng)
        self._targets.block[:] = self._critics.block
        self.networks.weights[-1] *= np.float32(config.output_gain)
        self.networks.biases[-1][POLICY, 0, :action] = config.initial_mean
        self.networks.biases[-1][POLICY, 0, action:] = raw_of(np.log(np.asarray(config.initial_std, np.float32)))
        self._policy_gradient = Layers(1, self.networks.sizes, False)
        self._critic_gradient = Layers(2, self._critics.sizes, config.sac.layer_norm)
        self._temperature = np.full((1, 1), np.log(config.sac.initial_temperature), np.float32)  # its logarithm
        self._adam = Adam(self.networks.block)
        self._critic_adam = Adam(self._critics.block)
        self._temperature_adam = Adam(self._temperature)
        self._actor_lr, self._critic_lr = config.actor_lr, config.critic_lr
        self._entropy = config.sac.target_entropy * action
        self._updates = 0

    def policy(self) -> SquashedPolicy:
        """A copy of the current policy."""
        return policy_of(self.shape, self.networks.block)

    def set_learning_rates(self, epoch: int, epochs: int) -> None:
        """The learning rates and the entropy that is aimed at in epoch `epoch` (from 0) of `epochs`."""
        config = self.config
        falling = falling_share(epoch / epochs, config.lr_schedule, config.lr_floor)
        self._actor_lr = config.actor_lr * (falling if config.lr_decay else 1.0)
        self._critic_lr = config.critic_lr * (falling if config.critic_lr_decay else 1.0)
        last = config.sac.target_entropy if config.sac.final_entropy is None else config.sac.final_entropy
        share = min(1.0, epoch / max(1.0, config.sac.entropy_share * epochs))
        self._entropy = (config.sac.target_entropy + (last - config.sac.target_entropy) * share) * self._action

    def update(
        self,
        replay: Recollection,
        standardise: Callable[[Array], Array],
        multiplier: float,
        updates: int,
        rng: np.random.Generator,
    ) -> Losses:
        """Make that many updates of the critics, and of the policy after every few of them."""
        policy_losses, entropies, critic_losses = [], [], np.zeros(2)
        with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
            for _ in range(updates):
                batch = replay.draw(rng, self.config.batch_size)
                states, following = standardise(batch.observations), standardise(batch.following)
                critic_losses += self._fit_critics(batch, states, following, multiplier, rng)
                self._updates += 1
                if self._updates % self.config.sac.policy_delay == 0:
                    loss, entropy = self._improve(states, rng)
                    policy_losses.append(loss)
                    entropies.append(entropy)
        mean = (critic_losses / updates).mean()
        return Losses(_mean(policy_losses), (float(mean),), 0.0, updates, _mean(entropies))

    def _drawn(self, states: Array, rng: np.random.Generator) -> Drawn:
        done = self.networks.forward(states)
        output = done.outputs[-1][POLICY]
        log_std, slope = log_std_of(output[:, self._action :])
        noise = rng.standard_normal(log_std.shape, dtype=np.float32)
        std = np.exp(log_std)
        before = output[:, : self._action] + std * noise
        # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which does not overflow.
        softplus = np.maximum(-_TWO * before, _ZERO) + np.log1p(np.exp(-np.abs(_TWO * before)))
        squash = _TWO * (np.float32(np.log(2.0)) - before - softplus)
        densities = np.float32(-0.5) * noise * noise - log_std - np.float32(LOG_SQRT_2PI) - squash
        return Drawn(done, np.tanh(before), densities.sum(axis=1), std, slope, noise)

    def _fit_critics(
        self, batch: Minibatch, states: Array, following: Array, multiplier: float, rng: np.random.Generator
    ) -> Array:
        config, size = self.config, len(states)
        temperature = np.exp(self._temperature[0, 0])
        ahead = self._drawn(following, rng)
        values = self._targets.forward(np.concatenate([following, ahead.actions], axis=1)).outputs[-1][..., 0].min(0)
        rewards = np.float32(config.sac.reward_scale) * (batch.rewards - np.float32(multiplier) * batch.costs)
        goals = rewards + batch.discounts * (values - temperature * ahead.log_probs)
        done = self._critics.forward(np.concatenate([states, batch.actions], axis=1))
        error = done.outputs[-1][..., 0] - goals
        self._critics.backward(done, (error * np.float32(2.0 / size))[..., None], self._critic_gradient)
        self._critic_adam.step(self._critic_gradient.block, [self._critic_lr] * 2, range(2))
        rate = np.float32(config.sac.target_rate)
        self._targets.block *= _ONE - rate
        self._targets.block += rate * self._critics.block
        losses: Array = (error * error).sum(axis=1) / size
        return losses

    def _improve(self, states: Array, rng: np.random.Generator) -> tuple[float, float]:
        """One step of the policy towards what the critics value, and one of the temperature; loss and entropy."""
        size = len(states)
        temperature = np.exp(self._temperature[0, 0])
        drawn = self._drawn(states, rng)
        done = self._critics.forward(np.concatenate([states, drawn.actions], axis=1))
        values = done.outputs[-1][..., 0]
        smaller = np.zeros_like(values)
        smaller[values.argmin(axis=0), np.arange(size)] = _ONE
        slopes = self._critics.backward(done, smaller[..., None], None, last_inputs=self._action)
        assert slopes is not None
        squash = _ONE - drawn.actions * drawn.actions
        d_mean = temperature * _TWO * drawn.actions - slopes.sum(axis=0) * squash
        d_log_std = d_mean * drawn.std * drawn.noise - temperature
        d_output = np.concatenate([d_mean, d_log_std * drawn.std_slope], axis=1) / np.float32(size)
        self.networks.backward(drawn.done, d_output[None], self._policy_gradient)
        self._adam.step(self._policy_gradient.block, [self._actor_lr], range(1))
        entropy = -float(drawn.log_probs.mean(dtype=np.float64))
        self._temperature_adam.step(
            np.full((1, 1), entropy - self._entropy, np.float32), [self.config.sac.temperature_lr], range(1)
        )
        loss = float((temperature * drawn.log_probs - values.min(axis=0)).mean(dtype=np.float64))
        return loss, entropy

    def take_over(self, networks: Array) -> None:
        """Begin with the policy of another run of this learner."""
        self.networks.block[POLICY] = networks[POLICY]

    def set_std(self, std: PerAction | NDArray[np.float64]) -> None:
        """Give the policy's actions about this standard deviation before they are squashed, in every state."""
        self.networks.weights[-1][POLICY, :, self._action :] = _ZERO
        self.networks.biases[-1][POLICY, 0, self._action :] = raw_of(np.log(np.asarray(std, np.float32)))

    def shift_mean(self, shift: PerAction) -> None:
        """Add something to the mean before it is squashed, in every state."""
        self.networks.biases[-1][POLICY, 0, : self._action] += np.asarray(shift, np.float32)

    def state(self) -> dict[str, Array]:
        """Networks, temperature and optimiser moments as named arrays."""
        adams = {"policy": self._adam, "critics": self._critic_adam, "temperature": self._temperature_adam}
        return {
            "networks": self.networks.block.copy(),
            "critics": self._critics.block.copy(),
            "targets": self._targets.block.copy(),
            "temperature": self._temperature.copy(),
            "updates": np.array([self._updates], np.int64),
            **{f"adam.{which}.{name}": array for which, adam in adams.items() for name, array in adam.state().items()},
        }

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        """Continue from `state`."""
        self.networks.block[:], self._critics.block[:] = arrays["networks"], arrays["critics"]
        self._targets.block[:], self._temperature[:] = arrays["targets"], arrays["temperature"]
        self._updates = int(arrays["updates"][0])
        adams = {"policy": self._adam, "critics": self._critic_adam, "temperature": self._temperature_adam}
        for which, adam in adams.items():
            adam.load_state({name: arrays[f"adam.{which}.{name}"] for name in adam.state()})


def policy_of(shape: Shape, block: Array) -> SquashedPolicy:
    """The policy in a block of networks, such as that of a checkpoint."""
    layers = Layers(1, (shape.observation, *shape.hidden, 2 * shape.action), False, block[: POLICY + 1].copy())
    pairs = zip(layers.weights, layers.biases, strict=True)
    return SquashedPolicy([(w[POLICY].T.copy(), b[POLICY, 0].copy()) for w, b in pairs])


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else 0.0
