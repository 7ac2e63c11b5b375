"""Which runs are repetitions of one arm: runs that were meant to differ in nothing but their seed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmsafe.errors import InputError
from vlmsafe.training.run import Run, find_runs


@dataclass(frozen=True)
class ArmRun:
    """A run, and what it is a repetition of."""

    env: str
    arm: str
    name: str
    """Of the run within its arm, such as seed-42."""
    run: Run


def open_arms(paths: Sequence[Path | str]) -> tuple[list[ArmRun], list[str]]:
    """The runs in these directories, or under them, and a line about each that cannot be read.

    The arm of `.../<arm>/seed-<n>` is the name of its folder, which may tell apart settings of one method; of a run in
    any other directory it is the method. Runs that were given twice count once.
    """
    runs: dict[Path, Run] = {}
    problems: list[str] = []
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(f"there is no {path}; expected a run directory, or a folder with runs")
        if (path / "config.yaml").is_file():
            found = [Run.open(path)]
        else:
            found, unreadable = find_runs(path)
            if not found and not unreadable:
                raise InputError(f"{path} holds no run: nothing under it has a config.yaml")
            problems += unreadable
        runs |= {run.path.resolve(): run for run in found}
    labelled = [(_arm(place, run), place, run) for place, run in sorted(runs.items())]
    counts: dict[tuple[str, str, str], int] = {}
    for arm, place, run in labelled:
        key = (run.config.env, arm, place.name)
        counts[key] = counts.get(key, 0) + 1
    return [
        ArmRun(env := run.config.env, arm, place.name if counts[env, arm, place.name] == 1 else str(run.path), run)
        for arm, place, run in labelled
    ], problems


def _arm(place: Path, run: Run) -> str:
    return place.parent.name if re.fullmatch(r"seed[-_]?\d+", place.name) else run.config.method


def by_arm(runs: Sequence[ArmRun]) -> Mapping[tuple[str, str], Sequence[ArmRun]]:
    """The runs of each environment and arm, in the order in which they came."""
    groups: dict[tuple[str, str], list[ArmRun]] = {}
    for run in runs:
        groups.setdefault((run.env, run.arm), []).append(run)
    return groups
