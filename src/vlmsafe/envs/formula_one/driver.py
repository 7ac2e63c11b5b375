"""A scripted driver, which shows that the circuit can be driven and drives when frames are recorded.

It looks some metres ahead along the centre line, chooses the best way between barriers among parallel lanes, and steers
towards a point on it (pure pursuit). Where that arc is blocked or points the wrong way, it tries short arcs in both
gears and takes the best. It knows the circuit and every barrier; no policy does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.formula_one.circuit import HALF_WIDTH, Array, circuit
from vlmsafe.envs.formula_one.model import BARRIER_RADIUS, MOST_STEERING
from vlmsafe.envs.hazard import wrapped

_WHEELBASE = 0.32  # metres, as in racecar.xml
_CIRCLES, _CIRCLE = np.array([-0.16, 0.0, 0.16]), 0.17  # the car as three circles in a row: their centres, their radius
_MARGIN = 0.04
_LANES = np.linspace(-1.6, 1.6, 21)  # metres from the centre line
_STRIDE = 3  # points of the centre line from one row of the lanes to the next, 0.3 m
_LATERAL = 4.0  # m/s^2 that bends may ask for
_BRAKING = 2.5  # m/s^2
_ARC, _POSES = 0.6, 6  # metres of a tried arc, and where along it the car is placed


class Situation(NamedTuple):
    """What the driver knows."""

    position: Array
    heading: float
    velocity: Array
    goal: int
    barriers: Array
    top_speed: float


class CircuitDriver:
    """Call it once a step: (throttle, steering), each in [-1, 1]."""

    def __init__(self, look: Callable[[], Situation]) -> None:
        self._look = look
        self._gear = 1.0

    def __call__(self) -> NDArray[np.float64]:
        now = self._look()
        speed = math.hypot(*now.velocity)
        near = now.barriers[np.hypot(*(now.barriers - now.position).T) < 6.0 + speed]
        here = circuit().nearest(now.position)
        to_goal = (circuit().goal_indices[now.goal] - here) % len(circuit().points)
        if to_goal > len(circuit().points) - round(5.0 / circuit().spacing):  # driven past it
            target, limit = circuit().points[circuit().goal_indices[now.goal]], 0.5
        else:
            rows = 12 + round(speed / 0.5)
            way = _way(now, near, here, to_goal, rows)
            reach = 0.5 + 0.3 * speed
            target = way[min(len(way) - 1, max(1, round(reach / (_STRIDE * circuit().spacing))))]
            limit = _speed_limit(way)
        away = target - now.position
        angle = wrapped(math.atan2(away[1], away[0]) - now.heading)
        steer = math.atan2(2 * _WHEELBASE * math.sin(angle), math.hypot(*away))
        steer = min(max(steer, -MOST_STEERING), MOST_STEERING)
        if abs(angle) < 1.0 and self._gear > 0.0 and _free_share(now, near, np.array([[1.0, steer]]))[0] == 1.0:
            return np.array([min(1.0, limit / now.top_speed), steer / MOST_STEERING])
        self._gear, steer = _best_arc(now, near, target, self._gear)
        return np.array([self._gear * min(1.0, 0.8 / now.top_speed), steer / MOST_STEERING])


def _way(now: Situation, near: Array, here: int, to_goal: int, rows: int) -> Array:
    """The cheapest way ahead, [rows, 2]: one lane in each row, neighbours in neighbouring rows."""
    world = circuit()
    indices = (here + _STRIDE * np.arange(rows)) % len(world.points)
    left = np.stack([-world.directions[indices, 1], world.directions[indices, 0]], axis=1)
    nodes = world.points[indices][:, None] + _LANES[:, None] * left[:, None]  # [rows, lanes, 2]
    price = np.tile(0.02 * _LANES**2, (rows, 1))
    if len(near):
        gaps = np.hypot(*np.moveaxis(nodes[:, :, None] - near, -1, 0)).min(axis=-1) - BARRIER_RADIUS - _CIRCLE
        price += np.where(gaps < _MARGIN, 50.0, 0.5 * np.exp(-np.maximum(gaps, 0.0) / 0.15))
    row = round(to_goal / _STRIDE)
    if row < rows:  # the goal is small, and must be met
        price[row] += 30.0 * np.maximum(0.0, np.abs(_LANES) - 0.1)
    moves = np.arange(-2, 3)
    start = world.offset(now.position, here)
    best = price[0] + 20.0 * np.abs(_LANES - start)
    origins = np.zeros((rows, len(_LANES)), int)
    for number in range(1, rows):
        # From each lane one may come from up to two lanes to either side.
        padded = np.pad(best, 2, constant_values=np.inf)
        options = np.stack([padded[2 - move : 2 - move + len(_LANES)] + 0.15 * move**2 for move in moves])
        choice = options.argmin(axis=0)
        origins[number] = np.arange(len(_LANES)) - moves[choice]
        best = options[choice, np.arange(len(_LANES))] + price[number]
    lanes = [int(best.argmin())]
    for number in range(rows - 1, 0, -1):
        lanes.append(int(origins[number, lanes[-1]]))
    return nodes[np.arange(rows), lanes[::-1]]


def _speed_limit(way: Array) -> float:
    """The speed from which every bend on the way can still be taken."""
    # Lanes are steps; what they amount to over three rows is what the car has to follow.
    smooth = np.array([np.convolve(way[:, axis], np.ones(3) / 3, "valid") for axis in (0, 1)]).T
    legs = np.diff(smooth, axis=0)
    lengths = np.maximum(np.hypot(*legs.T), 1e-3)
    turns = np.abs(wrapped(np.diff(np.arctan2(legs[:, 1], legs[:, 0]))))
    allowed = np.sqrt(_LATERAL * lengths[1:] / np.maximum(turns, 1e-3))
    distance = np.maximum(np.cumsum(lengths)[:-1] - 0.3, 0.0)
    return float(np.sqrt(allowed**2 + 2 * _BRAKING * distance).min(initial=np.inf))


def _poses(now: Situation, arcs: Array) -> tuple[Array, Array]:
    """Positions [A, P, 2] and headings [A, P] along arcs, each a gear and a steering angle [A, 2]."""
    gears, steers = arcs[:, :1], arcs[:, 1:]
    travelled = gears * np.linspace(_ARC / _POSES, _ARC, _POSES)
    turned = travelled * np.tan(steers) / _WHEELBASE
    chord = travelled * np.sinc(turned / (2 * np.pi))
    middle = now.heading + turned / 2
    return now.position + np.stack([chord * np.cos(middle), chord * np.sin(middle)], axis=-1), now.heading + turned


def _free_share(now: Situation, near: Array, arcs: Array) -> Array:
    """How much of each arc the car gets along before it touches something, 0 to 1."""
    positions, headings = _poses(now, arcs)
    forward = np.stack([np.cos(headings), np.sin(headings)], axis=-1)
    centres = positions[..., None, :] + _CIRCLES[:, None] * forward[..., None, :]  # [A, P, 3, 2]
    blocked = np.zeros(positions.shape[:2], bool)
    if len(near):
        gaps = np.hypot(*np.moveaxis(centres[..., None, :] - near, -1, 0))
        blocked |= (gaps < BARRIER_RADIUS + _CIRCLE + _MARGIN / 2).any(axis=(-2, -1))
    points = circuit().points
    local = points[np.hypot(*(points - now.position).T) < 4.0]
    to_centre = np.hypot(*np.moveaxis(centres[..., None, :] - local, -1, 0)).min(axis=-1)
    blocked |= (to_centre > HALF_WIDTH - 0.05 - _CIRCLE).any(axis=-1)
    first = np.where(blocked.any(axis=1), blocked.argmax(axis=1), _POSES)
    return first / _POSES


_ARCS = np.array([(gear, steer) for gear in (1.0, -1.0) for steer in np.linspace(-MOST_STEERING, MOST_STEERING, 9)])


def _best_arc(now: Situation, near: Array, target: Array, gear: float) -> tuple[float, float]:
    """The gear and steering angle after which the target is best within reach."""
    free = _free_share(now, near, _ARCS)
    positions, headings = _poses(now, _ARCS)
    away = target - positions[:, -1]
    angle = wrapped(np.arctan2(away[:, 1], away[:, 0]) - headings[:, -1])
    price = np.abs(angle) + 0.5 * np.hypot(*away.T) + 4.0 * (1.0 - free) + 0.5 * (_ARCS[:, 0] != gear)
    best = _ARCS[int(price.argmin())]
    return float(best[0]), float(best[1])
