"""A scripted driver, which shows that the circuit can be driven and drives when frames are recorded.

It looks some metres ahead along the middle of the road, chooses the best way between barriers among parallel lanes, and
steers towards a point on it (pure pursuit). Where that arc is blocked or points the wrong way, it compares plans of two
short arcs in both gears and takes the best. It knows the circuit and every barrier; no policy does.

The original's slow car is driven carefully, and stops for barriers. The faster car of the variant `fast` avoids them
where that takes no detour. So does the slow car in the variant `sighted`, whose driver is there to be imitated: one
that stops, reverses and remembers what it was doing cannot be learned from single observations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.formula_one.barriers import BARRIER_RADIUS
from vlmsafe.envs.formula_one.circuit import GOAL_RADIUS, GOALS, LONGEST, Array, circuit, distances
from vlmsafe.envs.hazard import wrapped

MOST_STEERING = 0.785  # radians, as in racecar.xml
_WHEELBASE = 0.5  # metres; 0.325 m on the drawing, but tyres slip and the steering gives way
_WHEELBASE_BACKWARDS = 0.3
_IN_THE_WAY = 0.12  # metres; a barrier nearer to the goal than this must be pushed away
_CIRCLES = np.array([-0.13, 0.02, 0.17])  # the car as three circles: their centres
_CIRCLE = 0.16  # and their radius
_MARGIN = 0.05
_LANES = np.linspace(-2.4, 2.4, 31)  # metres from the middle of the road


class _Manner(NamedTuple):
    """How one of the two cars is driven."""

    lateral: float
    """m/s^2 that bends may ask for."""
    braking: float
    careful: float
    """m/s of manoeuvres."""
    detour: float
    """The price of a way through a barrier. A lane through a wall has the price 50."""
    bold: bool
    """Whether it drives through barriers rather than stop for them, aims at goals themselves, and has no memory."""
    eagerness: float
    """How much more speed is asked for than wanted, per m/s that is missing: the motor is slow to follow."""
    sight: float
    """Metres to the farthest barriers that it thinks of, and twice as many at 6 m/s."""
    smoothing: int
    """Rows of the way over which bends are measured. Lanes are steps, and a few of them look like a sharp bend."""


# At 0.5 m/s the original car stops within 0.15 m. A barrier weighs next to nothing and takes no speed from a car that
# touches it, so a bold driver does not stop for one.
_SLOW = _Manner(lateral=2.0, braking=0.7, careful=0.5, detour=50.0, bold=False, eagerness=0.0, sight=6.0, smoothing=3)
_FAST = _Manner(lateral=9.0, braking=5.0, careful=1.5, detour=4.0, bold=True, eagerness=2.0, sight=6.0, smoothing=9)
_STEADY = _Manner(lateral=2.0, braking=0.7, careful=0.8, detour=10.0, bold=True, eagerness=0.0, sight=6.0, smoothing=9)
_FAR = 2.0  # metres ahead to the point towards which the car is turned around
_ARC, _POSES = 0.6, 6  # metres of a tried arc, and in how many places along it the car is placed


class Situation(NamedTuple):
    """What the driver knows."""

    position: Array
    heading: float
    velocity: Array
    goal: int
    barriers: Array
    top_speed: float
    sighted: bool = False
    """Whether the agent that drives sees the walls, and can learn from this driver."""


class CircuitDriver:
    """Call it once a step: (throttle, steering), each in [-1, 1]."""

    def __init__(self, look: Callable[[], Situation]) -> None:
        self._look = look
        self._gear = 1.0

    def __call__(self) -> NDArray[np.float64]:
        now = self._look()
        manner = _FAST if now.top_speed > 1.0 else _STEADY if now.sighted else _SLOW
        speed, goal = math.hypot(*now.velocity), GOALS[now.goal]
        near = now.barriers[np.hypot(*(now.barriers - now.position).T) < manner.sight * (1.0 + speed / 6.0)]
        near = near[np.hypot(*(near - goal).T) > _IN_THE_WAY]
        here, lap = circuit().nearest(now.position), len(circuit().points)
        to_goal = int(circuit().goal_indices[now.goal] - here) % lap
        if to_goal > lap - round(5.0 / circuit().spacing):  # driven past it
            target = far = goal
            limit = manner.careful
        else:
            way = _way(now, near, here, to_goal, rows=12 + round(speed / 0.5), detour=manner.detour)
            reach = 0.45 + 0.3 * speed
            rows = max(1, round(reach / circuit().spacing))
            target = goal if manner.bold and to_goal <= rows else way[min(len(way) - 1, rows)]
            far = goal if to_goal * circuit().spacing < _FAR else way[round(_FAR / circuit().spacing)]
            limit = _speed_limit(way, manner.lateral, manner.braking, manner.smoothing)
        away = target - now.position
        angle = wrapped(math.atan2(away[1], away[0]) - now.heading)
        steer = math.atan2(2 * _WHEELBASE * math.sin(angle), math.hypot(*away))
        steer = min(max(steer, -MOST_STEERING), MOST_STEERING)
        if manner.bold:
            curvature = 2 * abs(math.sin(angle)) / max(math.hypot(*away), 1e-3)
            limit = min(limit, math.sqrt(manner.lateral / max(curvature, 1e-3)))
            near = near[:0]
            backwards = now.velocity @ (math.cos(now.heading), math.sin(now.heading)) < -0.05
            self._gear = -1.0 if backwards else 1.0
        if abs(angle) < 1.0 and _free_share(now, near, *_arcs(np.array([[1.0]]), np.array([[steer]])))[0] == 1.0:
            self._gear = 1.0
            asked = limit + manner.eagerness * (limit - speed)
            return np.array([min(max(asked / now.top_speed, -1.0), 1.0), steer / MOST_STEERING])
        self._gear, steer = _best_plan(now, near, far, goal, self._gear)
        return np.array([self._gear * manner.careful / now.top_speed, steer / MOST_STEERING])


_MOVES = np.arange(-2, 3)  # lanes that one may change from row to row
_EACH = np.arange(len(_LANES))
_ORIGINS = (2 - _MOVES)[:, None] + _EACH  # [moves, lanes], in an array with two lanes more on either side
_PRICES = (0.15 * _MOVES**2)[:, None]


def _way(now: Situation, near: Array, here: int, to_goal: int, rows: int, detour: float) -> Array:
    """The cheapest way ahead, [rows, 2]: one lane in each row, neighbours in neighbouring rows."""
    world = circuit()
    indices = (here + np.arange(rows)) % len(world.points)
    left = np.stack([-world.directions[indices, 1], world.directions[indices, 0]], axis=1)
    nodes = world.points[indices][:, None] + _LANES[:, None] * left[:, None]  # [rows, lanes, 2]
    price = np.tile(0.02 * _LANES**2, (rows, 1))
    to_walls = np.minimum(world.left[indices, None] - _LANES, world.right[indices, None] + _LANES) - _CIRCLE
    price += np.where(to_walls < _MARGIN, 50.0, 0.5 * np.exp(-np.maximum(to_walls, 0.0) / 0.15))
    if len(near):
        gaps = np.hypot(*np.moveaxis(nodes[:, :, None] - near, -1, 0)).min(axis=-1) - BARRIER_RADIUS - _CIRCLE
        price += np.where(gaps < _MARGIN, detour, 0.5 * np.exp(-np.maximum(gaps, 0.0) / 0.15))
    if to_goal < rows:  # the goal is small, and must be met
        beside = world.offset(GOALS[now.goal], int(world.goal_indices[now.goal]))
        price[to_goal] += 30.0 * np.maximum(0.0, np.abs(_LANES - beside) - 0.15)
    start = world.offset(now.position, here)
    best = price[0] + 20.0 * np.abs(_LANES - start)
    origins = np.zeros((rows, len(_LANES)), int)
    padded = np.full(len(_LANES) + 4, np.inf)
    for number in range(1, rows):
        # From each lane one may come from up to two lanes to either side.
        padded[2:-2] = best
        options = padded[_ORIGINS] + _PRICES
        choice = options.argmin(axis=0)
        origins[number] = _EACH - _MOVES[choice]
        best = options[choice, _EACH] + price[number]
    lanes = [int(best.argmin())]
    for number in range(rows - 1, 0, -1):
        lanes.append(int(origins[number, lanes[-1]]))
    return nodes[np.arange(rows), lanes[::-1]]


def _speed_limit(way: Array, lateral: float, braking: float, smoothing: int) -> float:
    """The speed from which every bend on the way can still be taken, with so much grip and braking."""
    # Lanes are steps; what they amount to over some rows is what the car has to follow.
    smooth = np.array([np.convolve(way[:, axis], np.full(smoothing, 1.0 / smoothing), "valid") for axis in (0, 1)]).T
    legs = np.diff(smooth, axis=0)
    lengths = np.maximum(np.hypot(*legs.T), 1e-3)
    turns = np.abs(wrapped(np.diff(np.arctan2(legs[:, 1], legs[:, 0]))))
    allowed = np.sqrt(lateral * lengths[1:] / np.maximum(turns, 1e-3))
    distance = np.maximum(np.cumsum(lengths)[:-1] - 0.3, 0.0)
    return float(np.sqrt(allowed**2 + 2 * braking * distance).min(initial=np.inf))


def _arcs(gears: Array, steers: Array) -> tuple[Array, Array]:
    """Positions [N, P, 2] and headings [N, P] along arcs that follow each other, [N, A], from the car's place."""
    pieces = np.repeat(gears, _POSES, axis=1) * _ARC / _POSES
    wheelbases = np.repeat(np.where(gears > 0.0, _WHEELBASE, _WHEELBASE_BACKWARDS), _POSES, axis=1)
    turns = pieces * np.tan(np.repeat(steers, _POSES, axis=1)) / wheelbases
    turned = np.cumsum(turns, axis=1)
    middle = turned - turns / 2
    steps = pieces[..., None] * np.stack([np.cos(middle), np.sin(middle)], axis=-1)
    return np.cumsum(steps, axis=1), turned


