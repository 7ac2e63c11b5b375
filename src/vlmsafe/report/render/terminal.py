"""A report's tables in a terminal: rich tables that fit its width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich import box
from rich import table as rich_table
from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from vlmsafe.report.elements import Cell, Column, Table
from vlmsafe.report.render.cell_text import cell_line

_HEADING = 12  # letters of a heading's line, unless a word or a value below is longer
_PADDING = 3  # around a value, and between columns
_INDENT = 2  # of names under a heading


def rendered(table: Table, width: int) -> Iterator[RenderableType]:
    """The title, the values and the caption of a table.

    A table that is wider than the terminal is shown in blocks, one below the other, that all begin with the names of
    the rows. A folded table is only named: it is long, and read from its file.
    """
    if table.fold:
        yield Text(f"{table.title}: {len(table.rows):,} rows, not shown here", style="dim")
        return
    yield Text(table.title, style="bold")
    yield from _blocks(table, width)
    for line in (table.caption, *table.notes):
        if line:
            yield Padding(Text(line, style="dim"), (0, 2, 0, 1))
    yield ""


def _blocks(table: Table, width: int) -> Iterator[rich_table.Table]:
    names, values = _split(table)
    headings = [_heading(table, place) for place in range(len(table.columns))]
    texts = [[_cell(cell, column) for cell, column in zip(row, table.columns, strict=True)] for row in table.rows]
    grouped = _is_grouped(table, names)
    if grouped:
        names = names[1:]
    wide = [
        max(cell_len(part) for part in (*headings[place].split("\n"), *(row[place] for row in texts))) + _PADDING
        for place in range(len(table.columns))
    ]
    room = width - _PADDING - sum(wide[place] for place in names) - (_INDENT if grouped else 0)
    block: list[int] = []
    for place in values:
        if block and sum(wide[other] for other in (*block, place)) > room:
            yield _block(table, headings, texts, names, block, grouped)
            block = []
        block.append(place)
    yield _block(table, headings, texts, names, block, grouped)


def _split(table: Table) -> tuple[list[int], list[int]]:
    """The columns that name a row, which stand first, and the others."""
    first = next((place for place, column in enumerate(table.columns) if column.is_number), len(table.columns))
    return list(range(first)), list(range(first, len(table.columns)))


def _is_grouped(table: Table, names: Sequence[int]) -> bool:
    """Whether the first name becomes a heading over its rows: where rows repeat it, and have further names."""
    first = [row[0].value for row in table.rows]
    return len(names) > 1 and all(first.count(value) > 1 for value in first)


def _block(
    table: Table,
    headings: Sequence[str],
    texts: Sequence[Sequence[str]],
    names: Sequence[int],
    values: Sequence[int],
    grouped: bool,
) -> rich_table.Table:
    shown = rich_table.Table(box=box.SIMPLE_HEAD, padding=(0, 1), header_style="bold")
    for place in (*names, *values):
        number = table.columns[place].is_number
        shown.add_column(
            Text(headings[place]), justify="right" if number else "left", no_wrap=number, overflow="fold",
            vertical="bottom",
        )  # fmt: skip
    before: Sequence[str] | None = None
    for place, row in enumerate(texts):
        if grouped and (before is None or before[0] != row[0]):
            if before is not None:
                shown.add_section()
            shown.add_row(Text(row[0], style="bold"), *("" for _ in range(len(names) + len(values) - 1)))
        style = "bold" if place in table.strong else ""
        cells = [Text(text, style) for text in _names(row, before, names, grouped)]
        shown.add_row(*cells, *(Text(row[value], style) for value in values))
        before = row
    return shown


def _names(row: Sequence[str], before: Sequence[str] | None, names: Sequence[int], grouped: bool) -> list[str]:
    """The names of a row, without those that the row before has too."""
    found: list[str] = []
    same = before is not None and (not grouped or before[0] == row[0])
    for order, place in enumerate(names):
        same = same and before is not None and before[place] == row[place] and order < len(names) - 1
        text = "" if same else row[place]
        found.append(" " * _INDENT + text if grouped and order == 0 and text else text)
    return found


def _heading(table: Table, place: int) -> str:
    """The heading in lines as narrow as the values below allow."""
    column = table.columns[place]
    longest = max((cell_len(_cell(row[place], column)) for row in table.rows), default=0)
    return "\n".join(textwrap.wrap(column.heading, max(_HEADING, longest), break_long_words=False))


def _cell(cell: Cell, column: Column) -> str:
    """The cell in one line; a dash where a number is not defined."""
    return cell_line(cell, column) or ("-" if column.is_number else "")
