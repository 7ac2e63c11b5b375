"""Collect an epoch: each worker steps its own simulator with its own copy of the policy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.api import Env, Scenarios
from vlmsafe.envs.episodes import begin_episode, step_episode, try_out
from vlmsafe.envs.vector.frames import Sender
from vlmsafe.learners.advantages import Rollout
from vlmsafe.learners.policy import ActionMap
from vlmsafe.numerics.normaliser import Array, Normaliser, RunningNormaliser
from vlmsafe.runs.digest import PROGRESS
from vlmsafe.signals.frame_stack import NEWEST, FrameStack, StepsBack
from vlmsafe.signals.scorers.api import InputKind, Inputs
from vlmsafe.signals.shaping import due

_TICK_STEPS = 16
_BLOCK_STEPS = 256  # steps for which noise is drawn at once


@dataclass(frozen=True)
class Share:
    """What one worker collected in an epoch."""

    rollout: Rollout
    seen: Normaliser
    """Statistics of the raw observations of this share alone."""
    episodes: list[dict[str, Any]]
    """One record per episode begun, the unfinished last one included; each is a path of the rollout."""
    scored: NDArray[np.bool_]
    """[N], the steps after which a scorer scores the state."""
    inputs: Inputs
    """What it scores, one entry per such step; empty where it scores frames, which go through shared memory."""
    hazards: NDArray[np.float64] | None = None
    """The simulator's hazard after each such step; None where it was not asked for."""


@dataclass(frozen=True)
class Dimensions:
    """Sizes of an environment's observations, actions and frames."""

    observation: int
    action: int
    frame: tuple[int, ...] | None = None
    """Shape of a frame; None where frames were not asked for."""
    made_of: tuple[str, ...] = ()
    """As in `Env`."""


@dataclass(frozen=True)
class DescribeTask:
    """Find the sizes, and fail early where the environment cannot give what a scorer looks at."""

    looks_at: InputKind = "nothing"
    scenario: int = 0
    try_steps: bool = False
    """Whether some steps are tried, which an environment of the user's may fail."""

    def run(self, env: Env, tick: Callable[[int], None]) -> Dimensions:
        observation, action = env.observation_space.shape, env.action_space.shape
        assert observation is not None
        assert action is not None
        if self.looks_at in ("frame", "hazard"):
            begin_episode(env, self.scenario)
        if self.looks_at == "hazard":
            env.hazard()
        frame = env.frame().shape if self.looks_at == "frame" else None
        if self.try_steps:
            try_out(env, self.scenario + 1)
        return Dimensions(observation[0], action[0], frame, env.made_of())


@dataclass(frozen=True)
class Watch:
    """When a scorer looks, and at what."""

    looks_at: InputKind
    every: int
    """k_clip."""
    stack: StepsBack = NEWEST
    """The frames that it looks at, where it looks at frames."""


class ActionSource(Protocol):
    """Chooses actions: a policy, or dice."""

    def draw(self, rng: np.random.Generator, count: int, /) -> Array:
        """Noise for that many actions, [count, actions], equal to as many draws of one."""

    def act(self, observation: Array, noise: Array, /) -> Array:
        """The action that a row of noise makes."""

    def log_probs(self, noise: Array, /) -> Array:
        """The logarithms of the densities of actions, from their noise [N, actions]."""


@dataclass(frozen=True)
class RandomPolicy:
    """Uniform over the action bounds."""

    action: int

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        return rng.uniform(-1.0, 1.0, (count, self.action)).astype(np.float32)

    def act(self, observation: Array, noise: Array) -> Array:
        return noise

    def log_probs(self, noise: Array) -> Array:
        return np.zeros(len(noise), np.float32)


class _Noise:
    """The noise of a share's actions, drawn in blocks, because a draw costs much the same for one row or for many.

    Episodes draw from the same generator. So a block comes from a copy of the generator, and `catch_up` brings the
    generator to where draws of single rows would have left it.
    """

    def __init__(self, source: ActionSource, rng: np.random.Generator, steps: int, action: int) -> None:
        self.rows = np.empty((steps, action), np.float32)
        self._source, self._rng = source, rng
        self._drawn_to = self._caught_up_to = 0

    def at(self, step: int) -> Array:
        """The row of a step of the share; steps follow each other."""
        if step == self._drawn_to:
            self.catch_up(step)
            self._drawn_to = min(step + _BLOCK_STEPS, len(self.rows))
            block = self._source.draw(copy.deepcopy(self._rng), self._drawn_to - step)
            self.rows[step : self._drawn_to] = block
        return self.rows[step]

    def catch_up(self, step: int) -> None:
        """Rows up to this step, exclusively, were used; what was drawn beyond them is drawn anew."""
        self._source.draw(self._rng, step - self._caught_up_to)
        self._drawn_to = self._caught_up_to = step


@dataclass(frozen=True)
class CollectTask:
    """One worker's share of an epoch. Equal tasks give equal shares where the simulator is deterministic."""

    policy: ActionSource
    normaliser: Normaliser | None
    """Statistics at the start of the epoch; None leaves observations as they are."""
    scenarios: Scenarios
    traffic: bool
    """Whether a scenario leaves traffic open, so that a traffic seed is drawn for each episode."""
    steps: int
    seed: tuple[int, ...]
    watch: Watch | None = None
    """None without a scorer."""
    metrics: tuple[str, ...] = ()
    """Figures of the environment's progress that are recorded at the end of each episode."""
    episode_limit: int | None = None
    """Steps after which an episode is abandoned and another begun."""
    hazards: bool = False
    """Whether the simulator's hazard is recorded after scored steps."""

    def run(self, env: Env, tick: Callable[[int], None], sender: Sender | None = None) -> Share:
        return collect(env, self, tick, sender)