def _free_share(now: Situation, near: Array, places: Array, turned: Array) -> Array:
    """How much of each way, given from the car's place, the car gets along before it touches something, 0 to 1."""
    positions, headings = _to_world(now, places), now.heading + turned
    forward = np.stack([np.cos(headings), np.sin(headings)], axis=-1)
    centres = positions[..., None, :] + _CIRCLES[:, None] * forward[..., None, :]  # [N, P, 3, 2]
    reach = _CIRCLE + _MARGIN / 2
    blocked = np.zeros(turned.shape, bool)
    close = near[np.hypot(*(near - now.position).T) < 2 * _ARC + 1.0]
    if len(close):
        gaps = np.hypot(*np.moveaxis(centres[..., None, :] - close, -1, 0))
        blocked |= (gaps < BARRIER_RADIUS + reach).any(axis=(-2, -1))
    walls = circuit().walls
    walls = walls[np.abs(walls[:, 0] - now.position).max(axis=1) < 2 * _ARC + LONGEST + 0.5]
    if len(walls):
        to_walls = distances(centres.reshape(-1, 2), walls).min(axis=1).reshape(centres.shape[:-1])
        blocked |= (to_walls < reach).any(axis=-1)
    count = turned.shape[1]
    return np.where(blocked.any(axis=1), blocked.argmax(axis=1), count) / count


