"""The circuit: its walls, the line along the middle of the road, and the seven goals.

Everything here was measured on Safety-Gymnasium's FormulaOne and lies in circuit.npz: the outlines of the 301 convex
pieces of wall that reach down to the car, the outline of their union, and the middle of the road with the distances to
the walls on both sides. The inner wall has two openings of 3.7 and 5.4 m, through which a car can leave the road; for
the line and its distances they count as closed.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

GOALS: Array = np.array(
    [(3.0, 9.0), (13.0, -1.7), (26.0, 0.05), (32.0, -7.0), (4.0, -17.5), (19.0, -20.7), (-0.85, -0.4)]
)
"""In the order in which they are to be reached, metres."""

GOAL_RADIUS = 0.3
"""Metres within which a goal is reached."""

LONGEST = 1.0
"""No segment of a wall's outline is longer, metres."""

_AT_ONCE = 50


@dataclass(frozen=True)
class Circuit:
    """The middle of the road as points [N, 2] 0.25 m apart, what is known at each, and the walls."""

    points: Array
    directions: Array
    """Unit vectors along the way."""
    left: Array
    """Metres to the wall on the left of each point."""
    right: Array
    length: float
    """Of one lap along the middle, metres."""
    goal_indices: NDArray[np.int64]
    """The points nearest to the goals, which lie up to 1.1 m beside the middle."""
    pieces: tuple[Array, ...]
    """Convex polygons [P, 2], the pieces of wall that things collide with."""
    walls: Array
    """[W, 2, 2], the ends of every segment of the walls' outline."""

    @property
    def spacing(self) -> float:
        return self.length / len(self.points)

    def nearest(self, position: Array) -> int:
        """The point of the middle nearest to a position."""
        offsets = self.points - position
        return int(np.einsum("ij,ij->i", offsets, offsets).argmin())

    def offset(self, position: Array, index: int) -> float:
        """How far to the left of the middle at that point a position lies, metres."""
        ahead, away = self.directions[index], position - self.points[index]
        return float(ahead[0] * away[1] - ahead[1] * away[0])

    def lane(self, position: Array) -> float:
        """How far from the middle towards a wall a position lies: 0 on the middle, 1 at the wall, more beyond it."""
        index = self.nearest(position)
        offset = self.offset(position, index)
        return abs(offset) / float(self.left[index] if offset > 0.0 else self.right[index])


@functools.cache
def circuit() -> Circuit:
    """The circuit; there is only one."""
    with resources.files("vlmsafe.envs.formula_one").joinpath("circuit.npz").open("rb") as file, np.load(file) as read:
        data = {name: np.asarray(read[name], np.float64) for name in read.files}
    points, sides = data["middle"], data["left_right"]
    tangents = np.roll(points, -1, axis=0) - np.roll(points, 1, axis=0)
    steps = np.roll(points, -1, axis=0) - points
    return Circuit(
        points=points,
        directions=tangents / np.hypot(*tangents.T)[:, None],
        left=sides[:, 0],
        right=sides[:, 1],
        length=float(np.hypot(*steps.T).sum()),
        goal_indices=np.array([np.hypot(*(points - goal).T).argmin() for goal in GOALS]),
        pieces=_split(data["pieces"], data["piece_lengths"]),
        walls=np.concatenate([_segments(ring) for ring in _split(data["outline"], data["outline_lengths"])]),
    )


def _split(points: Array, lengths: Array) -> tuple[Array, ...]:
    return tuple(np.split(points, np.cumsum(lengths.astype(int))[:-1]))


def _segments(ring: Array) -> Array:
    """A closed line as segments [S, 2, 2] none of which is longer than `LONGEST`."""
    found = []
    for start, end in zip(ring, np.roll(ring, -1, axis=0), strict=True):
        parts = max(1, int(np.ceil(np.hypot(*(end - start)) / LONGEST)))
        ends = start + np.linspace(0.0, 1.0, parts + 1)[:, None] * (end - start)
        found.append(np.stack([ends[:-1], ends[1:]], axis=1))
    return np.concatenate(found)


def distances(points: Array, segments: Array) -> Array:
    """From each of P points [P, 2] to each of S segments [S, 2, 2], metres [P, S]."""
    starts, along = segments[:, 0], segments[:, 1] - segments[:, 0]
    # Where along each segment, as a share of its length, the place nearest to each point lies.
    share = (points @ along.T - (starts * along).sum(axis=1)) / np.maximum((along**2).sum(axis=1), 1e-12)
    share = np.clip(share, 0.0, 1.0)
    x, y = (points[:, k : k + 1] - starts[:, k] - share * along[:, k] for k in (0, 1))
    return np.hypot(x, y)


def exits(points: Array) -> tuple[Array, Array]:
    """Metres from the walls' faces to each of P points, negative inside a wall, and the shortest ways out [P, 2]."""
    if len(points) > _AT_ONCE:  # intermediate results of more points leave the processor's cache
        parts = [exits(part) for part in np.array_split(points, math.ceil(len(points) / _AT_ONCE))]
        return np.concatenate([far for far, _ in parts]), np.concatenate([ways for _, ways in parts])
    starts, ends = circuit().walls[:, 0], circuit().walls[:, 1]
    nearest = circuit().walls[distances(points, circuit().walls).argmin(axis=1)]
    along = nearest[:, 1] - nearest[:, 0]
    share = ((points - nearest[:, 0]) * along).sum(axis=1) / np.maximum((along**2).sum(axis=1), 1e-12)
    away = points - nearest[:, 0] - np.clip(share, 0.0, 1.0)[:, None] * along
    far = np.hypot(away[:, 0], away[:, 1])
    # A point is inside where a ray from it to the right crosses the outline an odd number of times.
    x, y = points[:, :1], points[:, 1:]
    between = (starts[:, 1] > y) != (ends[:, 1] > y)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = starts[:, 0] + (y - starts[:, 1]) / (ends[:, 1] - starts[:, 1]) * (ends[:, 0] - starts[:, 0])
    inside = (between & (crossing > x)).sum(axis=1) % 2 == 1
    sign = np.where(inside, -1.0, 1.0)
    return sign * far, sign[:, None] * away / np.maximum(far, 1e-12)[:, None]
