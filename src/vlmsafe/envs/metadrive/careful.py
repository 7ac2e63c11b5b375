"""A careful driver: it goes on only as far as it can without meeting the predicted way of another car.

MetaDrive's own driver of traffic cars (`driver`) looks at its lane only. It crosses intersections without looking and
takes narrow bends too fast. This driver

* follows the middle of its lane by pure pursuit, at a speed that the bends ahead allow;
* predicts where every car within sight may be in the next seconds, if it keeps to its lane and route;
* compares ways to accelerate or brake, and takes the fastest one that meets nobody;
* changes lanes, across a broken line, where it is held up and gets further beside.

It has no memory: what it does depends on the current state alone. The functions below the class are pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from metadrive.constants import PGLineType
from numpy.typing import NDArray

from vlmsafe.envs.metadrive.lanes import JOINED, wrap
from vlmsafe.envs.metadrive.paths import Array, MapPaths, Path
from vlmsafe.envs.metadrive.scene import size_of

CRUISE = 5.5, 9.0
"""m/s on a free, straight road: the usual speed, and the highest. Traffic drives at 8.3.

At 9 m/s a clone of this driver brakes too late where cars cross its way; what a slower driver does is easier to learn.
"""
_IN_TIME = 0.7  # the share of an episode's time in which it would arrive on a free road
SIDEWAYS = 3.0
"""m/s2 of lateral acceleration in bends."""
SIGHT = 50.0
"""Metres; the observation's lidar sees as far."""
TIMES: Array = np.arange(0.0, 4.01, 0.2)
"""Seconds ahead at which positions are compared."""
ACCELERATIONS = (2.4, 1.2, 0.4, 0.0, -0.8, -1.6, -3.2, -5.0, -8.0)
"""m/s2 among which the driver chooses."""
_HOLD = 0.5  # seconds for which a choice holds at least; a full stop follows in half of the plans
_STOP = -2.0  # m/s2 of this stop, far below what the brake can do: a clone that brakes late still has time
_EASE = 2.5  # m/s2 with which it slows down before a bend
_TRAFFIC = 30 / 3.6  # m/s, which traffic cars aim at
_THROTTLE, _DRAG, _BRAKE = 2.76, 0.36, 16.2  # m/s2 of full throttle, of rolling, and of the brake per unit of action
_OVERHANG = 2.7  # m2; by how much the rear axle goes inside in a bend, times its radius
_FADE = 5.0  # metres after which the car is back in the middle of its lane
_NARROW = 1 / 35  # 1/m; in narrower bends traffic cars leave the middle of their lane
_STANDS, _CRAWLS = 0.1, 0.5  # m/s
_GAP = 1.5  # metres that it leaves to a car in front of it when both stand
_HELD_UP = 0.6  # the share of the free way below which it looks for a faster lane
_GAIN = 5.0  # metres by which another lane must be faster in the next seconds
_ROOM = 15.0  # metres that a lane must go on for a change
_DRIFT, _DRIFTS = 0.1, 2.0  # m/s to the side that are more than the correction of an error, and the seconds they last


class Boxes(NamedTuple):
    """Rectangles: arrays of equal shape, or shapes that broadcast."""

    x: Array
    y: Array
    heading: Array
    half_length: Array
    half_width: Array


class OnPath(NamedTuple):
    """Where a car is on the path ahead of it."""

    path: Path
    along: float
    left: float
    """Of the path."""
    drift: float
    """Metres per second at which it moves to the left of the path."""
    turned: float
    """By which its heading differs from the path's."""