def _to_world(now: Situation, places: Array) -> Array:
    cos, sin = math.cos(now.heading), math.sin(now.heading)
    return now.position + places @ np.array([[cos, sin], [-sin, cos]])


_SINGLE = [(gear, steer) for gear in (1.0, -1.0) for steer in np.linspace(-MOST_STEERING, MOST_STEERING, 7).tolist()]
_PAIRS = np.array([(one, two) for one in _SINGLE for two in _SINGLE])  # [N, 2, (gear, steer)]
_GEARS: Array
_STEERS: Array
_GEARS, _STEERS = np.moveaxis(_PAIRS, -1, 0)
_PLACES, _TURNED = _arcs(_GEARS, _STEERS)


def _best_plan(now: Situation, near: Array, far: Array, goal: Array, gear: float) -> tuple[float, float]:
    """The gear and steering angle with which the best of all plans begins; a plan is two arcs."""
    free = _free_share(now, near, _PLACES, _TURNED)
    positions = _to_world(now, _PLACES)
    away = far - positions[:, -1]
    angle = wrapped(np.arctan2(away[:, 1], away[:, 0]) - now.heading - _TURNED[:, -1])
    price = np.abs(angle) + 0.5 * np.hypot(*away.T) + 6.0 * (1.0 - free)
    price += 1.0 * (_GEARS < 0.0).sum(axis=1) + 0.5 * (_GEARS[:, 0] != gear) + 0.5 * (_GEARS[:, 1] != _GEARS[:, 0])
    reached = np.hypot(*np.moveaxis(positions - goal, -1, 0)) < GOAL_RADIUS - 0.02
    early = np.where(reached.any(axis=1), reached.argmax(axis=1) / reached.shape[1], 1.0)
    price = np.where(early < free, -10.0 + 3.0 * early, price)
    best = int(price.argmin())
    return float(_GEARS[best, 0]), float(_STEERS[best, 0])
