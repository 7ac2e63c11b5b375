"""vlmsafe study: list, show, plan, freeze, run, status, report, verify."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmsafe.cli.report import print_report
from vlmsafe.cli.study.freeze import FreezeCommand, freeze_verb
from vlmsafe.cli.study.plan import PlanCommand, plan_verb
from vlmsafe.cli.study.run import RunCommand, StudyChoice, run_verb
from vlmsafe.cli.study.tables import REDRAW, Screen, cell_table, runs_table, status_table, steps_text
from vlmsafe.cli.study.verify import StudyVerifyCommand, verify_verb
from vlmsafe.cli.terminal import NoOptions, listing, out, parse
from vlmsafe.errors import InputError, unknown_name

if TYPE_CHECKING:
    from vlmsafe.studies.study import EpisodeRequest

_FETCH = 30.0  # seconds between two updates of the local copy of a study at a URL


@dataclass(frozen=True)
class ShowCommand(StudyChoice):
    """Print a study: its question, its arms and what distinguishes them, its environments and evaluations."""


@dataclass(frozen=True)
class StatusCommand(StudyChoice):
    """Show how far a study is; on a terminal the table is updated until Ctrl-C."""

    once: bool = False
    """Print the table once."""
    runs: bool = False
    """One row per run: how far it is, on which node it runs and since when, or when and how it ended."""


@dataclass(frozen=True)
class StudyReportCommand(StudyChoice):
    """Write the report of a study, finished or not: one HTML file, and a folder with its tables and figures."""

    out: Path | None = None
    """HTML file; by default report.html in the study's folder."""


def study_verb(argv: list[str]) -> None:
    verbs: dict[str, tuple[Any, Callable[[Any], None]]] = {
        "list": (NoOptions, _list),
        "show": (ShowCommand, _show),
        "plan": (PlanCommand, plan_verb),
        "freeze": (FreezeCommand, freeze_verb),
        "run": (RunCommand, run_verb),
        "status": (StatusCommand, _status),
        "report": (StudyReportCommand, _report),
        "verify": (StudyVerifyCommand, verify_verb),
    }
    if not argv or argv[0] in ("-h", "--help"):
        out.print("usage: vlmsafe study VERB STUDY [OPTIONS]\n")
        for name, (kind, _) in verbs.items():
            text = "List the studies in the package." if name == "list" else kind.__doc__.split("\n")[0]
            out.print(f"  {name:<8} {text}", soft_wrap=True)
        return
    if argv[0] not in verbs:
        raise unknown_name("study command", argv[0], verbs)
    kind, function = verbs[argv[0]]
    function(parse(kind, argv[1:], f"study {argv[0]}"))


def _list(command: NoOptions) -> None:
    from vlmsafe.studies.schema import load_study, shipped_studies

    table = listing("study", "question", "runs", "steps", "makes")
    for name in shipped_studies():
        study = load_study(name)
        specs = study.expand(Path("runs"))
        steps = sum(spec.config.total_steps for spec in specs)
        table.add_row(name, study.question, str(len(specs)), steps_text(steps), ", ".join(study.paper) or "-")
    out.print(table)


def _show(command: ShowCommand) -> None:
    from vlmsafe.audit.findings import counted
    from vlmsafe.config.yaml import to_yaml
    from vlmsafe.studies.study import cells

    study, folder = command.load()
    specs = study.expand(folder, recorded=True)
    out.print(study.question, style="bold")
    out.print(f"{counted(len(specs), 'run')} of {counted(len(study.arms), 'arm')} in {folder}\n", markup=False)
    table = cell_table("environment", "arm", "method", "seeds", "steps", "evaluations", "traces")
    for own in cells(specs).values():
        first = own[0]
        table.add_row(
            first.env, first.arm, first.config.method, ", ".join(str(spec.seed) for spec in own),
            steps_text(first.config.total_steps), _requests_text(first.evaluations), _requests_text(first.traces),
        )  # fmt: skip
    out.print(table)
    out.print(to_yaml(study.document), markup=False, soft_wrap=True)


def _requests_text(requests: tuple[EpisodeRequest, ...]) -> str:
    return ", ".join(f"{request.protocol} ({request.count})" for request in requests) or "-"


def _status(command: StatusCommand) -> None:
    from vlmsafe.studies.protocol import notice, shown_protocol

    study, folder = command.load()
    command.update_copy(study, folder)
    protocol, unrecorded = notice(study, folder)
    for line in [*(shown_protocol(protocol, study, folder) if protocol is not None else []), unrecorded]:
        if line:
            out.print(line, markup=False, soft_wrap=True)
    specs, elsewhere = study.expand(folder, recorded=True), command.store() is not None
    draw = partial(runs_table if command.runs else status_table, study, specs, folder, elsewhere)
    if command.once or not out.is_terminal:
        out.print(draw())
        return
    from vlmsafe.studies.progress import study_progress

    due = time.monotonic() + _FETCH
    with Screen(draw) as screen:
        while not all(cell.done for cell in study_progress(specs, {})):
            screen.redraw()
            time.sleep(REDRAW)
            if time.monotonic() >= due:
                command.update_copy(study, folder)
                due = time.monotonic() + _FETCH


def _report(command: StudyReportCommand) -> None:
    from vlmsafe.studies.api import report_on_study

    study, folder = command.load()
    command.update_copy(study, folder)
    if not folder.is_dir():
        raise InputError(f"there is no {folder}; make its runs with: {command.command('run', Path(command.study))}")
    print_report(report_on_study(study, folder, command.out, command=command.command("run", folder)))
