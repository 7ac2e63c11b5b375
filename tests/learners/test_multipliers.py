"""Multipliers are the controllers they say they are, kept within their bounds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmsafe.config.learning import MultiplierConfig
from vlmsafe.learners.multipliers import (
    AdamMultiplier,
    Bracket,
    GradientMultiplier,
    Multiplier,
    PidMultiplier,
    make_multiplier,
)

quick = settings(max_examples=40, deadline=None)
costs = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=40)
bounds = st.none() | st.floats(0.001, 2.0)
kinds = st.sampled_from(["adam", "gradient", "pid"])


def adam(**settings) -> AdamMultiplier:
    return AdamMultiplier(MultiplierConfig(**settings))


def move(multiplier: Multiplier, episode_cost: float, budget: float = 25.0, signal_mean: float | None = None) -> float:
    return multiplier.update(multiplier.bracket(episode_cost, budget, signal_mean), episode_cost)


@quick
@given(kinds, costs, st.floats(0.0, 500.0), bounds, st.floats(0.001, 1.0))
def test_it_never_leaves_its_bounds(kind, episode_costs, budget, upper, rate):
    multiplier = make_multiplier(MultiplierConfig(kind=kind, learning_rate=rate, upper_bound=upper))
    for cost in episode_costs:
        value = move(multiplier, cost, budget)
        assert value == multiplier.value
        assert 0.0 <= value <= (math.inf if upper is None else upper)


@quick
@given(costs, st.floats(0.0, 500.0), bounds, st.floats(0.001, 1.0))
def test_adam_equals_torchs_in_float64(episode_costs, budget, upper, rate):
    multiplier = adam(learning_rate=rate, upper_bound=upper)
    parameter = torch.nn.Parameter(torch.tensor(0.001, dtype=torch.float64))
    optimiser = torch.optim.Adam([parameter], lr=rate)
    for cost in episode_costs:
        optimiser.zero_grad()
        (-parameter * (cost - budget)).backward()
        optimiser.step()
        with torch.no_grad():
            parameter.clamp_(0.0, upper)
        assert move(multiplier, cost, budget) == pytest.approx(parameter.item(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("violation", [45.45, 150.40])
def test_the_first_step_is_the_learning_rate_whatever_the_violation(violation):
    assert move(adam(), 25.0 + violation) == pytest.approx(0.036, abs=1e-8)


def test_it_rises_above_the_budget_and_falls_below():
    assert move(adam(initial=0.5), 26.0) > 0.5
    assert move(adam(initial=0.5), 24.0) < 0.5
    assert move(adam(initial=0.5), 25.0) == 0.5


def test_its_moments_outlive_the_projection():
    """Held at zero for long, it does not start afresh: the first violation moves it less than a first step would."""
    held = adam()
    for _ in range(30):
        move(held, 0.0)
    assert held.value == 0.0
    assert held.state()["first_moment"] == pytest.approx(25.0 * (1 - 0.9**30))
    assert move(held, 50.0) == 0.0, "one violation does not outweigh thirty epochs of slack"
    history = [move(held, 50.0) for _ in range(20)]
    assert history[-1] > 0.0
    fresh = adam(initial=0.0)
    fresh_history = [move(fresh, 50.0) for _ in range(20)]
    assert all(late < early for late, early in zip(history, fresh_history, strict=True))


def test_its_moments_outlive_the_upper_bound():
    bounded, free = adam(upper_bound=0.05), adam()
    for _ in range(10):
        move(bounded, 100.0)
        move(free, 100.0)
    assert bounded.value == 0.05
    assert {**bounded.state(), "value": 0} == {**free.state(), "value": 0}


@quick
@given(kinds, costs, costs, bounds)
def test_a_restored_multiplier_continues_exactly(kind, before, after, upper):
    config = MultiplierConfig(kind=kind, upper_bound=upper)
    original, restored = make_multiplier(config), make_multiplier(config)
    for cost in before:
        move(original, cost)
    restored.load_state(original.state())
    assert [move(restored, cost) for cost in after] == [move(original, cost) for cost in after]
    assert restored.state() == original.state()


def test_its_state_is_plain_numbers_and_leaves_settings_out():
    """Settings belong to the run's configuration; a checkpoint that carried them could contradict it."""
    state = adam(upper_bound=2.0).state()
    assert set(state) == {"value", "steps", "first_moment", "second_moment"}
    assert all(type(value) in (int, float) for value in state.values())


def test_a_plain_gradient_step_is_proportional_to_the_gap():
    multiplier = GradientMultiplier(MultiplierConfig(kind="gradient", initial=0.1, learning_rate=0.01, upper_bound=2.0))
    assert move(multiplier, 30.0) == pytest.approx(0.15)
    assert move(multiplier, 25.0) == pytest.approx(0.15)
    assert move(multiplier, 1000.0) == 2.0
    assert move(multiplier, -1000.0) == 0.0


def test_a_pid_starts_at_zero_and_forgets_a_cost_that_has_fallen():
    multiplier = PidMultiplier(MultiplierConfig(kind="pid"))
    assert multiplier.value == 0.0
    for _ in range(5):
        move(multiplier, 100.0)
    high = multiplier.value
    for _ in range(60):
        move(multiplier, 0.0)
    assert high > 1.0
    assert multiplier.value == 0.0


@quick
@given(kinds, costs, st.floats(0.0, 1.0))
def test_without_its_weight_a_signal_changes_nothing_bit_for_bit(kind, episode_costs, signal):
    plain, weightless = (make_multiplier(MultiplierConfig(kind=kind, signal_weight=0.0)) for _ in range(2))
    for cost in episode_costs:
        assert move(plain, cost) == move(weightless, cost, signal_mean=signal)
    assert plain.state() == weightless.state()


def test_the_signal_enters_the_bracket_beside_the_gap():
    bracket = adam(signal_weight=0.01, signal_reference=0.5).bracket(40.0, 25.0, signal_mean=0.624)
    assert bracket == Bracket(cost_gap=15.0, signal_term=pytest.approx(1.24e-3))
    assert bracket.value == pytest.approx(15.00124)


def test_no_multiplier_where_none_is_asked_for():
    assert make_multiplier(MultiplierConfig(kind="none")) is None
