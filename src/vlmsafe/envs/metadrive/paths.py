"""Where a car that keeps to its lane will be: the centre lines of the lanes ahead of it, as points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.metadrive.lanes import wrap

Array = NDArray[np.float64]

_STEP = 1.0  # metres between points
_REACH = 60.0  # metres that a path goes on after its first lane
_BEYOND = 100.0  # metres by which its end is extended straight ahead
_SMOOTH = 5  # points over which the curvature is averaged


@dataclass(frozen=True)
class Path:
    """Points along consecutive lanes. `along` counts from the start of the first lane."""

    along: Array
    x: Array
    y: Array
    heading: Array
    """Without jumps of a full turn."""
    curvature: Array
    """1 / radius, positive to the left; averaged over a few metres."""

    def at(self, along: Array | float, left: Array | float = 0.0) -> tuple[Array, Array, Array]:
        """Position and heading at places along the path, or to the left of it."""
        x, y, heading = (np.asarray(np.interp(along, self.along, part)) for part in (self.x, self.y, self.heading))
        return x - left * np.sin(heading), y + left * np.cos(heading), heading

    def bends(self, along: Array) -> Array:
        """The curvature at places along the path."""
        return np.asarray(np.interp(along, self.along, self.curvature))


class MapPaths:
    """The paths of one map."""

    def __init__(self, road_network: Any) -> None:
        self._graph = road_network.graph
        self._known: dict[tuple[Any, ...], Path] = {}

    def ahead(self, lane: Any, route: list[str]) -> Path:
        """The path from the start of a lane along a route, which is a list of nodes."""
        lanes, length = [lane], 0.0
        while length < _REACH and (following := self._next(lanes[-1], route)) is not None and following not in lanes:
            lanes.append(following)
            length += following.length
        key = tuple(part.index for part in lanes)
        if key not in self._known:
            self._known[key] = path_of(lanes)
        return self._known[key]

    def _next(self, lane: Any, route: list[str]) -> Any | None:
        """The lane that continues a lane on the next road of a route, if there is one."""
        start, end, _ = lane.index
        for here, (first, second) in enumerate(pairwise(route)):
            if (first, second) == (start, end) and here + 2 < len(route):
                choices = self._graph[end][route[here + 2]]
                return min(choices, key=lambda other: math.dist(other.start, lane.end))
        return None


def path_of(lanes: list[Any]) -> Path:
    """The centre lines of lanes that follow each other, and a straight line beyond the last one."""
    along, heading, curvature, before = [], [], [], 0.0
    x: list[float] = []
    y: list[float] = []
    for lane in lanes:
        count = max(2, round(lane.length / _STEP) + 1)
        for place in np.linspace(0.0, lane.length, count)[: None if lane is lanes[-1] else -1]:
            along.append(before + place)
            for values, value in zip((x, y), lane.position(place, 0.0), strict=True):
                values.append(float(value))
            heading.append(lane.heading_theta_at(place))
            curvature.append(wrap(lane.heading_theta_at(place + 0.5) - lane.heading_theta_at(place - 0.5)))
        before += lane.length
    along.append(before + _BEYOND)
    x.append(x[-1] + _BEYOND * math.cos(heading[-1]))
    y.append(y[-1] + _BEYOND * math.sin(heading[-1]))
    heading.append(heading[-1])
    curvature.append(0.0)
    padded = np.pad(curvature, _SMOOTH // 2, mode="edge")
    smooth = np.convolve(padded, np.full(_SMOOTH, 1.0 / _SMOOTH), mode="valid")
    return Path(np.array(along), np.array(x), np.array(y), np.unwrap(heading), smooth)
