"""Each option of a learner does what its help text says."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlmsafe.config.learning import LearnerConfig
from vlmsafe.config.methods import METHODS
from vlmsafe.learners.advantages import Batch
from vlmsafe.learners.learner import clipped_errors
from vlmsafe.learners.networks import POLICY, Shape, Stack
from vlmsafe.learners.registry import LEARNERS

numbers = st.floats(-50.0, 50.0, width=32)


def learner_of(algorithm="ppo-lag", **options):
    config = LearnerConfig(algorithm=algorithm, hidden=(8,), update_iters=2, batch_size=32, **options)
    return LEARNERS[algorithm](4, 2, config, np.random.default_rng(0))


def batch_of(learner, count=90, seed=1, value_scale=1.0):
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(count, 4)).astype(np.float32)
    policy, noise = learner.policy(), rng.normal(size=(count, 2)).astype(np.float32)
    actions = np.stack([policy.act(o, n) for o, n in zip(observations, noise, strict=True)])
    advantages = rng.normal(size=(2, count)).astype(np.float32)
    values = learner.values(observations)
    targets = values + value_scale * rng.normal(size=values.shape).astype(np.float32)
    return Batch(observations, actions, policy.log_probs(noise), *advantages, targets=targets, values=values)


def stacks(**options):
    plain, changed = (Stack(Shape(3, (5,), 2, critics=1)) for _ in range(2))
    plain.initialise(np.random.default_rng(0))
    changed.initialise(np.random.default_rng(0), **options)
    return plain, changed


def outputs(stack):
    observations = np.random.default_rng(2).normal(size=(6, 3)).astype(np.float32)
    return stack.forward(observations)[-1]


@pytest.mark.parametrize("mean", [0.25, (0.25, -0.5)])
def test_the_initial_mean_is_added_to_the_policys_actions_alone(mean):
    plain, changed = stacks(mean=mean)
    np.testing.assert_allclose(outputs(changed)[POLICY], outputs(plain)[POLICY] + np.array(mean), atol=1e-6)
    np.testing.assert_array_equal(outputs(changed)[1:], outputs(plain)[1:])


def test_the_gain_scales_the_policys_output_alone():
    plain, changed = stacks(gain=0.01)
    np.testing.assert_allclose(outputs(changed)[POLICY], 0.01 * outputs(plain)[POLICY], atol=1e-6)
    np.testing.assert_array_equal(outputs(changed)[1:], outputs(plain)[1:])


def test_each_action_may_have_its_own_initial_deviation():
    _, changed = stacks(std=(0.2, 0.7))
    np.testing.assert_allclose(np.exp(changed.log_std), [0.2, 0.7], rtol=1e-6)


@pytest.mark.parametrize("algorithm", ["ppo-lag", "cup", "cpo"])
def test_no_deviation_falls_below_its_floor(algorithm):
    learner, free = (
        learner_of(algorithm, initial_std=0.5, actor_lr=0.05, target_kl=10.0, std_floor=floor) for floor in (0.499, 0.0)
    )
    for one in (learner, free):
        batch = batch_of(one)
        # Actions near their mean are the good ones, so the deviation falls.
        size = ((batch.actions - one.policy_mean(batch.observations)) ** 2).sum(axis=1)
        good = (size.mean() - size).astype(np.float32)
        one.update(dataclasses.replace(batch, reward_advantages=good), 0.0, -1.0, np.random.default_rng(0))
    assert np.exp(free.networks.log_std).min() < 0.499 - 1e-4
    assert np.exp(learner.networks.log_std).min() >= 0.499 - 1e-6


@pytest.mark.parametrize("algorithm", ["ppo-lag", "cup", "cpo"])
def test_a_deviation_that_follows_a_schedule_is_not_learned(algorithm):
    learner = learner_of(algorithm, initial_std=0.5, final_std=0.1, actor_lr=0.05)
    before = learner.networks.block.copy()
    learner.update(batch_of(learner), 0.0, -1.0, np.random.default_rng(0))
    np.testing.assert_array_equal(learner.networks.log_std, before[POLICY, -2:])
    assert (learner.networks.block[POLICY] != before[POLICY]).any(), "the mean is"


def test_a_deviation_that_is_set_or_taken_over_is_raised_to_the_floor():
    learner = learner_of(std_floor=0.3)
    learner.set_std((0.1, 0.6))
    np.testing.assert_allclose(np.exp(learner.networks.log_std), [0.3, 0.6], rtol=1e-6)
    learner.take_over(learner_of(initial_std=0.1).networks.block)
    np.testing.assert_allclose(np.exp(learner.networks.log_std), 0.3, rtol=1e-6)


@pytest.mark.parametrize("algorithm", ["ppo", "ppo-lag", "cpo"])
def test_fitting_the_critics_moves_them_and_leaves_the_policy(algorithm):
    learner = learner_of(algorithm)
    before, batch = learner.networks.block.copy(), batch_of(learner)
    losses = learner.fit_critics(batch, np.random.default_rng(0))
    np.testing.assert_array_equal(learner.networks.block[POLICY], before[POLICY])
    assert (learner.networks.block[POLICY + 1 :] != before[POLICY + 1 :]).any(axis=1).all()
    assert losses.kl == 0.0
    assert losses.passes == 2


@pytest.mark.parametrize(("decay", "critics_too"), [(True, False), (True, True), (False, True), (False, False)])
def test_each_rate_falls_only_where_it_is_asked_to(decay, critics_too):
    learner = learner_of(lr_decay=decay, critic_lr_decay=critics_too, lr_schedule="cosine", lr_floor=0.1)
    learner.set_learning_rates(5, 10)  # half-way the cosine is at 0.5, which is 0.55 above a floor of 0.1
    actor, *critics = learner._learning_rates
    assert actor == pytest.approx(3e-4 * (0.55 if decay else 1.0))
    assert critics == pytest.approx([3e-4 * (0.55 if critics_too else 1.0)] * 2)


# --- value clipping


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=20), st.floats(0.01, 20.0))
def test_clipped_values_have_the_errors_and_gradients_of_the_textbook(samples, clip):
    """PPO's max((V - T)^2, (clip(V, V_old +- eps) - T)^2), differentiated by autograd."""
    value, old, target = (torch.tensor(column, dtype=torch.float64) for column in zip(*samples, strict=True))
    value.requires_grad_(True)
    clipped = old + (value - old).clamp(-clip, clip)
    losses = torch.maximum((value - target) ** 2, (clipped - target) ** 2)
    losses.sum().backward()
    error, slope = clipped_errors((value - target).detach().numpy(), (value - old).detach().numpy(), clip)
    np.testing.assert_allclose(error**2, losses.detach(), rtol=1e-4, atol=1e-4)
    apart = np.abs(((value - target) ** 2 - (clipped - target) ** 2).detach().numpy()) > 1e-3  # no tie
    np.testing.assert_allclose(2 * slope[apart], value.grad.numpy()[apart], rtol=1e-4, atol=1e-4)


def test_a_wide_value_clip_changes_nothing_and_a_narrow_one_holds_the_critics():
    free, wide, narrow = (learner_of(value_clip=clip, critic_lr=0.02, critic_penalty=0.0) for clip in (None, 1e6, 1e-3))
    moved = []
    for learner in (free, wide, narrow):
        batch = batch_of(learner, value_scale=5.0)
        learner.update(batch, 0.0, 0.0, np.random.default_rng(0))
        moved.append(np.abs(learner.values(batch.observations) - batch.values).mean())
    np.testing.assert_array_equal(free.networks.block, wide.networks.block)
    assert moved[2] < 0.8 * moved[0]


@pytest.mark.parametrize("name", METHODS)
def test_published_methods_leave_every_option_at_its_default(name):
    """The paper's engine has none of them."""
    options = (
        "initial_std", "initial_mean", "output_gain", "std_floor", "final_std", "lr_schedule", "lr_floor",
        "critic_lr_decay", "critic_warmup_epochs", "value_clip", "scale_rewards",
    )  # fmt: skip
    assert all(getattr(METHODS[name].learner, option) == getattr(LearnerConfig(), option) for option in options)
    assert METHODS[name].multiplier.warmup_epochs == 0
