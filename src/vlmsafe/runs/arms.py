"""Find runs and group them into arms: the runs of an arm are meant to differ in nothing but their seed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmsafe.errors import InputError
from vlmsafe.runs.layout import CONFIG, is_run
from vlmsafe.runs.run import Run, UnreadableRun, find_runs


@dataclass(frozen=True)
class ArmRun:
    """A run with its environment, its arm and its name in the arm."""

    env: str
    arm: str
    name: str
    """Such as seed-42."""
    run: Run


def open_arms(paths: Sequence[Path | str]) -> tuple[list[ArmRun], list[UnreadableRun]]:
    """The runs in these directories or below them, and the runs that cannot be opened.

    The directory names the arm if it is `<arm>/seed-<n>`, `<arm>/<n>`, `seed-<n>/<arm>` or `<arm>-seed-<n>`, so that
    arms may be different settings of one method. Otherwise the arm is the method. A run that is given twice counts
    once.
    """
    runs: dict[Path, Run] = {}
    unreadable: list[UnreadableRun] = []
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(f"there is no {path}; expected a run directory, or a folder with runs")
        if is_run(path):
            found = [Run.open(path)]
        else:
            found, damaged = find_runs(path)
            if not found and not damaged:
                raise InputError(f"{path} holds no run: no folder in it has a {CONFIG}")
            unreadable += damaged
        for run in found:
            runs.setdefault(run.path.resolve(), run)
    ordered = sorted(runs.values(), key=lambda run: run.path.absolute())
    labelled = [(*_label(run.path.absolute(), run), run) for run in ordered]
    counts: dict[tuple[str, str, str], int] = {}
    for arm, name, run in labelled:
        key = (run.config.env, arm, name)
        counts[key] = counts.get(key, 0) + 1
    return [
        ArmRun(env := run.config.env, arm, name if counts[env, arm, name] == 1 else str(run.path), run)
        for arm, name, run in labelled
    ], unreadable


def of_studies(sources: Sequence[ArmRun], studies: Mapping[Path, Sequence[Path]]) -> tuple[list[ArmRun], list[str]]:
    """Without runs that studies no longer have, and a line about those that are left out.

    `studies` has the runs of each study, as it is defined now, by the study's folder. Runs outside these folders stay.
    """
    own = {path.resolve() for runs in studies.values() for path in runs}
    folders = [folder.resolve() for folder in studies]

    def counts(source: ArmRun) -> bool:
        path = source.run.path.resolve()
        return path in own or not any(path.is_relative_to(folder) for folder in folders)

    kept = [source for source in sources if counts(source)]
    others = [source.run.path for source in sources if not counts(source)]
    if not others:
        return kept, []
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    if not kept:
        raise InputError(f"{others[0]}{more}: not of the study as it is defined now, and there are no others")
    return kept, [f"{others[0]}{more}: not of the study as it is defined now, and left out"]


_SEED = re.compile(r"(seed|run)?[-_=]?\d+", re.IGNORECASE)
_SUFFIX = re.compile(r"(?P<arm>.+?)[-_]+(?P<seed>seed[-_=]?\d+)", re.IGNORECASE)


def _label(place: Path, run: Run) -> tuple[str, str]:
    """The arm of a run, and the name of the run in the arm."""
    if _SEED.fullmatch(place.name):
        return place.parent.name, place.name
    if _SEED.fullmatch(place.parent.name):
        return place.name, place.parent.name
    if suffix := _SUFFIX.fullmatch(place.name):
        return suffix["arm"], suffix["seed"]
    return run.config.method, place.name


def by_arm(runs: Sequence[ArmRun]) -> Mapping[tuple[str, str], Sequence[ArmRun]]:
    """The runs of each environment and arm, in the order in which they came."""
    groups: dict[tuple[str, str], list[ArmRun]] = {}
    for run in runs:
        groups.setdefault((run.env, run.arm), []).append(run)
    return groups
