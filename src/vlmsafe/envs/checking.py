"""`check_environment`: drive an environment in processes of its own, and say what training would meet.

`ExamineTask` measures inside a worker process. `judge` turns the measurements into findings, each with what to do.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium
import numpy as np

from vlmsafe.envs.api import Env, EnvSpec
from vlmsafe.envs.episodes import checked_cost, checked_observation, checked_reward, random_actions
from vlmsafe.envs.vector.pool import EnvRecipe, WorkerError, WorkerPool
from vlmsafe.errors import EnvironmentFailure, InputError, VlmsafeError

Level = Literal["ok", "note", "warning", "error"]
_REPEATED = 50
"""Steps of a rollout that is repeated."""
LARGE_OBSERVATION = 10_000
"""Values of an observation beyond which training is slow and an epoch takes gigabytes."""
_SLOW = 100.0  # steps per second below which a million steps take hours


@dataclass(frozen=True)
class EnvFinding:
    """One line of the answer."""

    part: str
    level: Level
    text: str
    """What was found and, if it is not in order, what to do."""
    details: str = ""
    """The traceback, where the environment raised an exception."""


@dataclass
class Examination:
    """What a worker measured."""

    size: int = 0
    unbounded: int = 0
    """Actions without finite bounds."""
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
    digests: list[str] = field(default_factory=list)
    """Of a scenario, of the same one again, and of another one."""
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
    frames: bool = False

    def run(self, env: Env, tick: Callable[[int], None]) -> Examination:
        space = env.action_space
        assert isinstance(space, gymnasium.spaces.Box)
        found = Examination(size=int(np.prod(env.observation_space.shape or ())), step_limit=env.step_limit)
        found.unbounded = int((~np.isfinite(space.low) | ~np.isfinite(space.high)).sum())
        if self.frames:
            _look(env, self.scenario, found)
            return found
        until = time.perf_counter() + self.seconds
        for scenario in (self.scenario, self.scenario, self.scenario + 1):
            self._episode(env, scenario, _REPEATED, until, found)
        _call_extras(env, found)
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
        for step in range(1, steps + 1):
            action = next(actions)
            began = time.perf_counter()
            observation, reward, terminated, truncated, info = env.step(action)
            found.step_seconds += time.perf_counter() - began
            found.steps += 1
            found.longest = max(found.longest, step)
            digest.update(_seen(found, observation, scenario, step))
            with _Noting(found, "reward"):
                digest.update(np.float64(checked_reward(reward, scenario, step)).tobytes())
            with _Noting(found, "cost"):
                cost = checked_cost(info, scenario, step)
                digest.update(np.float64(cost).tobytes())
                found.costly += cost > 0.0
                found.costs = max(found.costs, cost)
            if step <= _REPEATED and not found.departure:
                found.departure = env.departure()
            if terminated or truncated:
                found.ends.append(step)
                break
            if time.perf_counter() > until:
                break
        found.digests.append(digest.hexdigest())


class _Noting:
    """Remembers the first problem of a part, and goes on."""

    def __init__(self, found: Examination, part: str) -> None:
        self._found, self._part = found, part

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> bool:
        if not isinstance(error, EnvironmentFailure | TypeError | ValueError):
            return False
        self._found.problems.setdefault(self._part, str(error))
        return True


def _seen(found: Examination, observation: Any, scenario: int, step: int) -> bytes:
    with _Noting(found, "observation"):
        checked_observation(observation, scenario, step)
    return np.ascontiguousarray(observation).tobytes()


def _call_extras(env: Env, found: Examination) -> None:
    """Call what the environment has beyond Gymnasium's interface."""
    try:
        env.hazard()
        found.extras.append("hazard")
    except InputError:
        pass  # it has none
    except EnvironmentFailure as error:
        found.problems["hazard"] = str(error)
    if (expert := env.expert()) is not None:
        found.extras.append("expert")
        shape = np.shape(expert())
        if shape != env.action_space.shape:
            found.problems["expert"] = (
                f"expert() chose an action of shape {shape}, and the action space has {env.action_space.shape}; "
                "return one number per action, from -1 to 1"
            )
    for name, values in (("progress", env.progress()), ("facts", env.facts())):
        if values:
            found.extras.append(name)
        wrong = [key for key, value in values.items() if not np.isfinite(value)]
        if wrong:
            found.problems[name] = f"{name}() gave {', '.join(wrong)} as NaN or infinity; leave out what is not known"


