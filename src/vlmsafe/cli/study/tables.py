"""The tables of `vlmsafe study`: how far a study is, cell by cell or run by run, and how numbers are printed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vlmsafe.cli.terminal import NARROW, PathText, listing, out

if TYPE_CHECKING:
    from vlmsafe.studies.progress import CellProgress
    from vlmsafe.studies.study import RunSpec, Study

REDRAW = 2.0  # seconds


class Screen:
    """A table that is redrawn in place on a terminal, and not drawn elsewhere. It uses no thread."""

    def __init__(self, draw: Callable[[], Table]) -> None:
        self._draw, self._live, self._due = draw, Live(console=out, auto_refresh=False, transient=True), 0.0

    def __enter__(self) -> Screen:
        if out.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if out.is_terminal:
            self._live.stop()
            out.print(self._draw())

    def redraw(self) -> None:
        if out.is_terminal and time.monotonic() >= self._due:
            self._live.update(self._draw(), refresh=True)
            self._due = time.monotonic() + REDRAW


def status_table(study: Study, specs: Sequence[RunSpec], folder: Path, elsewhere: bool = False) -> Table:
    from vlmsafe.studies.journal import failures, running_rows
    from vlmsafe.studies.progress import study_progress

    names = {spec.name for spec in specs}
    failed = {name: reason for name, reason in failures(folder).items() if name in names}
    table = Table(box=box.SIMPLE_HEAD, title=Text(f"{study.title}, in {folder}"), title_justify="left")
    for heading in ("environment", "arm"):
        table.add_column(heading, overflow="fold")
    for heading in ("trained", "epochs", "evaluated", "traced"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("now", overflow="fold")

    def share(count: int, total: int) -> str:
        return f"{count}/{total}" if total else "-"

    for cell in study_progress(specs, failed, running_rows(folder, elsewhere)):
        table.add_row(
            cell.env, cell.arm, share(cell.trained, cell.runs), f"{100 * cell.epochs // cell.all_epochs} %",
            share(cell.evaluations, cell.all_evaluations), share(cell.traces, cell.all_traces), _now(cell),
        )  # fmt: skip
    if failed:
        table.caption = Text("\n".join(f"failed: {name}: {reason}" for name, reason in failed.items()))
        table.caption_justify = "left"
    return table


def runs_table(study: Study, specs: Sequence[RunSpec], folder: Path, elsewhere: bool = False) -> Table:
    """A table with one row per run."""
    from vlmsafe.studies.journal import failures, last_rows, running_rows
    from vlmsafe.studies.progress import run_progress

    failed, running, last = failures(folder), running_rows(folder, elsewhere), last_rows(folder)
    table = Table(box=box.SIMPLE_HEAD, title=Text(f"{study.title}, in {folder}"), title_justify="left")
    for heading in ("run", "now", "step", "epochs", "node", "since", *(("log",) if out.width >= NARROW else ())):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("now", "epochs"))
    table.columns[0].min_width = 20
    for spec in specs:
        seen, row = run_progress(spec), last.get(spec.name, {})
        complete = seen.evaluations == len(spec.evaluations) and seen.traces == len(spec.traces)
        if spec.name in running:
            now = "[cyan]running[/]"
        elif spec.name in failed:
            now = "[red]failed[/]"
        elif seen.status == "trained":
            now = "[green]done[/]" if complete else "trained"
        else:
            now = f"[yellow]{seen.status}[/]" if seen.begun else "waiting"
        log = folder / "logs" / f"{spec.name}.log"
        cells = (
            PathText(spec.name), now, row.get("step", ""), f"{seen.epochs}/{spec.config.epochs}", row.get("node", ""),
            row.get("time", ""), PathText(log.relative_to(folder)) if log.exists() else "",
        )  # fmt: skip
        table.add_row(*cells[: len(table.columns)])
    return table


def _now(cell: CellProgress) -> str:
    """What the runs of a cell are doing, in words."""
    counts = (("running", cell.running, "cyan"), ("stopped", cell.stopped, "yellow"), ("failed", cell.failed, "red"))
    words = [f"[{colour}]{count} {word}[/]" for word, count, colour in counts if count]
    return ", ".join(words) or ("[green]done[/]" if cell.done else "waiting")


def cell_table(*headings: str) -> Table:
    """A table whose first two columns, environment and arm, are never cut, and whose other columns fold."""
    table = listing(*headings)
    table.columns[1].no_wrap = True
    for column in table.columns[2:]:
        column.overflow = "fold"
    return table


def steps_text(steps: int) -> str:
    """A number of steps, in millions if there are that many."""
    return f"{steps / 1e6:g} M" if steps >= 1e6 else f"{steps:,}"


def hours(number: float | None) -> str:
    """A number of hours with two or three digits that matter; 'unknown' if it is not known.

    >>> hours(123.4), hours(1.26), hours(0.004), hours(0.0), hours(None)
    ('123', '1.3', '< 0.01', '0', 'unknown')
    """
    if number is None:
        return "unknown"
    if number < 0.005:
        return "< 0.01" if number > 0.0 else "0"
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 1 else f"{number:.2f}"
