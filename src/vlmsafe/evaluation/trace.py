"""Evaluation episodes step by step: what happened, and what scorers made of it.

The policy and the scenarios are those of `evaluate`, so a trace's costs add up to that evaluation's. A scorer looks
after every k-th step; frames go through shared memory to the scoring thread block by block, as in training, and none is
kept. What is recorded are similarities, from which any rule and any gate can be computed later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vlmsafe.envs import env_spec
from vlmsafe.envs.api import Env
from vlmsafe.envs.stream import Sender, Stream
from vlmsafe.envs.workers import EnvRecipe, WorkerPool
from vlmsafe.errors import InputError
from vlmsafe.evaluation.episodes import EpisodeTask, Plan, require_writable, table_path, write_table
from vlmsafe.signals.moments import stacked
from vlmsafe.signals.rules import apply_rule
from vlmsafe.signals.scorers import Look, Scorer
from vlmsafe.signals.scorers.api import Inputs, Similarities, check_scorer
from vlmsafe.signals.shaping import due
from vlmsafe.training.collection import DescribeTask, Dimensions, Watch, Watcher
from vlmsafe.training.run import Run
from vlmsafe.training.scoring import FrameScoring, score_named

SCHEMA: dict[str, Any] = {
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
    """What one worker brings back."""

    steps: pl.DataFrame
    """One row per step."""
    inputs: dict[Look, Inputs]
    """What scorers look at, one entry per scored step; frames travel by themselves."""


@dataclass(frozen=True)
class TraceTask:
    """The episodes of an evaluation's task, recorded."""

    episodes: EpisodeTask
    first: int
    """Number of its first episode in the evaluation."""
    looks: tuple[Look, ...]
    every: int
    facts: bool
    frames: int = 1
    """Of a moment."""

    def run(self, env: Env, tick: Callable[[int], None], sender: Sender | None = None) -> Recording:
        watchers = {
            look: Watcher(env, Watch(look, self.every, self.frames), (self.first,), sender if look == "frame" else None)
            for look in self.looks
        }
        rows: list[dict[str, Any]] = []
        for episode, step in self.episodes.drive(env, tick):
            for watcher in watchers.values():
                watcher.after(step.number, step.observation)
            rows.append(
                {
                    **env.progress(),
                    "episode": self.first + episode,
                    "scenario": self.episodes.scenarios[episode],
                    "traffic_seed": self.episodes.traffic_seeds[episode],
                    "step": step.number,
                    "reward": step.reward,
                    "cost": step.cost,
                    "hazard": _hazard(env),
                    "scored": bool(watchers) and due(step.number, self.every),
                    **({f"fact_{name}": value for name, value in env.facts().items()} if self.facts else {}),
                }
            )
        kinds = {name: SCHEMA.get(name, pl.Float64) for row in rows for name in row}
        inputs = {look: watcher.finish() for look, watcher in watchers.items()}
        return Recording(pl.DataFrame(rows, schema=kinds), inputs)


def _hazard(env: Env) -> float | None:
    try:
        return env.hazard()
    except InputError:  # an environment may leave it undefined
        return None


class _Judges(FrameScoring):
    """Several scorers; those of frames score each block one after another, side by side in its columns."""

    def __init__(self, scorers: Mapping[str, Scorer]) -> None:
        super().__init__()
        for scorer in scorers.values():
            check_scorer(scorer)
        self.scorers = scorers
        self.looks: tuple[Look, ...] = tuple(dict.fromkeys(scorer.looks_at for scorer in scorers.values()))
        self._of_frames = [name for name, scorer in scorers.items() if scorer.looks_at == "frame"]
        self.frames = max([scorers[name].frames for name in self._of_frames], default=1)

    def score(self, inputs: NDArray[np.generic]) -> Similarities:
        parts = []
        for name in self._of_frames:
            newest = inputs[..., -3 * self.scorers[name].frames :]  # of a moment, as many frames as this one wants
            parts.append(_score(self.scorers[name], name, newest))
        return np.concatenate(parts, axis=1)

    def similarities(self, task: int, recording: Recording) -> dict[str, Similarities]:
        """What each scorer made of a task's scored steps."""
        found: dict[str, Similarities] = {}
        if self._of_frames:
            widths = [sum(self.scorers[name].groups) for name in self._of_frames]
            joined = np.concatenate([np.empty((0, sum(widths)), np.float32), *self.results(task)])
            found |= zip(self._of_frames, np.split(joined, np.cumsum(widths)[:-1], axis=1), strict=True)
        for name, scorer in self.scorers.items():
            if scorer.looks_at != "frame":
                found[name] = _score_and_forget(scorer, name, recording.inputs[scorer.looks_at])
        return found


def _score(scorer: Scorer, name: str, inputs: NDArray[np.generic]) -> Similarities:
    return score_named(scorer, name or type(scorer).__name__, inputs)


