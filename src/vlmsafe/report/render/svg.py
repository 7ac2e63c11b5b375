"""Charts as SVG for the page: one picture per panel, sized for a narrow column, with the values that pointing shows.

Colours are classes, so that the page's theme decides them; nothing depends on colour alone, because groups also differ
in marker and dashes. Every text is escaped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from vlmsafe.report.elements import COLOURS as _COLOURS
from vlmsafe.report.elements import (
    Axis,
    Band,
    Bar,
    Box,
    Chart,
    Dots,
    Line,
    Mark,
    Panel,
    Rule,
    Span,
    minus,
)

WIDTH = 380.0
_HEIGHT = 236.0
_ROW = 30.0
_BAR = 11.0
_LETTER = 6.8  # pixels, of the font at 11 pixels
_MOST_NAME = 140.0
_MARKER = 6.0  # how far a marker on the edge reaches over it
_RULE_LETTER, _RULE_LINE = 5.6, 11.0  # pixels, of the font at 10 pixels
_DASHES = ("", "6 3", "2 3", "8 3 2 3")


def svg(panel: Panel, chart: Chart, key: str) -> str:
    """One panel; `key` makes its ids unique in the page."""
    frame = _Frame.around(panel)
    index = chart.places_in(panel)
    drawn, hover = [], []
    for mark in panel.marks:
        place = 0 if isinstance(mark, Rule) else index.get(mark.group, 0)
        text, points = _draw(mark, frame, place)
        drawn.append(text)
        hover += points
    # Between single quotes, because JSON is full of double ones.
    values = json.dumps({"x": panel.x.label, "y": panel.y.label, "s": hover}, separators=(",", ":"), ensure_ascii=False)
    data = escape(values, quote=False).replace("'", "&#39;")
    clip = (
        f'<clipPath id="{key}"><rect x="{frame.left - _MARKER:.1f}" y="{frame.top - _MARKER:.1f}" '
        f'width="{frame.width + 2 * _MARKER:.1f}" height="{frame.height + 2 * _MARKER:.1f}"/></clipPath>'
    )
    name = escape(panel.title, quote=True)
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH:g} {frame.total:g}" role="img" tabindex="0" aria-label="{name}" '
        f"data-hover='{data}'>{clip}{''.join(_axes(panel, frame))}<g clip-path=\"url(#{key})\">{''.join(drawn)}</g>"
        f'{"".join(_rule_labels(panel, frame))}<circle class="at" r="5" visibility="hidden"/></svg>'
    )


# -- scales ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Frame:
    """Where values are on the picture."""

    left: float
    top: float
    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    flip: bool
    """Whether y runs downwards: names of rows do."""
    named_x: bool
    """Whether places along x have names, so that a number there says nothing."""

    @property
    def total(self) -> float:
        return self.top + self.height + 38.0

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + self.width * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.y_range
        share = (value - low) / (high - low)
        return self.top + self.height * (share if self.flip else 1.0 - share)

    @classmethod
    def around(cls, panel: Panel) -> _Frame:
        x_range, y_range = limits(panel, "x"), limits(panel, "y")
        names = panel.y.categories
        if names:
            left = min(_MOST_NAME, max(len(name) for name in names) * _LETTER) + 12.0
            height = max(70.0, max(_ROW, _BAR * bars_per_row(panel)) * len(names))
        else:
            left = max(len(label) for _, label in ticks(panel.y, y_range, 5)) * _LETTER + 12.0
            height = _HEIGHT - 60.0
        named = any(isinstance(mark, Rule) and mark.label and mark.along == "y" for mark in panel.marks)
        top = 22.0 if panel.y.label or named else 8.0
        return cls(left, top, WIDTH - left - 12.0, height, x_range, y_range, bool(names), bool(panel.x.categories))


def bars_per_row(panel: Panel) -> int:
    """The most bars that stand side by side in one category."""
    places = {mark.at for mark in panel.marks if isinstance(mark, Bar)}
    rows = [round(place) for place in places]
    return max((rows.count(row) for row in set(rows)), default=1)


def limits(panel: Panel, which: str) -> tuple[float, float]:
    """What of an axis is in view: all marks and the ends that must be, with a little room around."""
    axis = panel.x if which == "x" else panel.y
    if axis.categories:
        return -0.5, len(axis.categories) - 0.5
    values = [
        value for mark in panel.marks for value in _extent(mark, which) if value is not None and math.isfinite(value)
    ]
    forced = [end for end in (axis.low, axis.high) if end is not None]
    low, high = min([*values, *forced], default=0.0), max([*values, *forced], default=1.0)
    if high - low <= 1e-6 * max(abs(low), abs(high)):  # one value, up to rounding
        low, high = (low if low == axis.low else low - 0.5), (high if high == axis.high else high + 0.5)
    room = 0.05 * (high - low)
    return (
        low if axis.low is not None and low >= axis.low else low - room,
        high if axis.high is not None and high <= axis.high else high + room,
    )


def _extent(mark: Mark, which: str) -> Iterable[float | None]:
    if isinstance(mark, Line | Dots):
        return mark.x if which == "x" else mark.y
    if isinstance(mark, Band):
        return mark.x if which == "x" else [*mark.low, *mark.high]
    if isinstance(mark, Rule):
        return [mark.value] if (mark.along == "y") == (which == "x") else []
    if isinstance(mark, Box):
        return [mark.low, mark.high] if which == "x" else []
    along = mark.along == which
    if isinstance(mark, Bar):
        return [0.0, mark.value] if along else []
    return [mark.low, mark.centre, mark.high] if along else [mark.at]


def ticks(axis: Axis, ends: tuple[float, float], most: int) -> list[tuple[float, str]]:
    """Places and their labels: round numbers, or the names of categories."""
    if axis.categories:
        return [(float(place), name) for place, name in enumerate(axis.categories)]
    low, high = ends
    raw = (high - low) / most
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(base * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if base * factor >= raw * 0.999)
    if axis.whole:
        step = max(1.0, step)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(place * step, number(place * step, step)) for place in range(first, last + 1)]


def number(value: float, step: float = 0.0) -> str:
    """A number as an axis writes it, with as many digits as tell neighbouring ticks apart.

    >>> number(200_000.0), number(0.5, 0.1), number(1500.0), number(1_000_020.0, 20.0)
    ('200k', '0.5', '1500', '1.00002M')
    """
    if not value:
        return "0"
    size = abs(value)
    if size >= 1e4:
        unit, letter = (1e6, "M") if size >= 1e6 else (1e3, "k")
        text = f"{value / unit:.{_decimals(step / unit)}f}" if step else f"{value / unit:g}"
        text = (text.rstrip("0").rstrip(".") if "." in text else text) + letter
    elif step and step < 1e-5:
        order = math.floor(math.log10(step))
        text = f"{value:.{max(1, math.floor(math.log10(size)) - order + _decimals(step / 10.0**order))}e}"
    elif step:
        text = f"{value:.{_decimals(step)}f}"
    else:
        text = f"{value:g}"
    return minus(text)


def _decimals(step: float) -> int:
    """Decimals that tell neighbouring ticks apart."""
    return next(digits for digits in range(16) if abs(round(step, digits) - step) <= 1e-6 * step)


# -- drawing --------------------------------------------------------------------------------------------------------


def _axes(panel: Panel, frame: _Frame) -> Iterable[str]:
    bottom, right = frame.top + frame.height, frame.left + frame.width
    if panel.y.label:
        yield f'<text class="name" x="2" y="11">{escape(panel.y.label)}</text>'
    for value, label in ticks(panel.y, frame.y_range, 5):
        y = frame.y(value)
        if not panel.y.categories:
            yield f'<path class="grid" d="M{frame.left:.1f} {y:.1f}H{right:.1f}"/>'
        shown, whole = _cut(label, frame.left - 12.0 if panel.y.categories else 999.0)
        yield f'<text class="tick" text-anchor="end" x="{frame.left - 6:.1f}" y="{y + 3.8:.1f}">{shown}{whole}</text>'
    places = ticks(panel.x, frame.x_range, 5)
    room = frame.width / max(len(places), 1) - 4.0
    for value, label in places:
        x = frame.x(value)
        if not panel.x.categories:
            yield f'<path class="grid" d="M{x:.1f} {frame.top:.1f}V{bottom:.1f}"/>'
        shown, whole = _cut(label, room if panel.x.categories else 999.0)
        anchor = "end" if not panel.x.categories and x > right - 12 and len(label) > 4 else "middle"
        yield f'<text class="tick" text-anchor="{anchor}" x="{x:.1f}" y="{bottom + 14:.1f}">{shown}{whole}</text>'
    yield f'<path class="axis" d="M{frame.left:.1f} {frame.top:.1f}V{bottom:.1f}H{right:.1f}"/>'
    middle = frame.left + frame.width / 2
    yield _text("name", "middle", middle, bottom + 31, panel.x.label)


def _text(kind: str, anchor: str, x: float, y: float, words: str) -> str:
    return f'<text class="{kind}" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _cut(label: str, room: float) -> tuple[str, str]:
    """A name that fits, its end kept because names of runs differ there; the whole one is shown when pointed at."""
    most = max(4, int(room / _LETTER))
    if len(label) <= most:
        return escape(label), ""
    head = (most - 1) // 2
    return escape(f"{label[:head]}…{label[len(label) - (most - 1 - head) :]}"), f"<title>{escape(label)}</title>"


def _rule_labels(panel: Panel, frame: _Frame) -> Iterable[str]:
    """Names of lines, each where it hides least: over its right end, or beside its top."""
    for value, label, _ in rule_labels(panel, "x", frame.height, _RULE_LINE, _RULE_LINE):
        y = max(frame.y(value) - 4, frame.top + 8)
        yield _text("rule", "end", frame.left + frame.width, y, label)
    for value, label, before in rule_labels(panel, "y", frame.width, _RULE_LETTER, _RULE_LINE):
        x = frame.x(value)
        yield _text("rule", "end" if before else "start", x - 3 if before else x + 3, frame.top - 4, label)


def rule_labels(panel: Panel, along: str, length: float, letter: float, line: float) -> list[tuple[float, str, bool]]:
    """The names of lines that run along an axis: at which value each stands, and whether before it, not after it.

    The other axis is `length` long, a letter so wide, a line of text so high. Neighbours whose names would be printed
    over each other have one name together.
    """
    low, high = limits(panel, "x" if along == "y" else "y")
    named: dict[float, str] = {
        mark.value: mark.label for mark in panel.marks if isinstance(mark, Rule) and mark.label and mark.along == along
    }
    groups = [[value] for value in sorted(named)]

    def text(group: list[float]) -> str:
        labels = list(dict.fromkeys(named[value] for value in group))
        budgets = [label.removeprefix("budget ") for label in labels if label.startswith("budget ")]
        return f"budgets {', '.join(budgets)}" if len(budgets) == len(labels) > 1 else ", ".join(labels)

    def stands(group: list[float]) -> tuple[float, bool, float, float]:
        """The value at which its name stands, whether before it, and from where to where the name reaches."""
        first, last = (length * (value - low) / (high - low) for value in (group[0], group[-1]))
        if along == "x":
            bottom = min(last, length - line)
            return group[-1], False, bottom, bottom + line
        wide = letter * len(text(group)) + 6.0
        before = (first + last) / 2 > 0.6 * length
        return (group[0], True, first - wide, first) if before else (group[-1], False, last, last + wide)

    place = 0
    while place < len(groups) - 1:
        if stands(groups[place])[3] > stands(groups[place + 1])[2]:
            groups[place : place + 2] = [groups[place] + groups[place + 1]]
            place = 0  # the longer name may reach its other neighbour
        else:
            place += 1
    return [(*stands(group)[:1], text(group), stands(group)[1]) for group in groups]


def _draw(mark: Mark, frame: _Frame, place: int) -> tuple[str, list[dict[str, Any]]]:
    """A mark's SVG, and the points that can be pointed at."""
    draw: Callable[[Any, _Frame, str, int], tuple[str, list[dict[str, Any]]]] = _DRAW[type(mark)]
    return draw(mark, frame, f"c{place % _COLOURS}", place)


