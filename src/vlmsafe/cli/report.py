"""vlmsafe report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from vlmsafe.cli.terminal import err, out, parse
from vlmsafe.errors import InputError

if TYPE_CHECKING:
    from vlmsafe.report.request import StudyInfo


@dataclass(frozen=True)
class ReportCommand:
    """Write a report on runs: one HTML file that opens anywhere, offline, with the answer first.

    Beside it, in a folder of its name, every table is written as CSV, LaTeX and Markdown, every figure as PNG, PDF and
    CSV.
    """

    paths: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories, or folders that hold runs. claims.yaml in a folder says what is compared (docs/audit.md)."""
    out: Path | None = None
    """The HTML file; by default report.html in the folder, or in the current one where there are several."""
    question: str = ""
    """The question that the report begins with; by default the first comparison's."""
    files: bool = True
    """Whether tables and figures are also written beside the page."""


def report_verb(argv: list[str]) -> None:
    command = parse(ReportCommand, argv, "report")
    from vlmsafe.report.request import StudyInfo

    if not command.paths:
        raise InputError("report: no runs; expected a folder that holds runs, such as runs/, or run directories")
    paths, folder = command.paths, _study_folder(command.paths)
    if folder is not None:
        from vlmsafe.cli.study import study_info
        from vlmsafe.studies.schema import load_study

        paths, info = (folder,), study_info(load_study(str(folder)), folder)
    else:
        info = StudyInfo(", ".join(path.resolve().name for path in paths))
    info = replace(info, question=command.question or info.question)
    place = paths[0] if len(paths) == 1 else Path()
    write_and_say(paths, command.out or place / "report.html", info, files=command.files)


def write_and_say(paths: Sequence[Path], page: Path, info: StudyInfo, *, files: bool = True) -> None:
    """Write a report, and print its answer and where it is."""
    from vlmsafe.report.write import write_report

    if page.suffix != ".html":
        raise InputError(f"report: --out is {page}; expected the name of an HTML file, such as report.html")
    written = write_report(paths, page, info, files=files)
    for line in written.answer:
        err.print(line, markup=False, highlight=False, soft_wrap=True)
    for lacking in written.missing:
        err.print(f"not in it: {lacking}", markup=False, highlight=False, soft_wrap=True)
    size = written.page.stat().st_size / 1e6
    beside = f", {len(written.files)} files in {page.with_suffix('')}" if written.files else ""
    err.print(f"{size:.1f} MB{beside}", markup=False, soft_wrap=True)
    out.print(f"report: {written.page}", markup=False, soft_wrap=True)


def _study_folder(paths: Sequence[Path]) -> Path | None:
    """The folder of a study, given as it is or by the study's name: its report has the study's question and tables."""
    from vlmsafe.runs.arms import STUDY_FILE

    if len(paths) != 1:
        return None
    named = paths[0] if paths[0].exists() else Path("runs") / paths[0]
    return named if (named / STUDY_FILE).is_file() else None