class Watcher:
    """Records what a scorer will look at."""

    def __init__(self, env: Env, watch: Watch | None, seed: tuple[int, ...], sender: Sender | None) -> None:
        assert (sender is not None) == (watch is not None and watch.looks_at == "frame")
        self._env, self._watch, self._sender = env, watch, sender
        self._stack = FrameStack(env.frame, watch.stack, watch.every) if watch is not None else None
        # Its own generator, so that the policy draws the same actions with and without noise.
        self._dice = np.random.default_rng((*seed, 1))
        self._seen: list[Any] = []

    def after(self, step: int, raw: Array) -> bool:
        """Record the state after the `step`-th step of an episode where it is due; returns whether it was."""
        if self._watch is None or self._stack is None:
            return False
        if self._sender is not None:
            if (frames := self._stack.after(step)) is not None:
                self._sender.put(frames)
            return frames is not None
        if not due(step, self._watch.every):
            return False
        looks_at = self._watch.looks_at
        if looks_at == "observation":
            self._seen.append(raw)
        elif looks_at == "hazard":
            self._seen.append(self._env.hazard())
        elif looks_at == "noise":
            self._seen.append(self._dice.random(2))
        else:
            self._seen.append(0.0)
        return True

    def finish(self) -> Inputs:
        if self._sender is not None:
            self._sender.flush()
        return np.array(self._seen)


@dataclass
class EpisodeUnderWay:
    """Counts of the episode under way."""

    scenario: int
    details: dict[str, Any] = field(default_factory=dict)
    env_return: float = 0.0
    cost: float = 0.0
    length: int = 0

    def record(self, *, finished: bool, info: dict[str, Any], progress: dict[str, float]) -> dict[str, Any]:
        row: dict[str, Any] = {"scenario": self.scenario, **self.details, "finished": finished}
        row |= {"return": self.env_return, "cost": self.cost, "length": self.length}
        if "arrived" in info:
            row["arrived"] = bool(info["arrived"])
        return row | ({PROGRESS: progress} if progress else {})


def progress_of(env: Env, metrics: tuple[str, ...]) -> dict[str, float]:
    """Figures of the environment's progress, by name."""
    progress = env.progress() if metrics else {}
    return {name: float(progress[name]) for name in metrics}


def collect(
    env: Env,
    task: CollectTask,
    tick: Callable[[int], None] = lambda steps: None,
    sender: Sender | None = None,
) -> Share:
    """Step `env` for the task's share, from the beginning of an episode; frames that are due go to `sender`.

    An episode cut by the end of the share is abandoned: its samples are used, its return and cost enter no statistic.
    """
    assert isinstance(env.action_space, gymnasium.spaces.Box)
    sizes = DescribeTask().run(env, tick)
    rng = np.random.default_rng(task.seed)
    act, to_env = task.policy.act, ActionMap.to(env.action_space, clips=env.clips)
    running = RunningNormaliser(task.normaliser) if task.normaliser is not None else None
    see = running.see if running is not None else _copy
    watcher = Watcher(env, task.watch, task.seed, sender)
    n = task.steps
    noise = _Noise(task.policy, rng, n, sizes.action)
    observations = np.empty((n + 1, sizes.observation), np.float32)  # the last row is that of the share's end
    actions, rewards, costs = np.empty((n, sizes.action), np.float32), np.empty(n), np.empty(n)
    scored = np.zeros(n, np.bool_)
    path_ends, last, terminals, episodes, hazards = [], [], [], [], []
    episode, raw = next_episode(env, task.scenarios, task.traffic, rng)
    see(raw, observations[0])
    for t in range(n):
        actions[t] = action = act(observations[t], noise.at(t))
        raw, reward, cost, terminated, truncated, info = step_episode(
            env, to_env(action), episode.scenario, episode.length + 1
        )
        rewards[t], costs[t] = reward, cost
        state = observations[t + 1]
        see(raw, state)
        episode.env_return += reward
        episode.cost += cost
        episode.length += 1
        scored[t] = watcher.after(episode.length, raw)
        if task.hazards and scored[t]:
            hazards.append(env.hazard())
        finished = terminated or truncated
        if finished or t == n - 1 or episode.length == task.episode_limit:
            path_ends.append(t + 1)
            last.append(state.copy())
            terminals.append(terminated)
            progress = progress_of(env, task.metrics)
            episodes.append(episode.record(finished=finished, info=info, progress=progress))
            if t < n - 1:
                noise.catch_up(t + 1)
                episode, raw = next_episode(env, task.scenarios, task.traffic, rng)
                see(raw, state)
        if t % _TICK_STEPS == 0:
            tick(t + 1)
    tick(n)
    rollout = Rollout(
        observations[:n], actions, task.policy.log_probs(noise.rows), rewards, costs,
        np.array(path_ends, np.int64), np.array(last, np.float32), np.array(terminals, np.bool_),
    )  # fmt: skip
    seen = running.seen() if running is not None else Normaliser.empty(sizes.observation)
    return Share(rollout, seen, episodes, scored, watcher.finish(), np.array(hazards) if task.hazards else None)


def _copy(raw: Array, out: Array) -> None:
    """What the networks see without a normaliser."""
    out[...] = raw


def next_episode(
    env: Env, scenarios: Scenarios, traffic: bool, rng: np.random.Generator
) -> tuple[EpisodeUnderWay, Array]:
    """Begin an episode on a scenario that is drawn; `traffic` says whether its traffic is drawn too."""
    scenario = scenarios.draw(rng)
    # What a scenario leaves open is drawn here and recorded, so that an episode can be repeated.
    details = {"traffic_seed": int(rng.integers(2**31))} if traffic else {}
    return EpisodeUnderWay(scenario, details), begin_episode(env, scenario, details)
