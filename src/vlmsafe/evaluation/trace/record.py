"""Trace a policy: its evaluation episodes step by step, with the scores of one or several scorers.

The policy, the scenarios and the actions are those of `evaluate`, so the costs of a trace add up to those of the
evaluation. Scorers score the state after every k-th step. Frames go through shared memory to the scoring thread block
by block, as in training. They are kept, as small pictures, only on request. The table also has the similarities, so
that any other rule or gate can be computed later.
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

from vlmsafe import kernels
from vlmsafe.analysis.auc import auc
from vlmsafe.envs.registry import env_spec
from vlmsafe.envs.vector.frames import Stream
from vlmsafe.envs.vector.pool import EnvRecipe, WorkerPool
from vlmsafe.errors import InputError
from vlmsafe.evaluation.gated_scorers import GatedScorer, TraceScoring, gated_scorers
from vlmsafe.evaluation.plan import Plan, require_counts, warn
from vlmsafe.evaluation.resume import EpisodeCount
from vlmsafe.evaluation.trace.task import SCHEMA, Recording, TraceTask
from vlmsafe.evaluation.trace.unfinished import TracedTask, UnfinishedTrace
from vlmsafe.io.child import call_in_child
from vlmsafe.io.disk import require_writable
from vlmsafe.runs.drivers import open_run, with_own_directory
from vlmsafe.runs.run import Run
from vlmsafe.runs.tables import SOURCE
from vlmsafe.runs.traces import write_trace
from vlmsafe.signals.frame_stack import stack_shape
from vlmsafe.signals.gate import gate_levels, uncalibrated
from vlmsafe.signals.rules import apply_rule
from vlmsafe.signals.scorers.api import Scorer, Similarities
from vlmsafe.signals.scorers.bill import in_words
from vlmsafe.training.collect import DescribeTask, Dimensions

Scorers = Mapping[str, Scorer | GatedScorer] | Scorer | Sequence[str]
"""Loaded scorers by label, one loaded scorer, or names."""

_BLOCK = 64  # frames that a worker hands over at a time


def trace(
    run: Run | Path | str,
    scorers: Scorers = (),
    protocol_name: str = "held-out",
    *,
    scorer: Scorers | None = None,
    protocol: str | None = None,
    episodes: int | None = None,
    epoch: int | None = None,
    processes: int | None = None,
    every: int = 1,
    prompts: str | None = None,
    device: str = "auto",
    facts: bool = False,
    frames: bool = False,
    batch: int | None = None,
    service: str = "",
    scorer_frames: int | None = None,
    frame_distance: int | None = None,
    indicators: bool | None = None,
    allow_untrained: bool = False,
    write: bool = False,
    on_episode: Callable[[int], None] = lambda done: None,
    on_note: Callable[[str], None] = warn,
) -> pl.DataFrame:
    """One row per step of a run's evaluation episodes, with scores of the state after every k-th step.

    `scorers` are names or loaded scorers, or one of them, by default the run's own. `scorer` and `protocol`, the names
    of the command line, are other names for `scorers` and `protocol_name`. A run without a signal has `embedded` if
    there are prompts for its environment, and otherwise no scores. Names are loaded with `prompts` on `device`, see
    `gated_scorers`. `service` is the address of a scoring service that has the models; empty loads them here. One
    scorer gives the columns `similarity_0`, ..., `positive`, `negative`, `margin`, `kappa`, `gate_scale` and
    `gate_centre`. Several scorers give the same columns, with their label and an underscore in front. Scores are null
    at steps that were not scored. kappa comes from the scorer's gate; a scorer that is passed without a gate has the
    one that suits it, or the prior-symmetric one if that would be calibrated.

    The environment's progress has its own names. `hazard` is null if the environment defines none, and `facts` adds its
    privileged measures as `fact_<name>`. `batch` frames are scored together, by default as many as suit the scorer.
    `scorer_frames` and `frame_distance` say how many frames a scorer that takes any number gets at a time, and how many
    steps lie between them; by default they are the run's for its own scorer, and one frame for others.
    `indicators` draws the simulator's cost indicators into frames or leaves them out, regardless of what the run did;
    comparing the two shows how much the indicators give away.

    `write` writes the table into the run as `traces/<protocol>.parquet`. A complete new one replaces an earlier one.
    The name differs if `indicators` differs from the run. `frames` adds pictures of the scored steps. After an
    interruption the same call goes on, and finished episodes are not run again unless `scorers` are loaded ones. The
    other arguments are those of `evaluate`.

    >>> import vlmsafe
    >>> run = vlmsafe.train(env="speeding", total_steps=400, steps_per_epoch=200, run_dir="runs/first", quiet=True)
    >>> steps = vlmsafe.trace("runs/first", scorer="oracle", episodes=2, every=4)
    >>> steps.filter("scored").select("episode", "step", "cost", "negative").columns
    ['episode', 'step', 'cost', 'negative']
    """
    require_counts(every=every, batch=1 if batch is None else batch)
    if scorer is not None:
        if scorers:
            raise InputError("'scorer' and 'scorers' are one argument; give one of them")
        scorers = scorer
    scorers = (scorers,) if isinstance(scorers, str) else scorers
    protocol_name = protocol or protocol_name
    if frames and not write:
        raise InputError("frames are kept in the run directory; pass write=True with frames=True")
    run = open_run(run)
    if not kernels.fit(run.config.kernels):
        if not isinstance(scorers, Scorer | Mapping):
            return call_in_child(
                run.config.kernels, trace, run, tuple(scorers), protocol_name, episodes=episodes, epoch=epoch,
                processes=processes, every=every, prompts=prompts, device=device, facts=facts, frames=frames,
                batch=batch, service=service, scorer_frames=scorer_frames, frame_distance=frame_distance,
                indicators=indicators, allow_untrained=allow_untrained, write=write,
                callbacks={"on_episode": on_episode, "on_note": on_note},
            )  # fmt: skip
        on_note(
            f"the scorers are objects of this process, so it traces with its own {kernels.in_effect()} kernels and not "
            f"with the run's {run.config.kernels} ones; pass names of scorers, or import vlmsafe before numpy and torch"
        )
    plan = Plan.of(
        run, protocol_name, episodes=episodes, epoch=epoch, processes=processes,
        allow_untrained=allow_untrained, on_note=on_note,
    )  # fmt: skip
    if indicators is not None:
        drawn = env_spec(plan.run.config.env, indicators=indicators).indicators
        plan = dataclasses.replace(plan, spec=dataclasses.replace(plan.spec, indicators=drawn))
    options = {"device": device, "batch": batch, "service": service}
    options |= {"scorer_frames": scorer_frames, "frame_distance": frame_distance}
    gated = _gated(plan, scorers, prompts, options)
    if not gated:
        on_note(
            f"no scorer looks at these episodes: the run has no signal, and '{run.config.env}' has no prompts of its "
            "own; pass --scorer, and --prompts if it needs them"
        )
    path = (with_own_directory(plan.run) if write else plan.run).trace_path(plan.protocol.name, epoch, indicators)
    if write:
        require_writable(path)
    for one in gated.values():
        for note in one.scorer.notes(plan.run.config.env):
            on_note(note)
    how = _How(every, batch, facts, frames)
    if not write:
        return _joined(_record(plan, gated, how, None, on_episode, on_note), plan)
    named = not isinstance(scorers, Scorer | Mapping)
    with UnfinishedTrace(path, plan, gated, named, dataclasses.asdict(how)) as unfinished:
        unfinished.note_others(on_note)
        traced = _record(plan, gated, how, unfinished, on_episode, on_note)
        table = _joined(traced, plan)
        album = pl.concat(one.pictures for one in traced if one.pictures is not None) if frames else None
        write_trace(path, table, _about(plan, gated, every), album)
        unfinished.remove()  # last: at any moment, the trace or this folder holds the finished episodes
    return table


@dataclass(frozen=True)
class _How:
    """How the steps of a trace are recorded and scored."""

    every: int
    """Steps between two scored states."""
    batch: int | None
    """Frames scored at a time; None for as many as suit the scorer."""
    facts: bool
    """Whether the environment's privileged measures are recorded."""
    frames: bool
    """Whether pictures of scored steps are kept."""


