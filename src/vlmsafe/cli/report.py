"""vlmsafe report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from vlmsafe.cli.consoles import err, out, parse
from vlmsafe.errors import InputError


@dataclass(frozen=True)
class ReportCommand:
    """Write a report on runs: one HTML file that opens anywhere, offline, with the answer first.

    Beside it, in a folder of its name, every table is written as CSV and LaTeX, every figure as PNG, PDF and CSV.
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
    from vlmsafe.report.data import StudyInfo
    from vlmsafe.report.write import write_report

    if not command.paths:
        raise InputError("report: no runs; expected a folder that holds runs, such as runs/, or run directories")
    folder = _study_folder(command.paths)
    if folder is not None and not command.question:
        from vlmsafe.cli.study import study_verb

        study_verb(["report", str(folder), *(["--out", str(command.out)] if command.out else [])])
        return
    place = command.paths[0] if len(command.paths) == 1 else Path()
    page = command.out if command.out is not None else place / "report.html"
    if page.suffix != ".html":
        raise InputError(f"report: --out is {page}; expected the name of an HTML file, such as report.html")
    name = ", ".join(path.resolve().name for path in command.paths)
    written = write_report(command.paths, page, StudyInfo(name, command.question), files=command.files)
    size = written.page.stat().st_size / 1e6
    out.print(f"{written.page}", markup=False, soft_wrap=True)
    beside = f", {len(written.files)} files in {page.with_suffix('')}" if written.files else ""
    err.print(f"{size:.1f} MB{beside}", markup=False, soft_wrap=True)


def _study_folder(paths: tuple[Path, ...]) -> Path | None:
    """The folder of a study, given as it is or by the study's name: its report has the study's question and tables."""
    from vlmsafe.studies.arms import STUDY_FILE

    if len(paths) != 1:
        return None
    named = paths[0] if paths[0].exists() else Path("runs") / paths[0]
    return named if (named / STUDY_FILE).is_file() else None
