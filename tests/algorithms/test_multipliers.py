"""The multiplier is torch's Adam on one number, kept within its bounds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmsafe.algorithms.multipliers import AdamMultiplier
from vlmsafe.config import MultiplierConfig

quick = settings(max_examples=40, deadline=None)
costs = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=40)
bounds = st.none() | st.floats(0.001, 2.0)


@quick
@given(costs, st.floats(0.0, 500.0), bounds, st.floats(0.001, 1.0))
def test_it_never_leaves_its_bounds(episode_costs, budget, upper, rate):
    multiplier = AdamMultiplier.from_config(MultiplierConfig(0.001, rate, upper))
    for cost in episode_costs:
        value = multiplier.update(cost, budget)
        assert value == multiplier.value
        assert 0.0 <= value <= (math.inf if upper is None else upper)


@quick
@given(costs, st.floats(0.0, 500.0), bounds, st.floats(0.001, 1.0))
def test_it_equals_torchs_adam_in_float64(episode_costs, budget, upper, rate):
    multiplier = AdamMultiplier.from_config(MultiplierConfig(0.001, rate, upper))
    parameter = torch.nn.Parameter(torch.tensor(0.001, dtype=torch.float64))
    optimiser = torch.optim.Adam([parameter], lr=rate)
    for cost in episode_costs:
        optimiser.zero_grad()
        (-parameter * (cost - budget)).backward()
        optimiser.step()
        with torch.no_grad():
            parameter.clamp_(0.0, upper)
        assert multiplier.update(cost, budget) == pytest.approx(parameter.item(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("violation", [45.45, 150.40])
def test_the_first_step_is_the_learning_rate_whatever_the_violation(violation):
    multiplier = AdamMultiplier.from_config(MultiplierConfig())
    assert multiplier.update(25.0 + violation, 25.0) == pytest.approx(0.036, abs=1e-8)


def test_it_rises_above_the_budget_and_falls_below():
    multiplier = AdamMultiplier(value=0.5, learning_rate=0.035)
    assert multiplier.update(26.0, 25.0) > 0.5
    multiplier = AdamMultiplier(value=0.5, learning_rate=0.035)
    assert multiplier.update(24.0, 25.0) < 0.5
    multiplier = AdamMultiplier(value=0.5, learning_rate=0.035)
    assert multiplier.update(25.0, 25.0) == 0.5


def test_its_moments_outlive_the_projection():
    """Held at zero for long, it does not start afresh: the first violation moves it less than a first step would."""
    held = AdamMultiplier.from_config(MultiplierConfig())
    for _ in range(30):
        held.update(0.0, 25.0)
    assert held.value == 0.0
    assert held.first_moment == pytest.approx(25.0 * (1 - 0.9**30))
    assert held.update(50.0, 25.0) == 0.0, "one violation does not outweigh thirty epochs of slack"
    history = [held.update(50.0, 25.0) for _ in range(20)]
    assert history[-1] > 0.0
    fresh = AdamMultiplier(value=0.0, learning_rate=0.035)
    fresh_history = [fresh.update(50.0, 25.0) for _ in range(20)]
    assert all(late < early for late, early in zip(history, fresh_history, strict=True))


def test_its_moments_outlive_the_upper_bound():
    bounded = AdamMultiplier.from_config(MultiplierConfig(0.001, 0.035, upper_bound=0.05))
    free = AdamMultiplier.from_config(MultiplierConfig(0.001, 0.035))
    for _ in range(10):
        bounded.update(100.0, 25.0)
        free.update(100.0, 25.0)
    assert bounded.value == 0.05
    assert (bounded.first_moment, bounded.second_moment) == (free.first_moment, free.second_moment)


@quick
@given(costs, costs, bounds)
def test_a_restored_multiplier_continues_exactly(before, after, upper):
    config = MultiplierConfig(0.001, 0.035, upper)
    original = AdamMultiplier.from_config(config)
    for cost in before:
        original.update(cost, 25.0)
    restored = AdamMultiplier.from_config(config)
    restored.load_state(original.state())
    assert restored == original
    assert [restored.update(cost, 25.0) for cost in after] == [original.update(cost, 25.0) for cost in after]
    assert restored.state() == original.state()


def test_its_state_is_plain_numbers_and_leaves_settings_out():
    """Settings belong to the run's configuration; a checkpoint that carried them could contradict it."""
    state = AdamMultiplier.from_config(MultiplierConfig(upper_bound=2.0)).state()
    assert set(state) == {"value", "steps", "first_moment", "second_moment"}
    assert all(type(value) in (int, float) for value in state.values())


def test_a_negative_initial_value_starts_at_zero():
    assert AdamMultiplier.from_config(MultiplierConfig(initial=-1.0)).value == 0.0
