"""Charts as matplotlib figures, for PNG and PDF: the same model as the page's SVG, on paper."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator

from vlmsafe.report.elements import (
    Band,
    Bar,
    Box,
    Chart,
    Dots,
    Line,
    Panel,
    Rule,
    Span,
)
from vlmsafe.report.render.style import (
    INK,
    MARKERS,
    PALETTE,
    QUIET,
    SMALL,
    label,
    legend_below,
    panels,
    short,
)
from vlmsafe.report.render.svg import bars_per_row, limits, rule_labels

_COLUMNS = 3
_MOST_NAME = 26  # letters of a row's name
_PANEL_POINTS = 205.0  # across a panel, with the names of its rows
_PANEL_HEIGHT = 100.0  # of its axes, at least
_DOTS_PER_INCH = 150  # of the pictures that are saved: text is as wide there as where it was laid out
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1.5, 2)))


def plot(chart: Chart) -> Figure:
    """The whole figure, its panels in rows of three (four are a square), with one legend below."""
    columns = 2 if len(chart.panels) == 4 else min(_COLUMNS, len(chart.panels))
    rows = math.ceil(len(chart.panels) / columns)
    tallest = max(len(panel.y.categories) * max(1.0, 0.4 * bars_per_row(panel)) for panel in chart.panels)
    height = max(2.3, 0.9 + 0.3 * tallest)
    entries = _legend(chart, chart.places) if chart.legend else {}
    width = 0.6 + 3.1 * columns
    below = 0.2 * math.ceil(len(entries) / _per_row(entries, width)) if entries else 0.0
    figure, axes = panels(rows, columns, (width, 0.3 + below + height * rows))
    figure.set_dpi(_DOTS_PER_INCH)
    cells: list[Axes] = axes.flatten().tolist()
    for place, ax in enumerate(cells):
        if place >= len(chart.panels):
            ax.set_visible(False)
            continue
        _panel(ax, chart.panels[place], chart.places_in(chart.panels[place]))
    if entries:
        legend_below(figure, entries.values(), entries, columns=_per_row(entries, width))
    # Laid out once, not again for every format it is saved in.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def _per_row(entries: Iterable[str], width: float) -> int:
    """How many entries of a legend fit side by side, at most four."""
    longest = max(len(short(name)) for name in entries)
    return max(1, min(4, int(width / (0.075 * longest + 0.55))))


def _panel(ax: Axes, panel: Panel, index: dict[str, int]) -> None:
    for mark in panel.marks:
        place = 0 if isinstance(mark, Rule) else index.get(mark.group, 0)
        _DRAW[type(mark)](ax, mark, place)
    ax.set_xlim(*limits(panel, "x"))
    ax.set_ylim(*limits(panel, "y"))
    if panel.y.categories:
        ax.set_yticks(range(len(panel.y.categories)), [short(_plain(name), _MOST_NAME) for name in panel.y.categories])
        ax.invert_yaxis()
        ax.grid(False, axis="y")
    if panel.x.categories:
        ax.set_xticks(range(len(panel.x.categories)), [short(_plain(name), 14) for name in panel.x.categories])
        ax.grid(False, axis="x")
    elif panel.x.label == "environment steps":
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
        ax.xaxis.set_major_locator(MaxNLocator(5))
    _rule_labels(ax, panel)
    label(ax, title=_plain(_title(panel)), x=_plain(panel.x.label), y=_plain(panel.y.label))


def _title(panel: Panel) -> str:
    """The title in at most three lines of the width that names of rows leave it."""
    letters = int(_axes_width(panel) / 5.0)
    whole, cut = (
        textwrap.wrap(title, letters, break_on_hyphens=False)
        for title in (panel.title, short(panel.title, 2 * letters))
    )
    return "\n".join(whole if len(whole) <= 3 else cut)


def _axes_width(panel: Panel) -> float:
    """About how wide its axes are, in points: as much as names of rows, or ticks, leave."""
    return _PANEL_POINTS - 4.2 * max((min(len(name), _MOST_NAME) for name in panel.y.categories), default=8)


def _plain(text: str) -> str:
    """Text in which matplotlib sees no formula: names may hold dollar signs."""
    return text.replace("$", r"\$")


def _colour(place: int) -> str:
    return PALETTE[place % len(PALETTE)]


def _marker(place: int) -> str:
    """Groups that share a colour differ in this."""
    return MARKERS[(place + place // len(PALETTE)) % len(MARKERS)]


def _line(ax: Axes, mark: Line, place: int) -> None:
    y = [math.nan if value is None else value for value in mark.y]
    style = (0, (4, 2)) if mark.dashed else _DASHES[place // len(PALETTE) % len(_DASHES)]
    look: dict[str, Any] = {"linewidth": 0.7, "alpha": 0.35} if mark.faint else {"linewidth": 1.6}
    ax.plot(mark.x, y, color=_colour(place), linestyle=style, marker="o" if len(y) == 1 else "", markersize=3, **look)


def _band(ax: Axes, mark: Band, place: int) -> None:
    ax.fill_between(mark.x, mark.low, mark.high, color=_colour(place), alpha=0.18, linewidth=0)


def _dots(ax: Axes, mark: Dots, place: int) -> None:
    look: dict[str, Any] = (
        {"s": 6, "alpha": 0.35, "linewidth": 0}
        if mark.faint
        else {"s": 26, "edgecolor": "white", "linewidth": 0.5, "zorder": 3}
    )
    ax.scatter(mark.x, mark.y, color=_colour(place), marker=_marker(place), clip_on=False, **look)


def _span(ax: Axes, mark: Span, place: int) -> None:
    reach = [[max(0.0, mark.centre - mark.low)], [max(0.0, mark.high - mark.centre)]]
    look: dict[str, Any] = {"color": INK, "marker": _marker(place), "markersize": 4, "capsize": 2.5, "linewidth": 1.1}
    look["clip_on"] = False
    look["markerfacecolor"] = _colour(place)
    if mark.along == "x":
        ax.errorbar([mark.centre], [mark.at], xerr=reach, zorder=4, **look)
    else:
        ax.errorbar([mark.at], [mark.centre], yerr=reach, zorder=4, **look)


def _bar(ax: Axes, mark: Bar, place: int) -> None:
    look: dict[str, Any] = {"color": _colour(place), "alpha": 0.75}
    if mark.along == "x":
        ax.barh(mark.at, mark.value, height=mark.width, **look)
    else:
        ax.bar(mark.at, mark.value, width=mark.width, **look)


def _box(ax: Axes, mark: Box, place: int) -> None:
    tint = _colour(place)
    whisker = {"color": tint, "linewidth": 0.9}
    cell = {"whislo": mark.low, "q1": mark.q25, "med": mark.median, "q3": mark.q75, "whishi": mark.high, "fliers": []}
    ax.bxp(
        [cell], positions=[mark.at], widths=0.5, orientation="horizontal", showfliers=False, manage_ticks=False,
        patch_artist=True, whiskerprops=whisker, capprops=whisker, medianprops={"color": INK, "linewidth": 1.4},
        boxprops={"facecolor": tint, "alpha": 0.45, "edgecolor": tint},
    )  # fmt: skip


def _rule(ax: Axes, mark: Rule, place: int) -> None:
    look: dict[str, Any] = {
        "color": INK if mark.label else QUIET,
        "linewidth": 0.9,
        "linestyle": (0, (4, 2)) if mark.label else "-",
    }
    (ax.axhline if mark.along == "x" else ax.axvline)(mark.value, **look)


def _rule_labels(ax: Axes, panel: Panel) -> None:
    look: dict[str, Any] = {"textcoords": "offset points", "fontsize": SMALL - 1, "color": INK}
    for value, text, _ in rule_labels(panel, "x", _PANEL_HEIGHT, 3.6, 8.0):
        where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
        ax.annotate(_plain(text), (1.0, value), xytext=(0, 1), **where, **look)
    for value, text, before in rule_labels(panel, "y", _axes_width(panel), 3.6, 8.0):
        where = {"xycoords": ("data", "axes fraction"), "ha": "right" if before else "left", "va": "top"}
        ax.annotate(_plain(text), (value, 1.0), xytext=(-2 if before else 2, 0), **where, **look)


_DRAW: dict[type, Callable[[Axes, Any, int], None]] = {
    Line: _line,
    Band: _band,
    Dots: _dots,
    Span: _span,
    Bar: _bar,
    Box: _box,
    Rule: _rule,
}


def _legend(chart: Chart, index: dict[str, int]) -> dict[str, Artist]:
    entries: dict[str, Artist] = {}
    for name in chart.shown_groups:
        place = index[name]
        style = _DASHES[place // len(PALETTE) % len(_DASHES)]
        marker = _marker(place)
        entries[_plain(name)] = Line2D([], [], color=_colour(place), linestyle=style, marker=marker, markersize=4)
    samples: dict[str, Callable[[], Artist]] = {
        "line": lambda: Line2D([], [], color=QUIET, linewidth=1.6),
        "dashed": lambda: Line2D([], [], color=QUIET, linestyle=(0, (4, 2))),
        "band": lambda: Patch(color=QUIET, alpha=0.3),
        "faint": lambda: Line2D([], [], color=QUIET, linewidth=0.7, alpha=0.5),
        "dot": lambda: Line2D([], [], color=QUIET, marker="o", linestyle="", markersize=5),
        "faint-dot": lambda: Line2D([], [], color=QUIET, marker="o", linestyle="", markersize=2.5, alpha=0.5),
    }
    return entries | {text: samples[style]() for style, text in chart.keys}
