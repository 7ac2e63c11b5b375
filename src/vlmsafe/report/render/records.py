"""Tables and charts as records for programs: one dictionary per row, in full precision, None where nothing is known."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from vlmsafe.report.elements import Band, Box, Cell, Chart, Dots, Line, Panel, Rule, Span, Table

CHART_FIELDS = ("panel", "group", "mark", "name", "x", "y", "low", "high")
_ENDS = ("low", "high", "std", "published", "published_std")


def table_fields(table: Table) -> list[str]:
    """The fields of a table's records, also of a table without rows."""
    return [
        field
        for column, ends in zip(table.columns, _used_ends(table), strict=True)
        for field in (column.name, *(f"{column.name}_{end}" for end in ends))
    ]


def table_records(table: Table) -> list[dict[str, Any]]:
    """One record per row; ends of intervals, deviations and published values have fields of their own."""
    used = _used_ends(table)
    records = []
    for row in table.rows:
        record: dict[str, Any] = {}
        for column, cell, ends in zip(table.columns, row, used, strict=True):
            record[column.name] = _exported(cell)
            record |= {f"{column.name}_{end}": getattr(cell, end) for end in ends}
        records.append(record)
    return records


def _used_ends(table: Table) -> list[list[str]]:
    """Which ends the cells of each column have."""
    return [
        [end for end in _ENDS if any(getattr(row[place], end) is not None for row in table.rows)]
        for place in range(len(table.columns))
    ]


def _exported(cell: Cell) -> float | str | None:
    """The number in full; the text where it says something else than the number, such as 2/56."""
    shown = cell.text.replace(",", "").replace("\N{MINUS SIGN}", "-").removesuffix(" %")
    if isinstance(cell.value, float) and math.isfinite(cell.value) and (not shown or re.fullmatch(r"[-+.\de]+", shown)):
        return cell.value
    return cell.text or cell.value


def chart_records(chart: Chart) -> list[dict[str, Any]]:
    """One record per drawn value."""
    return [
        dict(zip(CHART_FIELDS, (panel.title, *values), strict=True))
        for panel in chart.panels
        for values in _drawn(panel)
    ]


def _drawn(panel: Panel) -> Iterator[tuple[Any, ...]]:
    """Group, mark, name, x, y, low and high of every value in a panel."""

    def named(names: tuple[str, ...], value: float) -> float | str:
        return names[round(value)] if names and 0 <= round(value) < len(names) else value

    x, y = panel.x.categories, panel.y.categories
    for mark in panel.marks:
        if isinstance(mark, Rule):
            at = (None, mark.value) if mark.along == "x" else (mark.value, None)
            yield "", "line", mark.label, *at, None, None
        elif isinstance(mark, Line):
            for a, b in zip(mark.x, mark.y, strict=True):
                yield mark.group, "run" if mark.faint else "line", mark.name, named(x, a), b, None, None
        elif isinstance(mark, Band):
            for a, low, high in zip(mark.x, mark.low, mark.high, strict=True):
                yield mark.group, "band", "", named(x, a), None, low, high
        elif isinstance(mark, Dots):
            for a, b, name in zip(mark.x, mark.y, mark.names or [""] * len(mark.x), strict=True):
                yield mark.group, "episode" if mark.faint else "run", name, named(x, a), named(y, b), None, None
        elif isinstance(mark, Box):
            yield mark.group, "quarters", mark.name, mark.median, named(y, mark.at), mark.q25, mark.q75
        else:
            value, ends = (mark.centre, (mark.low, mark.high)) if isinstance(mark, Span) else (mark.value, (None, None))
            place = (value, named(y, mark.at)) if mark.along == "x" else (named(x, mark.at), value)
            yield mark.group, "interval" if isinstance(mark, Span) else "bar", mark.name, *place, *ends
