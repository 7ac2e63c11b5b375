"""Where barriers stand at the start of an episode.

On level 1 they are spread evenly over two rectangles that cover the circuit and the land around it, so that some stand
where no car can go. Level 2 adds a box around each goal, in which barriers are ten times as dense. No barrier overlaps
a wall, another barrier, a goal or the car.
"""

from __future__ import annotations

import numpy as np

from vlmsafe.envs.formula_one.circuit import GOALS, Array, circuit
from vlmsafe.envs.formula_one.model import BARRIER_RADIUS, BARRIERS

_AREA = ((-12.2, -32.5, 27.8, 7.5), (26.0, -11.0, 38.0, 1.0))  # left, bottom, right, top
_AROUND_GOALS = tuple((x - 3.0, y - 3.0, x + 3.0, y + 3.0) for x, y in GOALS.tolist())
_GOAL_WEIGHT = 10.0
_FROM_GOALS = 0.6  # metres, so that the car, which starts at a goal, is free and every goal can be reached
_FROM_WALLS = BARRIER_RADIUS + 0.1
_APART = 2 * BARRIER_RADIUS + 0.05


def place(level: int, rng: np.random.Generator) -> Array:
    """The centres of all barriers, [N, 2]."""
    rectangles = np.array(_AREA + (_AROUND_GOALS if level == 2 else ()))
    weights = np.where(np.arange(len(rectangles)) < len(_AREA), 1.0, _GOAL_WEIGHT)
    sizes = rectangles[:, 2:] - rectangles[:, :2]
    chances = weights * sizes.prod(axis=1)
    placed, count = np.zeros((BARRIERS, 2)), 0
    while count < BARRIERS:
        chosen = rng.choice(len(rectangles), BARRIERS, p=chances / chances.sum())
        tried = rectangles[chosen, :2] + rng.random((BARRIERS, 2)) * sizes[chosen]
        for point in tried[_free(tried)]:
            away = placed[:count] - point
            if count < BARRIERS and (away**2).sum(axis=1).min(initial=np.inf) >= _APART**2:
                placed[count] = point
                count += 1
    return placed


def _free(points: Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which points are clear of goals and walls."""
    to_goals = np.hypot(points[:, :1] - GOALS[:, 0], points[:, 1:] - GOALS[:, 1])
    starts, ends = circuit().walls[:, 0], circuit().walls[:, 1]
    along = ends - starts
    # Where along each piece, as a share of its length, the point nearest to each position lies.
    share = (points @ along.T - (starts * along).sum(axis=1)) / (along**2).sum(axis=1)
    share = np.clip(share, 0.0, 1.0)
    x, y = (points[:, k : k + 1] - starts[:, k] - share * along[:, k] for k in (0, 1))
    to_walls = np.hypot(x, y)
    return (to_goals.min(axis=1) >= _FROM_GOALS) & (to_walls.min(axis=1) >= _FROM_WALLS)