class CarefulDriver:
    """Drives the agent of one episode of a MetaDrive simulator."""

    def __init__(self, simulator: Any, traffic: Callable[[], Iterable[Any]]) -> None:
        self._ego, self._traffic = simulator.agent, traffic
        self._paths = MapPaths(simulator.current_map.road_network)
        config = simulator.config
        seconds = config["horizon"] * config["decision_repeat"] * config["physics_world_step_size"]
        self._cruise = cruise_speed(self._ego.navigation.total_length, seconds)

    def act(self) -> NDArray[np.float64]:
        """Steering and acceleration, from -1 to 1."""
        ego, lane = self._ego, self._lane()
        place = self._place(ego, lane)
        near = [thing for thing in self._traffic() if math.dist(thing.position, ego.position) < SIGHT]
        others = self._predicted([thing for thing in near if not follows(thing, lane, place.along)])
        reach, (acceleration, way) = _FADE, self._plan(place, _FADE, others)
        if way < _HELD_UP * speed_limit(place, self._cruise) * TIMES[-1]:
            for side, beside in self._beside(lane, place.along):
                changed, longer = self._place(ego, beside), min(max(2.5 * ego.speed, 8.0), 18.0)
                faster, further = self._plan(changed, longer, others, margins=(1.0,))
                # A change that has begun goes on unless it loses, and is not taken back for a small gain.
                begun = min(max(side * place.turned / 0.08, -1.0), 1.0)
                if further > way + _GAIN * (1.0 - 0.8 * begun):
                    place, reach, acceleration, way = changed, longer, faster, further
        return np.array([steering(ego, place, reach), pedal(acceleration)])

    def _beside(self, lane: Any, along: float) -> Iterator[tuple[int, Any]]:
        """The lanes to the left (1) and right (-1) to which it may change: they go on, and the line is broken."""
        lanes: list[Any] = self._ego.navigation.current_ref_lanes
        following: list[Any] = self._ego.navigation.next_ref_lanes or []
        index = lanes.index(lane)
        if lane.length - along < _ROOM:
            return
        for side in (1, -1):
            other = index - side
            line = lane.line_types[0 if side == 1 else 1]
            if not 0 <= other < len(lanes) or line != PGLineType.BROKEN:
                continue
            if not following or any(math.dist(after.start, lanes[other].end) < JOINED for after in following):
                yield side, lanes[other]

    def _lane(self) -> Any:
        """The lane of the route that the car is in, or the nearest one."""
        lanes: list[Any] = self._ego.navigation.current_ref_lanes
        if self._ego.lane in lanes:
            return self._ego.lane
        return min(lanes, key=lambda lane: abs(lane.local_coordinates(self._ego.position)[1]))

    def _place(self, car: Any, lane: Any) -> OnPath:
        """Where a car is on the path that begins with a lane and follows the car's route."""
        path = self._paths.ahead(lane, car.navigation.checkpoints)
        along = float(lane.local_coordinates(car.position)[0])
        x, y, heading = (float(value) for value in path.at(along))
        cos, sin = math.cos(heading), math.sin(heading)
        (px, py), (vx, vy) = car.position, car.velocity
        return OnPath(
            path, along, (py - y) * cos - (px - x) * sin, vy * cos - vx * sin, wrap(car.heading_theta - heading)
        )

    def _predicted(self, others: list[Any]) -> Boxes:
        """Where others will be at each time, in each of their futures."""
        rows: list[Boxes] = []
        for thing in others:
            length, width = (size / 2 for size in size_of(thing))
            speed = float(np.hypot(*thing.velocity))
            if speed < _STANDS or getattr(thing, "navigation", None) is None or thing.lane is None:
                box = (*thing.position, thing.heading_theta, length + 0.3, width + 0.1)
                rows.append(Boxes(*(np.full(len(TIMES), float(value)) for value in box)))
                continue
            place = self._place(thing, thing.lane)
            bend = float(np.abs(place.path.bends(place.along + speed * TIMES)).max())
            sure = width + 0.1 + 0.05 * TIMES + (0.3 if bend > _NARROW else 0.0)
            for way in futures(speed):
                x, y, heading = place.path.at(place.along + way, aside(place, speed))
                heading = heading + place.turned * np.exp(-TIMES)
                rows.append(Boxes(x, y, heading, length + 0.3 + 0.08 * way, sure))
        return Boxes(*(np.array([box[part] for box in rows]).reshape(-1, len(TIMES)) for part in range(5)))

    def _plan(
        self, place: OnPath, reach: float, others: Boxes, margins: tuple[float, ...] = (1.0, 0.2)
    ) -> tuple[float, float]:
        """The highest acceleration that leads into nobody's way, and the metres that are gained by it."""
        ego, speed = self._ego, float(self._ego.speed)
        limit = speed_limit(place, self._cruise)
        wanted = min(ACCELERATIONS[0], max(1.5 * (limit - speed), ACCELERATIONS[-2]))
        choices = np.array([wanted, *(value for value in ACCELERATIONS if value < wanted)])
        ways, speeds = plans(speed, choices, max(limit, speed))
        x, y, heading = place.path.at(place.along + ways, place.left * fading(ways, reach))
        first = np.zeros(len(choices))
        for margin in margins:
            ahead = margin * (_GAP + 0.5 * speeds)
            mine = Boxes(
                x + ahead / 2 * np.cos(heading),
                y + ahead / 2 * np.sin(heading),
                heading,
                ego.LENGTH / 2 + ahead / 2,
                np.full_like(x, ego.WIDTH / 2 + 0.2 * margin),
            )
            held, short = first_meeting(mine, others).reshape(2, -1)
            first = np.maximum(held, short)
            if first.max() == math.inf:
                best = int(np.argmax(first == math.inf))
                return float(choices[best]), float(ways[best + (0 if held[best] == math.inf else len(choices)), -1])
        return float(choices[len(choices) - 1 - int(np.argmax(first[::-1]))]), 0.0


def follows(thing: Any, lane: Any, along: float) -> bool:
    """Whether a thing is behind a place in a lane, in it or in one that leads to it. Such cars keep their distance."""
    if thing.lane is lane:
        return bool(lane.local_coordinates(thing.position)[0] < along)
    return thing.lane is not None and math.dist(thing.lane.end, lane.start) < JOINED


def aside(place: OnPath, speed: float) -> Array:
    """How far to the left of its path a car will be: it returns to it, or goes on to the side if it clearly does so."""
    if abs(place.drift) < _DRIFT + 0.05 * speed:
        return place.left * np.exp(-TIMES / 2.0)
    return place.left + place.drift * np.minimum(TIMES, _DRIFTS)


