"""vlmsafe study plan: what a study costs and what it can show, before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tyro
from rich import box
from rich.table import Table

from vlmsafe.cli.study.run import StudyChoice
from vlmsafe.cli.study.tables import cell_table, hours, steps_text
from vlmsafe.cli.terminal import err, out
from vlmsafe.errors import EXIT_BAD_INPUT, InputError


@dataclass(frozen=True)
class PlanCommand(StudyChoice):
    """Print the runs, steps, estimated hours and memory of a study, and what its claims can detect, before it starts.

    What the runs need is looked up too: prompts, scorers, environments, folders. Exit code 2: something is missing.
    """

    study: tyro.conf.Positional[str] = ""
    """The name of a study in the package, a YAML file, or the folder of a study that was started."""
    all: bool = False
    """Instead, print the GPU-hours of all the paper's runs, with a GPU in every run and with one scoring service."""
    cores: int | None = None
    """Cores to plan with; by default all."""
    launcher: Literal["local", "ray"] = "local"
    """Where the study will run. With ray, what only its nodes need, such as environments and weights, is not looked up
    here."""
    pilot: Path | None = None
    """Folder of runs that tell how much runs of these arms differ; by default the published tables do."""
    difference: float | None = None
    """A difference between two arms, in the unit of the outcome (rates from 0 to 1): print how many seeds it needs."""
    power: float = 0.8
    """The probability with which a true difference should be detected."""


def plan_verb(command: PlanCommand) -> None:
    from vlmsafe.audit.findings import counted
    from vlmsafe.studies.cost.plan import plan
    from vlmsafe.studies.launch.local import LocalLauncher
    from vlmsafe.studies.power import study_power
    from vlmsafe.studies.preflight import preflight
    from vlmsafe.studies.protocol import claims_in_force
    from vlmsafe.studies.study import assumptions

    if bool(command.study) == command.all:
        raise InputError("name a study, or pass --all for the GPU-hours of all the paper's runs")
    if command.all:
        _print_gpu_plan()
        return
    study, folder = command.load()
    specs = study.expand(folder)
    stated = replace(study, claims=claims_in_force(study, folder))
    detects = study_power(stated, specs, pilot=command.pilot, difference=command.difference, wanted=command.power)
    launcher, here = LocalLauncher(cores=command.cores), command.launcher == "local"
    found = plan(specs, folder.parent, launcher.cores, launcher.memory)
    table = cell_table(
        "environment", "arm", "runs", "done", "steps", "hours/run", "core-h left", "memory", "speed from"
    )
    for row in found.rows:
        table.add_row(
            row.env, row.arm, str(row.runs), str(row.done), steps_text(row.steps), hours(row.run_hours),
            _at_least(row.core_hours_left, row.incomplete), f"{row.memory / 2**30:.1f} GiB", row.source,
        )  # fmt: skip
    out.print(table)
    out.print(f"{counted(found.runs, 'run')}, {found.done} done; {steps_text(found.steps)} steps of training")
    if found.done == found.runs:
        out.print("nothing is left to do")
    elif found.core_hours is None:
        out.print("left: an unknown number of hours" + (f" on {launcher.describe()}" if here else ""))
    else:
        about = "at least" if found.incomplete else "about"
        on_all = f", {hours(found.hours)} hours on {launcher.describe()}" if here else ""
        out.print(f"left: {about} {hours(found.core_hours)} core-hours{on_all}")
    for test in detects.rows:
        out.print(f"power: {test}", markup=False, soft_wrap=True)
    for note in [*found.notes, *assumptions(specs), *detects.notes]:
        out.print(f"note: {note}", markup=False, soft_wrap=True)
    problems = preflight(study, specs, elsewhere=not here)
    for problem in problems:
        err.print(f"problem: {problem}", markup=False, soft_wrap=True)
    if problems:
        raise SystemExit(EXIT_BAD_INPUT)


def _at_least(number: float | None, incomplete: bool) -> str:
    return f"{hours(number)} or more" if incomplete and number is not None else hours(number)


def _print_gpu_plan() -> None:
    from vlmsafe.studies.cost.gpu import gpu_plan, notes
    from vlmsafe.studies.schema import load_study, shipped_studies

    studies = [study for study in map(load_study, shipped_studies()) if study.paper]
    rows = gpu_plan(sorted(studies, key=lambda study: -len(study.paper)))  # the main ones first
    rows = [row for row in rows if row.runs]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("study", no_wrap=True)
    for heading in ("runs", "M frames", "core-h", "GPU per run", "..., batched", "shared, float32", "shared, bfloat16"):
        table.add_column(heading, justify="right")
    for row in rows:
        figures = (row.core_hours, row.per_run, row.per_run_batched, row.shared_float32, row.shared_bfloat16)
        table.add_row(row.study, part_of(row.known, row.runs), f"{row.frames / 1e6:.1f}", *map(hours, figures))
    columns = zip(
        *((r.core_hours, r.per_run, r.per_run_batched, r.shared_float32, r.shared_bfloat16) for r in rows), strict=True
    )
    runs, known, frames = (sum(getattr(row, name) for row in rows) for name in ("runs", "known", "frames"))
    table.add_section()
    table.add_row("all", part_of(known, runs), f"{frames / 1e6:.1f}", *(hours(sum(column)) for column in columns))
    out.print("GPU-hours of training, for all runs of the paper; a run of several studies is counted with the first")
    out.print(table)
    for note in notes(rows):
        out.print(f"- {note}", markup=False, soft_wrap=True)


def part_of(part: int, whole: int) -> str:
    """`3 of 7`, or `7` where nothing is missing."""
    return str(whole) if part == whole else f"{part} of {whole}"
