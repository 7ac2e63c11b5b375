"""The marks of a chart as pieces of SVG, each with the points that a reader can point at in the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vlmsafe.report.elements import COLOURS, Band, Bar, Box, Dots, Line, Mark, Rule, Span, minus
from vlmsafe.report.render.scales import Frame, extent

Drawn = tuple[str, list[dict[str, Any]]]
"""A piece of SVG, and the points that a reader can point at."""
DASHES = ("", "6 3", "2 3", "8 3 2 3")


def draw(mark: Mark, frame: Frame, place: int) -> Drawn:
    """Draw one mark of the group with this number. Values that are not finite are left out."""
    if not isinstance(mark, Line | Band | Dots) and not all(map(_is_number, (*extent(mark, "x"), *extent(mark, "y")))):
        return "", []
    return _DRAW[type(mark)](mark, frame, f"c{place % COLOURS}", place)


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _points(name: str, points: Iterable[Sequence[Any]], faint: bool = False) -> list[dict[str, Any]]:
    """Points with one name. Each is [x and y in pixels, both values as text, an optional name of its own]."""
    found = [list(point) for point in points]
    return [{"n": name, **({"f": 1} if faint else {}), "p": found}] if found else []


def value_text(value: float) -> str:
    return minus(f"{value:,.4g}" if abs(value) < 9999.5 else f"{value:,.0f}")


def _line(mark: Line, frame: Frame, colour: str, place: int) -> Drawn:
    pieces: list[list[tuple[float, float, float, float]]] = [[]]
    for x, y in zip(mark.x, mark.y, strict=True):
        if y is None or not math.isfinite(y):
            pieces.append([])
        else:
            pieces[-1].append((frame.x(x), frame.y(y), x, y))
    path = "".join("M" + "L".join(f"{px:.1f} {py:.1f}" for px, py, _, _ in piece) for piece in pieces if piece)
    dash = "4 3" if mark.dashed else DASHES[place // COLOURS % len(DASHES)]
    style = f' stroke-dasharray="{dash}"' if dash else ""
    kind = "seed" if mark.faint else "line"
    name = mark.group if mark.name in ("", mark.group) else f"{mark.group}, {mark.name}"
    # A place between named categories is not a value. The dots and spans there have names of their own.
    shown = [] if frame.named_x else pieces
    points = [[round(px, 1), round(py, 1), value_text(x), value_text(y)] for piece in shown for px, py, x, y in piece]
    single = "".join(
        f'<circle class="{colour} mark" cx="{piece[0][0]:.1f}" cy="{piece[0][1]:.1f}" r="2.5"/>'
        for piece in pieces
        if len(piece) == 1
    )
    return f'<path class="{kind} {colour}" data-g="{place}" d="{path}"{style}/>{single}', _points(
        name, points, mark.faint
    )


def _band(mark: Band, frame: Frame, colour: str, place: int) -> Drawn:
    ends = [(x, *two) for x, *two in zip(mark.x, mark.low, mark.high, strict=True) if all(map(_is_number, two))]
    up = [f"{frame.x(x):.1f} {frame.y(high):.1f}" for x, _, high in ends]
    down = [f"{frame.x(x):.1f} {frame.y(low):.1f}" for x, low, _ in ends]
    return f'<path class="band {colour}" data-g="{place}" d="M{"L".join([*up, *reversed(down)])}Z"/>', []


def _dots(mark: Dots, frame: Frame, colour: str, place: int) -> Drawn:
    kind, size = ("episode", 2.0) if mark.faint else ("mark", 4.0)
    names = mark.names or [""] * len(mark.x)
    shapes, points = [], []
    for x, y, name in zip(mark.x, mark.y, names, strict=True):
        if not _is_number(x) or not _is_number(y):
            continue
        px, py = frame.x(x), frame.y(y)
        shapes.append(shape(place, px, py, size))
        values = ["" if frame.named_x else value_text(x), "" if frame.flip else value_text(y)]
        points.append([round(px, 1), round(py, 1), *values, name])
    return f'<path class="{kind} {colour}" data-g="{place}" d="{"".join(shapes)}"/>', _points(
        mark.group, points, mark.faint
    )


def shape(place: int, x: float, y: float, size: float) -> str:
    """A marker as a piece of a path. Groups differ in it, so that a reader does not need the colour."""
    s = size
    kind = (place + place // COLOURS) % 4  # groups that share a colour differ in this
    if kind == 1:
        return f"M{x - s * 0.9:.1f} {y - s * 0.9:.1f}h{1.8 * s:.1f}v{1.8 * s:.1f}h{-1.8 * s:.1f}z"
    if kind == 2:
        return f"M{x:.1f} {y - 1.2 * s:.1f}l{1.1 * s:.1f} {2 * s:.1f}h{-2.2 * s:.1f}z"
    if kind == 3:
        a, b = 1.2 * s, 1.3 * s
        return f"M{x:.1f} {y - b:.1f}l{a:.1f} {b:.1f}l{-a:.1f} {b:.1f}l{-a:.1f} {-b:.1f}z"
    return f"M{x - s:.1f} {y:.1f}a{s:.1f} {s:.1f} 0 1 0 {2 * s:.1f} 0a{s:.1f} {s:.1f} 0 1 0 {-2 * s:.1f} 0z"


def _span(mark: Span, frame: Frame, colour: str, place: int) -> Drawn:
    if mark.along == "x":
        y, a, b, c = frame.y(mark.at), frame.x(mark.low), frame.x(mark.high), frame.x(mark.centre)
        path = f"M{a:.1f} {y:.1f}H{b:.1f}M{a:.1f} {y - 3:.1f}v6M{b:.1f} {y - 3:.1f}v6"
        centre, mean = (c, y), f"M{c:.1f} {y - 6:.1f}v12"
    else:
        x, a, b, c = frame.x(mark.at), frame.y(mark.low), frame.y(mark.high), frame.y(mark.centre)
        path = f"M{x:.1f} {a:.1f}V{b:.1f}M{x - 3:.1f} {a:.1f}h6M{x - 3:.1f} {b:.1f}h6"
        centre, mean = (x, c), f"M{x - 6:.1f} {c:.1f}h12"
    text = (
        f"{value_text(mark.centre)} [{value_text(mark.low)}, {value_text(mark.high)}]"
        if mark.low < mark.high
        else value_text(mark.centre)
    )
    values = [text, ""] if mark.along == "x" else ["", text]
    points = [[round(centre[0], 1), round(centre[1], 1), *values]]
    drawn = f'<path class="span {colour}" data-g="{place}" d="{path}"/>'
    # A bar across the interval, because a marker would look like one more run.
    drawn += f'<path class="mean {colour}" data-g="{place}" d="{mean}"/>'
    return drawn, _points(mark.name or mark.group, points)


def _bar(mark: Bar, frame: Frame, colour: str, place: int) -> Drawn:
    if mark.along == "x":
        a, b = sorted((frame.x(0.0), frame.x(mark.value)))
        y, h = frame.y(mark.at - mark.width / 2), abs(frame.y(mark.width) - frame.y(0.0))
        x, y, w = a, min(y, frame.y(mark.at + mark.width / 2)), b - a
        centre, values = (frame.x(mark.value), frame.y(mark.at)), [value_text(mark.value), ""]
    else:
        a, b = sorted((frame.y(0.0), frame.y(mark.value)))
        x, w = frame.x(mark.at - mark.width / 2), frame.x(mark.width) - frame.x(0.0)
        y, h = a, b - a
        centre, values = (frame.x(mark.at), frame.y(mark.value)), ["", value_text(mark.value)]
    size = f'width="{max(w, 0.5):.1f}" height="{max(h, 0.5):.1f}"'
    drawn = f'<rect class="bar {colour}" data-g="{place}" x="{x:.1f}" y="{y:.1f}" {size}/>'
    return drawn, _points(mark.name or mark.group, [[round(centre[0], 1), round(centre[1], 1), *values]])


def _box(mark: Box, frame: Frame, colour: str, place: int) -> Drawn:
    y, h = frame.y(mark.at), 7.0
    low, q25, median, q75, high = (frame.x(value) for value in (mark.low, mark.q25, mark.median, mark.q75, mark.high))
    drawn = (
        f'<path class="span {colour}" data-g="{place}" d="M{low:.1f} {y:.1f}H{q25:.1f}M{q75:.1f} {y:.1f}H{high:.1f}"/>'
        f'<rect class="bar {colour}" data-g="{place}" x="{q25:.1f}" y="{y - h:.1f}" width="{max(q75 - q25, 1):.1f}" '
        f'height="{2 * h:g}"/>'
        f'<path class="median" d="M{median:.1f} {y - h:.1f}v{2 * h:g}"/>'
    )
    quarters, ends = (f"{value_text(a)} to {value_text(b)}" for a, b in ((mark.q25, mark.q75), (mark.low, mark.high)))
    text = f"median {value_text(mark.median)}, quarters {quarters}, all {ends}"
    return drawn, _points(mark.name or mark.group, [[round(median, 1), round(y, 1), text, ""]])


def _rule(mark: Rule, frame: Frame, colour: str, place: int) -> Drawn:
    kind = "budget" if mark.label else "zero"
    if mark.along == "x":
        path = f"M{frame.left:.1f} {frame.y(mark.value):.1f}h{frame.width:.1f}"
    else:
        path = f"M{frame.x(mark.value):.1f} {frame.top:.1f}v{frame.height:.1f}"
    return f'<path class="{kind}" d="{path}"/>', []


_DRAW: dict[type, Callable[[Any, Frame, str, int], Drawn]] = {
    Line: _line,
    Band: _band,
    Dots: _dots,
    Span: _span,
    Bar: _bar,
    Box: _box,
    Rule: _rule,
}
