"""What diagnostics read, found under the paths a user gives: run directories, folders of them, single traces."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from vlmsafe.errors import InputError
from vlmsafe.runs.arms import open_arms
from vlmsafe.runs.layout import find_table, is_run, protocol_option
from vlmsafe.runs.run import Run
from vlmsafe.runs.tables import read_table

Tables = dict[str, dict[str, pl.DataFrame]]
"""By arm, then by run, as `vlmsafe.analysis.tables.stacked` takes them."""


@dataclass(frozen=True, eq=False)
class Source:
    """A run, or a trace that came without one."""

    arm: str
    name: str
    run: Run | None = None
    trace: Path | None = None

    @property
    def title(self) -> str:
        return self.arm if self.arm == self.name else f"{self.arm} {self.name}"


def sources(paths: Sequence[Path]) -> tuple[Mapping[str | None, Sequence[Source]], list[str]]:
    """What there is, by environment, and a line about each run that cannot be read.

    Results of different environments are never pooled. A Parquet file is a trace: of the run in whose `traces/` it
    lies, else of an arm with its name, in an environment that is not known (None).
    """
    groups: dict[str | None, list[Source]] = {}
    folders = [path for path in paths if path.suffix != ".parquet"]
    arms, unreadable = open_arms(folders) if folders else ([], [])
    for arm in arms:
        groups.setdefault(arm.env, []).append(Source(arm.arm, arm.name, arm.run))
    files = [path for path in paths if path.suffix == ".parquet"]
    stems = [path.stem for path in files]
    for path in files:
        if not path.is_file():
            raise InputError(f"there is no {path}; expected a trace, a run directory, or a folder with runs")
        home = path.resolve().parent
        if home.name == "traces" and is_run(home.parent):
            own = open_arms([home.parent])[0][0]
            groups.setdefault(own.env, []).append(Source(own.arm, own.name, own.run, path))
        else:
            name = path.stem if stems.count(path.stem) == 1 else str(path)
            groups.setdefault(None, []).append(Source(name, name, None, path))
    for group in groups.values():
        names = [(source.arm, source.name) for source in group]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise InputError(f"{' '.join(twice)} was given twice, as a run and as its trace; give one of them")
    return groups, [*map(str, unreadable)]


def runs_only(group: Sequence[Source], what: str) -> list[tuple[Source, Run]]:
    """The sources that are runs, for diagnostics that a trace is not enough for."""
    found = [(source, source.run) for source in group if source.run is not None]
    if len(found) < len(group):
        lone = next(str(source.trace) for source in group if source.run is None)
        raise InputError(f"diagnose {what} reads run directories; {lone} is a trace")
    return found


def traces(group: Sequence[Source], protocol: str | None) -> Tables:
    """The trace of every source; a run without one is refused with the command that records it."""
    chosen = {source: source.trace or (source.run and find_table(source.run.traces, protocol)) for source in group}
    lacking = [source.run for source, path in chosen.items() if not path and source.run is not None]
    if lacking:
        option = protocol_option(protocol)
        commands = [f"vlmsafe trace {shlex.quote(str(run.path))}{option}" for run in lacking]
        others = f" (and {len(commands) - 1} more runs)" if len(commands) > 1 else ""
        kind = "" if protocol is None else f" '{protocol}'"
        raise InputError(f"{lacking[0].path} has no trace{kind}; record one with: {commands[0]}{others}")
    return _by_arm({source: read_table(path) for source, path in chosen.items() if path})


def evaluations(runs: Sequence[tuple[Source, Run]], protocol: str | None) -> tuple[Tables, list[str]]:
    """The evaluation tables there are, and a note that names the command for each run without."""
    found: dict[Source, pl.DataFrame] = {}
    notes = []
    for source, run in runs:
        path = find_table(run.evaluations, protocol)
        if path is not None:
            found[source] = read_table(path)
        else:
            command = f"vlmsafe evaluate {shlex.quote(str(run.path))}{protocol_option(protocol)}"
            notes.append(f"{source.title} has no evaluation, so it is not among the episodes; for one: {command}")
    return _by_arm(found), notes


def epochs(runs: Sequence[tuple[Source, Run]]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The rows of every run's epochs.jsonl, by arm and run."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for source, run in runs:
        found.setdefault(source.arm, {})[source.name] = run.rows("epochs")
    return found


def scorer_of(steps: pl.DataFrame, wanted: str | None) -> str:
    """The prefix of the scorer to look at: the one asked for, else the only one there is."""
    present = [name.removesuffix("negative").rstrip("_") for name in steps.columns if name.endswith("negative")]
    if wanted is not None:
        if wanted not in present:
            raise InputError(f"the trace has no scorer '{wanted}'; it has: {_listed(present)}")
        return wanted
    if "" in present or not present:
        return ""
    if len(present) > 1:
        raise InputError(f"the trace has several scorers; choose one with --scorer: {_listed(present)}")
    return present[0]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(name or "one without a name" for name in names) or "none"


def _by_arm(tables: Mapping[Source, pl.DataFrame]) -> Tables:
    arms: Tables = {}
    for source, table in tables.items():
        arms.setdefault(source.arm, {})[source.name] = table
    return arms
