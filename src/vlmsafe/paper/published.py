"""The paper's printed numbers as tables.

Each table of the paper that holds numbers is one CSV file in `tables/`, or two if it has two panels; `index.yaml`
describes them. Two more files hold numbers that appear only in the running text. `contradictions.yaml` lists summaries
that do not follow from the paper's own numbers, with both values, and sentences that do not fit its tables. A test
recomputes the summaries.

>>> families = published("conf-families").filter(kind="seed", family="A")
>>> families["cost_last_10"].mean()
22.54
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from io import StringIO
from typing import Any, Literal

import msgspec
import polars as pl
import yaml

from vlmsafe.errors import unknown_name

_FOLDER = resources.files("vlmsafe.paper") / "tables"


@dataclass(frozen=True)
class PublishedColumn:
    """What a column holds. It is the same in every table."""

    type: Literal["str", "int", "float", "bool"]
    unit: str
    means: str


@dataclass(frozen=True)
class PublishedTable:
    """One table of the paper."""

    name: str
    label: str
    """Its label in the paper; `text` for numbers from the running text."""
    about: str
    protocol: str
    """The training window or evaluation its numbers come from, in the words of `windows()`."""
    rows: str
    """What a row is, and which rows are summaries."""
    columns: dict[str, PublishedColumn]


@dataclass(frozen=True)
class Contradiction:
    """A cell of the paper that does not follow from its printed numbers, even with rounding."""

    table: str
    """The table with the cell."""
    row: str
    column: str
    printed: str
    computed: float
    """From the numbers in `source`."""
    tolerance: float
    """The largest difference that rounding of the cell and of its sources can explain."""
    source: str
    """The table it was computed from."""


@dataclass(frozen=True)
class Misstatement:
    """A sentence of the paper that one of its own tables does not support."""

    where: str
    says: str
    but: str


def tables() -> list[PublishedTable]:
    """All tables in the paper's order, followed by those from the running text."""
    return list(_tables().values())


def table(name: str) -> PublishedTable:
    """The description of one table."""
    if name not in (known := _tables()):
        raise unknown_name("published table", name, known)
    return known[name]


def published(name: str, printed: bool = False) -> pl.DataFrame:
    """One table. Cells without a number are null.

    `printed` keeps every cell as the text in the paper, so that its digits show how it was rounded.
    """
    chosen = table(name)
    text = (_FOLDER / f"{name}.csv").read_text(encoding="utf-8")
    frame = pl.read_csv(StringIO(text), infer_schema_length=0)
    if printed:
        return frame
    return frame.select(_typed(pl.col(column), about.type) for column, about in chosen.columns.items())


def windows() -> dict[str, str]:
    """Training windows and evaluations by the names that tables use."""
    return dict(_read("index.yaml")["windows"])


def left_out() -> dict[str, str]:
    """Labels of the paper's tables that are left out, each with the reason."""
    return dict(_read("index.yaml")["left_out"])


@dataclass(frozen=True)
class Label:
    """A numbered table or figure of the paper."""

    about: str
    command: str = ""
    """What shows it where no study makes it; the studies name the others."""


def labels() -> dict[str, Label]:
    """Every numbered table and figure of the paper."""
    text = (resources.files("vlmsafe.paper") / "labels.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), dict[str, Label])


def contradictions() -> list[Contradiction]:
    """Every cell that is known to disagree with the numbers it summarises."""
    return msgspec.convert(_read("contradictions.yaml")["cells"], list[Contradiction])


def misstatements() -> list[Misstatement]:
    """Every sentence that is known not to fit a table."""
    return msgspec.convert(_read("contradictions.yaml")["statements"], list[Misstatement])


def _typed(cell: pl.Expr, kind: str) -> pl.Expr:
    if kind == "str":
        return cell
    if kind == "bool":
        return cell == "true"
    return cell.cast(pl.Int64 if kind == "int" else pl.Float64)


@cache
def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((_FOLDER / name).read_text(encoding="utf-8"))
    return content


@cache
def _tables() -> dict[str, PublishedTable]:
    index = _read("index.yaml")
    vocabulary = msgspec.convert(index["columns"], dict[str, PublishedColumn])
    return {
        name: PublishedTable(
            name=name, **{**entry, "columns": {column: vocabulary[column] for column in entry["columns"]}}
        )
        for name, entry in index["tables"].items()
    }
