"""The list of planted defects, and what planting them has in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from .clean_design import Variant
from .editing import edit_table, run_paths, set_up_with

Plant = Callable[[Path], None]

FIRST, BASELINE, UNGATED = "vlm-ppo-lag-conf", "ppo-lag", "vlm-ppo-lag"
ONE, SECOND = slice(0, 1), slice(1, 2)
ROWS = ("epochs.jsonl", "episodes.jsonl", "timing.jsonl")
OTHER_EPOCH = ["stale-evaluation", "evaluations-differ"]
"""What else is true of an evaluation that is not of the last epoch, as the others are."""


@dataclass(frozen=True)
class Planted:
    """A defect."""

    name: str
    code: str
    """The finding that should name it."""
    plant: Plant
    """Puts it into the folder of a clean design with six seeds."""
    variant: Variant = "signal"
    also: frozenset[str] = frozenset()
    """Findings that may come with it."""


PLANTED: list[Planted] = []


def add(name: str, code: str, plant: Plant, variant: Variant = "signal", also: Iterable[str] = ()) -> None:
    """List a defect."""
    PLANTED.append(Planted(name, code, plant, variant, frozenset(also) - {code}))


def planted(name: str, code: str, variant: Variant = "signal", also: Iterable[str] = ()) -> Callable[[Plant], Plant]:
    """The same for a function under it."""

    def keep(plant: Plant) -> Plant:
        add(name, code, plant, variant, also)
        return plant

    return keep


def each_run(arm: str | None, change: Callable[[Path], None], which: slice = slice(None)) -> Plant:
    """A change to the runs of an arm, or of all arms."""

    def plant(folder: Path) -> None:
        for path in run_paths(folder, arm)[which]:
            change(path)

    return plant


def set_up(settings: dict[str, Any]) -> Callable[[Path], None]:
    """Other settings from the start."""
    return lambda path: set_up_with(path, settings)


def table(change: Callable[[pl.DataFrame], pl.DataFrame]) -> Callable[[Path], None]:
    """Another evaluation."""
    return lambda path: edit_table(path, change)
