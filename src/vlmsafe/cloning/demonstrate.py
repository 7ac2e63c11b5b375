"""Demonstrations: what an environment's scripted driver would do in the states that an episode reaches.

The driver is asked in every state, and its answer is what is learned. What is executed may differ. A driver that makes
no mistake never shows how to correct one, so most episodes add correlated noise to the executed actions. In later
rounds the clone drives and the scripted driver only answers (dataset aggregation).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.api import Env, Scenarios
from vlmsafe.envs.episodes import begin_episode, checked_answer, step_episode
from vlmsafe.errors import InputError
from vlmsafe.learners.policy import ActionMap, Policy
from vlmsafe.numerics.normaliser import Array, Normaliser

SHARE_STEPS = 4_000
"""Steps of a task, whatever the number of processes, so that recordings do not depend on that number."""
NOISY = 0.7
"""The share of episodes in which noise is added to what the scripted driver does."""
NOISE = (0.1, 0.5)
"""The standard deviation of this noise is drawn between these for each episode; actions lie between -1 and 1."""
MEMORY = 0.9
"""The share of the noise that stays from one step to the next."""
CUT = 0.5
"""The share of episodes that end soon after their first cost. The others show how to go on."""
AFTER_COST = 20
"""The steps that still follow a first cost in those episodes."""
BRAKES = -0.1
"""The action below which a driver brakes."""
_TICK_STEPS = 16


@dataclass(frozen=True)
class Demonstrations:
    """States and the scripted driver's answers to them."""

    observations: Array
    """[N, observation], not normalised."""
    actions: Array
    """[N, action], from -1 to 1 where the environment clips actions."""
    brakes: NDArray[np.bool_]
    """[N], whether the scripted driver brakes."""
    episodes: list[dict[str, float]]
    """Return, cost and length of each episode that the environment ended."""


@dataclass(frozen=True)
class DemonstrationTask:
    """A number of steps in one environment. Equal tasks give equal demonstrations if the simulator is deterministic."""

    env: str
    scenarios: Scenarios
    traffic: bool
    steps: int
    seed: tuple[int, ...]
    clone: tuple[Policy, Normaliser] | None = None
    """Who drives; None is the scripted driver."""

    def run(self, env: Env, tick: Callable[[int], None]) -> Demonstrations:
        return demonstrate(env, self, tick)


class CorrelatedNoise:
    """Noise of a given standard deviation that changes slowly, so that it leads away and does not just shake."""

    def __init__(self, strength: float, actions: int, rng: np.random.Generator) -> None:
        self._scale, self._rng = strength * math.sqrt(1.0 - MEMORY**2), rng
        self._value = np.zeros(actions)

    def draw(self) -> NDArray[np.float64]:
        """The noise of the next step."""
        self._value = MEMORY * self._value + self._scale * self._rng.standard_normal(len(self._value))
        return self._value


def demonstrate(env: Env, task: DemonstrationTask, tick: Callable[[int], None] = lambda steps: None) -> Demonstrations:
    """Drive for the task's steps, and ask the scripted driver in every state. The end of the steps cuts an episode."""
    assert isinstance(env.action_space, gymnasium.spaces.Box)
    assert env.observation_space.shape is not None
    size = env.action_space.shape[0]
    env.isolate = False  # an engine per episode would take as long as the episode, and the process has no other task
    rng, to_env = np.random.default_rng(task.seed), ActionMap.to(env.action_space, clips=env.clips)
    observations = np.empty((task.steps, env.observation_space.shape[0]), np.float32)
    actions, episodes, step = np.empty((task.steps, size), np.float32), [], 0
    bound = 1.0 if env.clips else math.inf  # elsewhere larger actions ask for more

    def within(action: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.clip(action, -bound, bound)

    while step < task.steps:
        scenario = task.scenarios.draw(rng)
        details = {"traffic_seed": int(rng.integers(2**31))} if task.traffic else {}
        observation = begin_episode(env, scenario, details)
        expert = env.expert()
        if expert is None:
            raise InputError(
                f"environment '{task.env}' has no scripted driver to clone; define expert() on it, or choose another"
            )
        strength = rng.uniform(*NOISE) if rng.random() < NOISY and task.clone is None else 0.0
        noise, cut = CorrelatedNoise(strength, size, rng), rng.random() < CUT
        end, length, returned, total_cost, finished = math.inf, 0, 0.0, 0.0, False
        while not finished and length < end and step < task.steps:
            answer = within(checked_answer(expert(), env, f"environment '{task.env}': "))
            observations[step], actions[step] = observation, answer
            step, length = step + 1, length + 1
            drive = within(answer + noise.draw()) if task.clone is None else _mean(observation, *task.clone)
            observation, reward, cost, terminated, truncated, _ = step_episode(
                env, to_env(drive.astype(np.float32)), scenario, length
            )
            returned, total_cost, finished = returned + reward, total_cost + cost, terminated or truncated
            if cut and cost > 0.0:
                end = min(end, length + AFTER_COST)
            if step % _TICK_STEPS == 0:
                tick(step)
        if finished:
            episodes.append({"return": returned, "cost": total_cost, "length": length})
    tick(step)
    return Demonstrations(observations, actions, actions[:, env.pedal] < BRAKES, episodes)


def _mean(observation: Array, policy: Policy, normaliser: Normaliser) -> Array:
    return policy.mean(normaliser.normalise(observation))
