"""Regression: fit the mean of a policy of this package to recorded actions, by their weighted mean squared error."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from threadpoolctl import threadpool_limits

from vlmsafe.cloning.demonstrate import Demonstrations
from vlmsafe.config.learning import LearnerConfig
from vlmsafe.errors import Divergence
from vlmsafe.learners.networks import Shape, Stack
from vlmsafe.learners.schedules import falling_share
from vlmsafe.numerics.adam import Adam
from vlmsafe.numerics.normaliser import STD_FLOOR, Array, Normaliser

WEIGHT_DECAY = 0.1
"""The share of a weight that AdamW removes per step, times the learning rate."""


def statistics_of(recorded: Sequence[Demonstrations], clip: float, floor: float = STD_FLOOR) -> Normaliser:
    """The normaliser of all recorded observations."""
    normaliser = Normaliser.empty(recorded[0].observations.shape[1], clip, floor)
    for part in recorded:
        mean = part.observations.mean(axis=0, dtype=np.float64)
        m2 = ((part.observations - mean) ** 2).sum(axis=0)
        normaliser.merge(Normaliser(float(len(part.observations)), mean, m2))
    return normaliser


def regress(
    recorded: Sequence[Demonstrations],
    normaliser: Normaliser,
    config: LearnerConfig,
    rng: np.random.Generator,
    on_pass: Callable[[int], None] = lambda done: None,
) -> tuple[Stack, float]:
    """A policy without critics, and the root of its mean squared error on the recording, all states counted alike.

    The policy's standard deviation is `config.initial_std`: a regression of the mean says nothing about it. `on_pass`
    is told the passes done, and may raise to stop.
    """
    observations = np.concatenate([normaliser.normalise(part.observations) for part in recorded])
    actions = np.concatenate([part.actions for part in recorded])
    brakes = np.concatenate([part.brakes for part in recorded])[:, None]
    weights = np.where(brakes, np.float32(config.braking_weight), np.float32(1.0))
    shape = Shape(observations.shape[1], config.hidden, actions.shape[1], critics=0)
    stack, gradient = Stack(shape), Stack(shape)
    stack.initialise(rng, config.initial_std, config.initial_mean, config.output_gain)
    log_std = stack.log_std.copy()
    adam, count = Adam(stack.block), len(actions)
    # One thread: the order of additions must not depend on the machine.
    with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
        for done in range(config.update_iters):
            rate = config.actor_lr
            if config.lr_decay:
                rate *= falling_share(done / config.update_iters, config.lr_schedule, config.lr_floor)
            order = rng.permutation(count)
            for start in range(0, count, config.batch_size):
                rows = order[start : start + config.batch_size]
                _step(stack, gradient, adam, observations[rows], actions[rows], weights[rows], rate)
            on_pass(done + 1)
        error = float(np.sqrt(np.mean(np.square(stack.forward(observations)[-1][0] - actions), dtype=np.float64)))
    if not np.isfinite(error):
        raise Divergence("the clone's numbers became NaN or infinite; observations of extreme size are the usual cause")
    stack.log_std[:] = log_std  # the weight decay of the block moved it
    return stack, error


def _step(
    stack: Stack, gradient: Stack, adam: Adam, observations: Array, actions: Array, weights: Array, rate: float
) -> None:
    """One step of AdamW on the weighted mean squared error of a minibatch."""
    activations = stack.forward(observations)
    d_output = (activations[-1] - actions) * (weights * np.float32(2.0 / (weights.sum() * actions.shape[1])))
    stack.backward(observations, activations, d_output, gradient)
    stack.block *= np.float32(1.0 - rate * WEIGHT_DECAY)
    adam.step(gradient.block, [rate], range(1))
