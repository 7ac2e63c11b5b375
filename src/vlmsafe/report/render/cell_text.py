"""The text of a table's cell: number, deviation, interval and published value, the same in every format."""

from __future__ import annotations

import math

from vlmsafe.report.elements import Cell, Column, minus

_FINE = 4  # decimals from which a column is one of small numbers


def number_text(value: float, column: Column, beside: float | None = None) -> str:
    """A number as a table shows it: from a hundred on with one decimal, as is what stands beside it.

    >>> number_text(3.14159, Column("x", "x", 2)), number_text(3.14159, Column("x", "x", 2), beside=250.0)
    ('3.14', '3.1')
    """
    if not math.isfinite(value):
        return ""
    large = abs(value if beside is None else beside) >= 100
    digits = min(column.digits or 0, 1) if large else column.digits or 0
    # In a column of small numbers, one too small for its digits is not shown as zero; rounding errors are.
    if digits >= _FINE and 1e-12 < abs(value) < 0.5 * 10**-digits:
        return minus(f"{value:.1e}")
    text = f"{value:,.{digits}f}"
    return text.removeprefix("-") if not float(text.replace(",", "")) else minus(text)


def cell_text(cell: Cell, column: Column) -> str:
    """The main line of a cell: its text, or its number with the deviation."""
    if cell.text or cell.value is None:
        return cell.text
    if isinstance(cell.value, str):
        return cell.value
    spread = f" ± {number_text(cell.std, column, cell.value)}" if cell.std is not None else ""
    return number_text(cell.value, column) + spread


def interval_text(cell: Cell, column: Column) -> str:
    if cell.low is None or cell.high is None:
        return ""
    beside = cell.value if isinstance(cell.value, float) else None
    return f"[{number_text(cell.low, column, beside)}, {number_text(cell.high, column, beside)}]"


def published_text(cell: Cell, column: Column) -> str:
    if cell.published is None:
        return ""
    std = cell.published_std
    spread = f" ± {number_text(std, column, cell.published)}" if std is not None else ""
    return number_text(cell.published, column) + spread


def cell_line(cell: Cell, column: Column) -> str:
    """A cell in one line: value, interval, published value."""
    published = published_text(cell, column)
    parts = [
        cell_text(cell, column),
        interval_text(cell, column),
        f"(paper {published}{cell.mark})" if published else "",
    ]
    return " ".join(part for part in parts if part)
