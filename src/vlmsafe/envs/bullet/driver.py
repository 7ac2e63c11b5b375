"""A scripted driver: it follows the shortest way to the goal around puddles and box with short plans.

A map holds the length of the way from every place to the goal, around the puddles and the path of the box. At each step
the driver compares some hundred plans and starts the one that keeps its distance from everything and ends with the
shortest way left. A plan is two arcs, each with its own steering, forwards or backwards. At full steering the car turns
on a circle of 2 m at every speed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import dijkstra

from vlmsafe.envs.bullet.scene import BOX_ORBIT, CAR_RADIUS, GOAL_RADIUS, PUDDLE_RADIUS, WALLS, Scene

Array = NDArray[np.float64]

_CURVATURE = 0.5  # 1/m, at full steering
_STEERING = np.linspace(-1.0, 1.0, 9)
_WAYS = ((1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0))  # forwards; backwards, then forwards; backwards
_PIECE = 0.3  # metres between the points of a plan
_POINTS = 16  # of which half belong to the first arc
_CRUISE, _REVERSE = 2.0, -1.5  # m/s
_THROTTLE = 0.22  # per m/s, about what holds a speed
_GAIN = 0.8  # per m/s that is missing

_MARGIN = 0.35  # metres kept from where a puddle costs
_BOX_MARGIN = 1.6  # from the middle of the box to that of the car
_BOX_BERTH = 1.3  # the same where a way is chosen, from the box's whole path
_WALL_MARGIN = 1.0
_ARRIVAL = GOAL_RADIUS - 0.2

# Weights in the comparison of plans, in metres of way.
_NEARNESS = 40.0  # of a metre too near something, at each metre
_BACKWARDS = 1.0  # of an arc backwards
_CHANGE = 1.5  # of stopping to go the other way
_ASKEW = 1.0  # of a plan that ends at right angles to the way on

_CELL = 0.4  # metres
_AXIS = np.arange(-9.2, 9.21, _CELL)
_NEIGHBOURS = ((1, 0), (0, 1), (1, 1), (1, -1), (2, 1), (1, 2), (2, -1), (1, -2))
_PROHIBITIVE = 20.0  # times the length of a way through what costs


def _plans() -> tuple[Array, Array, Array, Array]:
    """Every plan, starting along x: steering [P] of its first arc, ways [P, 2], points [P, T, 2], last headings [P]."""
    each = itertools.product(_STEERING.tolist(), _STEERING.tolist(), _WAYS)
    steering, ways = (np.array(part) for part in zip(*(((s, t), way) for s, t, way in each), strict=True))
    signs = np.repeat(ways, _POINTS // 2, axis=1)
    turns = _CURVATURE * _PIECE * signs * np.repeat(steering, _POINTS // 2, axis=1)
    turned = np.cumsum(turns, axis=1)
    middle = turned - 0.5 * turns  # the heading half way along each piece
    pieces = (_PIECE * signs)[..., None] * np.stack([np.cos(middle), np.sin(middle)], axis=-1)
    return steering[:, 0], ways, np.cumsum(pieces, axis=1), turned[:, -1]


_FIRST, _PLAN_WAYS, _PATHS, _TURNED = _plans()
_LENGTHS: Array = _PIECE * np.arange(1.0, _POINTS + 1.0)


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

    def __init__(self, orbit: Array, box_after: Callable[[Array], Array]) -> None:
        """`orbit` is the middle of the box's path; `box_after` gives its position after a number of seconds."""
        self._orbit, self._box_after = orbit, box_after
        self._goal: tuple[float, ...] = ()

    def act(self, scene: Scene) -> Array:
        """The action: throttle and steering."""
        if self._goal != tuple(scene.goal):
            self._goal = tuple(scene.goal)
            self._map = way_map(scene.goal, scene.puddles, self._orbit)
            self._slopes = [np.gradient(self._map, _CELL, axis=axis) for axis in (0, 1)]
        along = float(scene.velocity @ scene.forward)
        axes = np.array([scene.forward, [-scene.forward[1], scene.forward[0]]])
        points = scene.car + _PATHS @ axes  # [P, T, 2]
        lack = _lack(points[:, :, None] - scene.puddles, PUDDLE_RADIUS + CAR_RADIUS + _MARGIN).sum(axis=-1)
        lack += _lack(points - self._box_after(_LENGTHS / max(abs(along), 1.0)), _BOX_MARGIN)
        lack += np.maximum(np.abs(points).max(axis=-1) - (WALLS - _WALL_MARGIN), 0.0)
        price = self._remaining(points, scene, axes)
        price += _NEARNESS * _PIECE * lack.sum(axis=1) + _BACKWARDS * (_PLAN_WAYS < 0.0).sum(axis=1)
        price += _CHANGE * (_PLAN_WAYS[:, 0] * along < -0.2)
        best = int(price.argmin())
        speed = _REVERSE if _PLAN_WAYS[best, 0] < 0.0 else _CRUISE
        if lack[best, : _POINTS // 2].max() > 0.2:
            speed *= 0.5
        throttle = np.clip(_THROTTLE * speed + _GAIN * (speed - along), -1.0, 1.0)
        return np.array([throttle, _FIRST[best]])

    def _remaining(self, points: Array, scene: Scene, axes: Array) -> Array:
        """The way left after each plan, [P]; a plan that reaches the goal early is credited with its remainder."""
        ends = points[:, -1]
        cells = ((ends - _AXIS[0]) / _CELL).T
        left = map_coordinates(self._map, cells, order=1, mode="nearest")
        downhill = -np.stack(
            [map_coordinates(slope, cells, order=1, mode="nearest") for slope in self._slopes], axis=-1
        )
        heading = np.stack([np.cos(_TURNED), np.sin(_TURNED)], axis=-1) @ axes
        aligned = (heading * downhill).sum(axis=-1) / np.maximum(np.hypot(*downhill.T), 1e-9)
        left = left + _ASKEW * (1.0 - aligned)
        arrived = np.hypot(*np.moveaxis(points - scene.goal, -1, 0)) < _ARRIVAL
        in_hand = _LENGTHS[-1] - _LENGTHS[arrived.argmax(axis=1)]
        return np.where(arrived.any(axis=1), -in_hand, left)


def _lack(ways: Array, distance: float) -> Array:
    """By how much ways [..., 2] are shorter than a distance; 0 where they are longer."""
    return np.maximum(distance - np.hypot(ways[..., 0], ways[..., 1]), 0.0)
