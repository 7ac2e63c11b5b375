"""Tables and charts as files for papers, documents and programs: CSV, LaTeX, Markdown, SVG, PNG and PDF."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping
from pathlib import Path

from vlmsafe.io.disk import make_directory
from vlmsafe.io.files import write_atomically
from vlmsafe.report.elements import (
    Band,
    Bar,
    Box,
    Cell,
    Chart,
    Column,
    Dots,
    Line,
    Rule,
    Span,
    Table,
)
from vlmsafe.report.render.cell_text import cell_text, interval_text, published_text
from vlmsafe.report.render.pictures import chart_svg, pdf, png

_ENDS = ("low", "high", "std", "published", "published_std")
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$", "\N{MINUS SIGN}": r"$-$", "κ": r"$\kappa$", "λ": r"$\lambda$", "η": r"$\eta$", "τ": r"$\tau$",
    "Δ": r"$\Delta$",
    "†": r"$^{\dagger}$", "₂": r"$_2$", "…": r"\dots{}",
}  # fmt: skip


def table_csv(table: Table) -> str:
    """Full precision; ends of intervals, deviations and published values in columns of their own."""
    used = [
        [end for end in _ENDS if any(getattr(row[place], end) is not None for row in table.rows)]
        for place in range(len(table.columns))
    ]
    head = [
        name
        for column, ends in zip(table.columns, used, strict=True)
        for name in (column.name, *(f"{column.name}_{e}" for e in ends))
    ]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    for row in table.rows:
        values: list[object] = []
        for cell, ends in zip(row, used, strict=True):
            values.append(_exported(cell))
            values += ["" if getattr(cell, end) is None else getattr(cell, end) for end in ends]
        writer.writerow(values)
    return file.getvalue()


def _exported(cell: Cell) -> object:
    """The number in full; the text where it says something else than the number, such as 2/56."""
    shown = cell.text.replace(",", "").replace("\N{MINUS SIGN}", "-").removesuffix(" %")
    if isinstance(cell.value, float) and math.isfinite(cell.value) and (not shown or re.fullmatch(r"[-+.\de]+", shown)):
        return cell.value
    return cell.text or ("" if cell.value is None else cell.value)


def latex(text: str) -> str:
    """Text in which LaTeX sees no commands.

    >>> latex("a_b & 5 %")
    'a\\\\_b \\\\& 5 \\\\%'
    """
    return "".join(_LATEX.get(letter, letter) for letter in text)


def table_latex(table: Table) -> str:
    """A table environment for the booktabs package."""
    form = "".join("r" if column.is_number else "l" for column in table.columns)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex(table.title)}. {latex(table.caption)}}}",
        rf"\label{{{table.label or 'tab:' + table.name}}}",
        rf"\begin{{tabular}}{{{form}}}",
        r"\toprule",
        " & ".join(rf"\textbf{{{latex(column.heading)}}}" for column in table.columns) + r" \\",
        r"\midrule",
    ]
    for place, row in enumerate(table.rows):
        cells = [latex(_whole(cell, column)) for cell, column in zip(row, table.columns, strict=True)]
        if place in table.strong:
            cells = [rf"\textbf{{{text}}}" if text else "" for text in cells]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\footnotesize {latex(note)}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}", ""])


def table_markdown(table: Table) -> str:
    """A table for documents, with its title, its caption and its notes."""
    lines = [
        f"**{_plain(table.title)}.** {_plain(table.caption)}".strip(),
        "",
        f"| {' | '.join(_plain(column.heading) for column in table.columns)} |",
        f"|{'|'.join('--:' if column.is_number else '---' for column in table.columns)}|",
    ]
    for place, row in enumerate(table.rows):
        cells = [_plain(_whole(cell, column)) for cell, column in zip(row, table.columns, strict=True)]
        if place in table.strong:
            cells = [f"**{text}**" if text else "" for text in cells]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *(line for note in table.notes for line in ("", _plain(note))), ""])


def _whole(cell: Cell, column: Column) -> str:
    """A cell in one line: value, interval, published value."""
    published = published_text(cell, column)
    parts = [
        cell_text(cell, column),
        interval_text(cell, column),
        f"(paper {published}{cell.mark})" if published else "",
    ]
    return " ".join(part for part in parts if part)


def _plain(text: str) -> str:
    """Text in which Markdown sees no tables, tags or emphasis."""
    return re.sub(r"([\\`*_|<>\[\]#])", r"\\\1", " ".join(text.split()))


def chart_csv(chart: Chart) -> str:
    """Every drawn value, one per row."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["panel", "group", "mark", "name", "x", "y", "low", "high"])
    for panel in chart.panels:

        def named(axis_values: tuple[str, ...], value: float) -> object:
            return axis_values[round(value)] if axis_values and 0 <= round(value) < len(axis_values) else value

        for mark in panel.marks:
            if isinstance(mark, Rule):
                x, y = ("", mark.value) if mark.along == "x" else (mark.value, "")
                writer.writerow([panel.title, "", "line", mark.label, x, y, "", ""])
            elif isinstance(mark, Line):
                for a, b in zip(mark.x, mark.y, strict=True):
                    kind = "run" if mark.faint else "line"
                    row = [named(panel.x.categories, a), "" if b is None else b]
                    writer.writerow([panel.title, mark.group, kind, mark.name, *row, "", ""])
            elif isinstance(mark, Band):
                for a, low, high in zip(mark.x, mark.low, mark.high, strict=True):
                    at = named(panel.x.categories, a)
                    writer.writerow([panel.title, mark.group, "band", "", at, "", low, high])
            elif isinstance(mark, Dots):
                names = mark.names or [""] * len(mark.x)
                for a, b, name in zip(mark.x, mark.y, names, strict=True):
                    row = [named(panel.x.categories, a), named(panel.y.categories, b)]
                    writer.writerow([panel.title, mark.group, "episode" if mark.faint else "run", name, *row, "", ""])
            elif isinstance(mark, Span):
                along = [mark.centre, named(panel.y.categories, mark.at)]
                row = along if mark.along == "x" else [named(panel.x.categories, mark.at), mark.centre]
                writer.writerow([panel.title, mark.group, "interval", mark.name, *row, mark.low, mark.high])
            elif isinstance(mark, Bar):
                along = [mark.value, named(panel.y.categories, mark.at)]
                row = along if mark.along == "x" else [named(panel.x.categories, mark.at), mark.value]
                writer.writerow([panel.title, mark.group, "bar", mark.name, *row, "", ""])
            elif isinstance(mark, Box):
                row = [mark.median, named(panel.y.categories, mark.at), mark.q25, mark.q75]
                writer.writerow([panel.title, mark.group, "quarters", mark.name, *row])
    return file.getvalue()


def write_table(table: Table, folder: Path, name: str) -> list[Path]:
    forms = {"csv": table_csv, "tex": table_latex, "md": table_markdown}
    return _write({ending: form(table).encode() for ending, form in forms.items()}, folder, name)


def write_chart(chart: Chart, folder: Path, name: str) -> list[Path]:
    picture = chart_svg(chart)
    contents = {"csv": chart_csv(chart).encode(), "svg": picture.encode(), "png": png(picture), "pdf": pdf(picture)}
    return _write(contents, folder, name)


def _write(contents: Mapping[str, bytes], folder: Path, name: str) -> list[Path]:
    """Write one file for each ending."""
    make_directory(folder)
    files = {folder / f"{name}.{ending}": content for ending, content in contents.items()}
    for path, content in files.items():
        write_atomically(path, content)
    return list(files)
