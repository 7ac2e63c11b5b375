"""vlmsafe verify."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.padding import Padding
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from vlmsafe.cli.terminal import err, out, parse
from vlmsafe.verification.answer import EPOCHS

if TYPE_CHECKING:
    from vlmsafe.verification.answer import Verification


@dataclass(frozen=True)
class VerifyCommand:
    """Check a run: compute parts of it again in a temporary folder, and compare them with what the run recorded.

    The first epochs are replayed from the seed, the last ones from the kept checkpoints. All figures and the digests of
    the state after each epoch are compared; times are not. The run is not changed.

    Exit code 0: equal; 3: the records fit together, but epochs could not be replayed here; 4: something differs.
    """

    run: tyro.conf.Positional[Path]
    """Run directory."""
    epochs: int = EPOCHS
    """Epochs to replay at each end of the run; 0 only checks that the records fit together."""
    service: str = ""
    """Address of a scoring service (`vlmsafe serve`) that holds the run's model; by default it is loaded here."""
    json: bool = False
    """Print JSON, for programs."""


def verify_verb(argv: list[str]) -> None:
    command = parse(VerifyCommand, argv, "verify")
    from vlmsafe.verification.verify import verify

    with replay_progress("replaying") as on_steps:
        result = verify(command.run, epochs=command.epochs, service=command.service, on_steps=on_steps)
    if command.json:
        print(json.dumps(result.to_dict(), indent=2, allow_nan=False, ensure_ascii=False))
    else:
        show(result)
    raise SystemExit(result.exit_code)


@contextmanager
def replay_progress(text: str) -> Iterator[Callable[[int, int], None]]:
    """A bar of the steps that a replay has made, on a terminal."""
    if not err.is_terminal:
        yield lambda done, total: None
        return
    with Progress(console=err, transient=True) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


COLOURS = {"equal": "bold green", "different": "bold red", "not replayed": "bold yellow"}


def show(result: Verification) -> None:
    """Print a verification for people: what was compared, the surroundings of both, and the outcome."""

    def line(label: str, text: str, style: str = "") -> None:
        table = Table.grid(padding=(0, 2))
        table.add_column(width=11, style="dim")
        table.add_column(style=style)
        table.add_row(label, Text(text))
        out.print(table)

    out.print(Text(result.title, style="bold"))
    line("run", f"{result.run}, {result.epochs} of {result.planned} epochs")
    intact = ", ".join(map(str, result.checkpoints))
    line("checkpoints", f"intact after epoch {intact}" if intact else "none to replay from")
    for place, replay in enumerate(result.replays):
        line("" if place else "replayed", str(replay))
    for note in result.notes:
        line("note", note, "yellow")
    out.print(Padding(_surroundings(result), (1, 0, 1, 0), expand=False))
    head = Text(result.outcome, style=COLOURS[result.outcome])
    if result.outcome == "equal":
        out.print(head.append(": everything that was compared", style="default not bold"))
        return
    if result.obstacle is not None:
        head.append(f": {result.obstacle}", style="default not bold")
    out.print(head)
    for difference in result.differences:
        out.print(Padding(Text(str(difference)), (0, 0, 0, 2), expand=False))
    others = [one.name for one in result.surroundings if one.differs]
    if others and any(one.source == "computation" for one in result.differences):
        out.print(Text(f"the surroundings differ too, which may be the reason: {', '.join(others)}", style="yellow"))


def _surroundings(result: Verification) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("", "in the run", "here"):
        table.add_column(heading, overflow="fold")
    for one in result.surroundings:
        same = Text("the same", style="dim")
        here = Text(one.here, style="yellow") if one.differs else same
        table.add_row(Text(one.name, style="dim"), Text(one.in_run), here)
    return table
