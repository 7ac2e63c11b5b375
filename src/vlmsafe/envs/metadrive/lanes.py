"""The geometry of MetaDrive's lanes in plain Python floats.

MetaDrive computes a car's place in a lane with numpy scalars, which costs several times as much as Python floats. The
formulas here give the same bits: both kinds of number are the same doubles, and every operation is done in the same
order. Squares stay `x**2`, because the C library's power is not always `x * x`.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from metadrive.component.lane.circular_lane import CircularLane
from metadrive.component.lane.straight_lane import StraightLane
from numpy.typing import NDArray

TURN = 2 * math.pi
JOINED = 0.1
"""Metres between one lane's end and another's start below which MetaDrive takes the lanes as joined."""


def wrap(angle: float) -> float:
    """The angle in (-pi, pi]."""
    angle %= TURN
    return angle - TURN if angle > math.pi else angle


class CentreLine(Protocol):
    """A lane's centre line."""

    length: float

    def place(self, x: float, y: float) -> tuple[float, float]:
        """How far along the line a point is, and how far to its side."""

    def heading(self, along: float) -> float:
        """The line's direction at a place."""


class Straight:
    """A straight lane's centre line."""

    def __init__(self, lane: StraightLane) -> None:
        self.length = float(lane.length)
        self._start = tuple(float(value) for value in lane.start)
        self._along = tuple(float(value) for value in lane.direction)
        self._across = tuple(float(value) for value in lane.direction_lateral)
        self._heading = float(lane.heading)

    def place(self, x: float, y: float) -> tuple[float, float]:
        dx, dy = x - self._start[0], y - self._start[1]
        along, across = self._along, self._across
        return dx * along[0] + dy * along[1], dx * across[0] + dy * across[1]

    def heading(self, along: float) -> float:
        return self._heading


class Arc:
    """A circular lane's centre line."""

    def __init__(self, lane: CircularLane) -> None:
        self.length = float(lane.length)
        self._x, self._y = float(lane.center[0]), float(lane.center[1])
        self._radius = float(lane.radius)
        self._start, self._end = float(lane.start_phase), float(lane.end_phase)
        self._wrapped_start, self._wrapped_end = wrap(self._start), wrap(self._end)
        self._clockwise = bool(lane.is_clockwise())
        self._sign = int(lane.direction)

    def place(self, x: float, y: float) -> tuple[float, float]:
        dx, dy = x - self._x, y - self._y
        phase = wrap(math.atan2(dy, dx))
        radius = self._radius
        if abs(wrap(phase - self._wrapped_start)) > abs(wrap(phase - self._wrapped_end)):
            along = wrap(self._end - phase if self._clockwise else phase - self._end) * radius + self.length
        else:
            along = wrap(self._start - phase if self._clockwise else phase - self._start) * radius
        return along, self._sign * (math.sqrt(dx**2 + dy**2) - radius)

    def heading(self, along: float) -> float:
        return self._sign * along / self._radius + self._start + math.pi / 2 * self._sign


def line_of(lane: Any) -> CentreLine:
    """The lane's centre line; a lane of another class is refused, since its formulas are not known here."""
    if type(lane).local_coordinates is StraightLane.local_coordinates:
        return Straight(lane)
    if type(lane).local_coordinates is CircularLane.local_coordinates:
        return Arc(lane)
    raise TypeError(f"expected a straight or a circular lane, got {type(lane).__name__}")


class Lanes:
    """The lanes of one map: each one's line, and which lanes it is joined to."""

    def __init__(self, road_network: Any) -> None:
        self._all: list[Any] = list(road_network.get_all_lanes())
        self._starts: NDArray[np.float64] = np.array([tuple(lane.start)[:2] for lane in self._all], np.float64)
        self._ends: NDArray[np.float64] = np.array([tuple(lane.end)[:2] for lane in self._all], np.float64)
        self._lines: dict[Any, CentreLine] = {}
        self._joined: dict[Any, list[tuple[Any, bool, bool]]] = {}

    def line(self, lane: Any) -> CentreLine:
        line = self._lines.get(lane)
        if line is None:
            line = self._lines[lane] = line_of(lane)
        return line

    def joined(self, lane: Any) -> list[tuple[Any, bool, bool]]:
        """The other lanes that touch this one's ends: the lane, whether it follows, whether it precedes."""
        known = self._joined.get(lane)
        if known is None:
            follows = _near(self._starts, lane.end)
            precedes = _near(self._ends, lane.start)
            known = [
                (self._all[i], bool(follows[i]), bool(precedes[i]))
                for i in np.flatnonzero(follows | precedes)
                if self._all[i] is not lane
            ]
            self._joined[lane] = known
        return known


def _near(points: NDArray[np.float64], point: Any) -> NDArray[np.bool_]:
    """Which points are closer than `JOINED`. Lanes are joined exactly or metres apart, so rounding decides nothing."""
    near: NDArray[np.bool_] = np.hypot(points[:, 0] - float(point[0]), points[:, 1] - float(point[1])) < JOINED
    return near
