"""Environments made of another one: actions that are kept for several steps, and observations with their changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.api import Env, Frame, Observation


def wrapped(env: Env, repeat: int = 1, changes: int = 0) -> Env:
    """The environment with kept actions and observed changes, as far as they are asked for.

    Changes are observed over the steps of those who use the environment, so over several of the simulator's where
    actions are kept.
    """
    if repeat > 1:
        env = RepeatedAction(env, repeat)
    return ObservedChanges(env, changes) if changes else env


class WrappedEnv(Env):
    """An environment that passes everything on to another one."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata, self.render_mode = env.metadata, env.render_mode
        self.steering, self.clips = env.steering, env.clips
        self.step_limit, self.step_seconds = env.step_limit, env.step_seconds

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        self._env.isolate = self.isolate
        return self._env.reset(seed=seed, options=options)

    def step(self, action: NDArray[np.floating[Any]]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self._env.step(action)
        return observation, float(reward), terminated, truncated, info

    def frame(self) -> Frame:
        return self._env.frame()

    def progress(self) -> Mapping[str, float]:
        return self._env.progress()

    def hazard(self) -> float:
        return self._env.hazard()

    def expert(self) -> Callable[[], NDArray[np.float64]] | None:
        return self._env.expert()

    def facts(self) -> Mapping[str, float]:
        return self._env.facts()

    def made_of(self) -> tuple[str, ...]:
        return self._env.made_of()

    def departure(self) -> str:
        return self._env.departure()

    def close(self) -> None:
        self._env.close()


class RepeatedAction(WrappedEnv):
    """An environment whose steps are several steps of another one with the same action.

    Rewards and costs are summed, and an episode that ends within a step ends with it. Everything else is that of the
    last step.
    """

    def __init__(self, env: Env, times: int) -> None:
        super().__init__(env)
        self._times = times
        self.step_seconds = None if env.step_seconds is None else env.step_seconds * times

    def step(self, action: NDArray[np.floating[Any]]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        total, costs = 0.0, []
        for left in reversed(range(self._times)):
            self._env.observed = left == 0
            observation, reward, terminated, truncated, info = self._env.step(action)
            total += float(reward)
            costs += [info["cost"]] if "cost" in info else []
            if terminated or truncated:
                break
        # An environment without a cost stays one, and a negative cost is passed on as it is: the caller reports them.
        wrong = [cost for cost in costs if isinstance(cost, int | float | np.number) and cost < 0]
        summed = {"cost": wrong[0] if wrong else sum(costs)} if costs else {}
        return observation, total, terminated, truncated, {**info, **summed}


class ObservedChanges(WrappedEnv):
    """An environment that also observes by how much each value has changed over some steps.

    A single observation often has the distances of things and not their speeds. In the first steps of an episode the
    change is that since its beginning.
    """

    def __init__(self, env: Env, steps: int) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        reach = space.high - space.low
        self.observation_space = gymnasium.spaces.Box(
            np.concatenate([space.low, -reach]), np.concatenate([space.high, reach]), dtype=space.dtype.type
        )
        self._past: deque[Observation] = deque(maxlen=steps + 1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        self._past.clear()
        return self._with_change(observation), info

    def step(self, action: NDArray[np.floating[Any]]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return self._with_change(observation), reward, terminated, truncated, info

    def _with_change(self, observation: Observation) -> Observation:
        self._past.append(np.array(observation))  # a copy: an environment may reuse its array
        return np.concatenate([observation, observation - self._past[0]])
