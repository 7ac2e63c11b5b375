"""Collect an epoch in rounds, for a learner that updates its policy many times within it.

The simulator stays in the middle of its episode between two rounds. So all rounds of an epoch run in one process, and
what it has to remember hangs on its environment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from vlmsafe.envs.api import Env, Scenarios
from vlmsafe.envs.episodes import step_episode
from vlmsafe.errors import EnvironmentFailure
from vlmsafe.learners.advantages import Rollout
from vlmsafe.learners.policy import ActionMap
from vlmsafe.numerics.normaliser import Array
from vlmsafe.training.collect import ActionSource, EpisodeUnderWay, next_episode, progress_of

_SESSION = "vlmsafe_rounds"


@dataclass(frozen=True)
class Round:
    """What one round collected."""

    rollout: Rollout
    """Observations as the simulator gave them. A path ends with its episode or with the round."""
    episodes: list[dict[str, Any]]
    """One record per episode that ended in this round or, if it is the last one, was cut by it."""


@dataclass(frozen=True)
class RoundTask:
    """One round of an epoch. Equal sequences of rounds collect the same where the simulator is deterministic."""

    policy: ActionSource
    scenarios: Scenarios
    traffic: bool
    metrics: tuple[str, ...]
    steps: int
    seed: tuple[int, ...]
    """Of the epoch."""
    first: bool
    """Whether the epoch begins with this round."""
    last: bool

    def run(self, env: Env, tick: Callable[[int], None]) -> Round:
        if self.first:
            setattr(env, _SESSION, EpochUnderWay(env, self))
        session: EpochUnderWay | None = getattr(env, _SESSION, None)
        if session is None:  # the process is a new one
            raise EnvironmentFailure("a worker process died in the middle of an epoch; resume the run to repeat it")
        return session.advance(self, tick)


class EpochUnderWay:
    """An epoch under way in a worker."""

    def __init__(self, env: Env, task: RoundTask) -> None:
        assert isinstance(env.action_space, gymnasium.spaces.Box)
        self._env, self._rng = env, np.random.default_rng(task.seed)
        self._to_env = ActionMap.to(env.action_space, clips=env.clips)
        self._episode, self._raw = self._begin(task)

    def _begin(self, task: RoundTask) -> tuple[EpisodeUnderWay, Array]:
        return next_episode(self._env, task.scenarios, task.traffic, self._rng)

    def advance(self, task: RoundTask, tick: Callable[[int], None]) -> Round:
        n, act = task.steps, task.policy.act
        noise = task.policy.draw(self._rng, n)
        observations = np.empty((n, len(self._raw)), np.float32)
        actions, rewards, costs = np.empty_like(noise), np.empty(n), np.empty(n)
        path_ends, last, terminals, episodes = [], [], [], []
        for t in range(n):
            observations[t] = self._raw
            actions[t] = action = act(observations[t], noise[t])
            episode = self._episode
            self._raw, rewards[t], costs[t], terminated, truncated, info = step_episode(
                self._env, self._to_env(action), episode.scenario, episode.length + 1
            )
            episode.env_return += rewards[t]
            episode.cost += costs[t]
            episode.length += 1
            finished = terminated or truncated
            if finished or t == n - 1:
                path_ends.append(t + 1)
                last.append(np.asarray(self._raw, np.float32))
                terminals.append(terminated)
            if finished or (task.last and t == n - 1):
                progress = progress_of(self._env, task.metrics)
                episodes.append(episode.record(finished=finished, info=info, progress=progress))
            if finished and not (task.last and t == n - 1):
                self._episode, self._raw = self._begin(task)
        tick(n)
        rollout = Rollout(
            observations, actions, np.zeros(n, np.float32), rewards, costs,
            np.array(path_ends, np.int64), np.array(last, np.float32), np.array(terminals, np.bool_),
        )  # fmt: skip
        return Round(rollout, episodes)
