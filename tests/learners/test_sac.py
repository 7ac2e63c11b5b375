"""Soft actor-critic computes the gradients of its losses, as autograd does, and learns from what it has seen."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmsafe.config.learning import LearnerConfig, SacConfig
from vlmsafe.learners.advantages import Rollout
from vlmsafe.learners.recollection import Minibatch, Recollection
from vlmsafe.learners.sac import SAC, Layers, policy_of
from vlmsafe.learners.squashed import HIGHEST, LOWEST

quick = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**32 - 1)
STILL = {"actor_lr": 1e-12, "critic_lr": 1e-12}


def learner(seed=0, observation=4, action=2, hidden=(8, 8), **sac):
    config = LearnerConfig(algorithm="sac", hidden=hidden, initial_std=0.4, **STILL, sac=SacConfig(**sac))
    return SAC(observation, action, config, np.random.default_rng(seed))


def minibatch(rng, size=6, observation=4, action=2):
    def normal(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

    return Minibatch(
        normal(size, observation), np.tanh(normal(size, action)), normal(size), np.abs(normal(size)),
        np.where(rng.random(size) < 0.3, 0.0, 0.9).astype(np.float32), normal(size, observation),
    )  # fmt: skip


def in_torch(layers: Layers, block: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """[networks, n, outputs], of the same layers, in torch's words."""
    outputs = []
    for row in block:
        hidden, at = inputs, 0
        for depth, (inner, out) in enumerate(zip(layers.sizes[:-1], layers.sizes[1:], strict=True)):
            weight, bias = row[at : at + inner * out].view(inner, out), row[at + inner * out : at + (inner + 1) * out]
            at += (inner + 1) * out
            hidden = hidden @ weight
            last = depth == len(layers.sizes) - 2
            if layers.normalised and not last:
                hidden = torch.nn.functional.layer_norm(hidden, (out,))
            hidden = hidden + bias if last else torch.relu(hidden + bias)
        outputs.append(hidden)
    return torch.stack(outputs)


def torch_draw(sac: SAC, block: torch.Tensor, states: torch.Tensor, noise: torch.Tensor):
    """Actions and their log-probabilities, by torch's own distributions."""
    output = in_torch(sac.networks, block, states)[0]
    mean, raw = output.chunk(2, dim=1)
    std = torch.exp(float(LOWEST) + 0.5 * float(HIGHEST - LOWEST) * (torch.tanh(raw) + 1.0))
    before = mean + std * noise
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, std), [torch.distributions.TanhTransform(cache_size=1)]
    )
    actions = torch.tanh(before)
    return actions, squashed.log_prob(actions.clamp(-1 + 1e-12, 1 - 1e-12)).sum(dim=1)


@quick
@given(seeds, st.booleans(), st.integers(1, 3), st.integers(1, 7))
def test_forward_and_backward_equal_autograd(seed, normalised, networks, count):
    rng = np.random.default_rng(seed)
    sizes = (3, 5, 4, 2)
    layers = Layers(networks, sizes, normalised)
    gradient = Layers(networks, sizes, normalised)
    layers.block[:] = rng.normal(size=layers.block.shape)
    inputs, d_output = rng.normal(size=(count, 3)).astype("f"), rng.normal(size=(networks, count, 2)).astype("f")
    block = torch.tensor(layers.block, dtype=torch.float64, requires_grad=True)
    variable = torch.tensor(inputs, dtype=torch.float64, requires_grad=True)
    expected = in_torch(layers, block, variable)
    (expected * torch.tensor(d_output)).sum().backward()
    done = layers.forward(inputs)
    np.testing.assert_allclose(done.outputs[-1], expected.detach(), rtol=1e-3, atol=1e-3)
    slopes = layers.backward(done, d_output, gradient, last_inputs=2)
    # The slope of relu jumps, and that of a normalised layer is steep where its inputs are nearly equal.
    scale = 1e-3 * max(1.0, float(block.grad.abs().max()))
    np.testing.assert_allclose(gradient.block, block.grad, rtol=1e-2, atol=scale)
    np.testing.assert_allclose(slopes.sum(axis=0), variable.grad[:, -2:], rtol=1e-2, atol=scale)


