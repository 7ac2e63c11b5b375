"""Recordings read back: stacks of two frames, what is true of them, and where they came from."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vlmsafe.distillation.facts import FACTS, MEASURES, truths
from vlmsafe.errors import InputError
from vlmsafe.io.images import decode
from vlmsafe.signals.scorers.embedded.network import views

_SHARED = ("seen",)
_LISTS = ("observations",)

_WORLDS = ("metadrive", "formula-one", "bullet")


def world(env: str) -> str:
    """The name of a group of environments that look alike; other environments keep their own names.

    >>> world("formula-one-l2"), world("braking")
    ('formula-one', 'braking')
    """
    return next((name for name in _WORLDS if env.startswith(f"{name}-")), env)


def known_name(env: str) -> str:
    """The name under which an environment's version is kept: without variants, or without the user's interpreter.

    >>> known_name("formula-one-l2:fast+sighted"), known_name("gym:my_envs:Crossing-v0@/opt/venv/bin/python")
    ('formula-one-l2', 'gym:my_envs:Crossing-v0')
    """
    own = env.startswith(("gym:", "safety-gymnasium:"))
    return env.partition("@" if own else ":")[0]


@dataclass(frozen=True)
class Examples:
    """Frame stacks with what is known of them, one row each."""

    seen: Tensor
    """uint8 [M, 6, size, size], both views of every frame; a frame belongs to two stacks."""
    frames: NDArray[np.int64]
    """[N, 2], the indices in `seen` of the two frames of each stack, the earlier one first."""
    truths: NDArray[np.float32]
    """[N, facts], in the order of `FACTS`; NaN if unknown."""
    contact: NDArray[np.bool_]
    """Whether the step of the newer frame cost something."""
    ahead: NDArray[np.float32]
    """Steps from the newer frame to the next step that costs, inf if none follows, NaN if the recording was cut."""
    observations: list[NDArray[np.float32]]
    """The observation at the newer frame; its length differs between environments."""
    measures: NDArray[np.float32]
    """[N, measures] at the newer frame, in the order of `MEASURES`; NaN if there is none."""
    env: NDArray[np.str_]
    scenario: NDArray[np.int64]
    episode: NDArray[np.int64]
    """A different number for every recorded episode."""
    driver: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.frames)

    def fact(self, name: str) -> NDArray[np.float32]:
        return self.truths[:, list(FACTS).index(name)]

    def select(self, rows: NDArray[Any]) -> Examples:
        """Some of the rows, by mask or index."""
        chosen = np.arange(len(self))[rows]

        def part(name: str, value: Any) -> Any:
            if name in _LISTS:
                return [value[row] for row in chosen]
            return value if name in _SHARED else value[chosen]

        return Examples(**{name: part(name, value) for name, value in vars(self).items()})


def stack_views(seen: Tensor, frames: Tensor) -> Tensor:
    """Views of stacks of frames [N, K], as [N, 6 K, size, size], in the order in which `views` gives a stack's."""
    whole, middle = seen[frames, :3], seen[frames, 3:]  # [N, K, 3, size, size]
    return torch.cat([whole.flatten(1, 2), middle.flatten(1, 2)], dim=1)


def read(paths: Sequence[Path], size: int = 128, *, pictures: bool = True) -> Examples:
    """All frame stacks of recordings. Without `pictures`, frames are left out, which saves most time and memory."""
    if not paths:
        raise InputError("no recordings were found; record some first")
    # Views need by far the most memory, so they are written in place: joining them would need it twice.
    counts = [_frames(path) if pictures else 0 for path in paths]
    seen = torch.empty((sum(counts), 6, size, size), dtype=torch.uint8)
    with ThreadPoolExecutor() as threads:
        parts = list(threads.map(_read, paths, torch.split(seen, counts)))
    episodes, frames = 0, 0
    for part in parts:
        part["episode"] += episodes
        part["frames"] += frames
        episodes, frames = int(part["episode"].max()) + 1, int(part["frames"].max()) + 1
    joined: dict[str, Any] = {
        name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name not in _LISTS
    }
    joined["observations"] = [row for part in parts for row in part["observations"]]
    return Examples(seen=seen, **joined)


def _frames(path: Path) -> int:
    with np.load(path) as file:
        return len(file["frame_step"])


def _read(path: Path, seen: Tensor) -> dict[str, Any]:
    """The rows of a file. Its views are written into `seen`, unless that is empty."""
    with np.load(path) as file:
        held = {name: file[name] for name in file.files if name != "frame_bytes"}
        if len(seen):
            _see(file["frame_bytes"], held["frame_size"], seen)
    names, ends = held["measure_names"].tolist(), np.cumsum(held["length"])
    frame_ends = np.cumsum(held["frame_count"])
    rows, told, ahead = [], [], []
    for number, (end, length, count) in enumerate(zip(ends, held["length"], held["frame_count"], strict=True)):
        steps = slice(end - length, end)
        at = held["frame_step"][frame_ends[number] - count : frame_ends[number]]
        measures = {name: held["measures"][steps, column] for column, name in enumerate(names)}
        known = truths(measures, held["cost"][steps], float(held["step_seconds"]), bool(held["complete"][number]))
        told.append(np.stack([known[fact] for fact in FACTS], axis=1)[at])
        ahead.append(steps_ahead(held["cost"][steps] > 0.0, bool(held["complete"][number]))[at])
        rows.append(end - length + at)
    at = np.concatenate(rows)
    episode = np.repeat(np.arange(len(ends)), held["frame_count"])
    # Frames of a recording are as many steps apart as those of a stack, so the earlier frame is in the row before.
    now = np.arange(len(at))
    before = np.maximum(now - 1, 0)
    before = np.where(episode[before] == episode, before, now)
    return {
        "frames": np.stack([before, now], axis=1),
        "truths": np.concatenate(told).astype(np.float32),
        "contact": held["cost"][at] > 0.0,
        "ahead": np.concatenate(ahead),
        "observations": list(held["observations"].astype(np.float32)),
        "measures": _in_order(held["measures"][at], names),
        "env": np.full(len(at), str(held["env"])),
        "scenario": held["scenario"][episode],
        "episode": episode,
        "driver": held["driver"][episode],
    }


def steps_ahead(event: NDArray[np.bool_], complete: bool) -> NDArray[np.float32]:
    """Steps from each step to the next event after it, 1 for the very next step. Without one: inf, or NaN if cut.

    >>> steps_ahead(np.array([False, True, False]), complete=True).tolist()
    [1.0, inf, inf]
    """
    steps = np.arange(len(event))
    following = np.minimum.accumulate(np.append(np.where(event, steps, np.inf), np.inf)[::-1])[::-1][1:]
    return np.where(np.isfinite(following), following - steps, np.inf if complete else np.nan).astype(np.float32)


def _in_order(measures: NDArray[np.float32], names: list[str]) -> NDArray[np.float32]:
    """Columns in the present order of `MEASURES`; NaN for measures that the file lacks."""
    missing = np.full(len(measures), np.nan, np.float32)
    columns = [measures[:, names.index(name)] if name in names else missing for name in MEASURES]
    return np.stack(columns, axis=1)


def _see(encoded: NDArray[np.uint8], sizes: NDArray[np.int64], seen: Tensor) -> None:
    """Write both views of every frame."""
    for row, piece in enumerate(np.split(encoded, np.cumsum(sizes)[:-1])):
        frame = torch.from_numpy(decode(piece.tobytes()).copy())
        seen[row] = views(frame[None], seen.shape[-1]).round().byte()[0]
