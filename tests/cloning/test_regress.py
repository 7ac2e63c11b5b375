"""The regression finds the policy that the scripted driver is, by the steps that AdamW takes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from driven_envs import GAIN

from vlmsafe.cloning.demonstrate import Demonstrations
from vlmsafe.cloning.regress import WEIGHT_DECAY, regress, statistics_of
from vlmsafe.config.methods import CLONE
from vlmsafe.errors import Divergence, Interrupted
from vlmsafe.learners.networks import Shape, Stack

SMALL = replace(CLONE.learner, hidden=(16, 16), update_iters=40, batch_size=64)


def linear(count, seed=0):
    observations = np.random.default_rng(seed).uniform(-1.0, 1.0, (count, 2)).astype(np.float32)
    return Demonstrations(observations, (observations @ GAIN.T).astype(np.float32), np.zeros(count, bool), [])


def fitted(recorded, config=SMALL, seed=0, **options):
    return regress(recorded, statistics_of(recorded, 5.0), config, np.random.default_rng(seed), **options)


def test_a_linear_driver_is_learned_and_its_error_is_told():
    recorded, fresh = [linear(1500), linear(500, 1)], linear(500, 2)
    stack, error = fitted(recorded)
    assert error < 0.02
    normaliser, policy = statistics_of(recorded, 5.0), stack.policy()
    means = np.array([policy.mean(normaliser.normalise(observation)) for observation in fresh.observations])
    assert np.sqrt(np.mean((means - fresh.actions) ** 2)) == pytest.approx(error, rel=0.5)


def test_statistics_are_those_of_all_recorded_observations():
    parts = [linear(300), linear(50, 1)]
    rows = np.concatenate([part.observations for part in parts])
    normaliser = statistics_of(parts, 3.0)
    np.testing.assert_allclose(normaliser.mean, rows.mean(axis=0, dtype=np.float64), atol=1e-12)
    np.testing.assert_allclose(normaliser.std, rows.astype(np.float64).std(axis=0, ddof=1), rtol=1e-6)
    assert (normaliser.count, normaliser.clip) == (350.0, 3.0)


def test_where_the_driver_contradicts_itself_braking_wins_if_it_has_more_weight():
    actions = np.tile(np.array([[0.5, 0.5], [-0.5, -0.5]], np.float32), (200, 1))
    recorded = [Demonstrations(np.zeros((400, 2), np.float32), actions, actions[:, 1] < 0.0, [])]
    stack, error = fitted(recorded, replace(SMALL, braking_weight=9.0))
    assert stack.policy().mean(np.zeros(2, np.float32)) == pytest.approx([-0.4, -0.4], abs=0.05)
    assert error == pytest.approx(math.sqrt((0.9**2 + 0.1**2) / 2), abs=0.05)


def test_the_steps_are_those_of_torchs_adamw():
    recorded, config = [linear(100)], replace(SMALL, hidden=(4,), update_iters=5, batch_size=100, lr_decay=False)
    stack, _ = fitted(recorded, config)
    start = Stack(Shape(2, (4,), 2, critics=0))
    start.initialise(np.random.default_rng(0), config.initial_std)
    parameters = [torch.tensor(array.copy(), requires_grad=True) for _, array in start.named()][:4]
    optimiser = torch.optim.AdamW(parameters, lr=config.actor_lr, weight_decay=WEIGHT_DECAY)
    inputs = torch.tensor(statistics_of(recorded, 5.0).normalise(recorded[0].observations))
    for _ in range(5):
        hidden = torch.tanh(inputs @ parameters[0].T + parameters[1])
        loss = ((hidden @ parameters[2].T + parameters[3] - torch.tensor(recorded[0].actions)) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for (name, ours), theirs in zip(stack.named(), parameters, strict=False):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=2e-6, err_msg=name)


def test_the_deviation_of_actions_is_the_one_that_was_asked_for():
    stack, _ = fitted([linear(100)], replace(SMALL, update_iters=3, initial_std=0.25))
    np.testing.assert_allclose(np.exp(stack.log_std), 0.25, rtol=1e-6)


def test_equal_seeds_give_equal_policies():
    short = replace(SMALL, update_iters=2)
    one, again, other = (fitted([linear(300)], short, seed)[0].block for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_it_can_be_stopped_between_two_passes():
    def stop(done):
        if done == 2:
            raise Interrupted("enough")

    with pytest.raises(Interrupted):
        fitted([linear(100)], on_pass=stop)


def test_numbers_that_are_none_are_reported():
    huge = Demonstrations(np.ones((10, 2), np.float32), np.full((10, 2), 1e30, np.float32), np.zeros(10, bool), [])
    with pytest.raises(Divergence, match="NaN or infinite"):
        fitted([huge], replace(SMALL, update_iters=2))
