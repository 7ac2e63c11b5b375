"""Tables and charts as files for papers, documents and programs: CSV, JSON, LaTeX, Markdown, SVG, PNG and PDF."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmsafe.io.disk import make_directory
from vlmsafe.io.files import write_atomically
from vlmsafe.report.elements import Chart, Table
from vlmsafe.report.render.cell_text import cell_line
from vlmsafe.report.render.pictures import chart_svg, pdf, png
from vlmsafe.report.render.records import CHART_FIELDS, chart_records, table_fields, table_records

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
    return _csv(table_fields(table), table_records(table))


def chart_csv(chart: Chart) -> str:
    """Every drawn value, one per row."""
    return _csv(CHART_FIELDS, chart_records(chart))


def _csv(names: Sequence[str], records: Sequence[Mapping[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return file.getvalue()


def table_json(table: Table) -> str:
    """The same as in CSV, one record per row."""
    return to_json(table_records(table))


def to_json(value: Any) -> str:
    """JSON for programs, which has no word for numbers that are not finite: they become null."""
    return json.dumps(_finite(value), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
        cells = [latex(cell_line(cell, column)) for cell, column in zip(row, table.columns, strict=True)]
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
        cells = [_plain(cell_line(cell, column)) for cell, column in zip(row, table.columns, strict=True)]
        if place in table.strong:
            cells = [f"**{text}**" if text else "" for text in cells]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *(line for note in table.notes for line in ("", _plain(note))), ""])


def _plain(text: str) -> str:
    """Text in which Markdown sees no tables, tags or emphasis."""
    return re.sub(r"([\\`*_|<>\[\]#])", r"\\\1", " ".join(text.split()))


def write_table(table: Table, folder: Path, name: str) -> list[Path]:
    forms = {"csv": table_csv, "json": table_json, "tex": table_latex, "md": table_markdown}
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
