"""Amounts of data and training of a distillation, and where its recordings lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmsafe.distillation.frames import EPISODES_PER_FILE
from vlmsafe.distillation.sources import Source
from vlmsafe.errors import InputError

TRAINING, HELD_OUT = "recordings", "held-out"
"""The folders of recordings."""


@dataclass(frozen=True)
class DistilPlan:
    """Amounts of data and training."""

    episodes: int = 120
    """Episodes on training scenarios, per environment."""
    held_out_episodes: int = 40
    """Whole episodes on held-out scenarios, per environment."""
    longest: int = 1000
    """Steps after which a recorded episode is cut."""
    steps: int = 2000
    """Steps of training the model."""
    stacks: int = 64
    """Frame stacks in each of them."""
    size: int = 128
    """Width and height of the model's views in pixels: a multiple of 32. Fewer are faster and show less."""
    mirror: bool = False
    """Whether frames are also learned mirrored, for a teacher to whom left and right are the same."""
    pooled: bool = False
    """Whether the model also looks for the same things anywhere in the frame, as where the camera does not move."""
    cost_within: int | None = None
    """Also learn whether one of so many next steps costs; None for similarities only."""
    seed: int = 0
    resamples: int = 2000
    """Resamples of episodes behind each interval."""

    def __post_init__(self) -> None:
        for name in ("episodes", "held_out_episodes", "longest", "steps", "resamples"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.stacks < 2:
            raise InputError(f"stacks is {self.stacks}; the model normalises over a batch and needs at least 2")
        if self.size < 32 or self.size % 32:
            raise InputError(f"size is {self.size}; expected a multiple of 32, such as 64 or 128")
        if self.cost_within is not None and self.cost_within < 1:
            raise InputError(f"cost_within is {self.cost_within}; it must be at least 1 step")
        if self.seed < 0:
            raise InputError(f"seed is {self.seed}; it must be at least 0")


def paths_of(directory: Path, folder: str, source: Source, plan: DistilPlan) -> list[Path]:
    """The files of a source's recordings, which may not be there yet."""
    episodes = plan.episodes if folder == TRAINING else plan.held_out_episodes
    count = -(-episodes // EPISODES_PER_FILE)
    return [directory / folder / f"{source.file_name}.{number:04d}.npz" for number in range(count)]


def all_paths(directory: Path, folder: str, sources: Sequence[Source], plan: DistilPlan) -> list[Path]:
    return [path for source in sources for path in paths_of(directory, folder, source, plan)]
