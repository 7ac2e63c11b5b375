"""MetaDrive's traffic with the same trajectories for a fraction of the time.

After each step MetaDrive computes for every traffic car what only an agent's observation and reward read: contacts,
distances to the road's edges, energy, the way to the next checkpoints. Here a traffic car is only localised, which
decides how it drives on. `benchmarks/metadrive.py` compares the trajectories bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

from metadrive.component.road_network import Road
from metadrive.policy.idm_policy import IDMPolicy
from panda3d.core import BitMask32, Point3

from vlmsafe.envs.metadrive.driver import Driver, control, heading_of, limited
from vlmsafe.envs.metadrive.lanes import Lanes
from vlmsafe.envs.metadrive.neighbours import Cars
from vlmsafe.envs.metadrive.simulator import SeededTraffic, on_the_road

LANE_SURFACE = BitMask32.bit(5)  # lanes have this bit and painted lines do not


class FastTraffic(SeededTraffic):
    """Moves the traffic cars as `PGTrafficManager` does."""

    _lanes: Lanes | None = None
    _cars: Cars | None = None

    def reset(self) -> Any:
        self._lanes = self._cars = None
        return super().reset()

    def add_policy(self, object_id: str, policy_class: type, *args: Any, **kwargs: Any) -> Any:
        return super().add_policy(object_id, Driver if policy_class is IDMPolicy else policy_class, *args, **kwargs)

    @property
    def lanes(self) -> Lanes:
        if self._lanes is None:
            self._lanes = Lanes(self.current_map.road_network)
        return self._lanes

    @property
    def cars(self) -> Cars:
        """The vehicles, and the objects of accidents, as the last step left them."""
        if self._cars is None:
            agents = self.engine.agent_manager.active_agents.values()
            self._cars = Cars([*on_the_road(self.engine), *agents], self.lanes)
        return self._cars

    def before_step(self) -> dict[str, Any]:
        self._start_waiting_cars()
        for vehicle in self._traffic_vehicles:
            steering, acceleration = self.engine.get_policy(vehicle.name).act()
            control(vehicle, limited(steering), limited(acceleration))
        return {}

    def _start_waiting_cars(self) -> None:
        """The cars of a block set off when the agent enters the road before it."""
        for agent in self.engine.agent_manager.active_agents.values():
            if self.block_triggered_vehicles:
                start, end, _ = agent.lane_index
                if Road(start, end) == self.block_triggered_vehicles[-1].trigger_road:
                    started = self.block_triggered_vehicles.pop()
                    self._traffic_vehicles += list(self.get_objects(started.vehicles).values())

    def after_step(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        self._cars = None
        world = self.engine.physics_world.static_world
        for vehicle in self._traffic_vehicles:
            self._localise(vehicle, world)
        for vehicle in [vehicle for vehicle in self._traffic_vehicles if not vehicle.on_lane]:
            self.clear_objects([vehicle.id])
            self._traffic_vehicles.remove(vehicle)
        return {}

    def _localise(self, vehicle: Any, world: Any) -> None:
        """Find the lane that the car is in, and whether it has come to the next road of its route."""
        navigation = vehicle.navigation
        x, y, _ = vehicle.origin.getPos()
        lane, along, vehicle.on_lane = self._lane_at(navigation, x, y, heading_of(vehicle), world)
        if lane is None:
            lane = navigation.current_lane
            along = self.lanes.line(lane).place(x, y)[0]
        target = navigation._target_checkpoints_index
        if (
            target[0] != target[1]
            and along < navigation.CKPT_UPDATE_RANGE
            and lane.index[0] in navigation.checkpoints[target[1] :]
        ):
            navigation.update_localization(vehicle)  # MetaDrive's own, which also moves to the next road
        navigation._current_lane = lane

    def _lane_at(self, navigation: Any, x: float, y: float, theta: float, world: Any) -> tuple[Any | None, float, bool]:
        """The nearest lane of the car's road, or of its next one, or any, among those under it that lead its way."""
        hits = world.rayTestAll(Point3(x, y, 1.0), Point3(x, y, -1.0), LANE_SURFACE).getHits()
        network = self.current_map.road_network
        cos, sin = math.cos(theta), math.sin(theta)
        found: list[tuple[float, Any, float]] = []
        for hit in hits:
            node = hit.getNode()
            lane = network.get_lane(node.getPythonTag(node.getName()).base_object_name)
            line = self.lanes.line(lane)
            along, aside = line.place(x, y)
            direction = line.heading(along)
            if math.cos(direction) * cos + math.sin(direction) * sin > 0:
                beyond, before = along - line.length, 0 - along
                distance = abs(aside) + (beyond if beyond > 0 else 0) + (before if before > 0 else 0)
                found.append((distance, lane, along))
        found.sort(key=lambda entry: entry[0])
        choices = [navigation.current_ref_lanes]
        if navigation.next_ref_lanes is not None:
            following = navigation._target_checkpoints_index[-1]
            choices.append(network.graph[navigation.checkpoints[following]][navigation.checkpoints[following + 1]])
        for choice in choices:
            for _, lane, along in found:
                if lane in choice:
                    return lane, along, True
        return (found[0][1], found[0][2], True) if found else (None, 0.0, bool(hits))
