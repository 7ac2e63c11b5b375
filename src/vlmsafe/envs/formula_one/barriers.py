"""Where the car starts and barriers stand in an episode, as the original draws it for the same seed.

On level 1, 200 barriers are spread over two rectangles that cover most of the circuit and the land around it. Level 2
adds small boxes around the goals, each counted ten times. A barrier keeps 1 m from other barriers and 0.5 m from the
car. It may stand at a goal. The original also keeps barriers away from a place near the origin that it draws for a goal
but never uses.

An eighth of the barriers are drawn into walls. In the original's first steps the walls throw them out: most end some
decimetres to two metres away, on the side that they were nearest to, and a tenth fly off. Here they are moved when the
episode starts, as far as the original's were found to have moved, and the ones that fly are left out.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from vlmsafe.envs.formula_one.circuit import GOALS, Array, exits

BARRIERS = 200
BARRIER_RADIUS = 0.162  # metres, of its foot; it narrows towards the top

_KEEPOUT = 0.5  # metres around a barrier, and from the border of the rectangle that it is drawn from
_UNUSED_KEEPOUT = 0.305
_UNUSED_AREA = (-2.0, -2.0, 2.0, 2.0)  # left, bottom, right, top, as below
_AREA = ((-12.2, -32.5, 27.8, 7.5), (26.0, -11.0, 38.0, 1.0))
_AROUND_GOALS = (
    (-1.0, -1.0, 1.0, 1.0),
    (1.5, 7.5, 4.5, 10.5),
    (11.5, -3.2, 14.5, -0.19),
    (24.5, -1.45, 27.5, 1.55),
    (30.5, -8.5, 33.5, -5.5),
    (2.5, -19.0, 5.5, -16.0),
    (17.5, -22.2, 20.5, -19.2),
    (-2.35, -1.9, 0.65, 1.1),
)
_TIMES = 10
_START = 1e-9  # metres around a goal within which the car is placed
_TRIES = 100  # for one thing, before the whole layout is drawn again

# What became of 963 barriers that were drawn into walls, 50 steps later, by the distance of their middle from the
# wall's face (negative inside): the share that flew off, and quantiles of the metres that others moved straight out.
_DEPTHS = np.array([-0.20, -0.15, -0.10, -0.05, 0.0, 0.05, 0.10, 0.13])  # where the next row begins
_FLYING = np.array([0.36, 0.11, 0.17, 0.20, 0.08, 0.02, 0.03, 0.0, 0.0])
_QUANTILES = np.array([0.10, 0.25, 0.50, 0.75, 0.90])
_MOVED = np.array(
    [
        (-0.10, -0.01, 0.10, 0.31, 1.45),
        (-0.57, -0.04, 0.07, 1.47, 2.28),
        (-0.70, 0.00, 0.83, 1.82, 2.47),
        (0.04, 0.53, 1.19, 1.85, 2.36),
        (0.19, 0.46, 1.01, 1.47, 1.83),
        (0.25, 0.43, 0.59, 1.20, 1.87),
        (0.12, 0.16, 0.25, 0.41, 1.18),
        (0.04, 0.06, 0.07, 0.11, 0.20),
        (0.00, 0.01, 0.01, 0.03, 0.04),
    ]
)
_CLEARANCE = 0.005  # metres between a moved barrier and what it stands beside
_MOVES = 10  # that are tried before a barrier is left out
AWAY: Array = np.column_stack([np.arange(BARRIERS), np.full(BARRIERS, 100.0)])
"""Where barriers stand that are left out."""


class CircuitLayout(NamedTuple):
    """How an episode starts."""

    start: int
    """The goal at which the car stands."""
    yaw: float
    barriers: Array
    """[200, 2], or [0, 2] on level 0."""


def draw_layout(level: int, seed: int) -> CircuitLayout:
    """The original's layout for a seed, before walls throw barriers out."""
    # NumPy promises that this generator gives the same numbers in all its versions.
    rng = np.random.RandomState(seed)
    while (placed := _try_layout(level, rng)) is None:
        pass
    yaw = rng.uniform(0.0, 2.0 * math.pi)
    start = int(np.hypot(*(GOALS - placed[0]).T).argmin())
    return CircuitLayout(start, (yaw + math.pi) % (2.0 * math.pi) - math.pi, placed[2:])