def _look(env: Env, scenario: int, found: Examination) -> None:
    """Render some frames."""
    env.reset(seed=scenario)
    assert isinstance(env.action_space, gymnasium.spaces.Box)
    actions = random_actions(env.action_space, scenario)
    env.frame()  # the first one may start a renderer
    for _ in range(3):
        env.step(next(actions))
        began = time.perf_counter()
        frame = env.frame()
        found.frame_seconds = time.perf_counter() - began
        if found.frame not in (None, frame.shape):
            found.problems["rendering"] = (
                f"frames have the shapes {found.frame} and {frame.shape}; all must be alike, so render a fixed size"
            )
        found.frame = frame.shape


def check_environment(
    spec: EnvSpec, *, steps: int = 2000, seconds: float = 20.0, steps_per_epoch: int = 20_000
) -> list[EnvFinding]:
    """Findings of an environment, from a number of steps or seconds, whichever ends first."""
    first = ExamineTask(spec.training.start, steps, seconds)
    try:
        found = _examined(spec, first)
        again = _examined(spec, dataclasses.replace(first, steps=0, seconds=seconds))
    except VlmsafeError as error:
        details = error.details if isinstance(error, WorkerError) and error.raised else ""
        return [EnvFinding("start" if isinstance(error, InputError) else "running", "error", str(error), details)]
    try:
        seen: Examination | str = _examined(
            dataclasses.replace(spec, frames=True), dataclasses.replace(first, frames=True)
        )
    except VlmsafeError as error:
        seen = str(error)
    return list(judge(spec, found, again, seen, steps_per_epoch))


def _examined(spec: EnvSpec, task: ExamineTask) -> Examination:
    spec.require()
    with WorkerPool[Examination](EnvRecipe(spec, spec.training), 1, fresh=True, max_restarts=0) as pool:
        answers = pool.run([task])
    assert answers is not None
    return answers[0]


def judge(
    spec: EnvSpec, found: Examination, again: Examination, seen: Examination | str, steps_per_epoch: int
) -> Iterator[EnvFinding]:
    """What measurements mean. `again` is from a fresh process, `seen` of frames or why there are none."""
    yield from _judge_numbers(found)
    yield _judge_size(found, steps_per_epoch)
    yield _judge_actions(found)
    yield _judge_end(spec, found)
    yield _judge_seeds(found, again)
    yield _judge_frames(seen)
    yield _judge_speed(found)
    for name in ("hazard", "expert", "progress", "facts"):
        if name in found.problems:
            yield EnvFinding(name, "error", found.problems[name])
    if found.extras:
        yield EnvFinding("extras", "ok", f"it has {', '.join(found.extras)}")


def _judge_numbers(found: Examination) -> Iterator[EnvFinding]:
    if problem := found.problems.get("cost"):
        yield EnvFinding("cost", "error", problem)
    elif not found.costly:
        yield EnvFinding(
            "cost", "note",
            f"no step of {found.steps:,} with random actions cost anything; if that is not what you expect, look at "
            "info['cost']",
        )  # fmt: skip
    else:
        share = 100 * found.costly / found.steps
        yield EnvFinding(
            "cost", "ok", f"{share:.1f} % of {found.steps:,} steps cost; a step costs up to {found.costs:g}"
        )
    for part in ("reward", "observation"):
        if problem := found.problems.get(part):
            yield EnvFinding(part, "error", problem)
    if found.departure:
        yield EnvFinding(
            "space", "warning",
            f"an observation {found.departure}; training converts it to float32 and uses it as it is, so only the "
            "declaration is wrong: correct observation_space",
        )  # fmt: skip


def _judge_size(found: Examination, steps_per_epoch: int) -> EnvFinding:
    text = f"{found.size:,} values per observation"
    if found.size <= LARGE_OBSERVATION:
        return EnvFinding("size", "ok", text)
    return EnvFinding("size", "warning", f"{text}: {size_advice(found.size, steps_per_epoch)}")