def _pictures(recording: Recording) -> pl.DataFrame:
    """Each picture with its episode and step."""
    scored = recording.steps.filter("scored")
    return scored.select("episode", "step", picture=pl.Series(values=recording.pictures, dtype=pl.Binary))


def _gated(
    plan: Plan,
    scorers: Scorers,
    prompts: str | None,
    options: dict[str, Any],
) -> dict[str, GatedScorer]:
    if isinstance(scorers, Scorer):
        scorers = {"": scorers}
    if isinstance(scorers, Mapping):
        return {
            name: one if isinstance(one, GatedScorer) else GatedScorer(one, uncalibrated(one.gate))
            for name, one in scorers.items()
        }
    return gated_scorers(plan, scorers, prompts, **options)


def _record(
    plan: Plan,
    scorers: Mapping[str, GatedScorer],
    how: _How,
    unfinished: UnfinishedTrace | None,
    on_episode: Callable[[int], None],
    on_note: Callable[[str], None],
) -> list[TracedTask]:
    """Every task of the plan, recorded and scored; those that an earlier process finished are read instead."""
    saved = {} if unfinished is None else {i: unfinished.load(task) for i, task in enumerate(plan.tasks)}
    traced = {i: one for i, one in saved.items() if one is not None}
    missing = [i for i in range(len(plan.tasks)) if i not in traced]
    with TraceScoring(scorers) as scoring:
        count = EpisodeCount(plan, [plan.tasks[i] for i in missing], on_episode, on_note)
        waiting: dict[int, Recording] = {}  # recorded, but perhaps not scored yet

        def finish(*, wait: bool) -> None:
            for place in list(waiting):
                if wait or scoring.scored(place):
                    recording, i = waiting.pop(place), missing[place]
                    scores = scoring.similarities(place, recording.inputs)
                    pictures = _pictures(recording) if how.frames else None
                    traced[i] = TracedTask(_table(recording, scores, scorers), pictures)
                    if unfinished is not None:
                        unfinished.save(plan.tasks[i], traced[i])

        def take(place: int, recording: Recording) -> None:
            waiting[place] = recording
            finish(wait=False)
            count.finished(place)

        if missing:
            looks_at_frames = "frame" in scoring.looks
            recipe = plan.recipe(frames=looks_at_frames or how.frames)
            stream, reader = None, None
            if looks_at_frames:
                shape = stack_shape(_frame_shape(recipe, plan), len(scoring.stack))
                stream, reader = Stream(shape, how.batch or _BLOCK), scoring
            tasks = [
                TraceTask(plan.tasks[i], scoring.looks, how.every, how.facts, scoring.stack, how.frames)
                for i in missing
            ]
            try:
                plan.execute(tasks, recipe, take, stream, reader)
            except BaseException:
                finish(wait=False)  # what is scored is kept
                raise
            finish(wait=True)
    for one in scorers.values():
        if bill := one.scorer.bill():
            on_note(f"scoring cost {in_words(bill)}")
    return [traced[i] for i in range(len(plan.tasks))]


