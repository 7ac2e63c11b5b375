"""vlmsafe published: the paper's tables, and comparisons of runs with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from vlmsafe.cli.terminal import err, listing, out, parse
from vlmsafe.errors import InputError

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class PublishedCommand:
    """List the paper's tables, show one, or compare runs with them: published show NAME, published compare RUN ..."""

    action: tyro.conf.Positional[Literal["list", "show", "compare"]] = "list"
    """list; show, followed by a table's name; or compare, followed by run directories or folders with runs."""
    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """For show: one name. For compare: one or more directories."""
    runs: bool = False
    """compare: also print every single run, next to the published run of the same seed."""
    out: Path | None = None
    """compare: write the whole table, arms and runs, to a .csv or .json file."""


def published_verb(argv: list[str]) -> None:
    command = parse(PublishedCommand, argv, "published")
    if command.action != "compare" and (command.runs or command.out):
        raise InputError("--runs and --out belong to: vlmsafe published compare RUN_OR_FOLDER...")
    if command.action == "compare":
        _compare(command)
    elif command.action == "show":
        if len(command.names) != 1:
            raise InputError(f"published show takes one name, got {len(command.names)}; vlmsafe published lists them")
        _show(command.names[0])
    elif command.names:
        raise InputError(f"published list takes nothing, got '{command.names[0]}'; did you mean: published show?")
    else:
        _list()


def _list() -> None:
    from vlmsafe.paper.published import left_out, misstatements, published, tables

    listed = listing("table", "in the paper", "rows", "what")
    for entry in tables():
        listed.add_row(entry.name, entry.label, str(published(entry.name).height), entry.about)
    out.print(listed)
    for label, reason in left_out().items():
        out.print(f"Not here: {label} ({reason}).", markup=False, soft_wrap=True)
    out.print("Where the paper does not fit its own tables:")
    for found in misstatements():
        out.print(f"- {found.where}: {found.says}; but {found.but}.", markup=False, soft_wrap=True)


def _show(name: str) -> None:
    from vlmsafe.paper.published import published, table, windows

    entry, cells = table(name), published(name, printed=True)
    out.print(f"{entry.name} ({entry.label}): {entry.about}", markup=False, soft_wrap=True)
    out.print(f"Numbers: {entry.protocol}. Rows: {entry.rows}.", markup=False, soft_wrap=True)
    used = set(cells["window"].drop_nulls()) if "window" in cells.columns else set()
    used |= set(re.findall(r"[\w-]+", entry.protocol))
    for window, means in windows().items():
        if window in used:
            out.print(f"- {window}: {means}", markup=False, soft_wrap=True)
    # Empty columns are not printed, but the list of columns below has them. Notes follow the table.
    shown = [column for column in cells.columns if column != "note" and cells[column].null_count() < cells.height]
    notes = cells["note"].to_list() if "note" in cells.columns else [None] * cells.height
    body = Table(box=box.SIMPLE_HEAD)
    for column in shown:
        numeric = entry.columns[column].type in ("int", "float")
        body.add_column(column.replace("_", "\n"), justify="right" if numeric else "left", no_wrap=True)
    for row, note in zip(cells.select(shown).iter_rows(), notes, strict=True):
        texts = [value or "-" for value in row]
        body.add_row(*map(Text, [texts[0] + (" *" if note else ""), *texts[1:]]))
    # The lines of a table that is too wide for the terminal are not folded: less -S shows them.
    natural = Measurement.get(out, out.options.update(width=1000), body).maximum
    Console(file=out.file, highlight=False, emoji=False, width=max(natural, out.width)).print(body)
    for row, note in zip(cells.select(shown).iter_rows(), notes, strict=True):
        if note:
            out.print(f"* {row[0]}: {note}", markup=False, soft_wrap=True)
    for column, about in entry.columns.items():
        out.print(f"  {column} [{about.unit}]: {about.means}", markup=False, soft_wrap=True)


def _compare(command: PublishedCommand) -> None:
    if not command.names:
        raise InputError("published compare needs a run directory, or a folder with runs")
    import polars as pl

    writers: dict[str, Callable[[pl.DataFrame], str]] = {
        ".csv": lambda table: table.with_columns(pl.col("differences").list.join("; ")).write_csv(),
        ".json": lambda table: table.write_json(),
    }
    if command.out is not None and command.out.suffix not in writers:
        raise InputError(f"--out is {command.out}; expected a name that ends in .csv or .json")
    from vlmsafe.io.disk import make_directory
    from vlmsafe.io.files import write_atomically
    from vlmsafe.paper.side_by_side import side_by_side
    from vlmsafe.runs.arms import open_arms
    from vlmsafe.runs.versions import other_worlds

    runs, problems = open_arms(command.names)
    for problem in (*problems, *other_worlds(source.run for source in runs)):
        err.print(f"note: {problem}", markup=False, soft_wrap=True)
    table = side_by_side(runs)
    if table.is_empty():
        raise InputError("none of these runs has a result yet: no finished training epoch and no evaluation")
    _print_comparison(table, with_runs=command.runs)
    if command.out is not None:
        make_directory(command.out.parent)
        write_atomically(command.out, writers[command.out.suffix](table).encode())
        out.print(f"all {table.height} rows: {command.out}", markup=False, soft_wrap=True)


def _print_comparison(table: pl.DataFrame, *, with_runs: bool) -> None:
    """Print a table for each arm, followed by a numbered list of the differences from the paper."""
    for _, rows in table.group_by("env", "arm", "method", maintain_order=True):
        first = rows.row(0, named=True)
        title = f"{first['env']}, {first['arm']}; in the paper: {first['paper_arm']}"
        paired = rows.drop_nulls("published")
        if paired.is_empty():
            out.print(f"{title}, without a value for these results\n", markup=False, soft_wrap=True)
            continue
        differences: dict[str, int] = {}
        body = Table(box=box.SIMPLE_HEAD, title=Text(title), title_justify="left")
        for heading in ("run", "from", "quantity"):
            body.add_column(heading)
        for heading in ("ours", "published", "difference"):
            body.add_column(heading, justify="right", no_wrap=True)
        body.add_column("in the paper", no_wrap=True)
        body.add_column("differs in")
        for row in paired.iter_rows(named=True):
            if row["run"] is None or with_runs:
                body.add_row(*map(Text, _line(row, differences)))
        out.print(body)
        for text, number in differences.items():
            out.print(f"  {number}. {text}", markup=False, soft_wrap=True)
        out.print(f"  {rows.height - paired.height} results have no published value; --out writes them too.\n")
    found = table.drop_nulls("published")
    count = found["comparable"].sum()
    out.print(f"{count} of {found.height} published values were obtained under the same conditions as ours.")


def _line(row: dict[str, Any], differences: dict[str, int]) -> list[str]:
    """The cells of a row; a new difference gets the next number."""
    numbers = [differences.setdefault(text, len(differences) + 1) for text in row["differences"]]
    window = row["window"]
    return [
        row["run"] or f"all {row['ours_runs']}",
        f"training, {window}" if row["source"] == "training" else f"{row['source']} / {window}",
        row["quantity"].replace("_", " "),
        _figure(row["ours"], row["ours_std"], row["ours_runs"]),
        _figure(row["published"], row["published_std"], row["published_runs"]),
        f"{row['difference']:+.2f}",
        row["label"],
        ", ".join(map(str, numbers)) or "nothing",
    ]


def _figure(mean: float, std: float | None, runs: int | None) -> str:
    return f"{mean:.2f}" if std is None or runs == 1 else f"{mean:.2f} ± {std:.2f}"
