"""Second-order tools against autograd: Hessian products of the divergence, gradients, and linear systems."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmsafe.learners.networks import Shape, Stack
from vlmsafe.learners.trust_region import PolicySurface, conjugate_gradients

quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**32 - 1)
averages = st.booleans()


class Setting:
    """A small random policy and batch, and the same policy as a torch function of its flat parameters."""

    def __init__(self, seed: int, average: bool, away: float = 0.1) -> None:
        rng = np.random.default_rng(seed)
        hidden = tuple(int(size) for size in rng.integers(1, 6, size=rng.integers(1, 4)))
        self.shape = Shape(int(rng.integers(1, 5)), hidden, int(rng.integers(1, 4)), critics=2)
        self.average = average
        count = int(rng.integers(2, 12))
        self.parameters = rng.normal(scale=0.5, size=self.shape.parameters)
        self.observations = rng.normal(size=(count, self.shape.observation))
        self.actions = rng.normal(size=(count, self.shape.action))
        self.advantages, self.costs = rng.normal(size=count), rng.normal(size=count)
        self.vector = rng.normal(size=self.shape.parameters)
        self.log_probs = self.log_prob(torch.tensor(self.parameters)).numpy() + away * rng.normal(size=count)
        self.surface = PolicySurface(
            self.parameters, self.shape, self.observations, self.actions, self.log_probs, average_over_actions=average
        )

    def distribution(self, flat: torch.Tensor) -> torch.distributions.Normal:
        hidden, offset = torch.tensor(self.observations), 0
        for depth, (out, inner) in enumerate(self.shape.layers):
            weight = flat[offset : offset + out * inner].reshape(out, inner)
            bias = flat[offset + out * inner : offset + out * (inner + 1)]
            hidden = hidden @ weight.T + bias
            if depth < len(self.shape.layers) - 1:
                hidden = torch.tanh(hidden)
            offset += out * (inner + 1)
        return torch.distributions.Normal(hidden, flat[offset:].exp())

    def log_prob(self, flat: torch.Tensor) -> torch.Tensor:
        return self.distribution(flat).log_prob(torch.tensor(self.actions)).sum(dim=1)

    def divergence(self, flat: torch.Tensor) -> torch.Tensor:
        """KL(old || new), mean over states; over actions its mean or its sum."""
        old = self.distribution(torch.tensor(self.parameters))
        table = torch.distributions.kl_divergence(old, self.distribution(flat))
        return table.mean() if self.average else table.sum(dim=1).mean()

    def surrogate(self, flat: torch.Tensor, advantages: np.ndarray) -> torch.Tensor:
        return ((self.log_prob(flat) - torch.tensor(self.log_probs)).exp() * torch.tensor(advantages)).mean()


@quick
@given(seeds, averages, st.floats(0, 1))
def test_fisher_product_is_double_backpropagation_of_the_divergence(seed, average, damping):
    setting = Setting(seed, average)
    flat = torch.tensor(setting.parameters, requires_grad=True)
    (slope,) = torch.autograd.grad(setting.divergence(flat), flat, create_graph=True)
    (expected,) = torch.autograd.grad(slope @ torch.tensor(setting.vector), flat)
    ours = setting.surface.fisher_product(setting.vector, damping)
    np.testing.assert_allclose(ours, expected.numpy() + damping * setting.vector, rtol=1e-9, atol=1e-10)


@quick
@given(seeds)
def test_fisher_matrix_is_symmetric_and_has_no_negative_direction(seed):
    surface = Setting(seed, average=False).surface
    matrix = np.stack([surface.fisher_product(unit, 0.0) for unit in np.eye(len(surface.start))])
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-10)
    assert np.linalg.eigvalsh(matrix).min() > -1e-10


@quick
@given(seeds)
def test_summed_divergence_is_the_averaged_one_times_the_number_of_actions(seed):
    averaged, summed = Setting(seed, average=True), Setting(seed, average=False)
    step, actions = 0.1 * averaged.vector, averaged.shape.action
    np.testing.assert_allclose(
        summed.surface.fisher_product(step, 0.0), actions * averaged.surface.fisher_product(step, 0.0), rtol=1e-10
    )
    points = [each.surface.at(step, each.advantages, each.costs) for each in (averaged, summed)]
    assert points[1].kl == pytest.approx(actions * points[0].kl, rel=1e-10)


@quick
@given(seeds, averages)
def test_gradient_is_autograds_where_ratios_are_not_one(seed, average):
    setting = Setting(seed, average)
    flat = torch.tensor(setting.parameters, requires_grad=True)
    (expected,) = torch.autograd.grad(setting.surrogate(flat, setting.advantages), flat)
    np.testing.assert_allclose(setting.surface.gradient(setting.advantages), expected.numpy(), rtol=1e-9, atol=1e-10)


@quick
@given(seeds)
def test_asking_twice_gives_the_same_answer(seed):
    setting = Setting(seed, average=True)
    first = setting.surface.gradient(setting.advantages), setting.surface.fisher_product(setting.vector, 0.1)
    setting.surface.at(setting.vector, setting.advantages, setting.costs)
    second = setting.surface.gradient(setting.advantages), setting.surface.fisher_product(setting.vector, 0.1)
    for once, again in zip(first, second, strict=True):
        np.testing.assert_array_equal(once, again)


@quick
@given(seeds)
def test_means_move_along_a_step_as_finite_differences_do(seed):
    setting = Setting(seed, average=True)

    def means(size: float) -> np.ndarray:
        stack = Stack(
            Shape(setting.shape.observation, setting.shape.hidden, setting.shape.action, critics=0),
            (setting.parameters + size * setting.vector)[None],
        )
        return stack.forward(setting.observations)[-1][0]

    size = 1e-5
    expected = (means(size) - means(-size)) / (2 * size)
    np.testing.assert_allclose(setting.surface._push_forward(setting.vector), expected, rtol=1e-5, atol=1e-6)


@quick
@given(seeds, averages)
def test_a_point_holds_the_surrogates_and_the_divergence_of_the_moved_policy(seed, average):
    setting = Setting(seed, average)
    step = 0.2 * setting.vector
    point = setting.surface.at(step, setting.advantages, setting.costs)
    moved = torch.tensor(setting.parameters + step)
    assert point.reward == pytest.approx(setting.surrogate(moved, setting.advantages).item(), rel=1e-9, abs=1e-12)
    assert point.cost == pytest.approx(setting.surrogate(moved, setting.costs).item(), rel=1e-9, abs=1e-12)
    assert point.kl == pytest.approx(setting.divergence(moved).item(), rel=1e-9, abs=1e-12)


@quick
@given(seeds, averages)
def test_without_a_step_there_is_no_divergence_and_surrogates_are_mean_advantages(seed, average):
    setting = Setting(seed, average, away=0.0)
    point = setting.surface.at(np.zeros_like(setting.parameters), setting.advantages, setting.costs)
    assert point.kl == 0.0
    assert point.reward == pytest.approx(setting.advantages.mean(), abs=1e-12)
    assert point.cost == pytest.approx(setting.costs.mean(), abs=1e-12)


@quick
@given(seeds, st.integers(1, 12))
def test_conjugate_gradients_solve_well_conditioned_systems(seed, size):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, size))
    matrix, target = root @ root.T / size + np.eye(size), rng.normal(size=size)
    solution = conjugate_gradients(lambda vector: matrix @ vector, target, 3 * size)
    # The denominators carry the engine's 1e-6, so the residual stops short of zero.
    np.testing.assert_allclose(solution, np.linalg.solve(matrix, target), rtol=0, atol=3e-4)


def test_conjugate_gradients_of_nothing_are_nothing():
    assert not conjugate_gradients(lambda vector: 2.0 * vector, np.zeros(4), 10).any()