def futures(speed: float) -> list[Array]:
    """The ways of a car at each time: if it stops, goes on at its speed, or drives at traffic's speed.

    A clone of this driver sees where others are and not how fast they are. So most of what the driver does must not
    depend on their speed: it can always stop behind a car in front, and it waits for one that could be at a crossing.
    """
    ways = [0.0 * TIMES, speed * TIMES]
    return ways if speed < _CRAWLS else [*ways, max(speed, _TRAFFIC) * TIMES]


def plans(speed: float, choices: Array, top: float) -> tuple[Array, Array]:
    """Ways and speeds [2 * choices, times]: each acceleration held, then each one held shortly before a full stop."""
    step = float(TIMES[1] - TIMES[0])
    held = np.repeat(choices[:, None], len(TIMES) - 1, axis=1)
    short = np.where(TIMES[None, :-1] < _HOLD, held, np.minimum(held, _STOP))
    gains = np.concatenate([held, short]) * step
    speeds = np.empty((2 * len(choices), len(TIMES)))
    speeds[:, 0] = speed
    for index in range(len(TIMES) - 1):
        speeds[:, index + 1] = np.clip(speeds[:, index] + gains[:, index], 0.0, top)
    ways = np.zeros_like(speeds)
    ways[:, 1:] = np.cumsum((speeds[:, 1:] + speeds[:, :-1]) / 2 * step, axis=1)
    return ways, speeds


def first_meeting(mine: Boxes, others: Boxes) -> Array:
    """The first time at which each plan [plans, times] meets any other car [cars, times]; infinite if never."""
    # Two rectangles are apart if they are apart along the sides of one of them.
    a, b = Boxes(*(value[:, None] for value in mine)), Boxes(*(value[None] for value in others))
    cos, sin = np.abs(np.cos(b.heading - a.heading)), np.abs(np.sin(b.heading - a.heading))
    touch = np.ones(cos.shape, np.bool_)
    for one, two in ((a, b), (b, a)):
        along, across = np.cos(one.heading), np.sin(one.heading)
        dx, dy = two.x - one.x, two.y - one.y
        touch &= np.abs(dx * along + dy * across) < one.half_length + two.half_length * cos + two.half_width * sin
        touch &= np.abs(dy * along - dx * across) < one.half_width + two.half_length * sin + two.half_width * cos
    met: NDArray[np.bool_] = np.any(touch, axis=1)
    first: Array = np.where(met.any(axis=1), TIMES[met.argmax(axis=1)], math.inf)
    return first


def cruise_speed(metres: float, seconds: float) -> float:
    """The speed on a free road with which a route is driven well before the episode's time is over."""
    return min(max(metres / (_IN_TIME * seconds), CRUISE[0]), CRUISE[1])


def speed_limit(place: OnPath, cruise: float) -> float:
    """The speed from which the car can slow down in time for every bend ahead, at most `cruise`."""
    ways = np.arange(0.0, 30.0, 1.0)
    bends = np.abs(place.path.bends(place.along + ways))
    squares = SIDEWAYS / np.maximum(bends, SIDEWAYS / cruise**2)
    return float(np.sqrt(squares + 2 * _EASE * np.maximum(ways - 1.0, 0.0)).min())


def fading(ways: Array | float, reach: float) -> Array:
    """How much of an offset from the path is left after a way: all of it at first, nothing from `reach` on."""
    part: Array = np.clip(np.asarray(ways) / reach, 0.0, 1.0)
    return 1.0 - part**2 * (3.0 - 2.0 * part)


def steering(ego: Any, place: OnPath, reach: float) -> float:
    """Pure pursuit: the rear axle turns on the circle that meets the path some metres ahead."""
    look = min(max(0.5 * float(ego.speed) + 1.5, 3.0), 7.0)
    way = look - ego.REAR_WHEELBASE
    # In a bend the front goes wider than the rear axle, so the axle has to go inside by half of that.
    inside = _OVERHANG * float(place.path.bends(np.array(place.along + way)))
    x, y, _ = place.path.at(place.along + way, inside + place.left * fading(way, reach))
    cos, sin = math.cos(ego.heading_theta), math.sin(ego.heading_theta)
    dx = float(x) - ego.position[0] + ego.REAR_WHEELBASE * cos
    dy = float(y) - ego.position[1] + ego.REAR_WHEELBASE * sin
    curvature = 2.0 * (dy * cos - dx * sin) / (dx**2 + dy**2)
    angle = math.atan(curvature * (ego.FRONT_WHEELBASE + ego.REAR_WHEELBASE))
    return min(max(angle / math.radians(ego.max_steering), -1.0), 1.0)


def pedal(acceleration: float) -> float:
    """The action that gives an acceleration in m/s2."""
    if acceleration < -_DRAG:
        return max((acceleration + _DRAG) / _BRAKE, -1.0)
    return min((acceleration + _DRAG) / _THROTTLE, 1.0)
