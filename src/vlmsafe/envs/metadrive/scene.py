"""What is near the agent's car in MetaDrive, and how hazardous it is: solid lines, other cars, objects of accidents."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from metadrive.component.static_object.traffic_object import TrafficBarrier, TrafficObject
from metadrive.constants import MetaDriveType, PGDrivableAreaProperty
from numpy.typing import NDArray

from vlmsafe.envs.hazard import gaps_to_box, hazard_of, outlines, wrapped

# A car in the middle of its lane has 0.8 m to a solid line at its side, which must count as next to nothing: a reach of
# a quarter of a metre makes it 0.04. Contact in one second, which is ten steps, gives 1/e.
_REACH = 0.25  # metres
_SECONDS = 1.0
_SIGHT = 60.0  # metres; a gap this wide that closes at 20 m/s would give 0.05
_USUAL_SPEED = 10.0  # m/s
_AHEAD = 0.9  # cosine between straight ahead and the direction to a car that counts as ahead
_LINE_HALF_WIDTH = PGDrivableAreaProperty.LANE_LINE_WIDTH / 4  # the simulator's own, for contact


class SolidLines(NamedTuple):
    """Straight pieces of solid line."""

    ends: NDArray[np.float64]
    """[2, N, 2], starts and ends."""
    middles: NDArray[np.float64]
    half_lengths: NDArray[np.float64]


class Nearby(NamedTuple):
    """The nearest line, first, and every car or object in sight, in the agent's coordinates: ahead, and to the left."""

    gaps: NDArray[np.float64]
    directions: NDArray[np.float64]
    """Unit vectors from the agent's car."""
    speeds: NDArray[np.float64]
    """At which each gap closes."""

    @property
    def hazards(self) -> NDArray[np.float64]:
        """Hazard of each, from 0 to 1."""
        pairs = zip(self.gaps.tolist(), self.speeds.tolist(), strict=True)
        return np.array([hazard_of(gap, speed, reach=_REACH, seconds=_SECONDS) for gap, speed in pairs])


def axes(heading: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Unit vectors along a heading and to its left."""
    cos, sin = math.cos(heading), math.sin(heading)
    return np.array([cos, sin]), np.array([-sin, cos])


def solid_lines(world: Any) -> SolidLines:
    """Every solid line of a map, read from the bodies with which the simulator tests contact."""
    solid = (MetaDriveType.LINE_SOLID_SINGLE_WHITE, MetaDriveType.LINE_SOLID_SINGLE_YELLOW)
    middles, half_lengths, headings = [], [], []
    for body in (body for block in world.blocks for body in block.static_nodes if body.getName() in solid):
        place = body.getTransform()
        middles.append(tuple(place.getPos())[:2])
        half_lengths.append(body.getShape(0).getHalfExtentsWithMargin()[0])
        headings.append(axes(math.radians(place.getHpr()[0]))[0])
    half = np.array(half_lengths)[:, None] * np.array(headings)
    return SolidLines(np.array(middles) + np.stack([-half, half]), np.array(middles), np.array(half_lengths))


def size_of(thing: Any) -> tuple[float, float]:
    """Length and width of a car, or of an object as its body has them: round, or a barrier across its lane."""
    if not isinstance(thing, TrafficObject):
        return thing.LENGTH, thing.WIDTH
    return (thing.WIDTH, thing.LENGTH) if isinstance(thing, TrafficBarrier) else (2 * thing.RADIUS, 2 * thing.RADIUS)


def look_around(ego: Any, traffic: Iterable[Any], lines: SolidLines) -> Nearby:
    """The nearest solid line and every car or object in sight."""
    position, velocity = ego.position, ego.velocity
    to_ego = np.stack(axes(ego.heading_theta))  # the agent's box is upright in its own coordinates
    half = np.array([ego.LENGTH, ego.WIDTH]) / 2

    # Every line that could be the nearest: a box and a line are at most their own sizes nearer than their centres.
    distances = np.hypot(*(lines.middles - position).T)
    near = distances <= distances.min() + np.hypot(*half) + lines.half_lengths
    starts, ends = (lines.ends[:, near] - position) @ to_ego.T

    here = ego.origin.getPos()  # of dozens of cars most are far away; this is the quickest way to ask
    cars = [car for car in traffic if (car.origin.getPos() - here).length() < _SIGHT]
    headings = np.array([axes(car.heading_theta) for car in cars]).reshape(-1, 2, 2)  # [N, along or across, 2]
    sizes = np.array([size_of(car) for car in cars]).reshape(-1, 2, 1) / 2
    reaches = sizes * headings @ to_ego.T
    centres = (np.array([car.position for car in cars]).reshape(-1, 2) - position) @ to_ego.T
    sides = [side.reshape(-1, 2) for side in outlines(centres, reaches[:, 0], reaches[:, 1])]

    gaps, directions = gaps_to_box(np.concatenate([starts, sides[0]]), np.concatenate([ends, sides[1]]), half)
    gaps[: len(starts)] -= _LINE_HALF_WIDTH
    # The nearest line, which stands still, and the nearest side of each car.
    nearest = np.array([gaps[: len(starts)].argmin(), *gaps[len(starts) :].reshape(-1, 4).argmin(axis=1)])
    nearest[1:] += len(starts) + 4 * np.arange(len(cars))
    closing = (velocity - np.array([(0.0, 0.0), *(car.velocity for car in cars)])) @ to_ego.T
    return Nearby(gaps[nearest], directions[nearest], (directions[nearest] * closing).sum(axis=1))


def facts_of(ego: Any, nearby: Nearby, events: Mapping[str, bool]) -> Mapping[str, float]:
    """Place in the lane, heading, speed, gaps, what is being touched, and how near lines and cars are."""
    along, across = ego.lane.local_coordinates(ego.position)
    turn = ego.heading_theta - ego.lane.heading_theta_at(along)
    ahead = nearby.directions[1:, 0] > _AHEAD
    nearest = int(np.where(ahead, nearby.gaps[1:], np.inf).argmin()) if ahead.any() else None
    return {
        "hit": float(events.get("crash_vehicle", False) or events.get("crash_object", False)),
        "off_road": float(events.get("out_of_road", False)),
        "pace": float(ego.speed) / _USUAL_SPEED,
        "lane_offset": abs(float(across)) / (ego.lane.width_at(along) / 2),
        "heading_error": abs(wrapped(turn)),
        "edge_gap": float(nearby.gaps[0]),
        "vehicle_gap": float(nearby.gaps[1:].min(initial=_SIGHT)),
        "ahead_gap": _SIGHT if nearest is None else float(nearby.gaps[1 + nearest]),
        "closing_speed": 0.0 if nearest is None else float(nearby.speeds[1 + nearest]),
        "edge_hazard": float(nearby.hazards[0]),
        "vehicle_hazard": float(nearby.hazards[1:].max(initial=0.0)),
    }
