"""The stacked networks compute what autograd computes, on memory that everybody shares."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmsafe.config.learning import LearnerConfig
from vlmsafe.learners.advantages import Batch
from vlmsafe.learners.networks import POLICY, Shape, Stack
from vlmsafe.learners.ppo import PPO, PPOLagrangian

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32 - 1)
shapes = st.builds(
    Shape,
    observation=st.integers(1, 5),
    hidden=st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple),
    action=st.integers(1, 3),
    critics=st.integers(1, 2),
)


def make(shape: Shape, seed: int, dtype: type = np.float32) -> Stack:
    stack = Stack(shape, np.zeros((shape.networks, shape.parameters), dtype))
    stack.initialise(np.random.default_rng(seed))
    return stack


def torch_forward(weights: list[torch.Tensor], biases: list[torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    for depth, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        inputs = inputs @ weight.mT + bias
        if depth < len(weights) - 1:
            inputs = torch.tanh(inputs)
    return inputs


@quick
@given(shapes, seeds, st.integers(1, 7))
def test_forward_and_backward_equal_autograd(shape, seed, count):
    stack, gradient = make(shape, seed, np.float64), make(shape, seed + 1, np.float64)
    rng = np.random.default_rng(seed + 2)
    observations = rng.normal(size=(count, shape.observation))
    d_output = rng.normal(size=(shape.networks, count, shape.action))
    weights = [torch.tensor(w, requires_grad=True) for w in stack.weights]
    biases = [torch.tensor(b, requires_grad=True) for b in stack.biases]
    expected = torch_forward(weights, biases, torch.tensor(observations))
    expected.backward(torch.tensor(d_output))
    activations = stack.forward(observations)
    np.testing.assert_allclose(activations[-1], expected.detach(), rtol=1e-10, atol=1e-12)
    before = stack.block.copy()
    stack.backward(observations, activations, d_output.copy(), gradient)
    for ours, theirs in zip(gradient.weights + gradient.biases, weights + biases, strict=True):
        np.testing.assert_allclose(ours, theirs.grad, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(stack.block, before, "the backward pass changes no parameter")


@quick
@given(shapes, seeds)
def test_backward_leaves_the_observations_and_the_output_gradient_alone(shape, seed):
    """The minibatch rows and the loss gradient belong to the caller; only hidden activations may be overwritten."""
    stack, gradient = make(shape, seed), Stack(shape)
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(4, shape.observation)).astype(np.float32)
    d_output = rng.normal(size=(shape.networks, 4, shape.action)).astype(np.float32)
    kept, kept_gradient = observations.copy(), d_output.copy()
    stack.backward(observations, stack.forward(observations), d_output, gradient)
    np.testing.assert_array_equal(observations, kept)
    np.testing.assert_array_equal(d_output, kept_gradient)


@quick
@given(shapes, seeds)
def test_chosen_rows_give_what_the_whole_stack_gives(shape, seed):
    stack = make(shape, seed)
    observations = np.random.default_rng(seed).normal(size=(5, shape.observation)).astype(np.float32)
    whole = stack.forward(observations)[-1]
    policy = stack.forward(observations, slice(POLICY, POLICY + 1))[-1]
    critics = stack.forward(observations, slice(POLICY + 1, None))[-1]
    np.testing.assert_allclose(np.concatenate([policy, critics]), whole, rtol=1e-6, atol=1e-7)


@quick
@given(shapes, seeds)
def test_the_workers_policy_computes_row_zero(shape, seed):
    stack = make(shape, seed)
    stack.log_std[:] = np.linspace(-1.0, 1.0, shape.action)
    policy = stack.policy()
    observations = np.random.default_rng(seed).normal(size=(5, shape.observation)).astype(np.float32)
    means = np.stack([policy.mean(observation) for observation in observations])
    np.testing.assert_allclose(means, stack.forward(observations)[-1][POLICY], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(policy.log_std, stack.log_std)
    assert means.dtype == np.float32


@quick
@given(shapes, seeds)
def test_the_workers_policy_is_a_copy(shape, seed):
    stack = make(shape, seed)
    policy = stack.policy()
    observation = np.ones(shape.observation, np.float32)
    before = policy.mean(observation)
    stack.block[:] = 7.0
    np.testing.assert_array_equal(policy.mean(observation), before)
    np.testing.assert_array_equal(policy.log_std, 0.0)


@quick
@given(shapes)
def test_block_and_views_share_memory_without_overlap(shape):
    """Writing a distinct number through every view fills the whole block, each number once."""
    stack = Stack(shape)
    following = 1.0
    for view in [*stack.weights, *stack.biases]:
        assert np.shares_memory(view, stack.block)
        view[:] = np.arange(following, following + view.size).reshape(view.shape)
        following += view.size
    stack.log_std[:] = np.arange(following, following + shape.action)
    written = following - 1 + shape.action
    assert np.array_equal(np.sort(stack.block[stack.block != 0]), np.arange(1, written + 1))
    unwritten = shape.critics * shape.action  # a critic has no deviation; its columns there stay empty
    assert stack.block.size == written + unwritten


@quick
@given(shapes, seeds)
def test_named_parameters_are_views_of_everything_but_the_surplus(shape, seed):
    stack = Stack(shape)
    names = [name for name, _ in stack.named()]
    assert len(names) == len(set(names)) == 2 * len(shape.layers) * shape.networks + 1
    for _, view in stack.named():
        assert np.shares_memory(view, stack.block)
        assert not view.any(), "no number is under two names"
        view[:] = 1.0
    surplus = shape.critics * ((shape.action - 1) * (shape.hidden[-1] + 1) + shape.action)
    assert stack.block.sum() == stack.block.size - surplus


def test_names_are_readable_and_shapes_those_of_separate_networks():
    stack = make(Shape(observation=4, hidden=(8, 6), action=3, critics=2), 0)
    shapes = {name: view.shape for name, view in stack.named()}
    assert shapes["policy.0.weight"] == (8, 4)
    assert shapes["policy.2.bias"] == (3,)
    assert shapes["policy.log_std"] == (3,)
    assert shapes["reward_critic.2.weight"] == shapes["cost_critic.2.weight"] == (1, 6)
    assert "cost_critic.log_std" not in shapes
    assert not any(name.startswith("cost") for name, _ in Stack(Shape(4, (8,), 3, 1)).named())


@quick
@given(shapes, seeds)
def test_initial_values_lie_within_their_bounds_and_fill_them(shape, seed):
    stack = make(shape, seed)
    for (name, view), inner in zip(
        ((n, v) for n, v in stack.named() if "log_std" not in n),
        [inner for _ in range(shape.networks) for _, inner in shape.layers for _ in range(2)],
        strict=True,
    ):
        assert np.abs(view).max() <= np.float32(1.0 / np.sqrt(inner)), name
        assert view.all(), name
    np.testing.assert_array_equal(stack.log_std, 0.0)


def test_initial_values_are_uniform_and_follow_the_seed():
    shape = Shape(observation=16, hidden=(64, 64), action=2, critics=2)
    first, again, other = make(shape, 3), make(shape, 3), make(shape, 4)
    np.testing.assert_array_equal(first.block, again.block)
    assert not np.array_equal(first.block, other.block)
    for weight, (_, inner) in zip(first.weights[:2], shape.layers[:2], strict=True):
        assert weight.std() == pytest.approx(1.0 / np.sqrt(3 * inner), rel=0.05)
        assert abs(weight.mean()) < 0.05 / np.sqrt(inner)
        assert not np.array_equal(weight[0], weight[1]), "networks start apart"


@pytest.mark.parametrize("critics", [1, 2])
@pytest.mark.parametrize("max_grad_norm", [40.0, 1e-3])
def test_the_surplus_outputs_of_critics_stay_exactly_zero(critics, max_grad_norm):
    shape = Shape(observation=3, hidden=(5, 4), action=3, critics=critics)
    config = LearnerConfig(
        hidden=shape.hidden, update_iters=4, batch_size=16, kl_early_stop=False, max_grad_norm=max_grad_norm
    )
    learner = (PPOLagrangian if critics == 2 else PPO)(3, 3, config, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    n = 50
    batch = Batch(
        observations=rng.normal(size=(n, 3)).astype(np.float32),
        actions=rng.normal(size=(n, 3)).astype(np.float32),
        log_probs=np.full(n, -4.0, np.float32),
        reward_advantages=rng.normal(size=n).astype(np.float32),
        cost_advantages=rng.normal(size=n).astype(np.float32),
        targets=rng.normal(size=(critics, n)).astype(np.float32),
    )
    before = learner.networks.block.copy()
    for _ in range(3):
        learner.update(batch, 0.5, 0.0, rng)
    networks = learner.networks
    assert (networks.block != before).any(axis=1).all(), "every network has learnt"
    assert not networks.weights[-1][1:, 1:].any()
    assert not networks.biases[-1][1:, :, 1:].any()
    assert not networks.block[1:, -shape.action :].any()
    assert not networks.forward(batch.observations)[-1][1:, :, 1:].any()


def test_a_policy_begins_with_the_deviation_asked_for_and_weights_that_do_not_depend_on_it() -> None:
    wide, narrow = Stack(Shape(3, (4,), 2, critics=1)), Stack(Shape(3, (4,), 2, critics=1))
    wide.initialise(np.random.default_rng(0))
    narrow.initialise(np.random.default_rng(0), std=0.3)
    np.testing.assert_allclose(np.exp(wide.log_std), 1.0)
    np.testing.assert_allclose(np.exp(narrow.log_std), 0.3, rtol=1e-6)
    np.testing.assert_array_equal(wide.weights[0], narrow.weights[0])