def _joined(traced: Sequence[TracedTask], plan: Plan) -> pl.DataFrame:
    """The table of all tasks."""
    joined = pl.concat([one.steps for one in traced], how="diagonal").with_columns(
        protocol=pl.lit(plan.protocol.name, pl.String),
        deterministic=pl.lit(not plan.protocol.stochastic, pl.Boolean),
        checkpoint_epoch=pl.lit(plan.checkpoint.epoch, pl.Int64),
    )
    # First the columns that every trace has, then the others in their order.
    return joined.select(*SCHEMA, *(name for name in joined.columns if name not in SCHEMA))


def _frame_shape(recipe: EnvRecipe, plan: Plan) -> tuple[int, ...]:
    """The shape of a frame, found by making the environment once in a worker."""
    with WorkerPool[Dimensions](recipe, size=1) as pool:
        answers = pool.run([DescribeTask("frame", plan.tasks[0].scenarios[0])])
    assert answers is not None
    assert answers[0].frame is not None
    return answers[0].frame


def _table(recording: Recording, found: Mapping[str, Similarities], scorers: Mapping[str, GatedScorer]) -> pl.DataFrame:
    """A task's steps with their scores."""
    scored = recording.steps["scored"].to_numpy()
    columns: list[pl.Series | pl.Expr] = []
    for name, one in scorers.items():
        prefix, similarities = _prefix(name), found[name]
        scores = apply_rule("decoupled", similarities, one.scorer.groups, one.scorer.bounds)
        values: dict[str, NDArray[Any]] = {f"similarity_{i}": column for i, column in enumerate(similarities.T)}
        values |= {"positive": scores.positive, "negative": scores.negative, "margin": scores.margin}
        values |= {"kappa": one.gate(scores)}
        for column, present in values.items():
            spread = np.full(len(scored), np.nan, present.dtype)
            spread[scored] = present
            columns.append(pl.Series(prefix + column, spread, nan_to_null=True))
        for level, value in gate_levels(one.gate).items():
            columns.append(pl.lit(value, pl.Float64).alias(f"{prefix}gate_{level}"))
    return recording.steps.with_columns(columns)


