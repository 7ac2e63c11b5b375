"""Tidy CSV files: one row per run, per epoch, per evaluation episode and per finding.

Every file but the findings begins with the same four columns (`env`, `arm`, `run`, `seed`), by which they are joined.
Numbers are written in full precision, true and false as such, lists as JSON. An empty cell is a value that there is
not.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from vlmsafe.audit.findings import Finding
from vlmsafe.export.folder import begin_folder
from vlmsafe.export.gather import ExportedRun, Gathered, described, severities
from vlmsafe.io.files import write_together

_KEY = ("env", "arm", "run", "seed")
_FINDING = (
    "code", "severity", "title", "where", "scope", "environment", "arms", "runs", "protocol", "metric", "evidence",
    "fix", "data",
)  # fmt: skip
_JOINED = ("arms", "runs", "evidence")


def write_csv(data: Gathered, folder: Path) -> list[Path]:
    """Write the four files, all of them or none; their paths."""
    begin_folder(folder, "csv")
    runs = data.runs
    files = {
        "runs.csv": _text([_run(run) for run in runs], _KEY),
        "epochs.csv": _text([run.key | row for run in runs for row in run.epochs], (*_KEY, "epoch", "steps")),
        "evaluations.csv": _text(list(_episodes(runs)), (*_KEY, "table", "protocol", "episode")),
        "findings.csv": _text([_finding(one) for one in data.findings], _FINDING),
    }
    write_together({folder / name: text.encode() for name, text in files.items()})
    return [folder / name for name in files]


def _run(run: ExportedRun) -> dict[str, Any]:
    """A run's row: what it is, what produced it, then its settings."""
    recorded = run.record.recorded
    return {
        **run.key,
        "run_id": run.id,
        "path": str(run.path),
        "status": run.status,
        "epochs_recorded": len(run.epochs),
        "started": None if run.started is None else run.started.isoformat(),
        "vlmsafe": recorded.get("packages", {}).get("vlmsafe"),
        "git_revision": recorded.get("git_revision"),
        **{f"findings.{level}": count for level, count in severities(run.findings).items()},
        **{name: value for name, value in run.settings.items() if name not in _KEY},
    }


def _episodes(runs: Sequence[ExportedRun]) -> Iterable[dict[str, Any]]:
    for run in runs:
        for name, table in run.tables.items():
            for row in table.rows(named=True):
                yield {**run.key, "table": name, **row}


def _finding(found: Finding) -> dict[str, Any]:
    row = described(found)
    return {name: "; ".join(row[name]) if name in _JOINED else row[name] for name in _FINDING}


def episode_table(table: pl.DataFrame) -> str:
    """One evaluation as CSV."""
    return _text(table.rows(named=True), table.columns)


def _text(rows: Sequence[Mapping[str, Any]], first: Sequence[str]) -> str:
    """Rows as CSV. Columns are `first`, then the others in the order in which they appear."""
    names = dict.fromkeys(first) | dict.fromkeys(name for row in rows for name in row)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([cell(row.get(name)) for name in names] for row in rows)
    return buffer.getvalue()


def cell(value: Any) -> str:
    """A value as text that programs read back.

    >>> [cell(value) for value in (None, True, 0.1, 3, "a", [1, "b"], float("nan"))]
    ['', 'true', '0.1', '3', 'a', '[1, "b"]', '']
    """
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return json.dumps(value, ensure_ascii=False, default=str)
