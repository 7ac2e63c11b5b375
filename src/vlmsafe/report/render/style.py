"""How every figure looks: sizes, a palette that colour-blind readers can tell apart, where legends go, how it is saved.

Figures are made without pyplot, whose list of open figures is global state: drawing one leaves nothing behind.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vlmsafe.io.disk import make_directory
from vlmsafe.io.files import write_atomically

# The colours of Okabe and Ito, without the yellow, which is too light for a line.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6A3D9A", "#8C564B")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
INK = "#222222"
QUIET = "#8A8A8A"
"""For what a result is compared with: chance, a control, a budget."""

SMALL, NORMAL = 7.5, 8.5
_DOTS_PER_INCH = 150
_FORMATS = ("png", "pdf")


def panels(
    rows: int, columns: int, size: tuple[float, float], *, sharex: bool | str = False, sharey: bool | str = False
) -> tuple[Figure, NDArray[np.object_]]:
    """A figure of this size in inches, and its axes, [rows, columns]."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey)  # type: ignore[arg-type]
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(True, linewidth=0.4, color="#E2E2E2")
        ax.set_axisbelow(True)
        ax.tick_params(labelsize=SMALL, length=3)
    return figure, axes


def label(ax: Axes, *, title: str = "", x: str = "", y: str = "") -> None:
    """Name the panel and its axes; empty names leave them as they are."""
    if title:
        ax.set_title(title, fontsize=NORMAL, loc="left", color=INK)
    if x:
        ax.set_xlabel(x, fontsize=NORMAL)
    if y:
        ax.set_ylabel(y, fontsize=NORMAL)


def legend_below(figure: Figure, handles: Iterable[Artist], names: Iterable[str], columns: int = 4) -> None:
    """One legend under all panels, where it hides no data, in at most so many columns as there is room for."""
    whole = list(names)
    cut = [short(name) for name in whole]
    # Names that would be cut to the same are left whole.
    known = [name if cut.count(less) > 1 else less for name, less in zip(whole, cut, strict=True)]
    longest = max(len(re.sub(r"\\[a-z]+|[${}_^]", "", name)) for name in known)  # as drawn, without its markup
    room = int(figure.get_figwidth() / (0.075 * longest + 0.55))
    figure.legend(
        list(handles), known, loc="outside lower center", ncols=max(1, min(columns, room, len(known))),
        fontsize=SMALL, frameon=False,
    )  # fmt: skip


def short(name: str, most: int = 42) -> str:
    """A name that fits over a panel: of one that is too long, its beginning and its end. Formulas stay whole."""
    return name if len(name) <= most or "$" in name else f"{name[: most // 2 - 1]}…{name[-(most // 2) :]}"


def colours(names: Sequence[str]) -> Mapping[str, str]:
    """A colour for each name, in the order given; they repeat where there are more names than colours."""
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(dict.fromkeys(names))}


def markers(names: Sequence[str]) -> Mapping[str, str]:
    """A marker for each name, so that nothing rests on colour alone."""
    return {name: MARKERS[i % len(MARKERS)] for i, name in enumerate(dict.fromkeys(names))}


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and PDF. Equal figures give equal files: no date is written."""
    make_directory(folder)
    paths = []
    for kind in _FORMATS:
        buffer = io.BytesIO()
        stamps = {"CreationDate": None} if kind == "pdf" else {}
        figure.savefig(buffer, format=kind, dpi=_DOTS_PER_INCH, metadata=stamps)
        write_atomically(folder / f"{name}.{kind}", buffer.getvalue())
        paths.append(folder / f"{name}.{kind}")
    return paths
