"""A report's table or figure from the entry that asks for it."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Chart, Missing, Table
from vlmsafe.report.kinds import FIGURES, TABLES
from vlmsafe.report.request import Entry


def build_table(dataset: Dataset, entry: Entry) -> Table | Missing:
    """The table of an entry, or why there is none."""
    found = cast("Table | Missing", TABLES[entry.kind].load("tables")(dataset, entry))
    return found if isinstance(found, Missing) else _without_constant_env(found)


def build_chart(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """The figure of an entry, or why there is none."""
    return cast("Chart | Missing", FIGURES[entry.kind].load("charts")(dataset, entry))


def _without_constant_env(table: Table) -> Table:
    """A table on one environment names it in its title and not in every row."""
    if table.columns[0].name != "env" or len({row[0].value for row in table.rows}) != 1:
        return table
    env = str(table.rows[0][0].value)
    title = table.title if env in table.title else f"{table.title} ({env})"
    return replace(table, title=title, columns=table.columns[1:], rows=[row[1:] for row in table.rows])
