"""Recording: short episodes with frames and privileged measures, one file per environment and group of episodes.

Most episodes end soon after their first contact, because the steps before a contact are worth most. Frames are as many
steps apart as those of a frame stack. Measures and cost are stored for every step, because some facts about a frame
depend on the steps after it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmsafe.distillation.drivers import KINDS, Agent, driver
from vlmsafe.distillation.facts import EVENTS, MEASURES
from vlmsafe.envs.api import Env, Scenarios
from vlmsafe.envs.episodes import begin_episode, step_episode
from vlmsafe.io.files import write_atomically
from vlmsafe.io.images import encode
from vlmsafe.learners.policy import ActionMap
from vlmsafe.signals.frame_stack import STEPS_APART

LIMIT, LIMIT_SECONDS = 160, 9.6  # the longest episode in steps, or in seconds if that is more steps
AFTER_CONTACT = 12  # steps that follow the first contact, in most episodes
GO_ON = 0.25  # share of episodes that continue after contact, so that the scorer also sees recoveries


def step_limit(step_seconds: float) -> int:
    """The most steps of an episode.

    >>> step_limit(0.1), step_limit(0.04)
    (160, 240)
    """
    return max(LIMIT, math.ceil(round(LIMIT_SECONDS / step_seconds, 6)))


@dataclass(frozen=True)
class RecordTask:
    """A number of episodes in one environment. Equal tasks write equal files if the simulator is deterministic."""

    path: Path
    env: str
    step_seconds: float
    """Simulated time per step, unless the environment itself says another."""
    scenarios: Scenarios
    traffic: bool
    episodes: int
    seed: tuple[int, ...]
    agents: Sequence[Agent] = ()

    def run(self, env: Env, tick: Callable[[int], None]) -> dict[str, int]:
        """Record, write the file and return what is in it. A file that exists is kept."""
        if env.step_seconds is not None:
            self = replace(self, step_seconds=env.step_seconds)
        if not self.path.exists():
            env.isolate = False  # an engine per episode would take as long as the episode
            rng = np.random.default_rng(self.seed)
            recorded, steps = [], 0
            for _ in range(self.episodes):
                recorded.append(_record(env, self, rng))
                steps += len(recorded[-1].costs)
                tick(steps)
            write_atomically(self.path, _packed(self, recorded))
        with np.load(self.path) as held:
            return {
                "episodes": len(held["scenario"]),
                "steps": len(held["cost"]),
                "frames": len(held["frame_step"]),
                "contacts": int(held["contact"].sum()),
            }


@dataclass(frozen=True)
class _Recorded:
    scenario: int
    traffic_seed: int
    kind: str
    complete: bool
    """Whether the environment ended the episode; otherwise the recording was cut."""
    costs: list[float]
    measures: list[list[float]]
    observations: list[Any]
    frames: list[bytes]
    frame_steps: list[int]


def _record(env: Env, task: RecordTask, rng: np.random.Generator) -> _Recorded:
    scenario = task.scenarios.draw(rng)
    traffic_seed = int(rng.integers(2**31)) if task.traffic else -1
    observation = begin_episode(env, scenario, {"traffic_seed": traffic_seed} if task.traffic else None)
    kind, act = driver(KINDS[int(rng.integers(len(KINDS)))], env, task.agents, rng)
    to_env = ActionMap.to(env.action_space, clips=env.clips)  # type: ignore[arg-type]
    phase = int(rng.integers(STEPS_APART))
    limit = step_limit(task.step_seconds)
    end, goes_on, finished = limit, rng.random() < GO_ON, False
    episode = _Recorded(scenario, traffic_seed, kind, False, [], [], [], [], [])
    for step in range(limit):
        action = to_env(act(observation).astype(np.float32))
        observation, _, cost, terminated, truncated, _ = step_episode(env, action, scenario, step + 1)
        facts = env.facts()
        episode.costs.append(cost)
        episode.measures.append([facts.get(name, np.nan) for name in MEASURES])
        if step % STEPS_APART == phase:
            episode.frames.append(encode(env.frame()))
            episode.frame_steps.append(step)
            episode.observations.append(observation.astype(np.float16))
        # Contacts count even where they cost nothing.
        if (cost > 0.0 or any(facts.get(event, 0.0) > 0.0 for event in EVENTS.values())) and not goes_on:
            end = min(end, step + AFTER_CONTACT)
        finished = terminated or truncated
        if finished or step >= end:
            break
    return _Recorded(**{**episode.__dict__, "complete": finished})


def _packed(task: RecordTask, recorded: Sequence[_Recorded]) -> bytes:
    """Everything as flat arrays: one entry per episode, per step of all episodes, and per frame of all episodes."""
    frames = [frame for episode in recorded for frame in episode.frames]
    arrays: dict[str, NDArray[Any]] = {
        "env": np.array(task.env),
        "step_seconds": np.array(task.step_seconds),
        "scenario": np.array([episode.scenario for episode in recorded]),
        "traffic_seed": np.array([episode.traffic_seed for episode in recorded]),
        "driver": np.array([episode.kind for episode in recorded]),
        "agents": np.array([agent.name for agent in task.agents]),
        "complete": np.array([episode.complete for episode in recorded]),
        "contact": np.array([max(episode.costs) > 0.0 for episode in recorded]),
        "length": np.array([len(episode.costs) for episode in recorded]),
        "cost": np.concatenate([episode.costs for episode in recorded]).astype(np.float32),
        "measures": np.concatenate([episode.measures for episode in recorded]).astype(np.float32),
        "measure_names": np.array(list(MEASURES)),
        "frame_count": np.array([len(episode.frames) for episode in recorded]),
        "frame_step": np.concatenate([episode.frame_steps for episode in recorded]).astype(np.int32),
        "observations": np.array([row for episode in recorded for row in episode.observations], np.float16),
        "frame_size": np.array([len(frame) for frame in frames], np.int64),
        "frame_bytes": np.frombuffer(b"".join(frames), np.uint8),
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
