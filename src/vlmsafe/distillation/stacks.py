"""Recordings for distillation read back: frame stacks as a teacher and as the student see them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vlmsafe.analysis.anticipation import steps_to_contact
from vlmsafe.errors import InputError
from vlmsafe.io.images import decode
from vlmsafe.signals.frame_stack import STEPS_APART
from vlmsafe.signals.scorers.api import Scorer
from vlmsafe.signals.scorers.embedded.network import views

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class RecordedFrames:
    """One file, read back, with its frames still encoded."""

    path: Path
    arrays: dict[str, NDArray[Any]]
    starts: NDArray[np.int64]
    """Where each frame begins in `frame_bytes`, and the end of the last one."""

    @classmethod
    def read(cls, path: Path) -> RecordedFrames:
        try:
            with np.load(path) as file:
                held = {name: file[name] for name in file.files}
            held.setdefault("newest", np.ones(len(held["frame_step"]), np.bool_))
            return cls(path, held, np.concatenate([[0], np.cumsum(held["frame_size"])]).astype(np.int64))
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"the recording {path} is damaged ({error}); delete it and run the command again"
            ) from None

    def __len__(self) -> int:
        """The number of stacks."""
        return len(self.rows)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The newest frame of each stack."""
        return np.flatnonzero(self.arrays["newest"])

    @cached_property
    def episode(self) -> NDArray[np.int64]:
        """The episode of each stack, counted from 0."""
        counts = self.arrays["frame_count"]
        return np.repeat(np.arange(len(counts)), counts)[self.rows]

    @property
    def env(self) -> str:
        return str(self.arrays["env"])

    def frame(self, row: int) -> NDArray[np.uint8]:
        return decode(self.arrays["frame_bytes"][self.starts[row] : self.starts[row + 1]].tobytes())

    def stacks(self, frames: int, distance: int = STEPS_APART) -> NDArray[np.int64]:
        """Rows of the frames of each stack, [N, frames], the oldest first, as `FrameStack` makes them.

        `distance` is the number of steps between two frames, a multiple of that between recorded ones.
        """
        counts, steps = self.arrays["frame_count"], self.arrays["frame_step"]
        first = np.repeat(np.cumsum(counts) - counts, counts)[self.rows]
        back = []
        for number in reversed(range(frames)):
            # Where the frame so many steps before was not recorded, the newest one is repeated.
            earlier = self.rows - number * distance // STEPS_APART
            found = np.maximum(earlier, first)
            there = (earlier >= first) & (steps[self.rows] - steps[found] == number * distance)
            back.append(np.where(there, found, self.rows))
        return np.stack(back, axis=1)

    def batches(self, scorer: Scorer, size: int) -> Iterator[NDArray[np.uint8]]:
        """What a scorer looks at, uint8 [n, height, width, 3 frames], in batches. Few frames are decoded at a time."""
        stacks = self.stacks(scorer.frames, distance_of(scorer))
        for start in range(0, len(stacks), size):
            chosen = stacks[start : start + size]
            decoded = {int(row): self.frame(int(row)) for row in np.unique(chosen)}
            yield np.stack([np.concatenate([decoded[int(row)] for row in one], axis=-1) for one in chosen])


def distance_of(scorer: Scorer) -> int:
    """The steps between two frames of a scorer's stacks; refuses what was not recorded."""
    distance = scorer.frame_distance
    if scorer.frames > 1 and distance % STEPS_APART:
        raise InputError(
            f"the teacher's frames are {distance} steps apart, and recorded ones are {STEPS_APART}; expected a "
            "multiple of that"
        )
    return distance


@dataclass(frozen=True)
class Frames:
    """Frame stacks of several recordings, one row each, and the steps between them."""

    seen: Tensor
    """uint8 [M, 6, size, size], both views of every frame."""
    stacks: NDArray[np.int64]
    """[N, frames], rows of `seen`, the oldest frame first."""
    at: NDArray[np.int64]
    """[N], the place of each stack's newest frame among all steps."""
    env: NDArray[np.str_]
    scenario: NDArray[np.int64]
    driver: NDArray[np.str_]
    hazard: Float64
    """NaN where there is none."""
    cost: Float64
    """[T], of all steps; NaN where none was reported."""
    episode: NDArray[np.int64]
    """[T], a different number for every episode."""
    complete: NDArray[np.bool_]
    """[episodes], whether the environment ended the episode."""

    def __len__(self) -> int:
        return len(self.at)

    @property
    def contact(self) -> NDArray[np.bool_]:
        """[T], whether a step cost something."""
        return self.cost > 0.0

    @property
    def has_cost(self) -> bool:
        """Whether the environments report a cost at all."""
        return not bool(np.isnan(self.cost).any())


def read_frames(paths: Sequence[Path], size: int, frames: int) -> Frames:
    """All frame stacks of recordings, for a model with views of `size` pixels and stacks of `frames`."""
    recordings = [RecordedFrames.read(path) for path in paths]
    counts = [len(recording.arrays["frame_step"]) for recording in recordings]
    seen = torch.empty((sum(counts), 6, size, size), dtype=torch.uint8)
    with ThreadPoolExecutor() as threads:
        list(threads.map(_see, recordings, torch.split(seen, counts)))
    parts: dict[str, list[NDArray[Any]]] = {}
    rows = steps = episodes = 0
    for recording in recordings:
        held = recording.arrays
        own, lengths, newest = len(held["length"]), held["length"], recording.rows
        begins = (np.cumsum(lengths) - lengths)[recording.episode]
        part = {
            "stacks": rows + recording.stacks(frames),
            "at": steps + begins + held["frame_step"][newest],
            "env": np.full(len(recording), recording.env),
            "scenario": held["scenario"][recording.episode],
            "driver": held["driver"][recording.episode],
            "hazard": held["hazard"][newest].astype(np.float64),
            "cost": held["cost"].astype(np.float64),
            "episode": episodes + np.repeat(np.arange(own), lengths),
            "complete": held["complete"],
        }
        for name, values in part.items():
            parts.setdefault(name, []).append(values)
        rows, steps, episodes = rows + len(held["frame_step"]), steps + len(held["cost"]), episodes + own
    return Frames(seen=seen, **{name: np.concatenate(values) for name, values in parts.items()})


def _see(recording: RecordedFrames, seen: Tensor) -> None:
    for row in range(len(seen)):
        frame = torch.from_numpy(recording.frame(row).copy())
        seen[row] = views(frame[None], seen.shape[-1]).round().byte()[0]


def cost_within(frames: Frames, steps: int) -> Float64:
    """[N]: 1 if the step of a frame or one of the next `steps` costs, 0 if not, NaN if the recording ends too soon."""
    ahead = np.where(frames.contact, 0, steps_to_contact(frames.contact, frames.episode))[frames.at]
    ends = np.searchsorted(frames.episode, frames.episode[frames.at], side="right")  # episodes are in order
    left = ends - 1 - frames.at
    unknown = (ahead > steps) & (left < steps) & ~frames.complete[frames.episode[frames.at]]
    return np.where(unknown, np.nan, (ahead <= steps).astype(np.float64))
