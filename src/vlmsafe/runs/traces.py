"""Traces on disk: their steps, the scorers that scored them, and their frames.

`layout` says which files a trace has.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from vlmsafe.errors import InputError, RunError
from vlmsafe.io.files import write_together
from vlmsafe.runs.drivers import open_run
from vlmsafe.runs.layout import DEFAULT_PROTOCOL, about_path, find_table, frames_path, how_to_replace, tables_in
from vlmsafe.runs.tables import read_table, table_bytes
from vlmsafe.signals.prompts import PromptSet

_BASE = ("episode", "scenario", "step", "reward", "cost", "hazard", "scored")


@dataclass(frozen=True)
class TraceScorer:
    """A scorer of a trace: its name, the prefix of its columns, and what its similarities mean."""

    name: str
    """As the user named it, such as clip:openai/clip-vit-base-patch32."""
    prefix: str
    prompts: tuple[tuple[str, str | None], ...]
    """For each similarity its group, positive or negative, and its prompt; None if it has no prompt."""
    gate: Mapping[str, Any]
    frames: int | None = None
    """Frames in the stacks that it looked at; None if it looked at single frames, or is of an earlier version."""
    frame_distance: int | None = None
    """Steps between two of these frames."""

    @property
    def prompt_set(self) -> PromptSet | None:
        """The prompts that it compared with; None if it compared with none."""
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
    """Scorers, prompts and gates, see `read_about`; empty if the trace came without them."""

    @property
    def title(self) -> str:
        """The run that the trace is of, as far as it is known."""
        about = self.about
        if not {"method", "env", "seed", "protocol"} <= set(about):
            return self.path.stem
        return f"{about['method']} on {about['env']}, seed {about['seed']}, {about['protocol']}"

    @property
    def scorers(self) -> tuple[TraceScorer, ...]:
        """Every scorer of the trace, in the order of its columns."""
        described = {entry["prefix"]: entry for entry in self.about.get("scorers", ())}
        found = []
        for column in self.steps.columns:
            if column != "negative" and not column.endswith("_negative"):
                continue
            prefix = column.removesuffix("negative")
            entry = described.get(prefix, {})
            similarities = {one["column"]: one for one in entry.get("similarities", ())}
            columns = [similarities.get(name, {}) for name in self.steps.columns if _is_similarity(name, prefix)]
            prompts = tuple((one.get("group", ""), one.get("prompt")) for one in columns)
            name = entry.get("scorer", prefix.rstrip("_") or "scorer")
            stack = entry.get("frames"), entry.get("frame_distance")
            found.append(TraceScorer(name, prefix, prompts, entry.get("gate", {}), *stack))
        return tuple(found)

    @property
    def command(self) -> str:
        """What to type to record it again, with frames."""
        folder = self.path.parent
        run = str(folder.parent) if folder.name == "traces" else "RUN"
        scorers = [one.name for one in self.scorers] if len(self.scorers) > 1 else []
        return trace_command(run, self.about.get("protocol"), self.about.get("every", 1), scorers, again=True)

    def pictures(self) -> pl.DataFrame:
        """The frames of all scored steps, in the order of the table: episode, step, picture."""
        path = frames_path(self.path)
        if not path.is_file():
            raise InputError(f"{self.path} was recorded without frames; record it again with: {self.command}")
        kept = read_table(path)
        scored = self.steps.filter("scored").select("episode", "step")
        fits = {"episode", "step", "picture"} <= set(kept.columns)
        if not fits or not scored.equals(kept.select("episode", "step")):
            raise RunError(
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
    """A trace by its file, or that of a run under a protocol: by default held-out, else its only one."""
    if place.suffix == ".parquet":
        if protocol is not None:
            raise InputError(f"{place} is one trace; leave --protocol out, or give the run directory")
        if not place.is_file():
            raise InputError(f"there is no {place}; expected a trace, or a run directory")
        path = place
    else:
        path = _find_trace(place, protocol)
    steps = read_table(path)
    missing = [name for name in _BASE if name not in steps.columns]
    if missing:
        hint = "; it holds the frames of one" if "picture" in steps.columns else ""
        raise InputError(f"{path} is no trace: it has no column '{missing[0]}'{hint}")
    if not len(steps):
        raise InputError(f"{path} has no steps")
    return RecordedTrace(path, steps, read_about(path))


def _find_trace(place: Path, protocol: str | None) -> Path:
    run = open_run(place)
    if (path := find_table(run.traces, protocol)) is not None:
        return path
    others = f" (it has: {', '.join(tables_in(run.traces))})" if tables_in(run.traces) else ""
    raise InputError(
        f"{place} has no trace '{protocol or DEFAULT_PROTOCOL}'{others}; record one with: "
        f"{trace_command(str(place), protocol)}"
    )


def read_about(trace: Path) -> dict[str, Any]:
    """A trace's scorers, prompts and gates, and how often it was scored; empty if it came without such a file."""
    path = about_path(trace)
    if not path.is_file():
        return {}
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        for entry in about.get("scorers", ()):
            entry["scorer"], entry["prefix"], [one["column"] for one in entry.get("similarities", ())]
    except (OSError, ValueError) as error:
        problem = f"expected JSON, got: {' '.join(str(error).split())}"
    except (AttributeError, KeyError, TypeError):
        problem = "expected scorers, each with its name, the prefix of its columns and its similarities"
    else:
        found: dict[str, Any] = about
        return found
    raise RunError(f"{path} is damaged: {problem}; {how_to_replace(trace)}")


def write_trace(path: Path, table: pl.DataFrame, about: Mapping[str, Any], frames: pl.DataFrame | None) -> None:
    """Write all files of a trace, which may replace an earlier one.

    The new files are complete on disk before the first of the old ones is touched. A table never stands next to
    frames or a description of another trace, whenever the process is killed.
    """
    files = {about_path(path): json.dumps(about, indent=2, ensure_ascii=False).encode()}
    if frames is not None:
        files[frames_path(path)] = table_bytes(frames)
    if path.exists():  # the old table stays until the new one takes its place, and then gets its own frames
        write_together({path: table_bytes(table), **files}, remove=(frames_path(path), about_path(path)))
    else:  # the table is last, because it says that there is a trace
        write_together({**files, path: table_bytes(table)}, remove=(frames_path(path),))
