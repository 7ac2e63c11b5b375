"""Keep the finished runs of a study in a small form that can be committed, and put them back where the study goes on.

    python tools/keep_runs.py runs/safer-driver benchmarks/safer-driver/runs
    python tools/keep_runs.py benchmarks/safer-driver/runs runs/safer-driver

A kept run has its settings, rows, evaluations and traces as they were, and of its last checkpoint the policy and the
normaliser. Critics and optimisers are left out, which are nine tenths of it; `epochs.jsonl` has the digest of the
whole state. `vlmsafe study run`, `study report` and `audit` take a kept run for the finished run that it is. It can be
evaluated and traced again, and `vlmsafe verify --epochs N` repeats its N epochs from the seed. It cannot be extended.
Files of the study itself (protocol, claims, journal) come along. Runs that are not finished are left out, and so are
settings and logs that name places on the machine. What is there already stays as it is; the study's own files are
replaced unless their journal is the longer one. A run that starts from another run keeps the name of that run's
directory; from a shipped driver, nothing names a place.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import tyro

from vlmsafe.comparison.claims import CLAIMS_FILE
from vlmsafe.comparison.preregistration import PROTOCOL_FILE, PROTOCOL_PAGE
from vlmsafe.config.yaml import read_yaml, to_yaml
from vlmsafe.errors import VlmsafeError
from vlmsafe.io.disk import make_directory
from vlmsafe.io.files import write_atomically
from vlmsafe.learners.networks import POLICY
from vlmsafe.runs.checkpoint import path_of
from vlmsafe.runs.digest import REDUCED
from vlmsafe.runs.layout import CONFIG, PROMPTS, ROW_FILES, START, STUDY_FILE, row_file, tables_in
from vlmsafe.runs.run import Run
from vlmsafe.studies.journal import JOURNAL

OF_STUDY = (STUDY_FILE, CLAIMS_FILE, PROTOCOL_FILE, PROTOCOL_PAGE)
EVENTS = "events.jsonl"
ABOUT_MACHINE = ("system", "processor", "cores")


def keep(folder: Path, to: Path) -> list[str]:
    """Copy the study in a folder, and each of its finished runs that is not there yet; the names of new runs."""
    new = []
    for config in sorted(folder.glob(f"*/*/seed-*/{CONFIG}")):
        name = config.parent.relative_to(folder)
        if (to / name / CONFIG).exists():
            _copy_tables(config.parent, to / name)  # evaluations come after training
            continue
        run = Run.open(config.parent)
        if run.status() == "finished":
            keep_run(run, to / name)
            new.append(str(name))
    if len(_journal(folder)) >= len(_journal(to)):  # not where an older copy is put over a study that went on
        make_directory(to)
        for file in OF_STUDY:
            if (folder / file).is_file():
                shutil.copyfile(folder / file, to / file)
        if journal := _journal(folder):
            write_atomically(to / JOURNAL, b"".join(journal))
    return new


def _journal(folder: Path) -> list[bytes]:
    """The lines of a study's journal without the names of machines."""
    path = folder / JOURNAL
    rows = map(json.loads, path.read_text().splitlines()) if path.is_file() else ()
    return [json.dumps({**row, "node": ""}).encode() + b"\n" for row in rows]


def keep_run(run: Run, to: Path) -> None:
    """Write a run in its small form; its configuration last, because a directory without one is no run."""
    found, _ = run.checkpoint()
    arrays = {name: array for name, array in found.arrays.items() if name.startswith("normaliser.")}
    arrays["networks"] = found.arrays["networks"][: POLICY + 1].copy()
    values = _placeless({**found.values, "shape": {**found.values["shape"], "critics": 0}})
    small, whole = dataclasses.replace(found, arrays=arrays, values=values), found.digest()
    # A run that was kept before has no trace of what was left out then, but this list.
    before = found.values.get(REDUCED, ())
    values[REDUCED] = [*before, *(part for part in whole if small.digest().get(part) != whole[part])]
    make_directory(to / "evaluations")
    write_atomically(path_of(make_directory(to / "checkpoints"), found.epoch), small.to_bytes())
    for file in (PROMPTS, START, *(row_file(run.path, name).name for name in ROW_FILES)):
        if (run.path / file).is_file():
            shutil.copyfile(run.path / file, to / file)
    write_atomically(to / EVENTS, b"".join(_placeless_events(run.path)))
    _copy_tables(run.path, to)
    write_atomically(to / CONFIG, to_yaml(_placeless(read_yaml(run.path / CONFIG))).encode())


def _copy_tables(run: Path, to: Path) -> None:
    for kind in ("evaluations", "traces"):
        for table in tables_in(run / kind).values():
            for file in (table, table.with_suffix(".json")):
                target = make_directory(to / kind) / file.name
                if file.is_file() and not target.exists():
                    shutil.copyfile(file, target)


def _placeless(settings: dict[str, object]) -> dict[str, object]:
    """Settings without what names the machine; the directory of a run is found by where it lies."""
    found = {name: value for name, value in settings.items() if name not in (*ABOUT_MACHINE, "run_dir")}
    for name in ("recorded", "config"):
        if isinstance(inner := found.get(name), dict):
            found[name] = _placeless(inner)
    if isinstance(signal := found.get("signal"), dict) and signal.get("service"):
        found["signal"] = {**signal, "service": ""}  # it does not affect results
    return found


def _placeless_events(run: Path) -> Iterator[bytes]:
    """The lines of a run's events without what names the machine; RUN stands for the run's directory."""
    for line in (run / EVENTS).read_text().splitlines():
        event = {key: value for key, value in json.loads(line).items() if key not in ABOUT_MACHINE}
        if isinstance(scorer := event.get("scorer"), dict):
            event["scorer"] = {key: value for key, value in scorer.items() if key != "service"}
        if "reason" in event:  # the command with which a run that was stopped is continued
            event["reason"] = re.sub(r"(--resume )\S+", r"\1RUN", event["reason"])
        yield json.dumps(event).encode() + b"\n"


def main(folder: Path, to: Path, /) -> None:
    """Keep the finished runs of the study in a folder."""
    new = keep(folder, to)
    print(f"{len(new)} new runs in {to}" + "".join(f"\n  {name}" for name in new))


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except VlmsafeError as error:
        sys.exit(f"error: {error}")
