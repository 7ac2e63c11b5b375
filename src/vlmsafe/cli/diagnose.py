"""vlmsafe diagnose: what a signal did, and what a result may hide."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from vlmsafe.cli.terminal import err, out, parse
from vlmsafe.errors import InputError


@dataclass(frozen=True)
class DiagnoseCommand:
    """Did the term move the multiplier? Does the signal warn? Is the gate open? What is a return made of?

    multiplier and returns read epochs.jsonl, returns also evaluations; lead-time and gate read what vlmsafe trace
    recorded. Runs of different environments are kept apart.
    """

    what: tyro.conf.Positional[Literal["multiplier", "lead-time", "gate", "returns"]]
    """What to diagnose."""
    paths: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories, folders with runs, or traces (Parquet files)."""
    out: Path | None = None
    """Folder for every table as CSV and JSON and every figure as PNG and PDF."""
    json: bool = False
    """Print JSON for programs instead of tables."""
    protocol: str | None = None
    """Evaluation or trace to read; by default held-out, else the only one there is."""
    scorer: str | None = None
    """Scorer to look at, where a trace has several."""
    resamples: int = 2000
    """Resamples of episodes behind each interval."""
    seed: int = 0
    """Seed of the resamples, and of how episodes are split in half."""
    frames: int | None = None
    """For gate: so many frames per run, evenly spaced, in the table of margins and kappa; the paper takes 200."""
    passive_below: float | None = None
    """For returns: also count episodes without cost whose return is below this; the paper takes 20 on MetaDrive."""


def diagnose_verb(argv: list[str]) -> None:
    command = parse(DiagnoseCommand, argv, "diagnose")
    from vlmsafe.report.diagnoses import (
        Settings,
        diagnose,
        to_json,
        write,
    )
    from vlmsafe.report.inputs import sources
    from vlmsafe.report.text import rendered

    if not command.paths:
        raise InputError(f"diagnose {command.what} needs a run directory, a folder with runs, or a trace")
    settings = Settings(
        command.protocol, command.scorer, command.resamples, command.seed, command.frames, command.passive_below
    )
    groups, problems = sources(command.paths)
    notes = list(problems)
    found = [diagnose(command.what, env, group, settings) for env, group in groups.items()]
    for one in found:
        notes += one.notes
        if command.out is not None:  # before anything is printed: who reads that may stop early
            folder = command.out if len(found) == 1 else command.out / (one.env or "traces").replace(":", "-")
            paths, missing = write(one, folder)
            notes += missing
            err.print(f"{len(paths)} files in {folder}", markup=False, soft_wrap=True)
    for note in notes:
        err.print(f"note: {note}", markup=False, soft_wrap=True)
    if command.json:
        out.print(to_json([one.as_dict() for one in found]), end="", markup=False, soft_wrap=True)
        return
    for one in found:
        for part in rendered(one):
            out.print(part)
