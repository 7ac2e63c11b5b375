"""Write a report: one page, and next to it a folder with every table and figure.

Tables are written as CSV, JSON, LaTeX and Markdown, figures as SVG, PNG, PDF and CSV.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vlmsafe.errors import InputError
from vlmsafe.io.disk import make_directory
from vlmsafe.io.files import write_atomically
from vlmsafe.report.answer import answer_lines
from vlmsafe.report.build import build_chart, build_table
from vlmsafe.report.dataset import Dataset, read_dataset
from vlmsafe.report.elements import Chart, Missing, Table
from vlmsafe.report.kinds import FIGURES, TABLES, Kind
from vlmsafe.report.render.files import write_chart, write_table
from vlmsafe.report.render.html import ReportItem, page
from vlmsafe.report.request import Entry, StudyInfo, read_entries
from vlmsafe.report.results import results

_LIST = "files.txt"
"""What of its folder a report wrote; a later one removes no other files."""
_ENDINGS = (".csv", ".json", ".tex", ".md", ".svg", ".png", ".pdf")
_SPOKEN = 4  # results that a terminal shows


@dataclass(frozen=True)
class Written:
    """What was written."""

    page: Path
    files: tuple[Path, ...]
    """Tables and figures in the folder of its name."""
    missing: tuple[Missing, ...]
    """What was asked for and could not be made."""
    answer: tuple[str, ...] = ()
    """What the page says first, for a terminal."""


def write_report(
    runs: Sequence[Path | str], out: Path, study: StudyInfo | None = None, *, files: bool = True, times: bool = True
) -> Written:
    """Report on runs, or folders of runs, to `out`; tables and figures go to a folder of its name.

    `files=False` writes the page alone. `times=False` leaves out what depends on how fast a machine was, so that equal
    runs give equal pages.
    """
    info = study if study is not None else StudyInfo(_name(runs))
    folder = out.with_suffix("")
    if files:
        _require_own(folder, out)
    dataset = read_dataset(runs, info)
    make_directory(out.parent)
    items: list[ReportItem] = []
    written: list[Path] = []
    names: set[str] = set()
    for content, lead in _contents(dataset, times):
        if isinstance(content, Missing):
            items.append(ReportItem(content, ""))
            continue
        name, made = write_content(content, folder, names) if files else (_unique(content, names), [])
        written += made
        items.append(ReportItem(content, name, tuple(f"{folder.name}/{path.name}" for path in made), lead))
    found = results(dataset)
    write_atomically(out, page(dataset, found, items).encode())
    if files:
        _replace_listed(folder, [path.name for path in written])
    missing = tuple(item.content for item in items if isinstance(item.content, Missing))
    return Written(out, tuple(written), missing, tuple(answer_lines(dataset, found, _SPOKEN)))


def write_content(content: Table | Chart, folder: Path, taken: set[str]) -> tuple[str, list[Path]]:
    """Write a table or a figure under a name that is not `taken` yet; the name, and the files."""
    name = _unique(content, taken)
    if isinstance(content, Table):
        return name, write_table(content, folder, name)
    return name, write_chart(content, folder, name)


def _require_own(folder: Path, out: Path) -> None:
    """Refuse a folder that holds anything but a report's files, such as runs: no one would find it again."""
    others = sorted(path.name for path in folder.iterdir() if not _is_own(path)) if folder.is_dir() else []
    if others:
        raise InputError(
            f"report: --out {out} puts tables and figures into {folder}, which holds other things ({others[0]}); "
            "give the page another name, such as report.html, or --no-files"
        )


def _is_own(path: Path) -> bool:
    return path.is_file() and (path.name == _LIST or path.suffix in _ENDINGS)


def _replace_listed(folder: Path, names: Sequence[str]) -> None:
    """Remove what an earlier report wrote there and this one did not, by the list that it left; leave one of this."""
    if not names:
        return
    known = folder / _LIST
    earlier = known.read_text(encoding="utf-8").splitlines() if known.is_file() else []
    for name in set(earlier) - set(names):
        if Path(name).name == name and _is_own(folder / name):
            (folder / name).unlink()
    write_atomically(known, "".join(f"{name}\n" for name in names).encode())


def _contents(dataset: Dataset, times: bool) -> list[tuple[Table | Chart | Missing, bool]]:
    """Tables and figures in the order of the page, and whether each stands before the figures.

    What the study names comes first; what a report always has follows, unless the study names it.
    """
    info = dataset.info
    found: list[tuple[Table | Chart | Missing, bool]] = []
    both: tuple[_Section, ...] = (
        (read_entries(info.tables, TABLES, "tables"), TABLES, build_table),
        (read_entries(info.figures, FIGURES, "figures"), FIGURES, build_chart),
    )
    for asked, kinds, build in both:
        named = {entry.kind for entry in asked}
        usual = [name for name, kind in kinds.items() if kind.usual and name not in named]
        for entry in [*asked, *(Entry(name, asked=False) for name in usual)]:
            if kinds[entry.kind].timed and not times:
                continue
            content = build(dataset, entry)
            if isinstance(content, Missing):
                if entry.asked:
                    found.append((replace(content, label=entry.label, title=entry.title or content.title), False))
            else:
                found.append((content, entry.asked or kinds[entry.kind].first))
    return found


_Section = tuple[Sequence[Entry], Mapping[str, Kind], Callable[[Dataset, Entry], Table | Chart | Missing]]


def _unique(content: Table | Chart, taken: set[str]) -> str:
    """A name for files and anchors: the paper's label where there is one, else the kind; numbered where it repeats."""
    base = re.sub(r"[^a-z0-9]+", "-", (content.label or content.name).lower()).strip("-") or "part"
    kind = "table" if isinstance(content, Table) else "figure"
    base = base if content.label else f"{kind}-{base}"
    name = next(name for name in (base, *(f"{base}-{i}" for i in range(2, 1000))) if name not in taken)
    taken.add(name)
    return name


def _name(runs: Sequence[Path | str]) -> str:
    return ", ".join(Path(path).resolve().name for path in runs)