@pytest.mark.parametrize("layer_norm", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_the_critics_gradient_is_that_of_the_squared_error_of_the_soft_value(layer_norm, seed):
    sac, rng = learner(seed, layer_norm=layer_norm), np.random.default_rng(seed)
    sac.networks.block += rng.normal(size=sac.networks.block.shape).astype("f") * 0.2
    batch, multiplier = minibatch(rng), 2.0
    draws = np.random.default_rng(5).standard_normal((6, 2), dtype=np.float32)
    state, targets = sac.state()["critics"], sac.state()["targets"]
    sac._fit_critics(batch, batch.observations, batch.following, multiplier, np.random.default_rng(5))
    states, actions, following = (torch.tensor(x) for x in (batch.observations, batch.actions, batch.following))
    block = torch.tensor(state, requires_grad=True)
    with torch.no_grad():
        ahead, log_probs = torch_draw(sac, torch.tensor(sac.networks.block), following, torch.tensor(draws))
        values = in_torch(sac._critics, torch.tensor(targets), torch.cat([following, ahead], 1))[..., 0].min(0).values
        rewards = 0.1 * (torch.tensor(batch.rewards) - multiplier * torch.tensor(batch.costs))
        goals = rewards + torch.tensor(batch.discounts) * (values - 0.1 * log_probs)
    values = in_torch(sac._critics, block, torch.cat([states, actions], 1))[..., 0]
    ((values - goals) ** 2).mean(1).sum().backward()
    np.testing.assert_allclose(sac._critic_gradient.block, block.grad, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("seed", range(3))
def test_the_policys_gradient_is_that_of_the_smaller_value_with_the_entropy(seed):
    sac, rng = learner(seed), np.random.default_rng(seed)
    sac.networks.block += rng.normal(size=sac.networks.block.shape).astype("f") * 0.2
    states = rng.standard_normal((6, 4), dtype=np.float32)
    draws = np.random.default_rng(7).standard_normal((6, 2), dtype=np.float32)
    block = torch.tensor(sac.networks.block.copy(), requires_grad=True)
    loss, entropy = sac._improve(states, np.random.default_rng(7))
    actions, log_probs = torch_draw(sac, block, torch.tensor(states), torch.tensor(draws))
    inputs = torch.cat([torch.tensor(states), actions], 1)
    values = in_torch(sac._critics, torch.tensor(sac.state()["critics"]), inputs)[..., 0].min(0).values
    expected = (0.1 * log_probs - values).mean()
    expected.backward()
    np.testing.assert_allclose(sac._policy_gradient.block, block.grad, rtol=1e-3, atol=2e-5)
    assert loss == pytest.approx(float(expected.detach()), abs=1e-4)
    assert entropy == pytest.approx(-float(log_probs.detach().mean()), abs=1e-4)


def test_the_temperature_rises_while_the_entropy_is_below_its_target_and_falls_above_it():
    for target, sign in ((5.0, 1.0), (-20.0, -1.0)):
        sac = learner(target_entropy=target)
        before = sac.state()["temperature"].item()
        sac._improve(np.zeros((4, 4), np.float32), np.random.default_rng(0))
        assert sign * (sac.state()["temperature"].item() - before) > 0.0


def test_targets_follow_the_critics_at_their_rate():
    sac, rng = learner(target_rate=0.25), np.random.default_rng(0)
    sac._critics.block += 1.0
    before, batch = sac.state(), minibatch(rng)
    sac._fit_critics(batch, batch.observations, batch.following, 0.0, rng)
    np.testing.assert_allclose(
        sac.state()["targets"], 0.75 * before["targets"] + 0.25 * sac.state()["critics"], rtol=1e-6, atol=1e-6
    )


def test_a_workers_policy_is_the_learners():
    sac, rng = learner(), np.random.default_rng(3)
    sac.networks.block += rng.normal(size=sac.networks.block.shape).astype("f") * 0.3
    states = rng.standard_normal((5, 4), dtype=np.float32)
    drawn = sac._drawn(states, np.random.default_rng(1))
    policy = sac.policy()
    for row in range(5):
        np.testing.assert_allclose(policy.act(states[row], drawn.noise[row]), drawn.actions[row], rtol=1e-4, atol=1e-6)
        quiet = np.tanh(drawn.done.outputs[-1][0, row, :2])
        np.testing.assert_allclose(policy.mean(states[row]), quiet, rtol=1e-4, atol=1e-6)
    again = policy_of(sac.shape, sac.state()["networks"])
    np.testing.assert_array_equal(again.mean(states[0]), policy.mean(states[0]))
    assert len(policy.log_probs(drawn.noise)) == 5


def test_a_new_policy_has_the_mean_and_the_deviation_that_were_asked_for():
    config = LearnerConfig(
        algorithm="sac", hidden=(8,), initial_std=(0.2, 0.3), initial_mean=(0.0, 0.5), output_gain=1e-6
    )
    policy = SAC(3, 2, config, np.random.default_rng(0)).policy()
    np.testing.assert_allclose(policy.mean(np.ones(3, np.float32)), np.tanh([0.0, 0.5]), atol=1e-4)
    shift = np.arctanh(policy.act(np.ones(3, np.float32), np.ones(2, np.float32))) - [0.0, 0.5]
    np.testing.assert_allclose(shift, [0.2, 0.3], rtol=1e-3)


def bandit(cost_weight: float, multiplier: float, updates: int = 2500) -> float:
    """The mean action after learning from random ones, where an action a earns -(a - 0.5)^2 and costs a above 0."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(-0.95, 0.95, (2000, 1)).astype(np.float32)
    rewards, costs = -10.0 * (actions[:, 0] - 0.5).astype(np.float64) ** 2, cost_weight * np.maximum(actions[:, 0], 0.0)
    n = len(actions)
    kept = Recollection(1, 1, gamma=0.9, steps=1)
    kept.add(
        Rollout(np.zeros((n, 1), np.float32), actions, np.zeros(n, np.float32), rewards, costs.astype(np.float64),
                np.arange(1, n + 1), np.zeros((n, 1), np.float32), np.ones(n, np.bool_))
    )  # fmt: skip
    config = LearnerConfig(
        algorithm="sac", hidden=(32, 32), batch_size=64, actor_lr=3e-3, critic_lr=3e-3, initial_std=0.4,
        sac=SacConfig(reward_scale=1.0, target_entropy=-2.0, policy_delay=1),
    )  # fmt: skip
    sac = SAC(1, 1, config, np.random.default_rng(1))
    losses = sac.update(kept, np.asarray, multiplier, updates, rng)
    assert math.isfinite(losses.policy_loss)
    return float(sac.policy().mean(np.zeros(1, np.float32))[0])


def test_it_learns_the_best_action_from_the_actions_of_others():
    assert bandit(0.0, 0.0) == pytest.approx(0.5, abs=0.1)


def test_a_multiplier_makes_it_avoid_the_cost():
    # -10 (a - 0.5)^2 - 20 a has its maximum over a > 0 at 0, where the cost begins.
    assert bandit(1.0, 20.0) == pytest.approx(0.0, abs=0.12)


def test_it_continues_exactly_from_its_state():
    rng = np.random.default_rng(0)
    kept = Recollection(4, 2, 0.9, 2)
    n = 50
    kept.add(
        Rollout(rng.standard_normal((n, 4), dtype=np.float32), np.tanh(rng.standard_normal((n, 2), dtype=np.float32)),
                np.zeros(n, np.float32), rng.normal(size=n), np.zeros(n), np.array([20, n]),
                rng.standard_normal((2, 4), dtype=np.float32), np.array([True, False]))
    )  # fmt: skip
    config = LearnerConfig(algorithm="sac", hidden=(8, 8), batch_size=16)
    one, other = (SAC(4, 2, config, np.random.default_rng(seed)) for seed in (0, 1))
    one.update(kept, np.asarray, 0.5, 7, np.random.default_rng(2))  # odd: the policy is due at the next update
    other.load_state(one.state())
    for sac in (one, other):
        sac.update(kept, np.asarray, 0.5, 7, np.random.default_rng(3))
    for name, array in one.state().items():
        np.testing.assert_array_equal(array, other.state()[name], err_msg=name)


def test_the_entropy_falls_in_a_straight_line_over_its_share_of_the_run():
    sac = learner(target_entropy=-1.0, final_entropy=-3.0, entropy_share=0.5)
    found = []
    for epoch in (0, 5, 10, 19):
        sac.set_learning_rates(epoch, 20)
        found.append(sac._entropy)
    assert found == pytest.approx([-2.0, -4.0, -6.0, -6.0])
