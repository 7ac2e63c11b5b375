"""Resets and steps of environments, with everything that enters learning checked. Errors say what to do.

These functions stop at the first mistake. `examination` goes on, and keeps the first of each kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.api import Env, Observation
from vlmsafe.errors import EnvironmentFailure

_ROUNDING = 1e-6
"""By how much a scripted driver's action may lie beyond -1 and 1."""


def begin_episode(env: Env, scenario: int, details: dict[str, Any] | None = None) -> Observation:
    """Reset to a scenario; the first observation, checked."""
    observation, _ = env.reset(seed=scenario, options=details or None)
    return checked_observation(observation, scenario, 0)


def step_episode(
    env: Env, action: NDArray[Any], scenario: int, step: int
) -> tuple[Observation, float, float, bool, bool, dict[str, Any]]:
    """One environment step, checked: observation, reward, cost, terminated, truncated, info."""
    observation, reward, terminated, truncated, info = env.step(action)
    cost = checked_cost(info, scenario, step)
    value = checked_reward(reward, scenario, step)
    return checked_observation(observation, scenario, step), value, cost, bool(terminated), bool(truncated), info


def try_out(env: Env, scenario: int, steps: int = 5) -> None:
    """A few checked steps with random actions: what an environment always does wrong shows here."""
    assert isinstance(env.action_space, gymnasium.spaces.Box)
    begin_episode(env, scenario)
    actions = random_actions(env.action_space, scenario)
    for step in range(1, steps + 1):
        *_, terminated, truncated, _ = step_episode(env, next(actions), scenario, step)
        if terminated or truncated:
            return


def random_actions(space: gymnasium.spaces.Box, seed: int) -> Iterator[NDArray[Any]]:
    """Random actions within the bounds, or from -1 to 1 where there are none. They depend on the seed only."""
    rng = np.random.default_rng(seed)
    low, high = np.where(np.isfinite(space.low), space.low, -1.0), np.where(np.isfinite(space.high), space.high, 1.0)
    while True:
        yield rng.uniform(low, high).astype(space.dtype)


def checked_cost(info: Mapping[str, Any], scenario: int, step: int) -> float:
    """The cost of a step, which must be there, finite and not negative."""
    if "cost" not in info:
        raise EnvironmentFailure(
            f"the environment did not report a cost: info['cost'] is missing at step {step} of scenario {scenario}; "
            "add it to the info of every step"
        )
    reported: Any = None if isinstance(info["cost"], str | bytes) else info["cost"]  # float() would read a text
    try:
        cost = float(reported)
    except (TypeError, ValueError):
        raise EnvironmentFailure(
            f"the environment reported a cost of type {type(info['cost']).__name__} at step {step} of scenario "
            f"{scenario}; info['cost'] must be one number"
        ) from None
    if not math.isfinite(cost):
        raise EnvironmentFailure(
            f"the environment returned cost {cost} at step {step} of scenario {scenario}; rewards and costs must be "
            "finite"
        )
    if cost < 0.0:
        raise EnvironmentFailure(
            f"the environment returned cost {cost:g} at step {step} of scenario {scenario}; a cost is 0 or greater: "
            "report what is unsafe as a positive number, and leave what is good to the reward"
        )
    return cost


def checked_reward(reward: Any, scenario: int, step: int) -> float:
    """The reward of a step, which must be finite."""
    value = float(reward)
    if not math.isfinite(value):
        raise EnvironmentFailure(
            f"the environment returned reward {value} at step {step} of scenario {scenario}; rewards and costs must be "
            "finite"
        )
    return value


def checked_observation(observation: Any, scenario: int, step: int) -> Observation:
    """An observation, which must be finite, as a copy: an environment may reuse its array for the next step."""
    array = np.array(observation, dtype=np.float32)
    if np.count_nonzero(np.isfinite(array)) < array.size:  # half the time of .all()
        raise EnvironmentFailure(
            f"the environment returned an observation with NaN or infinity at step {step} of scenario {scenario}"
        )
    return array


def checked_answer(answer: Any, env: Env, whose: str = "") -> NDArray[np.float64]:
    """A scripted driver's action, which must lie from -1 to 1 where the environment clips actions."""
    assert env.action_space.shape is not None
    size = env.action_space.shape[0]
    try:
        action = np.asarray(answer, np.float64)
    except (TypeError, ValueError):
        action = np.full(1, np.nan)
    wanted = f"expected {size} finite numbers{' from -1 to 1' if env.clips else ''}"
    if action.shape != (size,) or not np.isfinite(action).all():
        given = action.tolist() if isinstance(answer, np.ndarray) else answer
        raise EnvironmentFailure(f"{whose}expert() gave the action {given}; {wanted}")
    if env.clips and np.abs(action).max(initial=0.0) > 1.0 + _ROUNDING:
        raise EnvironmentFailure(
            f"{whose}expert() gave the action {action.tolist()}; {wanted}: -1 and 1 stand for the bounds of the action "
            "space, so convert from the environment's own units"
        )
    return action
