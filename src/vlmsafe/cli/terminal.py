"""What every verb uses: where it prints, how it parses its options, how its lists look."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich import box
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from vlmsafe.errors import EXIT_BAD_INPUT


def _width() -> int | None:
    """The width of printed text where neither a terminal nor COLUMNS decides: rich would squeeze it into 80 columns."""
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    return None if on_terminal or os.environ.get("COLUMNS", "").isdigit() else 120


# No emoji: the middle of gym:car:Race-v0 would become one.
out = Console(highlight=False, emoji=False, width=_width())
err = Console(stderr=True, highlight=False, emoji=False)

NARROW = 100
"""The width below which long tables have no room for paths."""


class PathText:
    """A path in a table, which is broken after slashes where it does not fit."""

    def __init__(self, path: Path | str) -> None:
        self._parts = re.findall(r"[^/]*/|[^/]+", str(path))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(max(map(len, self._parts), default=0), sum(map(len, self._parts)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        lines = [""]
        for part in self._parts:
            if lines[-1] and len(lines[-1]) + len(part) > options.max_width:
                lines.append("")
            lines[-1] += part
        yield Text("\n".join(lines), overflow="fold")


def parse(kind: type[Any], argv: list[str], verb: str, default: Any = tyro.MISSING) -> Any:
    extra = {} if default is tyro.MISSING else {"default": default}
    try:
        return tyro.cli(kind, args=argv, prog=f"vlmsafe {verb}", **extra)
    except SystemExit as exit_:
        raise SystemExit(EXIT_BAD_INPUT if exit_.code not in (0, None) else 0) from None


def listing(name: str, *others: str) -> Table:
    """A table whose first column, what the user types or opens, is never cut."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(name, no_wrap=True)
    for heading in others:
        table.add_column(heading)
    return table


@dataclass(frozen=True)
class NoOptions:
    """This command takes no options."""