class _Area(NamedTuple):
    """Rectangles [R, 4] that something is drawn from, and the chance of each and those before it."""

    rectangles: Array
    chances: Array


@functools.cache
def _areas(level: int) -> tuple[_Area, _Area, _Area]:
    """For the car, the unused goal and the barriers."""
    starts = np.array([(x - _START, y - _START, x + _START, y + _START) for x, y in GOALS.tolist()])
    inset = np.array([1.0, 1.0, -1.0, -1.0])
    unused = np.array([_UNUSED_AREA]) + _UNUSED_KEEPOUT * inset
    barriers = np.array(_AREA + (_AROUND_GOALS * _TIMES if level == 2 else ())) + _KEEPOUT * inset
    found = []
    for rectangles in (starts, unused, barriers):
        sizes = (rectangles[:, 2] - rectangles[:, 0]) * (rectangles[:, 3] - rectangles[:, 1])
        chances = (sizes / sizes.sum()).cumsum()
        found.append(_Area(rectangles, chances / chances[-1]))
    return found[0], found[1], found[2]


def _try_layout(level: int, rng: np.random.RandomState) -> Array | None:
    """Places of the car, the unused goal and the barriers, or None if one of them found none."""
    areas, count = _areas(level), BARRIERS if level else 0
    placed, keepouts = np.zeros((2 + count, 2)), np.array([0.0, _UNUSED_KEEPOUT] + [_KEEPOUT] * count)
    for number in range(len(placed)):
        for _ in range(_TRIES):
            place = _anywhere(areas[min(number, 2)], rng)
            apart = np.sqrt(((placed[:number] - place) ** 2).sum(axis=1))
            if not (apart < keepouts[:number] + keepouts[number]).any():
                placed[number] = place
                break
        else:
            return None
    return placed


def _anywhere(area: _Area, rng: np.random.RandomState) -> Array:
    """A place in one of the rectangles, each as likely as it is large."""
    one_of_many = len(area.chances) > 1
    chosen = area.chances.searchsorted(rng.random_sample(), side="right") if one_of_many else 0
    left, bottom, right, top = area.rectangles[chosen]
    return np.array([rng.uniform(left, right), rng.uniform(bottom, top)])


def settle(barriers: Array, car: Array, rng: np.random.Generator) -> Array:
    """The barriers after walls have thrown out those that stood in them; the car, at `car`, is not hit."""
    settled = barriers.copy()
    depths, ways = exits(barriers)
    for number in np.flatnonzero(depths < BARRIER_RADIUS):
        row = int(_DEPTHS.searchsorted(depths[number], side="right"))
        others = np.delete(settled, number, axis=0)
        settled[number] = AWAY[number]
        if rng.random() < _FLYING[row]:
            continue
        for _ in range(_MOVES):
            moved = float(np.interp(rng.random(), _QUANTILES, _MOVED[row]))
            # The original leaves some in the wall; here every one that stays comes out.
            moved = max(moved, BARRIER_RADIUS + _CLEARANCE - depths[number])
            place = barriers[number] + moved * ways[number]
            if _is_free(place, others, car):
                settled[number] = place
                break
    return settled


def _is_free(place: Array, others: Array, car: Array) -> bool:
    """Whether a barrier fits between walls and other barriers and keeps away from the car."""
    if np.hypot(*(others - place).T).min() < 2 * BARRIER_RADIUS + _CLEARANCE or np.hypot(*(place - car)) < _KEEPOUT:
        return False
    depth, _ = exits(place[None])
    return bool(depth[0] > BARRIER_RADIUS)