def size_advice(size: int, steps_per_epoch: int) -> str:
    """What to do about observations of very many values."""
    return (
        f"an epoch of {steps_per_epoch:,} steps holds {4e-9 * size * steps_per_epoch:.1f} GB, and the networks are "
        "fully connected, so training is slow. Observe a vector or a smaller picture, or lower --steps-per-epoch"
    )


def _judge_actions(found: Examination) -> EnvFinding:
    if not found.unbounded:
        return EnvFinding("actions", "ok", "bounded; the policy's -1 to 1 is stretched to the bounds")
    return EnvFinding(
        "actions", "note",
        f"{found.unbounded} of the actions have no finite bounds; the policy's -1 to 1 is passed on as it is",
    )  # fmt: skip


def _judge_end(spec: EnvSpec, found: Examination) -> EnvFinding:
    limit = spec.longest
    if found.ends:
        mean = sum(found.ends) / len(found.ends)
        text = f"{len(found.ends)} episodes ended, after {mean:,.0f} steps on average"
        if found.step_limit is None:
            return EnvFinding("end", "ok", text)
        return EnvFinding(
            "end", "note",
            f"{text}; no time limit is registered, so a policy may find an episode without end, which evaluations cut "
            f"after {found.step_limit:,} steps: register it with max_episode_steps",
        )  # fmt: skip
    if found.step_limit is None:
        known = f" of up to {limit:,}" if limit else ""
        return EnvFinding("end", "ok", f"this check left the longest episode{known} after {found.longest:,} steps")
    return EnvFinding(
        "end", "error",
        f"no episode ended within {found.longest:,} steps, and no time limit is registered: no episode would count in "
        f"the episode cost, and evaluations cut after {found.step_limit:,} steps. Register it with max_episode_steps",
    )  # fmt: skip


def _judge_seeds(found: Examination, again: Examination) -> EnvFinding:
    one, same, other = found.digests[:3]
    if one != again.digests[0]:
        return EnvFinding(
            "seeds", "error",
            "the same seed and actions gave other numbers in a new process, so runs do not resume exactly and "
            "evaluations cannot be paired: call super().reset(seed=seed), draw from self.np_random only, and use no "
            "clock",
        )  # fmt: skip
    if one != same:
        return EnvFinding(
            "seeds", "warning",
            "an episode depends on the one before it: in a new process the same seed repeats, in the same process it "
            "does not. Reset everything in reset(), or train with --fresh-workers always",
        )  # fmt: skip
    if one == other:
        return EnvFinding(
            "seeds", "note", "two seeds gave the same numbers for the actions of one of them, or hardly any numbers"
        )
    return EnvFinding("seeds", "ok", "the same seed and actions repeat exactly, in this process and in a new one")


def _judge_frames(seen: Examination | str) -> EnvFinding:
    if isinstance(seen, str):
        return EnvFinding(
            "rendering", "note",
            f"no frames, so scorers that look at frames cannot be used: {seen}. To have them, put 'rgb_array' into "
            "metadata['render_modes'] and return RGB from render()",
        )  # fmt: skip
    if problem := seen.problems.get("rendering"):
        return EnvFinding("rendering", "error", problem)
    assert seen.frame is not None
    height, width = seen.frame[:2]
    return EnvFinding("rendering", "ok", f"frames of {height} x {width}, {1000 * seen.frame_seconds:.1f} ms each")


def _judge_speed(found: Examination) -> EnvFinding:
    speed = found.steps / max(found.step_seconds, 1e-9)
    text = f"{speed:,.0f} steps/s in one process; a reset takes up to {1000 * found.reset_seconds:,.1f} ms"
    if speed >= _SLOW:
        return EnvFinding("speed", "ok", text)
    hours = 1e6 / speed / 3600
    return EnvFinding(
        "speed", "warning",
        f"{text}: a million steps take {hours:,.0f} hours in one process. Use more with --num-envs, or fewer steps",
    )  # fmt: skip