def _points(name: str, points: Iterable[Sequence[Any]], faint: bool = False) -> list[dict[str, Any]]:
    """Points under one name: [x and y on the picture, both values in words, a further name]."""
    found = [list(point) for point in points]
    return [{"n": name, **({"f": 1} if faint else {}), "p": found}] if found else []


def _value(value: float) -> str:
    return minus(f"{value:,.4g}" if abs(value) < 9999.5 else f"{value:,.0f}")


def _line(mark: Line, frame: _Frame, colour: str, place: int) -> tuple[str, list[dict[str, Any]]]:
    pieces: list[list[tuple[float, float, float, float]]] = [[]]
    for x, y in zip(mark.x, mark.y, strict=True):
        if y is None or not math.isfinite(y):
            pieces.append([])
        else:
            pieces[-1].append((frame.x(x), frame.y(y), x, y))
    path = "".join("M" + "L".join(f"{px:.1f} {py:.1f}" for px, py, _, _ in piece) for piece in pieces if piece)
    dash = "4 3" if mark.dashed else _DASHES[place // _COLOURS % len(_DASHES)]
    style = f' stroke-dasharray="{dash}"' if dash else ""
    kind = "seed" if mark.faint else "line"
    name = mark.group if mark.name in ("", mark.group) else f"{mark.group}, {mark.name}"
    # Between names a place along x is no value: what is marked there says which it is.
    shown = [] if frame.named_x else pieces
    points = [[round(px, 1), round(py, 1), _value(x), _value(y)] for piece in shown for px, py, x, y in piece]
    single = "".join(
        f'<circle class="{colour} mark" cx="{piece[0][0]:.1f}" cy="{piece[0][1]:.1f}" r="2.5"/>'
        for piece in pieces
        if len(piece) == 1
    )
    return f'<path class="{kind} {colour}" data-g="{place}" d="{path}"{style}/>{single}', _points(
        name, points, mark.faint
    )


def _band(mark: Band, frame: _Frame, colour: str, place: int) -> tuple[str, list[dict[str, Any]]]:
    up = [f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in zip(mark.x, mark.high, strict=True)]
    down = [f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in zip(mark.x, mark.low, strict=True)]
    return f'<path class="band {colour}" data-g="{place}" d="M{"L".join([*up, *reversed(down)])}Z"/>', []


def _dots(mark: Dots, frame: _Frame, colour: str, place: int) -> tuple[str, list[dict[str, Any]]]:
    kind, size = ("episode", 2.0) if mark.faint else ("mark", 4.0)
    names = mark.names or [""] * len(mark.x)
    shapes, points = [], []
    for x, y, name in zip(mark.x, mark.y, names, strict=True):
        px, py = frame.x(x), frame.y(y)
        shapes.append(shape(place, px, py, size))
        values = ["" if frame.named_x else _value(x), "" if frame.flip else _value(y)]
        points.append([round(px, 1), round(py, 1), *values, name])
    return f'<path class="{kind} {colour}" data-g="{place}" d="{"".join(shapes)}"/>', _points(
        mark.group, points, mark.faint
    )


def shape(place: int, x: float, y: float, size: float) -> str:
    """A marker as a piece of path: which one depends on the group, so that colour is not needed."""
    s = size
    kind = (place + place // _COLOURS) % 4  # groups that share a colour differ in this
    if kind == 1:
        return f"M{x - s * 0.9:.1f} {y - s * 0.9:.1f}h{1.8 * s:.1f}v{1.8 * s:.1f}h{-1.8 * s:.1f}z"
    if kind == 2:
        return f"M{x:.1f} {y - 1.2 * s:.1f}l{1.1 * s:.1f} {2 * s:.1f}h{-2.2 * s:.1f}z"
    if kind == 3:
        a, b = 1.2 * s, 1.3 * s
        return f"M{x:.1f} {y - b:.1f}l{a:.1f} {b:.1f}l{-a:.1f} {b:.1f}l{-a:.1f} {-b:.1f}z"
    return f"M{x - s:.1f} {y:.1f}a{s:.1f} {s:.1f} 0 1 0 {2 * s:.1f} 0a{s:.1f} {s:.1f} 0 1 0 {-2 * s:.1f} 0z"


def _span(mark: Span, frame: _Frame, colour: str, place: int) -> tuple[str, list[dict[str, Any]]]:
    if mark.along == "x":
        y, a, b, c = frame.y(mark.at), frame.x(mark.low), frame.x(mark.high), frame.x(mark.centre)
        path = f"M{a:.1f} {y:.1f}H{b:.1f}M{a:.1f} {y - 3:.1f}v6M{b:.1f} {y - 3:.1f}v6"
        centre = (c, y)
    else:
        x, a, b, c = frame.x(mark.at), frame.y(mark.low), frame.y(mark.high), frame.y(mark.centre)
        path = f"M{x:.1f} {a:.1f}V{b:.1f}M{x - 3:.1f} {a:.1f}h6M{x - 3:.1f} {b:.1f}h6"
        centre = (x, c)
    text = (
        f"{_value(mark.centre)} [{_value(mark.low)}, {_value(mark.high)}]"
        if mark.low < mark.high
        else _value(mark.centre)
    )
    values = [text, ""] if mark.along == "x" else ["", text]
    points = [[round(centre[0], 1), round(centre[1], 1), *values]]
    drawn = f'<path class="span {colour}" data-g="{place}" d="{path}"/>'
    drawn += f'<path class="mean {colour}" data-g="{place}" d="{shape(place, *centre, 3.4)}"/>'
    return drawn, _points(mark.name or mark.group, points)


def _bar(mark: Bar, frame: _Frame, colour: str, place: int) -> tuple[str, list[dict[str, Any]]]:
    if mark.along == "x":
        a, b = sorted((frame.x(0.0), frame.x(mark.value)))
        y, h = frame.y(mark.at - mark.width / 2), abs(frame.y(mark.width) - frame.y(0.0))
        x, y, w = a, min(y, frame.y(mark.at + mark.width / 2)), b - a
        centre, values = (frame.x(mark.value), frame.y(mark.at)), [_value(mark.value), ""]
    else:
        a, b = sorted((frame.y(0.0), frame.y(mark.value)))
        x, w = frame.x(mark.at - mark.width / 2), frame.x(mark.width) - frame.x(0.0)
        y, h = a, b - a
        centre, values = (frame.x(mark.at), frame.y(mark.value)), ["", _value(mark.value)]
    size = f'width="{max(w, 0.5):.1f}" height="{max(h, 0.5):.1f}"'
    drawn = f'<rect class="bar {colour}" data-g="{place}" x="{x:.1f}" y="{y:.1f}" {size}/>'
    return drawn, _points(mark.name or mark.group, [[round(centre[0], 1), round(centre[1], 1), *values]])


def _box(mark: Box, frame: _Frame, colour: str, place: int) -> tuple[str, list[dict[str, Any]]]:
    y, h = frame.y(mark.at), 7.0
    low, q25, median, q75, high = (frame.x(value) for value in (mark.low, mark.q25, mark.median, mark.q75, mark.high))
    drawn = (
        f'<path class="span {colour}" data-g="{place}" d="M{low:.1f} {y:.1f}H{q25:.1f}M{q75:.1f} {y:.1f}H{high:.1f}"/>'
        f'<rect class="bar {colour}" data-g="{place}" x="{q25:.1f}" y="{y - h:.1f}" width="{max(q75 - q25, 1):.1f}" '
        f'height="{2 * h:g}"/>'
        f'<path class="median" d="M{median:.1f} {y - h:.1f}v{2 * h:g}"/>'
    )
    quarters, ends = (f"{_value(a)} to {_value(b)}" for a, b in ((mark.q25, mark.q75), (mark.low, mark.high)))
    text = f"median {_value(mark.median)}, quarters {quarters}, all {ends}"
    return drawn, _points(mark.name or mark.group, [[round(median, 1), round(y, 1), text, ""]])


def _rule(mark: Rule, frame: _Frame, colour: str, place: int) -> tuple[str, list[dict[str, Any]]]:
    kind = "budget" if mark.label else "zero"
    if mark.along == "x":
        path = f"M{frame.left:.1f} {frame.y(mark.value):.1f}h{frame.width:.1f}"
    else:
        path = f"M{frame.x(mark.value):.1f} {frame.top:.1f}v{frame.height:.1f}"
    return f'<path class="{kind}" d="{path}"/>', []


_DRAW: dict[type, Any] = {
    Line: _line,
    Band: _band,
    Dots: _dots,
    Span: _span,
    Bar: _bar,
    Box: _box,
    Rule: _rule,
}


def swatch(style: str, place: int | None = None) -> str:
    """The little picture of a legend's entry: of a group, or of what a style means."""
    if place is not None:
        colour, dash = f"c{place % _COLOURS}", _DASHES[place // _COLOURS % len(_DASHES)]
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        inner = f'<path class="line {colour}" d="M1 6H27"{dashes}/>'
        inner += f'<path class="mark {colour}" d="{shape(place, 14, 6, 3.6)}"/>'
    else:
        inner = {
            "line": '<path class="line plain" d="M1 6H27"/>',
            "dashed": '<path class="line plain" stroke-dasharray="4 3" d="M1 6H27"/>',
            "band": '<path class="band plain" d="M1 1H27V11H1Z"/>',
            "faint": '<path class="seed plain" d="M1 6H27"/>',
            "dot": f'<path class="mark plain" d="{shape(0, 14, 6, 4)}"/>',
            "faint-dot": f'<path class="episode plain" d="{shape(0, 14, 6, 2.4)}"/>',
        }[style]
    return f'<svg class="swatch" viewBox="0 0 28 12" aria-hidden="true">{inner}</svg>'
