"""What lies around the car on the floor, and how near it is: geometry without a simulator.

Lengths are in metres and angles in radians. The car's position is its centre of mass, from which the simulator measures
the distance to goals and puddles. The box can be touched by any part of the car's outline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.hazard import gaps_to_box, hazard_of, outlines

Array = NDArray[np.float64]

PUDDLE_RADIUS = 1.0
CAR_RADIUS = 0.35  # the simulator's, for puddles
GOAL_RADIUS = 1.3
BOX_HALF = 0.5
BOX_ORBIT = 0.7  # the radius of its path, along which it moves at one radian per second
CAR_REAR, CAR_FRONT, CAR_HALF_WIDTH = -0.75, 0.62, 0.44  # of the bodies that collide, from the centre of mass
CAR_LENGTH = CAR_FRONT - CAR_REAR
WALLS = 9.9  # the room spans -9.9 to 9.9 both ways
USUAL_SPEED = 1.6  # m/s; a careful driver's mean
SIGHT = 10.0  # car lengths, how far `clear_ahead` looks

# A gap of a quarter of a metre, as close as a careful driver passes, gives 1/e; so does contact in a second.
_REACH = 0.25  # metres
_SECONDS = 1.0
_BACKWARDS = -0.1  # m/s; slower than this the car rolls rather than reverses


@dataclass(frozen=True)
class Scene:
    """Where everything is and how it moves, in the floor's plane."""

    car: Array  # [2]
    forward: Array  # [2], the unit vector along the car
    velocity: Array  # [2]
    goal: Array  # [2]
    puddles: Array  # [N, 2], their centres
    box: Array  # [2], its centre
    box_yaw: float
    box_velocity: Array  # [2]


def puddle_gaps(scene: Scene) -> tuple[Array, Array]:
    """Gaps [N] to where each puddle costs, negative inside, and speeds [N] at which they close."""
    way = scene.puddles - scene.car
    distance = np.hypot(way[:, 0], way[:, 1])
    closing = way @ scene.velocity / np.maximum(distance, 1e-9)
    return distance - PUDDLE_RADIUS - CAR_RADIUS, closing


def box_gap(scene: Scene) -> tuple[float, float]:
    """The gap between the outlines of the car and the box, 0 where they touch, and the speed at which it closes."""
    starts, ends = _box_seen_from_car(scene)
    middle = np.array([(CAR_FRONT + CAR_REAR) / 2, 0.0])
    gaps, directions = gaps_to_box(starts - middle, ends - middle, np.array([CAR_LENGTH / 2, CAR_HALF_WIDTH]))
    nearest = int(gaps.argmin())
    towards = directions[nearest] @ _axes(scene.forward)
    return float(gaps[nearest]), float(towards @ (scene.velocity - scene.box_velocity))


def puddle_hazard(scene: Scene) -> float:
    """Hazard of the most hazardous puddle, from 0 to 1."""
    pairs = zip(*puddle_gaps(scene), strict=True)
    return max(hazard_of(float(gap), float(closing), reach=_REACH, seconds=_SECONDS) for gap, closing in pairs)


def box_hazard(scene: Scene) -> float:
    """Hazard of the box, from 0 to 1."""
    gap, closing = box_gap(scene)
    return hazard_of(gap, closing, reach=_REACH, seconds=_SECONDS)


def clear_ahead(scene: Scene) -> float:
    """Car lengths that the car can drive straight on before it meets a puddle or the box, at most `SIGHT`.

    For a car that reverses, straight on is backwards.
    """
    sign = -1.0 if scene.velocity @ scene.forward < _BACKWARDS else 1.0
    along, across = sign * ((scene.puddles - scene.car) @ _axes(scene.forward).T).T
    radius = PUDDLE_RADIUS + CAR_RADIUS
    half_chord = np.sqrt(np.maximum(radius**2 - across**2, 0.0))
    met = (np.abs(across) < radius) & (along + half_chord > 0.0)
    puddle = float(np.where(met, np.maximum(along - half_chord, 0.0), np.inf).min())
    bumper = CAR_FRONT if sign > 0.0 else -CAR_REAR
    starts, ends = _box_seen_from_car(scene)
    box = _first_in_corridor(sign * starts, sign * ends, CAR_HALF_WIDTH)
    return min(puddle / CAR_LENGTH, max(box - bumper, 0.0) / CAR_LENGTH, SIGHT)


def _first_in_corridor(starts: Array, ends: Array, half_width: float) -> float:
    """The least positive x at which one of the segments [N, 2] lies within |y| <= half_width; infinite for none.

    >>> _first_in_corridor(np.array([[4.0, -2.0]]), np.array([[2.0, 2.0]]), 1.0)
    2.5
    """
    (x, y), (dx, dy) = starts.T, (ends - starts).T
    dy = np.where(np.abs(dy) < 1e-12, 1e-12, dy)
    shares = np.sort([(-half_width - y) / dy, (half_width - y) / dy], axis=0)  # where it enters and leaves
    inside = (shares[0] <= 1.0) & (shares[1] >= 0.0)
    nearest = (x + np.clip(shares, 0.0, 1.0) * dx).min(axis=0)
    return float(np.where(inside & (nearest > 0.0), nearest, np.inf).min())


def _axes(forward: Array) -> Array:
    """The car's axes as rows: along it, and to its left."""
    return np.array([forward, [-forward[1], forward[0]]])


def _box_seen_from_car(scene: Scene) -> tuple[Array, Array]:
    """The box's four sides, starts [4, 2] and ends [4, 2], in coordinates along and across the car."""
    side = BOX_HALF * np.array([math.cos(scene.box_yaw), math.sin(scene.box_yaw)])
    starts, ends = outlines(scene.box[None], side[None], np.array([[-side[1], side[0]]]))
    to_car = _axes(scene.forward).T
    return (starts[0] - scene.car) @ to_car, (ends[0] - scene.car) @ to_car
