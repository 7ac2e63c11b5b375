"""The journal of a study, `journal.jsonl`: one row for each thing that happened to a run, or to its protocol."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmsafe.io.files import append_rows, read_rows
from vlmsafe.io.locks import is_locked

JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class Event:
    """Something that happened to a run."""

    run: str
    """Its name; 'study' for what happened to the study itself."""
    step: str
    what: str
    """began, ended, failed, stopped, copied, lost, unlocked, changed; and, not in the journal, waits, not copied, kept,
    frozen."""
    reason: str = ""
    node: str = ""
    """The machine on which it happened."""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.run, f"{self.step} {self.what}".strip(), self.reason)))


def write_event(folder: Path, event: Event) -> None:
    """Append an event to the journal of the study in a folder."""
    row = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **vars(event)}
    append_rows(folder / JOURNAL, [row])


def last_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """The last row of each run."""
    return {row["run"]: row for row in read_rows(folder / JOURNAL)}


def running_rows(folder: Path, elsewhere: bool = False) -> dict[str, dict[str, Any]]:
    """The last rows of the runs that are running now, with step, node and time.

    If the study is run `elsewhere`, on another machine, only its journal tells whether it is running.
    """
    if not elsewhere and not is_locked(folder):
        return {}
    return {run: row for run, row in last_rows(folder).items() if row["what"] == "began"}


def failures(folder: Path) -> dict[str, str]:
    """The runs whose last step failed, and why."""
    rows = last_rows(folder)
    return {run: f"{row['step']}: {row['reason']}" for run, row in rows.items() if row["what"] == "failed"}
