"""The scope: episodes of a trace frame by frame, in one HTML file that opens anywhere, offline.

The page holds the recorded numbers as JSON, and each recorded picture once, as the WebP file it was saved as. All text
of a trace (prompts, names) reaches the page as data and is shown as text. A content security policy in the page names
its only script and its only style by their hashes and forbids everything else, including the network.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from vlmsafe.audit.findings import counted
from vlmsafe.errors import InputError
from vlmsafe.io.disk import make_directory
from vlmsafe.io.files import write_atomically
from vlmsafe.report.render.templates import asset, inline_json, render_page
from vlmsafe.report.traces import count_onsets
from vlmsafe.runs.traces import RecordedTrace, TraceScorer, open_trace

EPISODES = 10
"""Shown by default. The pictures of one episode take a few hundred kilobytes."""

_SCORES = ("kappa", "positive", "negative", "margin")
_NOT_SHOWN = {"protocol", "deterministic", "checkpoint_epoch", "episode", "scenario", "traffic_seed", "step", "scored"}
_DIGITS = 5  # significant digits: more than a screen shows, in a third of the bytes


@dataclass(frozen=True)
class Scope:
    """The page of a trace, and counts of what is in it."""

    html: str
    episodes: int
    """Episodes in the page."""
    recorded: int
    """Episodes in the trace."""
    frames: int
    onsets: int
    """Onsets of contact in the page."""
    recorded_onsets: int

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.html.encode())


def write_scope(
    place: Path | str, out: Path | str | None = None, *, protocol: str | None = None, episodes: int = EPISODES
) -> tuple[Path, Scope]:
    """Write the page of a run's trace, or of a trace file; by default to `scope-<protocol>.html` in the run."""
    trace = open_trace(Path(place), protocol)
    path = Path(out) if out is not None else _default_path(trace)
    if path.suffix not in (".html", ".htm"):
        raise InputError(f"the scope is an HTML file; give --out a name that ends in .html, got {path}")
    scope = make_scope(trace, episodes)
    make_directory(path.parent)
    write_atomically(path, scope.html.encode())
    return path, scope


def _default_path(trace: RecordedTrace) -> Path:
    folder = trace.path.parent
    return (folder.parent if folder.name == "traces" else folder) / f"scope-{trace.path.stem}.html"


def make_scope(trace: RecordedTrace, episodes: int = EPISODES) -> Scope:
    """The page of the first episodes of a trace."""
    if episodes < 1:
        raise InputError(f"episodes is {episodes}; it must be at least 1")
    if not trace.scorers:
        raise InputError(
            f"{trace.path} was recorded without a scorer; record it again with: {trace.command} --scorer NAME"
        )
    pictures = trace.pictures()
    numbers = trace.steps["episode"].unique(maintain_order=True).to_list()
    chosen = numbers[:episodes]
    steps = trace.steps.filter(pl.col("episode").is_in(chosen)).partition_by("episode", maintain_order=True)
    albums = pictures.filter(pl.col("episode").is_in(chosen)).partition_by("episode", as_dict=True)
    extras = [name for name in trace.steps.columns if _is_extra(trace, name)]
    shown = [_episode(own, trace.scorers, extras) for own in steps]
    data = {
        "title": trace.title,
        "about": _about(trace, len(chosen), len(numbers)),
        "scorers": [_scorer(one) for one in trace.scorers],
        "extras": extras,
        "episodes": shown,
    }
    frames = [_frames(albums[(number,)]) if (number,) in albums else [] for number in chosen]
    return Scope(
        html=_page(data, frames),
        episodes=len(chosen),
        recorded=len(numbers),
        frames=sum(map(len, frames)),
        onsets=sum(len(one["contacts"]) for one in shown),
        recorded_onsets=count_onsets(trace.steps),
    )


def _is_extra(trace: RecordedTrace, name: str) -> bool:
    """Whether a column is a number from the environment: reward, hazard, progress, facts."""
    if name in _NOT_SHOWN or name == "cost" or not trace.steps[name].dtype.is_numeric():
        return False
    scores = {f"{one.prefix}{score}" for one in trace.scorers for score in (*_SCORES, "gate_scale", "gate_centre")}
    similar = any(name.startswith(f"{one.prefix}similarity_") for one in trace.scorers)
    return name not in scores and not similar and trace.steps[name].null_count() < len(trace.steps)


def _about(trace: RecordedTrace, shown: int, recorded: int) -> list[list[str]]:
    """How the trace was recorded, as pairs of name and value."""
    about = trace.about
    found = [["episodes", f"{shown} of {recorded}" if shown < recorded else str(recorded)]]
    if "checkpoint_epoch" in about:
        found.append(["trained for", counted(about["checkpoint_epoch"], "epoch")])
    if "deterministic" in about:
        found.append(["actions", "mean" if about["deterministic"] else "drawn"])
    if "every" in about:
        found.append(["frames", "every step" if about["every"] == 1 else f"every {about['every']} steps"])
    if about.get("indicators"):
        found.append(["cost indicators", "drawn into the frames"])
    return found


def _scorer(one: TraceScorer) -> dict[str, Any]:
    prompts = [{"group": group, "text": text} for group, text in one.prompts]
    gate = {name: _number(value) if isinstance(value, float) else value for name, value in one.gate.items()}
    return {"name": one.name, "prompts": prompts, "gate": gate}


def _episode(steps: pl.DataFrame, scorers: Sequence[TraceScorer], extras: Sequence[str]) -> dict[str, Any]:
    """An episode as plain values: those of every step, and those of the scored steps."""
    number, scenario, first = steps.select("episode", "scenario", "step").row(0)
    if first != 1 or not (steps["step"].diff().drop_nulls() == 1).all():
        raise InputError(f"the steps of episode {number} are not 1, 2, 3, ...; the trace is damaged, record it again")
    scored = steps.filter("scored")
    return {
        "episode": number,
        "scenario": scenario,
        "length": len(steps),
        "cost": _numbers(steps["cost"]),
        "extras": {name: _numbers(steps[name]) for name in extras},
        "contacts": _contacts(steps["cost"].to_list()),
        "scored": scored["step"].to_list(),
        "scores": [
            {
                **{name: _numbers(scored[one.prefix + name]) for name in _SCORES if one.prefix + name in steps.columns},
                "similarities": [_numbers(scored[f"{one.prefix}similarity_{i}"]) for i in range(len(one.prompts))],
            }
            for one in scorers
        ],
    }


def _contacts(costs: Sequence[float]) -> list[list[int]]:
    """Every unbroken contact as its first and last step, counted from 1."""
    found: list[list[int]] = []
    for step, cost in enumerate(costs, start=1):
        if cost > 0.0 and found and found[-1][1] == step - 1:
            found[-1][1] = step
        elif cost > 0.0:
            found.append([step, step])
    return found


def _frames(pictures: pl.DataFrame) -> list[str]:
    return [base64.b64encode(picture).decode("ascii") for picture in pictures["picture"]]


def _numbers(values: pl.Series) -> list[float | int | None]:
    return [_number(value) for value in values.cast(pl.Float64).to_list()]


def _number(value: float | None) -> float | int | None:
    """A rounded number, or None for one that is not finite. Whole numbers lose their decimal point."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e9 else rounded


def _page(data: Mapping[str, Any], albums: Sequence[Sequence[str]]) -> str:
    style, script = asset("scope.css"), asset("scope.js")
    return render_page(
        "scope.html.j2",
        title=data["title"],
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}",
        style=style,
        script=script,
        data=data,
        albums=albums,
        inline_json=inline_json,
    )


def _hash(text: str) -> str:
    """How a content security policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
