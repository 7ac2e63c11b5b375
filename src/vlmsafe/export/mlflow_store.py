"""Runs as MLflow keeps them in a folder, which `mlflow ui --backend-store-uri` and MLflow's client read.

    <folder>/
        <experiment>/meta.yaml           one experiment per environment
        <experiment>/<run>/meta.yaml     name, status, times
            params/<name>                one setting
            metrics/<name>               one line per epoch: milliseconds, value, epoch
            tags/<name>
            artifacts/                   evaluations, findings and settings as files

The files are written here, without the package. Runs of an earlier export stay, and a run that is exported again is
replaced.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmsafe.config.yaml import to_yaml
from vlmsafe.export.folder import begin_folder, put_directory, safe_names
from vlmsafe.export.gather import ExportedRun, Gathered, numbers, severities
from vlmsafe.export.texts import artifacts, notes
from vlmsafe.io.disk import disk_errors
from vlmsafe.io.files import write_atomically
from vlmsafe.runs.run import Status

_STATUS: Mapping[Status, int] = {"running": 1, "untrained": 2, "finished": 3, "stopped early": 5}
"""MLflow's numbers for running, scheduled, finished and killed."""
_LOCAL = 4  # MLflow's number for a run that was started by hand
_ACTIVE = "active"


def write_mlflow(data: Gathered, folder: Path) -> list[Path]:
    """Write each run, whole or not at all; the directories of the runs."""
    begin_folder(folder, "mlflow")
    written = []
    for run in data.runs:
        experiment = _experiment_id(run.record.env)
        final = folder / experiment / run.id
        meta = folder / experiment / "meta.yaml"
        if not meta.exists():
            with disk_errors(meta):
                meta.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(meta, _experiment_meta(run, experiment, meta.parent))

        def fill(place: Path, run: ExportedRun = run, final: Path = final, experiment: str = experiment) -> Path:
            for name, text in _files(run, experiment, final).items():
                path = place / name
                with disk_errors(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text, encoding="utf-8")
            return place

        put_directory(folder, final, fill)
        written.append(final)
    return written


def _experiment_id(env: str) -> str:
    """MLflow names experiments by numbers. This one depends on nothing but the environment's name."""
    return str(int(hashlib.sha256(env.encode()).hexdigest()[:15], 16)).zfill(18)[:18]


def _experiment_meta(run: ExportedRun, experiment: str, place: Path) -> bytes:
    begun = run.milliseconds[0]
    return to_yaml(
        {
            "artifact_location": place.resolve().as_uri(),
            "creation_time": begun,
            "experiment_id": experiment,
            "last_update_time": begun,
            "lifecycle_stage": _ACTIVE,
            "name": run.record.env,
        }
    ).encode()


def _files(run: ExportedRun, experiment: str, final: Path) -> dict[str, str]:
    """The content of every file of a run, by its place."""
    ended = run.milliseconds[-1] if run.status != "running" else None
    meta: dict[str, Any] = {
        "artifact_uri": (final / "artifacts").resolve().as_uri(),
        "end_time": ended,
        "entry_point_name": "",
        "experiment_id": experiment,
        "lifecycle_stage": _ACTIVE,
        "run_id": run.id,
        "run_name": run.record.label,
        "run_uuid": run.id,
        "source_name": "",
        "source_type": _LOCAL,
        "source_version": "",
        "start_time": run.milliseconds[0],
        "status": _STATUS[run.status],
        "tags": [],
        "user_id": "",
    }
    sections: dict[str, Mapping[str, str]] = {
        "params": {name: _param(value) for name, value in run.settings.items()},
        "metrics": _metrics(run),
        "tags": _tags(run),
    }
    files = {"meta.yaml": to_yaml(meta)}
    for section, entries in sections.items():
        names = safe_names(list(entries))
        files |= {f"{section}/{names[name]}": text for name, text in entries.items()}
    return files | {f"artifacts/{name}": text for name, text in artifacts(run).items()}


def _param(value: Any) -> str:
    """A setting in one line, as MLflow's own client would write it."""
    return json.dumps(value) if isinstance(value, list | dict) else " ".join(str(value).split("\n"))


def _metrics(run: ExportedRun) -> dict[str, str]:
    """The lines of each metric: figures of epochs, then results of evaluations and numbers of findings."""
    lines: dict[str, list[str]] = {}
    times = run.milliseconds
    for time, row in zip(times[1:], run.epochs, strict=True):
        for name, value in numbers(row):
            lines.setdefault(name, []).append(f"{time} {value!r} {row['epoch']}")
    evaluated = run.evaluated_epochs
    for name, value in run.results.items():
        lines[name] = [f"{times[-1]} {value!r} {evaluated.get(name.partition('/')[0], 0)}"]
    for level, count in severities(run.findings).items():
        lines[f"findings/{level}"] = [f"{times[-1]} {count} 0"]
    return {name: "".join(f"{line}\n" for line in own) for name, own in lines.items()}


def _tags(run: ExportedRun) -> dict[str, str]:
    recorded = run.record.recorded
    found = {
        "mlflow.runName": run.record.label,
        "mlflow.note.content": notes(run),
        "vlmsafe.arm": run.record.arm,
        "vlmsafe.method": run.record.config.method,
        "vlmsafe.path": str(run.path.resolve()),
        "vlmsafe.status": run.status,
        "vlmsafe.version": recorded.get("packages", {}).get("vlmsafe"),
        "mlflow.source.git.commit": recorded.get("git_revision"),
    }
    return {name: str(value) for name, value in found.items() if value}
