"""The scales of a chart's panel: what is in view, where values lie on the picture, and which ticks name them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from vlmsafe.report.elements import Axis, Band, Bar, Box, Dots, Line, Mark, Panel, Rule, minus

WIDTH = 380.0
"""Of a panel, in pixels."""
LETTER = 6.8
"""Width of a letter in pixels, for text of 11 pixels. Wide fonts need this much; most need less."""
_HEIGHT = 176.0
_MAP_HEIGHT = 260.0
_ROW = 30.0
_BAR = 11.0
_MOST_NAME = 140.0


@dataclass(frozen=True)
class Frame:
    """The rectangle between a panel's axes, in pixels, and the values at its edges."""

    left: float
    top: float
    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    flip: bool
    """Whether y runs downwards, as the names of rows do."""
    named_x: bool
    """Whether places along x have names, so that numbers there mean nothing to a reader."""

    @property
    def total(self) -> float:
        """Height of the panel with ticks and labels."""
        return self.top + self.height + 38.0

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + self.width * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.y_range
        share = (value - low) / (high - low)
        return self.top + self.height * (share if self.flip else 1.0 - share)

    @classmethod
    def around(cls, panel: Panel) -> Frame:
        """The frame that leaves room for the panel's ticks and labels."""
        x_range, y_range = limits(panel, "x"), limits(panel, "y")
        names = panel.y.categories
        if names:
            left = min(_MOST_NAME, max(len(name) for name in names) * LETTER) + 12.0
            height = max(70.0, max(_ROW, _BAR * bars_per_row(panel)) * len(names))
        elif panel.equal:
            left, height = 5 * LETTER + 12.0, _MAP_HEIGHT  # the range along y depends on the width that is left
        else:
            left = max(len(label) for _, label in ticks(panel.y, y_range, 5)) * LETTER + 12.0
            height = _HEIGHT
        named = any(isinstance(mark, Rule) and mark.label and mark.along == "y" for mark in panel.marks)
        top = 22.0 if panel.y.label or named else 8.0
        width = WIDTH - left - 12.0
        if panel.equal:
            x_range, y_range = same_scale(x_range, y_range, width / height)
        return cls(left, top, width, height, x_range, y_range, bool(names), bool(panel.x.categories))


def same_scale(
    x: tuple[float, float], y: tuple[float, float], ratio: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Both ranges, one of them widened on both sides, for a frame `ratio` times as wide as it is high.

    >>> same_scale((0, 10), (0, 10), 2.0)
    ((-5.0, 15.0), (0.0, 10.0))
    """
    unit = max((x[1] - x[0]) / ratio, y[1] - y[0])

    def widened(ends: tuple[float, float], length: float) -> tuple[float, float]:
        middle = (ends[0] + ends[1]) / 2
        return middle - length / 2, middle + length / 2

    return widened(x, unit * ratio), widened(y, unit)


def bars_per_row(panel: Panel) -> int:
    """The largest number of bars in one category."""
    places = {mark.at for mark in panel.marks if isinstance(mark, Bar)}
    rows = [round(place) for place in places]
    return max((rows.count(row) for row in set(rows)), default=1)


def limits(panel: Panel, which: str) -> tuple[float, float]:
    """The ends of an axis: all marks and the ends it must show are in view, with a little room around."""
    axis = panel.x if which == "x" else panel.y
    if axis.categories:
        return -0.5, len(axis.categories) - 0.5
    values = [
        value for mark in panel.marks for value in extent(mark, which) if value is not None and math.isfinite(value)
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


def extent(mark: Mark, which: str) -> Iterable[float | None]:
    """The values of a mark along one axis that must be in view."""
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
    """A number as an axis shows it, with enough digits to tell neighbouring ticks apart.

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
    """The number of decimals that tells neighbouring ticks apart."""
    return next(digits for digits in range(16) if abs(round(step, digits) - step) <= 1e-6 * step)
