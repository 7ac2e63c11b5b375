"""Recording: short pieces of episodes with frames and privileged measures, in files of one environment each.

A driver drives until something is touched or its time is over, and the last steps are kept. Most pieces end soon after
a contact, because the steps before one are worth most. Faults begin anywhere on the way, because every episode starts
at the same kind of place and many contacts come later. Frames are as many steps apart as those of a frame stack.
Measures and cost are stored for every step, because some facts about a frame depend on the steps after it.
"""

from __future__ import annotations

import io
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmsafe.distillation.drivers import Agent, draw_kind, driver
from vlmsafe.distillation.facts import EVENTS, MEASURES
from vlmsafe.envs.api import Env, Frame, Observation, Scenarios
from vlmsafe.envs.episodes import begin_episode, step_episode
from vlmsafe.io.files import write_atomically
from vlmsafe.io.images import encode
from vlmsafe.learners.policy import ActionMap
from vlmsafe.signals.frame_stack import STEPS_APART

LIMIT = 240  # the most steps of a piece
QUIET_LIMIT = 120  # the most steps of a piece without a contact
AFTER_FAULT = 300  # steps in which a fault may lead to a contact
AFTER_CONTACT = 12  # steps that follow the first contact, in most pieces
GO_ON = 0.25  # share of pieces that continue after contact, so that the scorer also sees recoveries
LEAD = 0.3  # the longest way to the start of a fault, as a share of the longest episode


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
    longest_lead: int = 0
    """The most steps that are driven before a fault begins."""
    version: int | None = None
    """The environment's version."""

    def run(self, env: Env, tick: Callable[[int], None]) -> dict[str, int]:
        """Record, write the file and return what is in it. A file that exists is kept."""
        if env.step_seconds is not None:
            self = replace(self, step_seconds=env.step_seconds)
        if not self.path.exists():
            env.isolate = False  # an engine per episode would take as long as the episode
            rng = np.random.default_rng(self.seed)
            recorded: list[_Recorded] = []
            steps = 0
            for _ in range(self.episodes):
                piece = None
                while piece is None:
                    piece = _record(env, self, rng)
                recorded.append(piece)
                steps += len(piece.costs)
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
class _Step:
    """What is known of the state after a step."""

    cost: float
    measures: list[float]
    frame: Frame | None
    """None between the frames of stacks."""
    observation: Observation


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


def _record(env: Env, task: RecordTask, rng: np.random.Generator) -> _Recorded | None:
    """A piece of an episode; None if the episode ended before any frame was due."""
    scenario = task.scenarios.draw(rng)
    traffic_seed = int(rng.integers(2**31)) if task.traffic else -1
    observation = begin_episode(env, scenario, {"traffic_seed": traffic_seed} if task.traffic else None)
    lead = int(rng.integers(task.longest_lead + 1))
    kind, act = driver(draw_kind(rng), env, task.agents, rng, lead, task.step_seconds)
    to_env = ActionMap.to(env.action_space, clips=env.clips)  # type: ignore[arg-type]
    phase, goes_on = int(rng.integers(STEPS_APART)), rng.random() < GO_ON
    # Nothing happens on the way to a fault, so only the end of that way is drawn.
    first = 0 if "agent" in kind else max(0, lead - QUIET_LIMIT // 2)
    kept: deque[_Step] = deque(maxlen=LIMIT)
    end, touched, finished = lead + AFTER_FAULT, False, False
    for step in itertools.count():
        action = to_env(act(observation).astype(np.float32))
        observation, _, cost, terminated, truncated, _ = step_episode(env, action, scenario, step + 1)
        if step >= first:
            facts = env.facts()
            drawn = env.frame().copy() if step % STEPS_APART == phase else None
            kept.append(_Step(cost, [facts.get(name, np.nan) for name in MEASURES], drawn, observation))
            # Contacts count even where they cost nothing.
            if not touched and (cost > 0.0 or any(facts.get(event, 0.0) > 0.0 for event in EVENTS.values())):
                touched = True
                end = step + (LIMIT // 2 if goes_on else AFTER_CONTACT)
        finished = terminated or truncated
        if finished or step >= end:
            break
    steps = list(kept) if touched else list(kept)[-QUIET_LIMIT:]
    shown = [(number, step) for number, step in enumerate(steps) if step.frame is not None]
    if not shown:
        return None
    return _Recorded(
        scenario,
        traffic_seed,
        kind,
        finished,
        [step.cost for step in steps],
        [step.measures for step in steps],
        [step.observation.astype(np.float16) for _, step in shown],
        [encode(step.frame) for _, step in shown if step.frame is not None],
        [number for number, _ in shown],
    )


def _packed(task: RecordTask, recorded: Sequence[_Recorded]) -> bytes:
    """Everything as flat arrays: one entry per episode, per step of all episodes, and per frame of all episodes."""
    frames = [frame for episode in recorded for frame in episode.frames]
    arrays: dict[str, NDArray[Any]] = {
        "env": np.array(task.env),
        "version": np.array(-1 if task.version is None else task.version),
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
