"""Every policy loss and its hand-written derivatives are what autograd makes of the formula."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmsafe.learners.cup import projection_slope
from vlmsafe.learners.focops import focops_slope
from vlmsafe.learners.learner import Samples, Slope
from vlmsafe.learners.p3o import cost_penalty
from vlmsafe.learners.policy import kl_per_action, mean_kl, reverse_kl

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from([np.float32, np.float64])

ETA, TEMPERATURE = 0.05, 1.5


class Case:
    """Random samples whose divergences lie on both sides of eta; the same numbers as torch leaves in float64."""

    def __init__(self, seed: int, dtype: Any) -> None:
        rng = np.random.default_rng(seed)
        count, actions = int(rng.integers(1, 9)), int(rng.integers(1, 4))

        def normal(*size: int, scale: float = 1.0) -> np.ndarray:
            return (scale * rng.normal(size=size)).astype(dtype)

        self.tolerance = 2e-5 if dtype == np.float32 else 2e-7  # coefficients are float32 in both
        self.old_mean, self.old_log_std = normal(count, actions), normal(actions, scale=0.3)
        self.mean = self.old_mean + normal(count, actions, scale=0.2)
        self.log_std = self.old_log_std + normal(actions, scale=0.05)
        self.log_ratios, self.advantages = normal(count, scale=0.4), normal(count, scale=2.0)
        self.samples = Samples(np.arange(count), np.exp(self.log_ratios), self.mean, self.log_std)
        self.leaves = [
            torch.tensor(array, dtype=torch.float64, requires_grad=True)
            for array in (self.log_ratios, self.mean, self.log_std)
        ]
        self.t_advantages = torch.tensor(self.advantages, dtype=torch.float64)
        self.old = torch.distributions.Normal(
            torch.tensor(self.old_mean, dtype=torch.float64),
            torch.tensor(self.old_log_std, dtype=torch.float64).exp(),
        )

    def new(self) -> torch.distributions.Normal:
        _, mean, log_std = self.leaves
        return torch.distributions.Normal(mean, log_std.exp())

    def divergence(self) -> torch.Tensor:
        return torch.distributions.kl_divergence(self.new(), self.old).sum(dim=1)

    def ratios(self) -> torch.Tensor:
        return self.leaves[0].exp()

    def check(self, slope: Slope, expected: torch.Tensor) -> None:
        assert slope.loss == pytest.approx(expected.item(), rel=self.tolerance, abs=self.tolerance)
        gradients = torch.autograd.grad(expected, self.leaves, allow_unused=True)
        for ours, reference in zip((slope.log_probs, slope.mean, slope.log_std), gradients, strict=True):
            if ours is None or reference is None:
                assert ours is None
                assert reference is None
                continue
            assert ours.shape == tuple(reference.shape)
            np.testing.assert_allclose(ours, reference.numpy(), rtol=self.tolerance, atol=self.tolerance)


@quick
@given(seeds, dtypes)
def test_kl_per_action_is_torchs_divergence_of_old_from_new(seed, dtype):
    case = Case(seed, dtype)
    ours = kl_per_action(case.old_mean, case.old_log_std, case.mean, case.log_std)
    expected = torch.distributions.kl_divergence(case.old, case.new()).detach().numpy()
    np.testing.assert_allclose(ours, expected, rtol=0, atol=case.tolerance)
    averaged = mean_kl(case.old_mean, case.old_log_std, case.mean, case.log_std)
    assert averaged == pytest.approx(expected.sum(axis=1).mean(), abs=case.tolerance)


@quick
@given(seeds, dtypes)
def test_divergence_of_a_policy_from_itself_is_zero(seed, dtype):
    case = Case(seed, dtype)
    assert not kl_per_action(case.mean, case.log_std, case.mean, case.log_std).any()
    divergence, d_mean, d_log_std = reverse_kl(case.mean, case.log_std, case.mean, case.log_std)
    assert not divergence.any()
    assert not d_mean.any()
    assert not d_log_std.any()


@quick
@given(seeds, dtypes)
def test_reverse_kl_and_its_derivatives_are_autograds(seed, dtype):
    case = Case(seed, dtype)
    divergence, d_mean, d_log_std = reverse_kl(case.mean, case.log_std, case.old_mean, case.old_log_std)
    expected = case.divergence()
    np.testing.assert_allclose(divergence, expected.detach().numpy(), rtol=0, atol=case.tolerance)
    _, mean, log_std = case.leaves
    for row in range(len(divergence)):
        by_mean, by_log_std = torch.autograd.grad(expected[row], (mean, log_std), retain_graph=True)
        np.testing.assert_allclose(d_mean[row], by_mean[row].numpy(), rtol=case.tolerance, atol=case.tolerance)
        np.testing.assert_allclose(d_log_std, by_log_std.numpy(), rtol=case.tolerance, atol=case.tolerance)


def selecting(case: Case) -> torch.Tensor:
    """As published: the mask picks samples."""
    divergence = case.divergence()
    inside = (divergence.detach() <= ETA).double()
    return ((divergence - case.ratios() * case.t_advantages / TEMPERATURE) * inside).mean()


def broadcasting(case: Case) -> torch.Tensor:
    """The engine's line with the engine's shapes: [n, 1] against [n] is [n, n]."""
    kl = torch.distributions.kl_divergence(case.new(), case.old).sum(-1, keepdim=True)
    inside = (kl.detach() <= ETA).type(torch.float64)
    table = (kl - (1 / TEMPERATURE) * case.ratios() * case.t_advantages) * inside
    assert table.shape == (len(kl), len(kl))
    return table.mean()


@pytest.mark.parametrize(("select", "formula"), [(True, selecting), (False, broadcasting)])
@quick
@given(seed=seeds, dtype=dtypes)
def test_focops_slope_is_autograds(seed, dtype, select: bool, formula: Callable[[Case], torch.Tensor]):
    case = Case(seed, dtype)
    divergence = case.divergence().detach().numpy()
    if np.abs(divergence - ETA).min() < 1e-5:
        return  # rounding may put this sample on either side
    slope = focops_slope(
        case.samples, case.advantages, case.old_mean, case.old_log_std, ETA, TEMPERATURE, select=select
    )
    case.check(slope, formula(case))


@pytest.mark.parametrize("select", [True, False])
def test_focops_has_no_slope_where_every_sample_left_the_trust_region(select: bool):
    case = Case(0, np.float32)
    slope = focops_slope(
        case.samples, case.advantages, case.old_mean + 9, case.old_log_std, ETA, TEMPERATURE, select=select
    )
    assert slope.loss == 0.0
    assert not slope.log_probs.any()
    assert slope.mean is not None
    assert not slope.mean.any()
    assert slope.log_std is not None
    assert not slope.log_std.any()


@quick
@given(seeds, dtypes, st.floats(0, 12))
def test_projection_slope_is_autograds(seed, dtype, price):
    case = Case(seed, dtype)
    slope = projection_slope(case.samples, case.advantages, case.old_mean, case.old_log_std, price)
    table = price * case.ratios() * case.t_advantages + case.divergence()[:, None]  # as the engine adds them
    case.check(slope, table.mean())


@pytest.mark.parametrize("clip", [None, 0.2])
@quick
@given(seed=seeds, dtype=dtypes, excess=st.floats(-2, 2), weight=st.floats(0.1, 30))
def test_cost_penalty_is_autograds(seed, dtype, clip, excess, weight):
    case = Case(seed, dtype)
    surrogate = case.ratios() * case.t_advantages
    if clip is not None:
        surrogate = torch.maximum(surrogate, case.ratios().clamp(1 - clip, 1 + clip) * case.t_advantages)
    inner = surrogate.mean() + excess
    if abs(inner.item()) < 1e-4 or np.abs(np.abs(case.samples.ratios - 1.0) - 0.2).min() < 1e-5:
        return  # a kink: rounding decides which side this is on
    loss, slope = cost_penalty(case.samples.ratios, case.advantages, excess, weight, clip)
    case.tolerance *= 30  # up to `weight` times what is compared elsewhere
    case.check(Slope(loss, slope), weight * torch.relu(inner))


@pytest.mark.parametrize("clip", [None, 0.2])
def test_cost_penalty_vanishes_within_the_budget(clip: float | None):
    case = Case(1, np.float32)
    loss, slope = cost_penalty(case.samples.ratios, case.advantages, -100.0, 20.0, clip)
    assert loss == 0.0
    assert not slope.any()
