"""Recorded traces, opened again: their steps, who looked on, their frames, and those frames scored anew.

Pictures were kept of the scored steps only. A scorer that wants several frames of a moment gets the earlier ones from
among them, which is exact where they were kept often enough, and refused where they were not.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vlmsafe.errors import InputError
from vlmsafe.evaluation.trace.files import frames_path, read_about
from vlmsafe.runs.run import Run
from vlmsafe.runs.tables import DEFAULT_PROTOCOL, find_table, tables_in
from vlmsafe.signals.frame_stack import APART, Frame
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers import Scorer, ScorerName, make_scorer
from vlmsafe.signals.scorers.api import Similarities, check_scorer
from vlmsafe.training.score import score_named

_BASE = ("episode", "scenario", "step", "reward", "cost", "hazard", "scored")


@dataclass(frozen=True)
class Onlooker:
    """A scorer of a trace: what it is called, what its columns begin with, and what they are."""

    scorer: str
    prefix: str
    prompts: tuple[tuple[str, str | None], ...]
    """Of each similarity its group, positive or negative, and its prompt, None where it has none."""
    gate: Mapping[str, Any]

    @property
    def prompt_set(self) -> PromptSet | None:
        """The prompts it compared with, where it compared with any."""
        groups: dict[str, list[str]] = {"positive": [], "negative": []}
        for group, text in self.prompts:
            if text is None:
                return None
            groups[group].append(text)
        return PromptSet(tuple(groups["positive"]), tuple(groups["negative"])) if all(groups.values()) else None


@dataclass(frozen=True, eq=False)
class RecordedTrace:
    """A trace as it is on disk."""

    path: Path
    steps: pl.DataFrame
    about: Mapping[str, Any]
    """Who looked on, with which words; empty where a trace came without it."""

    @property
    def title(self) -> str:
        """Which run this is of, as far as it is known."""
        about = self.about
        if not {"method", "env", "seed", "protocol"} <= set(about):
            return self.path.stem
        return f"{about['method']} on {about['env']}, seed {about['seed']}, {about['protocol']}"

    @property
    def onlookers(self) -> tuple[Onlooker, ...]:
        """Every scorer of the trace, in order."""
        said = {entry["prefix"]: entry for entry in self.about.get("scorers", ())}
        found = []
        for column in self.steps.columns:
            if column != "negative" and not column.endswith("_negative"):
                continue
            prefix = column.removesuffix("negative")
            entry = said.get(prefix, {})
            described = {one["column"]: one for one in entry.get("similarities", ())}
            names = [name for name in self.steps.columns if _is_similarity(name, prefix)]
            prompts = tuple(
                (described.get(name, {}).get("group", ""), described.get(name, {}).get("prompt")) for name in names
            )
            name = entry.get("scorer", prefix.rstrip("_") or "scorer")
            found.append(Onlooker(name, prefix, prompts, entry.get("gate", {})))
        return tuple(found)

    @property
    def command(self) -> str:
        """What to type to record it again, with frames."""
        folder = self.path.parent
        run = str(folder.parent) if folder.name == "traces" else "RUN"
        scorers = [one.scorer for one in self.onlookers] if len(self.onlookers) > 1 else []
        return trace_command(run, self.about.get("protocol"), self.about.get("every", 1), scorers, again=True)

    def pictures(self) -> pl.DataFrame:
        """The frames of all scored steps, in the order of the table: episode, step, picture."""
        path = frames_path(self.path)
        if not path.is_file():
            raise InputError(f"{self.path} was recorded without frames; record it again with: {self.command}")
        kept = _read(path)
        scored = self.steps.filter("scored").select("episode", "step")
        fits = {"episode", "step", "picture"} <= set(kept.columns)
        if not fits or not scored.equals(kept.select("episode", "step")):
            raise InputError(
                f"{path} does not hold the frames of the scored steps of {self.path.name}; record both again with: "
                f"{self.command}"
            )
        return kept


def _is_similarity(name: str, prefix: str) -> bool:
    return name.startswith(f"{prefix}similarity_") and name.removeprefix(f"{prefix}similarity_").isdigit()


def trace_command(
    run: str, protocol: str | None = None, every: int = 4, scorers: Sequence[str] = (), *, again: bool = False
) -> str:
    """What to type to record a trace with frames."""
    words = ["vlmsafe", "trace", run, "--frames"]
    if protocol not in (None, DEFAULT_PROTOCOL):
        words += ["--protocol", str(protocol)]
    if every > 1:
        words += ["--every", str(every)]
    for scorer in scorers:
        words += ["--scorer", scorer]
    return shlex.join(words + (["--overwrite"] if again else []))


def open_trace(place: Path, protocol: str | None = None) -> RecordedTrace:
    """A trace by its file, or that of a run: of a protocol, by default held-out, else the only one there is."""
    if place.suffix == ".parquet":
        if protocol is not None:
            raise InputError(f"{place} is one trace; leave --protocol out, or give the run directory")
        if not place.is_file():
            raise InputError(f"there is no {place}; expected a trace, or a run directory")
        path = place
    else:
        path = _of_run(Run.open(place), protocol)
    steps = _read(path)
    missing = [name for name in _BASE if name not in steps.columns]
    if missing:
        hint = "; it holds the frames of one" if "picture" in steps.columns else ""
        raise InputError(f"{path} is no trace: it has no column '{missing[0]}'{hint}")
    if not len(steps):
        raise InputError(f"{path} has no steps")
    return RecordedTrace(path, steps, read_about(path))


def _of_run(run: Run, protocol: str | None) -> Path:
    folder = run.path / "traces"
    if (path := find_table(folder, protocol)) is not None:
        return path
    others = f" (it has: {', '.join(tables_in(folder))})" if tables_in(folder) else ""
    raise InputError(
        f"{run.path} has no trace '{protocol or DEFAULT_PROTOCOL}'{others}; record one with: "
        f"{trace_command(str(run.path), protocol)}"
    )


def moments(pictures: pl.DataFrame, frames: int) -> Iterator[Frame]:
    """For every picture the moment that a scorer of so many frames saw then, see `vlmsafe.signals.frame_stack`."""
    from vlmsafe.io.images import decode  # here: nobody else needs an image library

    held: dict[int, Frame] = {}
    of: int | None = None
    for episode, step, picture in pictures.select("episode", "step", "picture").iter_rows():
        if episode != of:
            held, of = {}, episode
        oldest = step - APART * (frames - 1)
        held = {at: frame for at, frame in held.items() if at >= oldest}
        held[step] = now = decode(picture)
        backs = [step - APART * number for number in reversed(range(frames))]
        if lacking := [back for back in backs if back > 0 and back not in held]:
            raise InputError(
                f"the scorer looks at frames {APART} steps apart, and the frame of step {lacking[-1]} of episode "
                f"{episode} was not kept; record the trace with --every 1, 2 or {APART}"
            )
        yield np.concatenate([held.get(back, now) for back in backs], axis=-1) if frames > 1 else now


def rescore(
    pictures: pl.DataFrame,
    scorer: Scorer,
    name: str,
    *,
    batch: int = 64,
    on_frames: Callable[[int], None] = lambda more: None,
) -> Similarities:
    """What a scorer makes of recorded frames, [pictures, prompts]; `on_frames` hears how many more are done."""
    check_scorer(scorer)
    if scorer.looks_at != "frame":
        raise InputError(f"the scorer '{name}' looks at no frame ({scorer.looks_at}); a trace records what it makes")
    parts: list[Similarities] = [np.empty((0, sum(scorer.groups)), np.float32)]
    block: list[Frame] = []
    done = 0
    for moment in moments(pictures, scorer.frames):
        block.append(moment)
        if len(block) == batch or done + len(block) == len(pictures):
            parts.append(score_named(scorer, name, np.stack(block)))
            done += len(block)
            on_frames(len(block))
            block = []
    return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class Rescored:
    """Recorded frames under one prompt set."""

    similarities: Similarities
    groups: tuple[int, int]
    bounds: tuple[float, float]
    labels: tuple[tuple[str, str], ...]
    """Of each column its group and its text."""


def takes_sets_together(name: ScorerName) -> bool:
    """Whether its similarity to a prompt is the same whichever other prompts there are: that of a cosine is."""
    return name.kind in ("embedded", "clip")


def rescore_sets(
    pictures: Sequence[pl.DataFrame],
    name: ScorerName,
    sets: Mapping[str, PromptSet],
    *,
    together: bool = True,
    device: str = "auto",
    batch: int = 64,
    env: str | None = None,
    on_frames: Callable[[int], None] = lambda more: None,
    on_note: Callable[[str], None] = lambda text: None,
) -> dict[str, Rescored]:
    """The frames of several traces, one after another, under every prompt set.

    A cosine scorer's similarity to a prompt does not depend on the other prompts. So all sets are put together, each
    prompt once, and every frame is embedded once; `together=False` scores set by set, as other scorers have to.
    """
    if together and takes_sets_together(name):
        places = _places(sets.values())
        texts = tuple(text for text, _ in places.values())
        scorer = make_scorer(name, PromptSet(texts[:1], texts[1:]), device=device, batch=batch)
        for note in scorer.notes(env):
            on_note(note)
        found = _all(pictures, scorer, name, batch, on_frames)
        return {
            label: Rescored(
                found[:, [places[_key(text)][1] for text in one.texts]], one.sizes, scorer.bounds, _labels(one)
            )
            for label, one in sets.items()
        }
    results: dict[str, Rescored] = {}
    for label, one in sets.items():
        scorer = make_scorer(name, one, device=device, batch=batch)
        for note in scorer.notes(env):
            on_note(note)
        found = _all(pictures, scorer, name, batch, on_frames)
        results[label] = Rescored(found, scorer.groups, scorer.bounds, _asked(name, scorer, one))
    return results


def _all(
    pictures: Sequence[pl.DataFrame], scorer: Scorer, name: ScorerName, batch: int, on_frames: Callable[[int], None]
) -> Similarities:
    return np.concatenate([rescore(own, scorer, str(name), batch=batch, on_frames=on_frames) for own in pictures])


def _asked(name: ScorerName, scorer: Scorer, prompts: PromptSet) -> tuple[tuple[str, str], ...]:
    """What the columns of a scorer are of: its prompts, or, where it asks about a whole group, its description."""
    if scorer.groups == prompts.sizes and name.kind != "qwen2-vl":
        return _labels(prompts)
    positive, negative = scorer.groups
    return (("positive", prompts.positive_description),) * positive + (
        ("negative", prompts.negative_description),
    ) * negative


def _labels(prompts: PromptSet) -> tuple[tuple[str, str], ...]:
    return tuple([("positive", text) for text in prompts.positive] + [("negative", text) for text in prompts.negative])


def _key(text: str) -> str:
    """Prompts that differ in case or spacing alone are one, as within a prompt set."""
    return " ".join(text.split()).casefold()


def _places(sets: Iterable[PromptSet]) -> dict[str, tuple[str, int]]:
    """Every prompt of all sets once, by its key: its text and its column."""
    places: dict[str, tuple[str, int]] = {}
    for one in sets:
        for text in one.texts:
            places.setdefault(_key(text), (text, len(places)))
    return places


def _read(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from error