def _prefix(name: str) -> str:
    """The beginning of the names of a scorer's columns."""
    return f"{name}_" if name else ""


def _about(plan: Plan, scorers: Mapping[str, GatedScorer], every: int) -> dict[str, Any]:
    """What the table does not say: the run, the scorers, their prompts and gates."""
    config = plan.run.config
    return {
        "env": config.env,
        "env_version": plan.spec.version,
        **({SOURCE: plan.spec.source} if plan.spec.version is None else {}),
        "method": config.method,
        "seed": config.seed,
        "protocol": plan.protocol.name,
        "deterministic": not plan.protocol.stochastic,
        "episodes": plan.episodes,
        "checkpoint_epoch": plan.checkpoint.epoch,
        "indicators": bool(plan.spec.indicators),
        "every": every,
        "fingerprint": plan.fingerprint,
        "kernels": kernels.in_effect(),
        "scorers": [one.describe(_prefix(name)) for name, one in scorers.items()],
    }


def trace_summary(table: pl.DataFrame) -> list[dict[str, Any]]:
    """The figures of a trace, one entry per scorer; a single entry without scores if there is no scorer.

    `contacts` are steps with cost, `onsets` are contacts that follow a step without cost. `auc_c_vlm` and `auc_kappa`
    say how well the score separates scored steps with cost from the others; they are None if one kind is missing.
    """
    contact = pl.col("cost") > 0.0
    before = contact.shift(1, fill_value=False).over("episode")
    common = {
        "episodes": table["episode"].n_unique(),
        "steps": len(table),
        "contacts": table.select(contact.sum()).item(),
        "onsets": table.select((contact & ~before).sum()).item(),
        "scored": int(table["scored"].sum()),
    }
    seen = table.filter("scored")
    hit = seen.select(contact).to_series().to_numpy()
    found = []
    for kappa in [name for name in table.columns if name == "kappa" or name.endswith("_kappa")]:
        prefix = kappa.removesuffix("kappa")
        negative = f"{prefix}negative"
        figures = {
            "kappa": seen[kappa].mean(),
            "c_vlm": seen[negative].mean(),
            "auc_kappa": auc(seen[kappa].to_numpy(), hit) if len(seen) else None,
            "auc_c_vlm": auc(seen[negative].to_numpy(), hit) if len(seen) else None,
        }
        found.append({"scorer": prefix.rstrip("_"), **common, **figures})
    return found or [{"scorer": "", **common}]
