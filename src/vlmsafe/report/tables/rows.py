"""Rows of a report's table from rows of the analysis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vlmsafe.report.cells import count, text
from vlmsafe.report.elements import Cell, Column

ENV, ARM, RUN = Column("env", "environment"), Column("arm", "arm"), Column("run", "run")
BY_RUN = (ENV, ARM, RUN)
PAIR = (Column("first", "first arm"), Column("second", "against"))
"""The two arms of a comparison."""
POOL = "all"
"""The name, in the column of runs, of the runs of an arm together."""
_SHARE = "_pct"


def named(*names: str, digits: int | None = None) -> list[Column]:
    """Columns that are headed by their names.

    >>> [column.heading for column in named("steps", "mean_gap", digits=2)]
    ['steps', 'mean gap']
    """
    return [Column(name, name.replace("_", " "), digits) for name in names]


def cells(row: Mapping[str, Any], columns: Sequence[Column]) -> list[Cell]:
    """The cells of a row under these columns, by their names.

    A column named `<name>_pct` shows the share `<name>` as a percentage. What is not defined stays empty.

    >>> columns = [RUN, Column("frames", "frames", 0), Column("open_pct", "open %", 1)]
    >>> [cell.value for cell in cells({"run": None, "frames": 200, "open": 0.25}, columns)]
    ['all', 200.0, 25.0]
    """
    return [_cell(row, column) for column in columns]


def interval(row: Mapping[str, Any], name: str = "auc") -> Cell:
    """A value with the ends of its interval, which the analysis calls low and high."""
    return Cell(row[name], low=row["low"], high=row["high"])


def _cell(row: Mapping[str, Any], column: Column) -> Cell:
    share = column.name.endswith(_SHARE)
    value = row[column.name.removesuffix(_SHARE)]
    if column.name == RUN.name:
        return text(POOL if value is None else value)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return Cell()
    if isinstance(value, bool):
        return text("yes" if value else "no")
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int):
        return count(value)
    return Cell(100.0 * value if share else value)
