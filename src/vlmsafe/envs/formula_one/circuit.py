"""The circuit: a closed centre line through the seven goals, and the walls on both sides of it.

The goals are those of Safety-Gymnasium's FormulaOne; the way between them was designed for this project. A straight
line from the sixth goal to the seventh would cross the leg from the fourth to the fifth, so the circuit turns south
and west there, inside the area in which barriers are placed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

Array = NDArray[np.float64]

GOALS: Array = np.array(
    [(3.0, 9.0), (13.0, -1.7), (26.0, 0.05), (32.0, -7.0), (4.0, -17.5), (19.0, -20.7), (-0.85, -0.4)]
)
"""In the order in which they are to be reached, metres."""

GOAL_RADIUS = 0.3
"""Metres within which a goal is reached."""

HALF_WIDTH = 2.0
"""From the centre line to a wall, metres."""

_SPACING = 0.1  # metres between two points of the centre line
_PIECE = 0.9  # metres of wall in one piece

# Points that the centre line passes between each goal and the next.
_WAYPOINTS: tuple[tuple[tuple[float, float], ...], ...] = (
    ((5.2, 8.9), (7.3, 6.9), (9.6, 2.4)),
    ((18.5, -2.0),),
    ((30.6, -1.8),),
    ((28.5, -10.6), (18.5, -11.2), (10.6, -13.0), (6.2, -14.8), (4.7, -15.8)),
    ((4.7, -19.2), (6.2, -20.2), (11.0, -21.2)),
    ((23.4, -23.6), (21.0, -28.3), (13.0, -28.6), (1.0, -26.6), (-7.6, -20.6), (-8.0, -9.8)),
    ((0.5, 3.4), (1.0, 7.0)),
)


@dataclass(frozen=True)
class Circuit:
    """The centre line as points [N, 2] about 0.1 m apart, and what is known at each."""

    points: Array
    directions: Array
    """Unit vectors along the way."""
    length: float
    """Of one lap, metres."""
    goal_indices: NDArray[np.int64]
    """The points at which the goals lie."""
    walls: Array
    """[W, 2, 2], the ends of every piece of wall."""

    @property
    def spacing(self) -> float:
        return self.length / len(self.points)

    def nearest(self, position: Array) -> int:
        """The point of the centre line nearest to a position."""
        offsets = self.points - position
        return int(np.einsum("ij,ij->i", offsets, offsets).argmin())

    def offset(self, position: Array, index: int) -> float:
        """How far to the left of the centre line at that point a position lies, metres."""
        ahead, away = self.directions[index], position - self.points[index]
        return float(ahead[0] * away[1] - ahead[1] * away[0])


@functools.cache
def circuit() -> Circuit:
    """The circuit; there is only one."""
    knots: list[tuple[float, float]] = []
    goal_knots = []
    for goal, between in zip(GOALS.tolist(), _WAYPOINTS, strict=True):
        goal_knots.append(len(knots))
        knots += [(goal[0], goal[1]), *between]
    closed = np.array([*knots, knots[0]])
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(closed, axis=0).T))])
    curve = CubicSpline(along, closed, bc_type="periodic")
    # The parameter is not the arc length, so the arc is measured and points are taken at equal distances along it.
    fine = np.linspace(0.0, along[-1], 40_001)
    arc = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(curve(fine), axis=0).T))])
    count = round(arc[-1] / _SPACING)
    parameters = np.interp(np.arange(count) * arc[-1] / count, arc, fine)
    points, tangents = curve(parameters), curve(parameters, 1)
    directions = tangents / np.hypot(*tangents.T)[:, None]
    goals = np.array([np.hypot(*(points - goal).T).argmin() for goal in GOALS])
    return Circuit(points, directions, float(arc[-1]), goals, _walls(points, directions))


def _walls(points: Array, directions: Array) -> Array:
    """Straight pieces along both edges, each joining the next."""
    left = np.stack([-directions[:, 1], directions[:, 0]], axis=1)
    pieces = []
    for side in (1.0, -1.0):
        edge = points + side * HALF_WIDTH * left
        lengths = np.hypot(*(np.roll(edge, -1, axis=0) - edge).T)
        arc = np.concatenate([[0.0], np.cumsum(lengths)])
        count = round(arc[-1] / _PIECE)
        at = np.arange(count) * arc[-1] / count
        closed = np.concatenate([edge, edge[:1]])
        ends = np.stack([np.interp(at, arc, closed[:, axis]) for axis in (0, 1)], axis=1)
        pieces.append(np.stack([ends, np.roll(ends, -1, axis=0)], axis=1))
    return np.concatenate(pieces)
