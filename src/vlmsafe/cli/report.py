"""vlmsafe report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from vlmsafe.cli.terminal import err, out, parse

if TYPE_CHECKING:
    from vlmsafe.report.write import Written


@dataclass(frozen=True)
class ReportCommand:
    """Write a report on runs: one HTML file that opens anywhere, offline, with the answer first.

    A folder of the same name gets every table as CSV, JSON, LaTeX and Markdown, and every figure as SVG, PNG, PDF and
    CSV.
    """

    paths: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories, or folders that hold runs. claims.yaml in a folder says what is compared."""
    out: Path | None = None
    """The HTML file; by default report.html in the folder, or in the current folder if several were given."""
    question: str = ""
    """The question that the report begins with; by default that of the first comparison."""
    files: bool = True
    """Whether tables and figures are also written as files."""


def report_verb(argv: list[str]) -> None:
    command = parse(ReportCommand, argv, "report")
    from vlmsafe.studies.api import report

    print_report(report(command.paths, command.out, question=command.question, files=command.files))


def print_report(written: Written) -> None:
    """Print a report's answer and where it is."""
    for line in written.answer:
        err.print(line, markup=False, highlight=False, soft_wrap=True)
    for lacking in written.missing:
        err.print(f"not in it: {lacking}", markup=False, highlight=False, soft_wrap=True)
    size = written.page.stat().st_size / 1e6
    files = f", {len(written.files)} files in {written.page.with_suffix('')}" if written.files else ""
    err.print(f"{size:.1f} MB{files}", markup=False, soft_wrap=True)
    out.print(f"report: {written.page}", markup=False, soft_wrap=True)
