"""What `check_environment` measures in a worker. It goes on after a mistake, and keeps the first of each kind."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from vlmsafe.envs.api import Env
from vlmsafe.envs.episodes import checked_answer, checked_cost, checked_observation, checked_reward, random_actions
from vlmsafe.errors import EnvironmentFailure, InputError

_REPEATED = 50
"""Steps of a rollout that is repeated."""
_ASKED = 20
"""Steps in which a scripted driver is asked."""


@dataclass
class Examination:
    """What a worker measured."""

    size: int = 0
    unbounded: int = 0
    """Actions without finite bounds."""
    fixed: list[int] = field(default_factory=list)
    """The indices of actions whose bounds are equal."""
    whole: str = ""
    """The type of actions that are whole numbers; empty for other actions."""
    renders: bool = False
    """Whether the environment declares that it renders."""
    problems: dict[str, str] = field(default_factory=dict)
    """The first problem of each part."""
    departure: str = ""
    steps: int = 0
    costly: int = 0
    costs: float = 0.0
    """The highest cost of a step."""
    ends: list[int] = field(default_factory=list)
    """Lengths of the episodes that ended."""
    longest: int = 0
    step_limit: int | None = None
    digests: list[list[bytes]] = field(default_factory=list)
    """Of a scenario, of the same one again, and of another one, as far as time allowed: everything up to each step."""
    step_seconds: float = 0.0
    reset_seconds: float = 0.0
    frame: tuple[int, ...] | None = None
    frame_seconds: float = 0.0
    extras: list[str] = field(default_factory=list)
    """What it has beyond Gymnasium's interface."""


@dataclass(frozen=True)
class ExamineTask:
    """Drives random actions for a number of steps or seconds, whichever ends first."""

    scenario: int
    steps: int
    seconds: float
    once: bool = False
    """Whether to drive only the rollout that is compared with the same one of another process."""
    frames: bool = False
    """Whether to render some frames, and nothing else."""

    def run(self, env: Env, tick: Callable[[int], None]) -> Examination:
        space = env.action_space
        assert isinstance(space, gymnasium.spaces.Box)
        found = Examination(size=int(np.prod(env.observation_space.shape or ())), step_limit=env.step_limit)
        found.whole = space.dtype.name if space.dtype.kind in "iu" else ""
        found.unbounded = int((~np.isfinite(space.low) | ~np.isfinite(space.high)).sum())
        found.fixed = np.flatnonzero(space.low == space.high).tolist()
        found.renders = "rgb_array" in (env.metadata.get("render_modes") or ())
        until = time.perf_counter() + self.seconds
        if self.frames:
            _look(env, self.scenario, until, found)
            return found
        for scenario in (self.scenario,) if self.once else (self.scenario, self.scenario, self.scenario + 1):
            if not found.digests or time.perf_counter() < until:  # a reset may take all the time
                self._episode(env, scenario, _REPEATED, time.perf_counter() + self.seconds / 4, found)
        if self.once:
            return found
        _call_extras(env, self.scenario, until, found)
        scenario = self.scenario + 1
        while found.steps < self.steps and time.perf_counter() < until:
            scenario += 1
            self._episode(env, scenario, self.steps - found.steps, until, found)
            tick(found.steps)
        return found

    def _episode(self, env: Env, scenario: int, steps: int, until: float, found: Examination) -> None:
        """Drive an episode to its end or for some steps, and add what it shows."""
        assert isinstance(env.action_space, gymnasium.spaces.Box)
        digest, actions = hashlib.sha256(), random_actions(env.action_space, scenario)
        began = time.perf_counter()
        observation, _ = env.reset(seed=scenario)
        found.reset_seconds = max(found.reset_seconds, time.perf_counter() - began)
        digest.update(_seen(found, observation, scenario, 0))
        digests = [digest.digest()]
        for step in range(1, steps + 1):
            action = next(actions)
            began = time.perf_counter()
            observation, reward, terminated, truncated, info = env.step(action)
            found.step_seconds += time.perf_counter() - began
            found.steps += 1
            found.longest = max(found.longest, step)
            digest.update(_seen(found, observation, scenario, step) + bytes([bool(terminated), bool(truncated)]))
            with _Noting(found, "reward"):
                digest.update(np.float64(checked_reward(reward, scenario, step)).tobytes())
            with _Noting(found, "cost"):
                cost = checked_cost(info, scenario, step)
                digest.update(np.float64(cost).tobytes())
                found.costly += cost > 0.0
                found.costs = max(found.costs, cost)
            if step <= _REPEATED:
                digests.append(digest.digest())
                if not found.departure and np.isfinite(observation).all():
                    found.departure = env.departure()
            if terminated or truncated:
                found.ends.append(step)
                break
            if time.perf_counter() > until:
                break
        found.digests.append(digests)


class _Noting:
    """Remembers the first problem of a part, and goes on. A failure of another class, such as a death, passes."""

    def __init__(
        self, found: Examination, part: str, kinds: Container[type] = (EnvironmentFailure, TypeError, ValueError)
    ) -> None:
        self._found, self._part, self._kinds = found, part, kinds

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> bool:
        if type(error) not in self._kinds:
            return False
        self._found.problems.setdefault(self._part, str(error))
        return True


def _seen(found: Examination, observation: Any, scenario: int, step: int) -> bytes:
    with _Noting(found, "observation"):
        checked_observation(observation, scenario, step)
    return np.ascontiguousarray(observation).tobytes()


def _call_extras(env: Env, scenario: int, until: float, found: Examination) -> None:
    """Call what the environment has beyond Gymnasium's interface, in an episode of its own."""
    assert isinstance(env.action_space, gymnasium.spaces.Box)
    env.reset(seed=scenario)
    expert = None
    with _Noting(found, "hazard", (EnvironmentFailure,)), suppress(InputError):  # which says that it has none
        env.hazard()
        found.extras.append("hazard")
    with _Noting(found, "expert", (EnvironmentFailure,)):
        expert = env.expert()
    for name, values in (("progress", env.progress()), ("facts", env.facts())):
        if values:
            found.extras.append(name)
        wrong = [key for key, value in values.items() if not np.isfinite(value)]
        if wrong:
            found.problems[name] = f"{name}() gave {', '.join(wrong)} as NaN or infinity; leave out what is not known"
    if expert is None:
        return
    found.extras.append("expert")
    actions = random_actions(env.action_space, scenario)
    for _ in range(_ASKED):  # in several states, because a mistake may show only in some
        answer = expert()
        with _Noting(found, "expert"):
            checked_answer(answer, env)
        *_, terminated, truncated, _ = env.step(next(actions))
        if terminated or truncated or time.perf_counter() > until:
            break


def _look(env: Env, scenario: int, until: float, found: Examination) -> None:
    """Render some frames."""
    env.reset(seed=scenario)
    assert isinstance(env.action_space, gymnasium.spaces.Box)
    actions = random_actions(env.action_space, scenario)
    found.frame = env.frame().shape  # the first one may start a renderer
    for _ in range(3):
        began = time.perf_counter()
        frame = env.frame()
        found.frame_seconds = time.perf_counter() - began
        if found.frame != frame.shape:
            found.problems["rendering"] = (
                f"frames have the shapes {found.frame} and {frame.shape}; all must be alike, so render a fixed size"
            )
        if time.perf_counter() > until:
            return
        *_, terminated, truncated, _ = env.step(next(actions))
        if terminated or truncated:
            env.reset(seed=scenario)
