"""What is exported of runs: settings, epochs, evaluations and audit findings, the same for every format."""

from __future__ import annotations

import datetime
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from vlmsafe.audit.findings import Audit, Finding
from vlmsafe.config.yaml import flatten
from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.evaluation.evaluate import summary
from vlmsafe.runs.arms import of_studies, open_arms
from vlmsafe.runs.layout import tables_in
from vlmsafe.runs.records import RunRecord, read_record
from vlmsafe.runs.run import Row, Status
from vlmsafe.runs.tables import read_table
from vlmsafe.studies.api import audit, runs_of_studies

_NOT_SETTINGS = ("run_dir",)
_DIGEST = "digest"  # of the state after an epoch: hexadecimal text, which no tool can plot


@dataclass(frozen=True, eq=False)
class ExportedRun:
    """One run as it is exported."""

    record: RunRecord
    """The run with its rows."""
    tables: Mapping[str, pl.DataFrame]
    """Every evaluation by the name of its table, such as held-out or held-out-epoch-00005."""
    findings: tuple[Finding, ...]
    """Those that are about this run, its arm, a comparison of its arm, its environment, or all runs."""
    status: Status
    """Whether it is finished."""
    seconds: tuple[float, ...]
    """How long each recorded epoch took; shorter than the epochs if that was not recorded."""

    @property
    def path(self) -> Path:
        return self.record.source.run.path

    @cached_property
    def id(self) -> str:
        """32 hexadecimal digits that stay the same as long as the run stays where it is."""
        return hashlib.sha256(str(self.path.resolve()).encode()).hexdigest()[:32]

    @property
    def key(self) -> dict[str, Any]:
        """The columns that say which run a row of a table is about."""
        record = self.record
        return {"env": record.env, "arm": record.arm, "run": record.name, "seed": record.seed}

    @property
    def settings(self) -> dict[str, Any]:
        """All settings under dotted names, except the place of the run."""
        return {name: value for name, value in self.record.settings.items() if name not in _NOT_SETTINGS}

    @cached_property
    def epochs(self) -> list[Row]:
        """The rows of its epochs, nested figures under dotted names such as progress.distance."""
        return [flatten({name: row[name] for name in row if name != _DIGEST}) for row in self.record.epochs]

    @cached_property
    def results(self) -> dict[str, float]:
        """The mean results of each evaluation, such as held-out/cost; of several checkpoints the newest's."""
        return {
            f"{protocol}/{name}": value
            for protocol, table in self.record.evaluations.items()
            for name, value in _results(table).items()
        }

    @property
    def evaluated_epochs(self) -> dict[str, int]:
        """The checkpoint of each evaluation in `results`, by protocol."""
        tables = self.record.evaluations.items()
        return {
            name: int(table["checkpoint_epoch"][0]) for name, table in tables if "checkpoint_epoch" in table.columns
        }

    @cached_property
    def started(self) -> datetime.datetime | None:
        """When it began; None if it did not record that."""
        times = [self.record.recorded.get("started"), *(event.get("time") for event in self.record.events)]
        return next((time for time in map(_time, times) if time is not None), None)

    @cached_property
    def milliseconds(self) -> list[int]:
        """When it began and when each of its epochs ended, since 1970. Pauses between epochs are not counted."""
        start = 0.0 if self.started is None else self.started.timestamp()
        padded = itertools.chain(self.seconds, itertools.repeat(0.0))
        ends = itertools.accumulate(itertools.islice(padded, len(self.epochs)), initial=start)
        return [round(1000 * end) for end in ends]


def _results(table: pl.DataFrame) -> dict[str, float]:
    return {name: value for name, value in summary(table).items() if value is not None and math.isfinite(value)}


def _time(text: Any) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None  # a run that was edited by hand


def numbers(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The figures of a row that can be plotted, with slashes in their names, by which tools group them.

    >>> list(numbers({"epoch": 2, "kl": None, "passive": True, "progress.distance": 3.5}))
    [('epoch', 2.0), ('progress/distance', 3.5)]
    """
    for name, value in row.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield name.replace(".", "/"), float(value)


@dataclass(frozen=True, eq=False)
class Gathered:
    """Everything that an export writes."""

    runs: tuple[ExportedRun, ...]
    findings: tuple[Finding, ...]
    """All findings of the audit, also those that are about no single run."""
    notes: tuple[str, ...]
    """What could not be read, or was left out."""


def severities(findings: Iterable[Finding]) -> dict[str, int]:
    """How many findings there are of each severity, the worst first."""
    levels = [str(one.severity) for one in findings]
    return {level: levels.count(level) for level in ("error", "warning", "note")}


def described(found: Finding) -> dict[str, Any]:
    """A finding as plain values, as `vlmsafe audit --json` prints it."""
    entry: dict[str, Any] = Audit((found,), (), (), ()).to_dict()["findings"][0]
    return entry


def gather(paths: Sequence[Path], *, findings: bool) -> Gathered:
    """Read runs, and audit them if `findings` is set."""
    if not paths:
        raise InputError("export: no runs; expected a folder that holds runs, such as runs/, or run directories")
    studies, notes = runs_of_studies(paths)
    sources, unreadable = open_arms(paths)
    sources, left_out = of_studies(sources, studies)
    notes += [*left_out, *(f"not exported: {one}" for one in unreadable)]
    if not sources:
        raise InputError(f"export: no run can be read: {unreadable[0]}")
    audited = audit(paths) if findings else Audit((), (), (), ())
    runs = []
    for source in sources:
        record = read_record(source)
        tables: dict[str, pl.DataFrame] = {}
        for name, path in tables_in(source.run.evaluations).items():
            try:
                tables[name] = read_table(path)
            except VlmsafeError:
                continue  # it is among the problems of the record, which are told below
        notes += [f"{record.label}: {problem}" for problem in record.problems]
        own = tuple(one for one in audited.findings if _is_about(one, record))
        runs.append(ExportedRun(record, tables, own, source.run.status(), _seconds(record)))
    return Gathered(tuple(runs), audited.findings, tuple(notes))


def _is_about(found: Finding, run: RunRecord) -> bool:
    """Whether a finding is about a run: named, or of its arm where no runs are named, or about everything."""
    subject = found.subject
    if subject.scope == "all":
        return True
    if subject.environment != run.env:
        return False
    return run.label in subject.runs if subject.runs else not subject.arms or run.arm in subject.arms


def _seconds(record: RunRecord) -> tuple[float, ...]:
    """The seconds of each recorded epoch, from the times of its stages."""
    try:
        rows = record.source.run.rows("timing")
    except VlmsafeError:
        return ()  # times are shown only, and a run without them can be exported
    spent = {row.get("epoch"): math.fsum(value for name, value in numbers(row) if name != "epoch") for row in rows}
    return tuple(spent.get(row["epoch"], 0.0) for row in record.epochs)
