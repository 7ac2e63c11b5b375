"""Recordings for distillation: frames of any environment with what every kind of teacher looks at, as files.

Frames are as many steps apart as those of a frame stack, and are kept exactly, because a teacher scores them later.
Costs are kept of every step: contact may follow a frame at any of them. Nothing else of the environment is needed; one
without `hazard()` or without a cost is recorded without it.

Recordings of held-out scenarios are whole episodes, with a stack every few steps. Frames of one episode look alike, and
a model that sees few scenarios learns them by heart. Recordings of training scenarios therefore keep stacks of few
moments of each episode, and those after the first cost; most of these episodes end soon after it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmsafe.distillation.drivers import Agent, Kind, driver
from vlmsafe.distillation.record import AFTER_CONTACT, GO_ON
from vlmsafe.envs.api import Env, Scenarios
from vlmsafe.envs.episodes import begin_episode, checked_cost, checked_observation
from vlmsafe.errors import EnvironmentFailure, InputError
from vlmsafe.io.files import write_atomically
from vlmsafe.io.images import encode
from vlmsafe.learners.policy import ActionMap
from vlmsafe.signals.frame_stack import STEPS_APART

EPISODES_PER_FILE = 5  # an interruption loses at most this much of the recording, and of a teacher's work

MOMENTS = 0.1  # the chance that a stack of a training episode begins at a frame
WITH_POLICIES: tuple[Kind, ...] = ("agent", "agent", "shaking-agent", "dice")
WITHOUT_POLICIES: tuple[Kind, ...] = ("dice", "expert", "shaking")
"""Drivers of episodes, drawn with equal chances: policies without and with noise, and random actions. Without policies
the environment's scripted driver takes their place, and random actions if it has none."""


@dataclass(frozen=True)
class FramesTask:
    """A number of episodes in one environment. Equal tasks write equal files if the simulator is deterministic."""

    path: Path
    env: str
    scenarios: Scenarios
    traffic: bool
    seed: tuple[int, ...]
    agents: Sequence[Agent]
    longest: int
    """Steps after which an episode is cut."""
    whole: bool
    """Whether all of an episode is kept; otherwise a few moments are, and most episodes end soon after a cost."""
    frames: int = 2
    """Frames of the longest stack that anyone looks at."""
    episodes: int = EPISODES_PER_FILE

    def run(self, env: Env, tick: Callable[[int], None]) -> None:
        """Record and write the file. One that exists is kept."""
        if self.path.exists():
            return
        env.isolate = False  # an engine per episode would take as long as the episode
        rng, steps, recorded = np.random.default_rng(self.seed), 0, []
        for _ in range(self.episodes):
            recorded.append(_record(env, self, rng, steps, tick))
            steps += len(recorded[-1].costs)
        shapes = {shape for episode in recorded for shape in episode.shapes}
        if len(shapes) > 1:
            raise EnvironmentFailure(
                f"environment '{self.env}' renders frames of different sizes ({', '.join(map(str, sorted(shapes)))}); "
                "scoring needs frames of one size"
            )
        write_atomically(self.path, _packed(self, recorded))


@dataclass(frozen=True)
class _Episode:
    scenario: int
    kind: str
    complete: bool
    """Whether the environment ended the episode; otherwise the recording was cut."""
    costs: list[float]
    frames: list[bytes]
    shapes: list[tuple[int, ...]]
    frame_steps: list[int]
    newest: list[bool]
    """Whether a frame is the newest of a stack; others only come before one."""
    hazards: list[float]
    observations: list[NDArray[np.float32]]


def _record(env: Env, task: FramesTask, rng: np.random.Generator, before: int, tick: Callable[[int], None]) -> _Episode:
    """One episode, after `before` steps of others."""
    scenario = task.scenarios.draw(rng)
    details = {"traffic_seed": int(rng.integers(2**31))} if task.traffic else None
    observation = begin_episode(env, scenario, details)
    kinds = WITH_POLICIES if task.agents else WITHOUT_POLICIES
    kind, act = driver(kinds[int(rng.integers(len(kinds)))], env, task.agents, rng)
    to_env = ActionMap.to(env.action_space, clips=env.clips)  # type: ignore[arg-type]
    phase, goes_on = int(rng.integers(STEPS_APART)), task.whole or rng.random() < GO_ON
    end, finished = task.longest - 1, False
    episode = _Episode(scenario, kind, False, [], [], [], [], [], [], [])
    waiting = 0  # frames until the next stack is complete; 0 between stacks

    def look(step: int, newest: bool) -> None:
        frame = env.frame()
        episode.frames.append(encode(frame, exact=True))
        episode.shapes.append(frame.shape)
        episode.frame_steps.append(step)
        episode.newest.append(newest)
        episode.hazards.append(_hazard(env))
        episode.observations.append(observation)

    for step in range(task.longest):
        given, _, terminated, truncated, info = env.step(to_env(act(observation).astype(np.float32)))
        observation = checked_observation(given, scenario, step + 1)
        cost = checked_cost(info, scenario, step + 1) if "cost" in info else np.nan
        episode.costs.append(cost)
        if cost > 0.0 and not goes_on:
            end = min(end, step + AFTER_CONTACT)
        finished = bool(terminated or truncated)
        if step % STEPS_APART == phase:
            costly = not task.whole and max(episode.costs) > 0.0
            if waiting == 0 and not costly and not task.whole and rng.random() < MOMENTS:
                waiting = task.frames
            if task.whole or costly or waiting:
                look(step, task.whole or costly or waiting == 1)
            waiting = max(waiting - 1, 0)
        tick(before + step + 1)
        if finished or step >= end:
            break
    if not any(episode.newest):  # it ended before the first stack was complete
        look(len(episode.costs) - 1, True)
    return _Episode(**{**vars(episode), "complete": finished})


def _hazard(env: Env) -> float:
    """The environment's hazard; NaN if it has none."""
    try:
        return env.hazard()
    except InputError:
        return np.nan


def _packed(task: FramesTask, recorded: Sequence[_Episode]) -> bytes:
    """Everything as flat arrays: one entry per episode, per step of all episodes, and per frame of all episodes."""
    frames = [frame for episode in recorded for frame in episode.frames]
    arrays: dict[str, NDArray[Any]] = {
        "env": np.array(task.env),
        "scenario": np.array([episode.scenario for episode in recorded]),
        "driver": np.array([episode.kind for episode in recorded]),
        "complete": np.array([episode.complete for episode in recorded]),
        "length": np.array([len(episode.costs) for episode in recorded]),
        "cost": np.concatenate([episode.costs for episode in recorded]).astype(np.float32),
        "frame_count": np.array([len(episode.frames) for episode in recorded]),
        "frame_step": np.concatenate([episode.frame_steps for episode in recorded]).astype(np.int32),
        "newest": np.concatenate([episode.newest for episode in recorded]).astype(np.bool_),
        "hazard": np.concatenate([episode.hazards for episode in recorded]).astype(np.float32),
        "observations": np.array([row for episode in recorded for row in episode.observations], np.float32),
        "frame_size": np.array([len(frame) for frame in frames], np.int64),
        "frame_bytes": np.frombuffer(b"".join(frames), np.uint8),
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
