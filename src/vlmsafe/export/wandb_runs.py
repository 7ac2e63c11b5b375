"""Runs for Weights & Biases, written by its own package in offline mode; `wandb sync` uploads them.

The format of an offline run is private to the package, so the package has to be installed. It needs no account and no
network for this. Settings become the configuration, epochs the history and evaluations the summary. The findings of
the audit are the run's notes, and its files have them in full, with every episode.

Each run is a folder `offline-run-<start>-<id>`. A run that is exported again replaces its folder, and runs of an
earlier export stay.
"""

from __future__ import annotations

import datetime
import importlib
import os
import re
from pathlib import Path
from typing import Any

from vlmsafe.config.yaml import nested
from vlmsafe.errors import MissingDependencyError, RunError
from vlmsafe.export.folder import begin_folder, put_directory
from vlmsafe.export.gather import ExportedRun, Gathered, numbers, severities
from vlmsafe.export.texts import artifacts, notes

_ID = 16  # digits of a run's id: W&B shows ids in addresses
_FORBIDDEN = re.compile(r"[/\\#?%:]")  # in the name of a project


def require_wandb() -> Any:
    """The package; an error with the command that installs it if it is missing."""
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise MissingDependencyError(
            f"export: --wandb needs the package wandb, which cannot be imported ({error}); install it with: "
            "pip install wandb"
        ) from None


def write_wandb(data: Gathered, folder: Path) -> list[Path]:
    """Write each run, whole or not at all; the folders of the runs."""
    wandb = require_wandb()
    begin_folder(folder, "wandb")
    written = []
    for run in data.runs:
        started = run.started or datetime.datetime.fromtimestamp(0, datetime.UTC)
        final = folder / f"offline-run-{started:%Y%m%d_%H%M%S}-{run.id[:_ID]}"

        def fill(place: Path, run: ExportedRun = run) -> Path:
            try:
                return _write_run(wandb, run, place)
            except wandb.Error as error:
                reason = " ".join(str(error).split())
                raise RunError(f"wandb {wandb.__version__} cannot write {run.path}: {reason}") from error

        put_directory(folder, final, fill)
        written.append(final)
    return written


def _write_run(wandb: Any, run: ExportedRun, place: Path) -> Path:
    """Let the package write one run below a folder; where it did."""
    options = wandb.Settings(
        console="off", disable_code=True, disable_git=True, silent=True, x_disable_stats=True, x_disable_meta=True
    )
    record = run.record
    active = wandb.init(
        mode="offline",
        dir=os.fspath(place),
        id=run.id[:_ID],
        project=_FORBIDDEN.sub("-", f"vlmsafe-{record.env}"),
        group=record.arm,
        name=record.label,
        notes=notes(run),
        tags=_tags(run),
        config=nested(run.settings),
        reinit="create_new",
        settings=options,
    )
    for row in run.epochs:
        active.log(dict(numbers(row)), step=row["epoch"])
    active.summary.update(
        {
            **run.results,
            **{f"findings/{level}": count for level, count in severities(run.findings).items()},
            "findings/codes": sorted({one.code for one in run.findings}),
            "status": run.status,
            "path": str(run.path.resolve()),
        }
    )
    # Files, not tables of W&B: those keep their content in the user's home until they are uploaded.
    for name, text in artifacts(run).items():
        path = Path(active.dir) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        active.save(os.fspath(path), base_path=active.dir, policy="end")
    active.finish()
    made = sorted((place / "wandb").glob(f"offline-run-*-{run.id[:_ID]}"))
    if len(made) != 1:
        raise RunError(f"wandb {wandb.__version__} left {len(made)} folders in {place / 'wandb'}; expected one")
    return made[0]


def _tags(run: ExportedRun) -> list[str]:
    """Environment, arm and state; a tag of W&B has at most 64 letters."""
    return [tag[:64] for tag in dict.fromkeys((run.record.env, run.record.arm, run.status))]
