"""The cars of one step by lane, and which of them a car has in front of it and behind.

MetaDrive asks its physics engine once per car which others are within 50 m, and looks at all of them for each of three
lanes. Only those within 30 m along a lane decide anything, so here a car looks at its own lanes and at those joined to
them, and the physics engine is asked only where the distance leaves a doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from vlmsafe.envs.metadrive.lanes import Lanes

SURELY_SEEN, SURELY_UNSEEN = 49.0, 56.0
"""MetaDrive's cars see others whose box touches a cylinder of 50 m around them. Between these distances of the centres
the physics engine is asked; the longest car is 5.8 m long."""
SURELY_LEVEL = (-1.0, 2.0)
"""Heights of a car's origin at which its box surely reaches into the cylinder, which is 5 m high."""

Neighbours = tuple["Car | None", float, float]
"""The next car ahead in a lane, the distance to it, and the distance to the last car behind."""


class Car:
    """A vehicle, or an object of an accident, during one step: where it is, and in which lane."""

    __slots__ = ("along", "lane", "reached", "vehicle", "x", "y", "z")

    def __init__(self, vehicle: Any) -> None:
        self.vehicle = vehicle
        self.x, self.y, self.z = vehicle.origin.getPos()
        self.lane = vehicle.lane
        self.along: float | None = None  # place in its lane
        self.reached: list[Any] | None = None  # the neighbours that the physics engine names

    def sees(self, other: Car) -> bool:
        """Whether MetaDrive would count the other car as a neighbour."""
        dx, dy = other.x - self.x, other.y - self.y
        squared = dx * dx + dy * dy
        if squared > SURELY_UNSEEN**2:
            return False
        if squared < SURELY_SEEN**2 and SURELY_LEVEL[0] < other.z < SURELY_LEVEL[1]:
            return True
        if self.reached is None:
            self.reached = self.vehicle.lidar.get_surrounding_objects(self.vehicle)
        return other.vehicle in self.reached


class Cars:
    """All vehicles between two steps, by lane."""

    def __init__(self, vehicles: Iterable[Any], lanes: Lanes) -> None:
        self.lanes = lanes
        self._cars = {vehicle: Car(vehicle) for vehicle in vehicles}
        self._by_lane: dict[Any, list[tuple[float, float, Car]]] = {}
        for car in self._cars.values():
            self._by_lane.setdefault(car.lane, []).append((car.x, car.y, car))
        self._related: dict[Any, list[tuple[Car, bool, bool]]] = {}

    def __getitem__(self, vehicle: Any) -> Car:
        return self._cars[vehicle]

    def __iter__(self) -> Iterator[Car]:
        return iter(self._cars.values())

    def along(self, car: Car) -> float:
        """How far the car is along its own lane."""
        if car.along is None:
            car.along = self.lanes.line(car.lane).place(car.x, car.y)[0]
        return car.along

    def neighbours(self, car: Car, lane: Any, reach: float) -> Neighbours:
        """The nearest cars ahead and behind in a lane and the lanes joined to it, up to `reach` metres away.

        As in MetaDrive, a car in a joined lane counts only until one in the lane itself has been found, so the order
        in which cars are looked at matters.
        """
        line = self.lanes.line(lane)
        here = self.along(car) if lane is car.lane else line.place(car.x, car.y)[0]
        left = line.length - here
        front, ahead, behind = None, reach, reach
        found_front = found_back = False
        for other, follows, precedes in self._related_to(lane):
            if other is car:
                continue
            # Whether the other car is seen is asked last: most cars are too far away to matter.
            if other.lane is lane:
                distance = self.along(other) - here
                if ahead > distance > 0 and car.sees(other):
                    front, ahead, found_front = other, distance, True
                if distance < 0 and -distance < behind and car.sees(other):
                    behind, found_back = -distance, True
            elif follows and not found_front:
                distance = self.along(other) + left
                if ahead > distance > 0 and car.sees(other):
                    front, ahead = other, distance
            elif precedes and not found_back:
                distance = self.lanes.line(other.lane).length - self.along(other) + here
                if distance < behind and car.sees(other):
                    behind = distance
        return front, ahead, behind

    def _related_to(self, lane: Any) -> list[tuple[Car, bool, bool]]:
        """The cars in a lane and in those joined to it, with how their lane is joined, by position."""
        known = self._related.get(lane)
        if known is None:
            found = [(x, y, car, False, False) for x, y, car in self._by_lane.get(lane, ())]
            for other, follows, precedes in self.lanes.joined(lane):
                found += [(x, y, car, follows, precedes) for x, y, car in self._by_lane.get(other, ())]
            found.sort(key=lambda entry: entry[:2])
            known = self._related[lane] = [entry[2:] for entry in found]
        return known
