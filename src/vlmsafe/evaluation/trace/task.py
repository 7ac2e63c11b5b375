"""The work of a worker that records a trace: it drives episodes and notes every step and what scorers look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from vlmsafe.envs.api import Env
from vlmsafe.envs.vector.frames import Frames, Sender
from vlmsafe.errors import InputError
from vlmsafe.evaluation.plan import EpisodeTask
from vlmsafe.signals.frame_stack import NEWEST, StepsBack
from vlmsafe.signals.scorers.api import InputKind, Inputs
from vlmsafe.signals.shaping import due
from vlmsafe.training.collect import Watch, Watcher

SCHEMA: dict[str, Any] = {
    "protocol": pl.String,
    "deterministic": pl.Boolean,
    "checkpoint_epoch": pl.Int64,
    "episode": pl.Int64,
    "scenario": pl.Int64,
    "traffic_seed": pl.Int64,
    "step": pl.Int64,
    "reward": pl.Float64,
    "cost": pl.Float64,
    "hazard": pl.Float64,
    "scored": pl.Boolean,
}


@dataclass(frozen=True)
class Recording:
    """What a worker returns for one task."""

    steps: pl.DataFrame
    """One row per step."""
    inputs: dict[InputKind, Inputs]
    """What scorers look at, one entry per scored step. Frames go through shared memory instead."""
    pictures: list[bytes] = field(default_factory=list)
    """The frames of scored steps, if they are kept."""


class _Album(Sender):
    """Passes frames on and keeps a picture of the newest frame of every stack."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.pictures: list[bytes] = []

    def put(self, frame: Frames) -> None:
        self.pictures.append(_picture(frame[..., -3:]))
        self._sender.put(frame)

    def flush(self) -> None:
        self._sender.flush()


def _picture(frame: Frames) -> bytes:
    from vlmsafe.io.images import encode  # here, because most workers keep no pictures

    return encode(frame)


@dataclass(frozen=True)
class TraceTask:
    """Records the episodes of an evaluation's task."""

    episodes: EpisodeTask
    looks: tuple[InputKind, ...]
    every: int
    facts: bool
    stack: StepsBack = NEWEST
    """The frames that scorers look at."""
    keep: bool = False
    """Whether pictures of scored steps are kept."""

    def run(self, env: Env, tick: Callable[[int], None], sender: Sender | None = None) -> Recording:
        album = _Album(sender) if self.keep and sender is not None else None
        watchers = {
            look: Watcher(
                env,
                Watch(look, self.every, self.stack),
                (self.episodes.first,),
                (album or sender) if look == "frame" else None,
            )
            for look in self.looks
        }
        rows: list[dict[str, Any]] = []
        pictures = album.pictures if album is not None else []
        for episode, step in self.episodes.drive(env, tick):
            for watcher in watchers.values():
                watcher.after(step.number, step.observation)
            scored = (bool(watchers) or self.keep) and due(step.number, self.every)
            if self.keep and album is None and scored:  # no scorer has rendered the frame
                pictures.append(_picture(env.frame()))
            rows.append(
                {
                    **env.progress(),
                    "episode": self.episodes.first + episode,
                    "scenario": self.episodes.scenarios[episode],
                    "traffic_seed": self.episodes.traffic_seeds[episode],
                    "step": step.number,
                    "reward": step.reward,
                    "cost": step.cost,
                    "hazard": _hazard(env),
                    "scored": scored,
                    **({f"fact_{name}": value for name, value in env.facts().items()} if self.facts else {}),
                }
            )
        kinds = {name: SCHEMA.get(name, pl.Float64) for row in rows for name in row}
        inputs = {look: watcher.finish() for look, watcher in watchers.items()}
        return Recording(pl.DataFrame(rows, schema=kinds), inputs, pictures)


def _hazard(env: Env) -> float | None:
    try:
        return env.hazard()
    except InputError:  # an environment may leave it undefined
        return None
