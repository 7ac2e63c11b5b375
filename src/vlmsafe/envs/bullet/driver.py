"""A scripted driver: it predicts where some hundred plans lead, and follows the best ones to the goal.

A plan is two arcs, each with its own throttle and steering. The driver predicts each plan for 1.4 s and estimates when
the car would reach the goal: by the plan, or by the shortest way from the plan's end. A map holds the length of that
way from every place, around the puddles and the path of the box. Time in puddles, at the box or at the walls makes a
plan worse. The answer is a mean over plans, in which nearly the best ones count most: small changes of the scene then
make small changes of the action, which a clone can learn.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import dijkstra

from vlmsafe.envs.bullet.scene import BOX_ORBIT, CAR_RADIUS, GOAL_RADIUS, PUDDLE_RADIUS, WALLS, Scene

Array = NDArray[np.float64]

# The car as plans predict it. At full steering it turns on a circle of 2 m at every speed.
_CURVATURE = 0.48  # 1/m, at steering 1
_TOP_SPEED = 4.6  # m/s, at throttle 1
_LAG = 0.95  # seconds in which speed follows the throttle
_SCRUB = 0.25  # the share of the speed that steering 1 takes

_STEP = 0.1  # seconds
_STEPS = (5, 9)  # of the first arc and of the second
_THROTTLES = ((1.0, 1.0), (0.3, 1.0), (-1.0, 1.0))
_STEERINGS = 7  # values of each arc's steering

# Where something costs, in seconds of way per second.
_IN_PUDDLE, _PUDDLE_MARGIN, _PUDDLE_EDGE = 5.8, 0.35, 0.3  # rises over 0.3 m, from 0.35 m before the puddle costs
_AT_BOX, _BOX_MARGIN = 3.0, 1.35  # metres from the middle of the box to that of the car
_AT_WALL, _WALL_MARGIN = 4.0, 0.9
_EDGE = 0.3  # metres over which the last two rise to their full value

# What remains after a plan.
_PACE = 3.6  # m/s
_TURNING = 0.55  # seconds per radian between the car and its way
_SLOW = 0.25  # seconds per m/s below the usual pace
_REVERSING = 0.3  # seconds; a car that stops to go the other way often comes back
_BLUR = 0.1  # seconds; plans that are later than the best by this count e times less

_MARGIN = 0.25  # metres kept from where a puddle costs, where a way is chosen
_BOX_BERTH = 1.3  # the same from the middle of the box, on its whole path
_CELL = 0.4  # metres
_AXIS = np.arange(-9.2, 9.21, _CELL)
_NEIGHBOURS = ((1, 0), (0, 1), (1, 1), (1, -1), (2, 1), (1, 2), (2, -1), (1, -2))
_PROHIBITIVE = 3.0  # times the length of a way through what costs


def way_map(goal: Array, puddles: Array, orbit: Array) -> Array:
    """The length of the way to the goal from each place of the grid, [X, Y]; ways through a cost count as longer.

    `orbit` is the middle of the box's path.
    """
    places = np.stack(np.meshgrid(_AXIS, _AXIS, indexing="ij"), axis=-1)  # [X, Y, 2]
    lack = _lack(places[:, :, None] - puddles, PUDDLE_RADIUS + CAR_RADIUS + _MARGIN).max(axis=-1)
    lack = np.maximum(lack, _lack(places - orbit, BOX_ORBIT + _BOX_BERTH))
    price = 1.0 + _PROHIBITIVE * np.minimum(lack / 0.3, 1.0)
    number = np.arange(price.size).reshape(price.shape)
    starts, ends, lengths = [], [], []
    for dx, dy in _NEIGHBOURS:
        here = np.s_[: len(_AXIS) - dx, max(-dy, 0) : len(_AXIS) - max(dy, 0)]
        there = np.s_[dx:, max(dy, 0) : len(_AXIS) + min(dy, 0)]
        starts.append(number[here].ravel())
        ends.append(number[there].ravel())
        lengths.append((_CELL * np.hypot(dx, dy) * (price[here] + price[there]) / 2).ravel())
    graph = coo_matrix(
        (np.concatenate(lengths), (np.concatenate(starts), np.concatenate(ends))), shape=(price.size, price.size)
    ).tocsr()
    target = int(np.hypot(*(places - goal).reshape(-1, 2).T).argmin())
    ways: Array = dijkstra(graph, directed=False, indices=target).reshape(price.shape)
    return ways


class ReachDriver:
    """Drives one episode."""

    def __init__(self, orbit: Array, box_after: Callable[[Array], Array], most_steering: float) -> None:
        """`orbit` is the middle of the box's path; `box_after` gives its position after a number of seconds."""
        self._orbit, self._box_after = orbit, box_after
        self._goal: tuple[float, ...] = ()
        steerings = np.linspace(-most_steering, most_steering, _STEERINGS).tolist()
        plans = itertools.product(_THROTTLES, itertools.product(steerings, steerings))
        self._throttles, self._steerings = np.moveaxis(np.array(list(plans)), 1, 0)  # [P, 2] each

    def act(self, scene: Scene) -> Array:
        """The action: throttle and steering."""
        if self._goal != tuple(scene.goal):
            self._goal = tuple(scene.goal)
            self._map = way_map(scene.goal, scene.puddles, self._orbit)
            self._slopes = [np.gradient(self._map, _CELL, axis=axis) for axis in (0, 1)]
        points, headings, speeds = self._predict(scene)  # [T, P, 2], [P], [P]
        steps = len(points)
        arrived = _distances(points - scene.goal) < GOAL_RADIUS - 0.1
        last = np.where(arrived.any(axis=0), arrived.argmax(axis=0), steps)  # the step in which the plan is over
        price = _STEP * (self._dangers(points, scene) * (np.arange(steps)[:, None] <= last)).sum(axis=0)
        price += np.where(
            last < steps, _STEP * (last + 1), _STEP * steps + self._remaining(points[-1], headings, speeds)
        )
        price += _REVERSING * (self._throttles[:, 0] * (scene.velocity @ scene.forward) < -0.3)
        weights = np.exp(-(price - price.min()) / _BLUR)
        weights /= weights.sum()
        return np.array([weights @ self._throttles[:, 0], weights @ self._steerings[:, 0]])

    def _predict(self, scene: Scene) -> tuple[Array, Array, Array]:
        """Where the car is at each step of each plan, [T, P, 2], and its last heading and speed, [P] each."""
        count = len(self._throttles)
        speed = np.full(count, scene.velocity @ scene.forward)
        heading = np.full(count, math.atan2(scene.forward[1], scene.forward[0]))
        moves = []
        for arc, steps in enumerate(_STEPS):
            steering = self._steerings[:, arc]
            aim = _TOP_SPEED * self._throttles[:, arc] * (1.0 - _SCRUB * np.abs(steering))
            for _ in range(steps):
                speed = speed + _STEP / _LAG * (aim - speed)
                turn = _STEP * _CURVATURE * speed * steering
                middle = heading + turn / 2
                moves.append(_STEP * speed[:, None] * np.stack([np.cos(middle), np.sin(middle)], axis=-1))
                heading = heading + turn
        return scene.car + np.cumsum(moves, axis=0), heading, speed

    def _dangers(self, points: Array, scene: Scene) -> Array:
        """What being at each point costs, [T, P], in seconds per second."""
        to_puddle = _distances(points[:, :, None] - scene.puddles).min(axis=-1) - PUDDLE_RADIUS - CAR_RADIUS
        to_box = _distances(points - self._box_after(_STEP * np.arange(1.0, len(points) + 1.0))[:, None])
        to_wall = WALLS - np.abs(points).max(axis=-1)
        dangers: Array = _IN_PUDDLE * np.clip((_PUDDLE_MARGIN - to_puddle) / _PUDDLE_EDGE, 0.0, 1.0)
        dangers += _AT_BOX * np.clip((_BOX_MARGIN - to_box) / _EDGE, 0.0, 2.0)
        dangers += _AT_WALL * np.clip((_WALL_MARGIN - to_wall) / _EDGE, 0.0, 3.0)
        return dangers

    def _remaining(self, ends: Array, headings: Array, speeds: Array) -> Array:
        """About how many seconds it takes from the end of each plan to the goal, [P]."""
        cells = ((ends - _AXIS[0]) / _CELL).T
        left = map_coordinates(self._map, cells, order=1, mode="nearest")
        downhill = -np.array([map_coordinates(slope, cells, order=1, mode="nearest") for slope in self._slopes])
        motion = np.sign(speeds) * np.array([np.cos(headings), np.sin(headings)])
        aligned = (motion * downhill).sum(axis=0) / np.maximum(np.hypot(*downhill), 1e-9)
        seconds: Array = np.maximum(left - GOAL_RADIUS, 0.0) / _PACE
        seconds += _TURNING * np.arccos(np.clip(aligned, -1.0, 1.0))
        return seconds + _SLOW * np.maximum(_PACE - np.abs(speeds), 0.0)


def _distances(ways: Array) -> Array:
    """The lengths of ways [..., 2]."""
    return np.hypot(ways[..., 0], ways[..., 1])


def _lack(ways: Array, distance: float) -> Array:
    """By how much ways [..., 2] are shorter than a distance; 0 where they are longer."""
    return np.maximum(distance - _distances(ways), 0.0)