def _score_and_forget(scorer: Scorer, name: str, inputs: Inputs) -> Similarities:
    """A scorer that learns begins every task as it came, and leaves the trace as it came."""
    if not len(inputs):
        return np.empty((0, sum(scorer.groups)), np.float32)
    before = {key: array.copy() for key, array in scorer.state().items()}
    similarities = _score(scorer, name, inputs)
    scorer.load_state(before)
    return similarities


def trace(
    run: Run | Path | str,
    scorers: Mapping[str, Scorer] | Scorer,
    protocol_name: str = "held-out",
    *,
    episodes: int | None = None,
    epoch: int | None = None,
    processes: int | None = None,
    every: int = 1,
    facts: bool = False,
    batch: int = 64,
    indicators: bool | None = None,
    allow_untrained: bool = False,
    write: bool = False,
    on_episode: Callable[[int], None] = lambda done: None,
    on_note: Callable[[str], None] = lambda text: None,
) -> pl.DataFrame:
    """One row per step of a run's evaluation episodes, with what scorers make of the state after every k-th step.

    One scorer gives the columns `similarity_0`, ..., `positive`, `negative` and `margin`; several, by name, give them
    with their name and an underscore in front. They are null at steps that were not scored. The environment's progress
    is there under its own names, `hazard` is null where it has none, and `facts` adds its privileged measures as
    `fact_<name>`. `batch` frames are scored together. `indicators` draws the simulator's cost indicators into frames,
    or leaves them out, whatever the run did: what they give away is the difference of the two. `write` puts the table
    into the run, in place of an earlier one, as `evaluations/trace-<protocol>.parquet`, or under a name of its own
    where `indicators` departs from the run. The other arguments are those of `evaluate`.
    """
    named = {"": scorers} if isinstance(scorers, Scorer) else dict(scorers)
    for name, value in (("every", every), ("batch", batch)):
        if value < 1:
            raise InputError(f"{name} is {value}; it must be at least 1")
    plan = Plan.of(
        run, protocol_name, episodes=episodes, epoch=epoch, processes=processes,
        allow_untrained=allow_untrained, on_note=on_note,
    )  # fmt: skip
    prefix = "trace-"
    if indicators is not None:
        spec = env_spec(plan.run.config.env, indicators=indicators)
        if bool(spec.indicators) != bool(plan.spec.indicators):
            prefix += "indicators-" if indicators else "no-indicators-"
        plan = dataclasses.replace(plan, spec=spec)
    path = table_path(plan.run, plan.protocol, epoch, prefix)
    if write:
        require_writable(path)
    with _Judges(named) as judges:
        looks_at_frames = "frame" in judges.looks
        recipe = plan.recipe(frames=looks_at_frames)
        stream = Stream(stacked(_frame_shape(recipe, plan), judges.frames), block=batch) if looks_at_frames else None
        tasks, first = [], 0
        for task in plan.tasks:
            tasks.append(TraceTask(task, first, judges.looks, every, facts, judges.frames))
            first += len(task.scenarios)
        reader = judges if looks_at_frames else None
        recordings = plan.execute(tasks, recipe, on_episode, stream, reader)
        tables = [_table(recording, judges.similarities(i, recording), named) for i, recording in enumerate(recordings)]
    joined = pl.concat(tables, how="diagonal").with_columns(checkpoint_epoch=pl.lit(plan.checkpoint.epoch, pl.Int64))
    table = joined.select(_ordered(joined.columns))
    if write:
        write_table(path, table)
    return table


def _frame_shape(recipe: EnvRecipe, plan: Plan) -> tuple[int, ...]:
    """Found by making the environment once in a worker."""
    with WorkerPool[Dimensions](recipe, size=1) as pool:
        answers = pool.run([DescribeTask("frame", plan.tasks[0].scenarios[0])])
    assert answers is not None
    assert answers[0].frame is not None
    return answers[0].frame


def _table(recording: Recording, found: Mapping[str, Similarities], scorers: Mapping[str, Scorer]) -> pl.DataFrame:
    """A task's steps, with scores where there are any."""
    scored = recording.steps["scored"].to_numpy()
    columns = []
    for name, scorer in scorers.items():
        prefix, similarities = f"{name}_" if name else "", found[name]
        scores = apply_rule("decoupled", similarities, scorer.groups, scorer.bounds)
        values: dict[str, NDArray[Any]] = {f"similarity_{i}": column for i, column in enumerate(similarities.T)}
        values |= {"positive": scores.positive, "negative": scores.negative, "margin": scores.margin}
        for column, present in values.items():
            spread = np.full(len(scored), np.nan, present.dtype)
            spread[scored] = present
            columns.append(pl.Series(prefix + column, spread, nan_to_null=True))
    return recording.steps.with_columns(columns)


def _ordered(names: Sequence[str]) -> list[str]:
    """What every trace has first, then what this one has besides, in the order in which it came."""
    return [*SCHEMA, *(name for name in names if name not in SCHEMA)]
