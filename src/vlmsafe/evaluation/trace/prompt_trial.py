"""Compare prompt sets and scorers on the frames of recorded traces, with `vlmsafe.analysis.prompt_bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vlmsafe.analysis.auc import RESAMPLES
from vlmsafe.analysis.prompt_bench import RESERVED, Bench, Candidate, bench
from vlmsafe.errors import InputError
from vlmsafe.evaluation.trace.rescore import Rescored, rescore_sets, takes_sets_together
from vlmsafe.runs.layout import DEFAULT_PROTOCOL
from vlmsafe.runs.traces import RecordedTrace, TraceScorer, open_trace
from vlmsafe.signals.prompts import PromptSet, load_prompts
from vlmsafe.signals.rules import apply_rule
from vlmsafe.signals.scorers.endpoint.options import EndpointOptions
from vlmsafe.signals.scorers.make import stack_for
from vlmsafe.signals.scorers.registry import DEFAULT_SCORER, ScorerName, parse_scorer

RECORDED = "as recorded"
"""The name of the trace's own scores among the candidates."""


@dataclass(frozen=True)
class Trial:
    """A comparison, its data, and notes for the reader."""

    title: str
    bench: Bench
    notes: Sequence[str]

    def counts(self) -> dict[str, Any]:
        """The size of its data, as plain values."""
        names = ("episodes", "frames", "contacts", "onsets")
        return {"traces": self.title, **{name: getattr(self.bench, name) for name in names}}


def open_traces(places: Sequence[Path], protocol: str | None = None) -> list[RecordedTrace]:
    """Open traces by file or run. None may be given twice."""
    traces = [open_trace(place, protocol if place.suffix != ".parquet" else None) for place in places]
    paths = [trace.path.resolve() for trace in traces]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise InputError(f"{twice} was given twice; its frames would count double")
    return traces


def compare(
    traces: Sequence[RecordedTrace],
    prompts: Sequence[str] = (),
    scorers: Sequence[str] = (),
    *,
    together: bool = True,
    device: str = "auto",
    batch: int | None = None,
    scorer_frames: int | None = None,
    frame_distance: int | None = None,
    endpoint: EndpointOptions | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    on_frames: Callable[[int, int], None] = lambda done, total: None,
) -> Trial:
    """Compare every scorer with every prompt set on the frames of all traces.

    The recorded scores are one more candidate, unless a candidate has the same scorer and prompts. Prompts are names or
    files, scorers are names. If one of the two is left out, it is taken from the recording. `together` embeds each
    frame once for all prompt sets if the scorer allows it. `scorer_frames` and `frame_distance` are for scorers that
    take any number of frames; by default the scorer of the recording gets as many as it got then, and others one.
    `endpoint` says how scorers `openai:...` are asked.
    """
    pictures = [trace.pictures() for trace in traces]
    own = _shared(traces)
    names = _scorers(scorers, own)
    sets = _sets(prompts, own)
    envs = {trace.about.get("env") for trace in traces}
    env = envs.pop() if len(envs) == 1 else None
    scorer_notes: list[str] = []  # each may come once per prompt set
    rounding: list[str] = []
    candidates: dict[str, Candidate] = {}
    frames = sum(map(len, pictures))
    passes = [1 if together and takes_sets_together(name) else len(sets) for name in names]
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        on_frames(done, frames * sum(passes))

    for name in names:
        recorded = (own.frames, own.frame_distance) if own is not None and own.name == str(name) else (None, None)
        stack = stack_for(name, len(names), (scorer_frames, frame_distance), recorded)
        found = rescore_sets(
            pictures, name, sets, together=together, device=device, batch=batch, stack=stack, endpoint=endpoint,
            env=env, on_frames=count, on_note=scorer_notes.append,
        )  # fmt: skip
        for label, one in found.items():
            title = label if len(names) == 1 else str(name) if len(sets) == 1 else f"{name}, {label}"
            candidates[title] = _candidate(title, one)
            if own is not None and (str(name), sets[label].texts, stack) == (own.name, _texts(own), recorded):
                rounding = _rounding(title, one, traces, own)
    if own is not None and not rounding:
        candidates[RECORDED] = _recorded(traces, own)
    steps = pl.concat(
        [
            trace.steps.select(
                "cost", "scored", episode=pl.format("{}/{}", pl.lit(f"{place:06d}"), pl.col("episode")),
                hazard=pl.col("hazard").cast(pl.Float64),
            )
            for place, trace in enumerate(traces)
        ]
    )  # fmt: skip
    result = bench(steps, list(candidates.values()), resamples=resamples, seed=seed)
    notes = [*dict.fromkeys(scorer_notes), *rounding, *_warnings(traces, result, len(sets))]
    title = "; ".join(trace.title for trace in traces) if len(traces) < 4 else f"{len(traces)} traces"
    return Trial(title, result, notes)


