"""The small problem has the answer its description claims."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from vlmsafe.envs.registry import env_spec
from vlmsafe.envs.small.speeding import optimum

SPEC = env_spec("speeding")
HORIZON, BUDGET = 20, 30.0


def play(env, scenario, speed) -> tuple[float, float, float]:
    """(return, cost, risk) of an episode driven at `speed(risk)`."""
    observation, _ = env.reset(seed=scenario)
    risk = observation[0] / 2.0 + 1.0
    total, cost, over = 0.0, 0.0, False
    while not over:
        _, reward, terminated, over, info = env.step(np.array([speed(risk)], np.float32))
        total, cost = total + reward, cost + info["cost"]
        assert not terminated
    return total, cost, float(risk)


def brute_force(horizon: int, budget: float) -> float:
    """The best expected return over speeds at a grid of risks, found by a general-purpose optimiser."""
    nodes, weights = np.polynomial.legendre.leggauss(12)
    risks, weights = 1.0 + nodes / 2.0, weights / 2.0
    result = minimize(
        lambda v: -horizon * weights @ (2 * v - v**2),
        np.full(len(risks), 0.3),
        method="SLSQP",
        bounds=[(0.0, 1.5)] * len(risks),
        constraints={"type": "ineq", "fun": lambda v: budget - 3 * horizon * weights @ (risks * v**2)},
        options={"ftol": 1e-10, "maxiter": 500},  # less is below the rounding of its numeric gradient
    )
    assert result.success
    return -result.fun


@pytest.mark.parametrize("budget", [2.0, 10.0, 30.0, 55.0])
def test_the_closed_form_agrees_with_a_numeric_search(budget):
    assert optimum(HORIZON, budget)[0] == pytest.approx(brute_force(HORIZON, budget), abs=2e-4)


@pytest.mark.parametrize("budget", [2.0, 10.0, 30.0, 55.0])
def test_the_multiplier_is_the_price_of_a_little_more_budget(budget):
    step = 1e-3
    slope = (optimum(HORIZON, budget + step)[0] - optimum(HORIZON, budget - step)[0]) / (2 * step)
    assert optimum(HORIZON, budget)[1] == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("budget", [60.0, 100.0])
def test_a_budget_that_does_not_bind_costs_nothing(budget):
    """v = 1 pays 60 on average; with more than that allowed it is best, and the price is zero."""
    assert optimum(HORIZON, budget) == (pytest.approx(20.0, abs=1e-6), pytest.approx(0.0, abs=1e-3))


def test_the_description_names_the_answer():
    best, multiplier = optimum(HORIZON, BUDGET)
    assert best == pytest.approx(18.38, abs=0.005)
    assert 0.1 < multiplier < 0.2


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 100), st.floats(0.05, 0.95))
def test_the_answer_scales_with_the_horizon(horizon, share):
    """Steps are alike, so twice the horizon and budget give twice the return at the same price."""
    best, multiplier = optimum(horizon, 3 * horizon * share)
    single, price = optimum(1, 3 * share)
    assert best == pytest.approx(horizon * single, rel=1e-6)
    assert multiplier == pytest.approx(price, rel=1e-6)


def test_the_environment_pays_what_the_closed_form_says():
    env = SPEC.make()
    best, multiplier = optimum(HORIZON, BUDGET)
    episodes = np.array([play(env, s, lambda w: 1.0 / (1.0 + 3.0 * multiplier * w)) for s in range(1500)])
    error = episodes.std(axis=0) / np.sqrt(len(episodes))
    assert abs(episodes[:, 0].mean() - best) < 4 * error[0]
    assert abs(episodes[:, 1].mean() - BUDGET) < 4 * error[1]
    assert episodes[:, 2].min() >= 0.5 - 1e-6
    assert episodes[:, 2].max() <= 1.5 + 1e-6
    assert episodes[:, 2].mean() == pytest.approx(1.0, abs=0.04)


def test_ignoring_cost_full_speed_earns_the_horizon_and_pays_twice_the_budget():
    env = SPEC.make()
    episodes = np.array([play(env, s, lambda w: 1.0) for s in range(400)])
    assert episodes[:, 0].mean() == pytest.approx(HORIZON, abs=4 * 0.2 * np.sqrt(20 / 400))
    np.testing.assert_allclose(episodes[:, 1], 3 * HORIZON * episodes[:, 2], rtol=1e-5)
    assert episodes[:, 1].mean() == pytest.approx(60, abs=4 * 60 * 0.29 / 20)


def test_faster_and_slower_than_one_both_earn_less():
    env = SPEC.make()
    returns = {v: play(env, 5, lambda w, v=v: v)[0] for v in (0.8, 1.0, 1.2)}
    assert returns[1.0] - returns[0.8] == pytest.approx(20 * 0.04, rel=1e-4)
    assert returns[1.0] - returns[1.2] == pytest.approx(20 * 0.04, rel=1e-4)


def test_equal_scenarios_repeat_exactly_whatever_ran_before():
    env, other = SPEC.make(), SPEC.make()
    first = play(env, 7, lambda w: 0.6)
    play(env, 8, lambda w: 1.1)
    env.reset(seed=9)
    assert play(env, 7, lambda w: 0.6) == first == play(other, 7, lambda w: 0.6)
    assert play(env, 8, lambda w: 0.6) != first


def test_an_episode_is_cut_at_the_horizon_never_terminated():
    env = SPEC.make()
    observation, info = env.reset(seed=3)
    assert info == {"scenario": 3}
    assert observation[1] == -1.0
    for step in range(1, HORIZON + 1):
        observation, _, terminated, truncated, _ = env.step(np.array([0.5], np.float32))
        assert observation in env.observation_space
        assert (terminated, truncated) == (False, step == HORIZON)
    assert observation[1] == 1.0
    assert env.progress() == {"distance": pytest.approx(10.0)}
    env.reset(seed=3)
    assert env.progress() == {"distance": 0.0}


def test_speeds_beyond_the_bounds_count_as_the_bounds():
    env = SPEC.make()
    outcomes = []
    for speed in (-3.0, 0.0, 1.5, 9.0):
        env.reset(seed=1)
        _, reward, _, _, info = env.step(np.array([speed], np.float32))
        outcomes.append((reward, info["cost"]))
    assert outcomes[0] == outcomes[1]
    assert outcomes[2] == outcomes[3]


def test_frames_show_the_car_moving_and_not_the_cost():
    env = SPEC.make()
    env.reset(seed=0)
    frames = [env.frame()]
    for _ in range(HORIZON):
        env.step(np.array([1.5], np.float32))
        frames.append(env.frame())
    assert all(frame.shape == (64, 64, 3) and frame.dtype == np.uint8 for frame in frames)
    cars = [np.argwhere((frame == (30, 160, 60)).all(axis=-1)) for frame in frames]
    assert all(len(car) == 8 * 6 for car in cars), "the whole car is in the picture to the end"
    rows = [car[:, 0].min() for car in cars]
    assert rows == sorted(rows, reverse=True)
    assert rows[-1] < rows[0]
    roads = {tuple(frame[0, 24]) for frame in frames[:-1]}
    assert len(roads) == 1, "the road keeps its colour whatever the speed, so no step's cost shows"


def test_the_hazard_is_the_last_steps_cost_as_a_share_of_the_largest():
    env = SPEC.make()
    hazards = []
    for scenario in range(200):
        env.reset(seed=scenario)
        assert env.hazard() == 0.0
        for speed in (1.5, 0.7):
            *_, info = env.step(np.array([speed], np.float32))
            assert env.hazard() == pytest.approx(info["cost"] / (3.0 * 1.5 * 1.5**2))
            hazards.append(env.hazard())
        env.reset(seed=scenario)
        assert env.hazard() == 0.0
    assert 0.99 < max(hazards) <= 1.0, "the riskiest road at top speed is as hazardous as it gets"


@pytest.mark.filterwarnings("ignore::UserWarning")  # recommends symmetric actions, and a spec for rendering
def test_gymnasiums_own_checker_is_content():
    check_env(SPEC.make())
