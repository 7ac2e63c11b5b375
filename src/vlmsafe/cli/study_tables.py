"""How far a study is, as tables: cell by cell or run by run, drawn over themselves on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vlmsafe.cli.terminal import out

if TYPE_CHECKING:
    from vlmsafe.studies.progress import CellState
    from vlmsafe.studies.study import RunSpec, Study

REDRAW = 2.0  # seconds


class Screen:
    """A table that is drawn over itself on a terminal, and not at all elsewhere. It draws when told, in no thread."""

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
    from vlmsafe.studies.execute import failures, under_way
    from vlmsafe.studies.progress import cell_states

    names = {spec.name for spec in specs}
    failed = {name: reason for name, reason in failures(folder).items() if name in names}
    states = list(cell_states(specs, failed, under_way(folder, elsewhere)))
    table = Table(box=box.SIMPLE_HEAD, title=Text(f"{study.title}, in {folder}"), title_justify="left")
    for heading in ("environment", "arm"):
        table.add_column(heading, overflow="fold")
    for heading in ("trained", "epochs", "evaluated", "traced"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("now", overflow="fold")

    def share(count: int, total: int) -> str:
        return f"{count}/{total}" if total else "-"

    for state in states:
        table.add_row(
            state.env, state.arm, share(state.trained, state.runs), f"{100 * state.epochs // state.all_epochs} %",
            share(state.evaluations, state.all_evaluations), share(state.traces, state.all_traces), _now(state),
        )  # fmt: skip
    if failed:
        table.caption = Text("\n".join(f"failed: {name}: {reason}" for name, reason in failed.items()))
        table.caption_justify = "left"
    return table


def runs_table(study: Study, specs: Sequence[RunSpec], folder: Path, elsewhere: bool = False) -> Table:
    """Every run of a study on a line of its own."""
    from vlmsafe.studies.execute import failures, last_rows, under_way
    from vlmsafe.studies.progress import glance

    failed, running, last = failures(folder), under_way(folder, elsewhere), last_rows(folder)
    table = Table(box=box.SIMPLE_HEAD, title=Text(f"{study.title}, in {folder}"), title_justify="left")
    for heading in ("run", "now", "step", "epochs", "node", "since", "log"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("epochs", "since"))
    for spec in specs:
        seen, row = glance(spec), last.get(spec.name, {})
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
        table.add_row(
            Text(spec.name), now, row.get("step", ""), f"{seen.epochs}/{spec.config.epochs}", row.get("node", ""),
            row.get("time", ""), str(log.relative_to(folder)) if log.exists() else "",
        )  # fmt: skip
    return table


def _now(state: CellState) -> str:
    """What goes on in a cell, in words."""
    counts = (("running", state.running, "cyan"), ("stopped", state.stopped, "yellow"), ("failed", state.failed, "red"))
    words = [f"[{colour}]{count} {word}[/]" for word, count, colour in counts if count]
    return ", ".join(words) or ("[green]done[/]" if state.done else "waiting")