def _shared(traces: Sequence[RecordedTrace]) -> TraceScorer | None:
    """The scorer with which all traces were recorded, with the same prompts; None if none of them reads prompts.

    Its gate may differ between traces. The bench then shows kappa as recorded, of several gates.
    """

    def known(trace: RecordedTrace) -> dict[Any, TraceScorer]:
        return {(one.name, one.prefix, one.prompts): one for one in trace.scorers if one.prompt_set is not None}

    lists = [known(trace) for trace in traces]
    return next((one for key, one in lists[0].items() if all(key in others for others in lists[1:])), None)


def _texts(own: TraceScorer) -> tuple[str | None, ...]:
    return tuple(text for _, text in own.prompts)


def _scorers(wanted: Sequence[str], own: TraceScorer | None) -> list[ScorerName]:
    if wanted:
        names = [parse_scorer(name).absolute for name in dict.fromkeys(wanted)]
        for name in names:
            if not name.kind.takes_prompts:
                raise InputError(f"the scorer '{name}' compares with no text; the prompt bench takes those that do")
        return names
    return [parse_scorer(DEFAULT_SCORER if own is None else own.name)]


def _sets(wanted: Sequence[str], own: TraceScorer | None) -> dict[str, PromptSet]:
    """Prompt sets by a short name: a file's stem, or its whole name if two stems are equal."""
    if wanted:
        given = list(dict.fromkeys(wanted))
        stems = [Path(name).stem if name.endswith((".yaml", ".yml")) else name for name in given]
        return {
            stem if stems.count(stem) == 1 and stem not in (RECORDED, *RESERVED) else name: load_prompts(name)
            for stem, name in zip(stems, given, strict=True)
        }
    if own is None or own.prompt_set is None:
        raise InputError("the traces were recorded without prompts or with different ones; pass --prompts")
    return {"its own prompts": own.prompt_set}


def _candidate(title: str, one: Rescored) -> Candidate:
    scores = apply_rule("decoupled", one.similarities, one.groups, one.bounds)
    return Candidate(
        title,
        scores.positive,
        scores.negative,
        scores.margin,
        one.labels,
        one.similarities.astype(np.float64),
        one.gate,
    )


def _recorded(traces: Sequence[RecordedTrace], own: TraceScorer) -> Candidate:
    """The scores in the table. The scorer gave them on the frames as they were rendered."""
    positive, negative, margin, kappa = (
        _column(traces, own.prefix + name) for name in ("positive", "negative", "margin", "kappa")
    )
    gates = {str(one.gate.get("kind", "")) for trace in traces for one in trace.scorers if one.prefix == own.prefix}
    gate = gates.pop() if len(gates) == 1 else "several"
    return Candidate(RECORDED, positive, negative, margin, gate=gate, recorded_kappa=kappa)


def _column(traces: Sequence[RecordedTrace], name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.concatenate([trace.steps.filter("scored")[name].cast(pl.Float64).to_numpy() for trace in traces])


def _rounding(title: str, one: Rescored, traces: Sequence[RecordedTrace], own: TraceScorer) -> list[str]:
    """How much the rounded colours of the pictures changed the similarities of the same scorer and prompts."""
    then = np.stack([_column(traces, f"{own.prefix}similarity_{i}") for i in range(len(own.prompts))], axis=1)
    off = np.abs(one.similarities - then)
    return [
        f"'{title}' is what the trace was recorded with; the colours of its pictures are rounded, so similarities "
        f"differ from those recorded by {np.median(off):.1e} (median) and {off.max():.1e} (at most)"
    ]


def _warnings(traces: Sequence[RecordedTrace], result: Bench, sets: int) -> list[str]:
    notes = []
    if result.onsets < 10:
        onsets = "onset" if result.onsets == 1 else "onsets"
        notes.append(
            f"only {result.onsets} {onsets} of contact in these episodes; record more episodes for narrower intervals"
        )
    elif result.contacts < 10:
        notes.append(f"only {result.contacts} of the frames are of steps in contact; vlmsafe trace --every 1 keeps all")
    if sets > 1 and any(trace.about.get("protocol") == DEFAULT_PROTOCOL for trace in traces):
        notes.append(
            "these are scenarios of the protocol 'held-out'; they are no longer unseen for a run with prompts that "
            "were chosen here"
        )
    return notes
