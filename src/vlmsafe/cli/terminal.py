"""What every verb uses: where it prints, how it parses its options, how its lists look."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from vlmsafe.errors import EXIT_BAD_INPUT

# Into a file or a pipe rich would squeeze tables into 80 columns.
out = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
err = Console(stderr=True, highlight=False)


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
