"""MetaDrive's driver of traffic cars: the same rules and the same numbers for a fraction of the time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from metadrive.policy.idm_policy import IDMPolicy

from vlmsafe.envs.metadrive.lanes import wrap
from vlmsafe.envs.metadrive.neighbours import Car, Cars, Neighbours


class Driver(IDMPolicy):  # type: ignore[misc]
    """MetaDrive's driver of traffic cars, with its state and its rules."""

    def act(self, *args: Any, **kwargs: Any) -> list[float]:
        cars: Cars = self.engine.traffic_manager.cars
        car = cars[self.control_object]
        front, gap, lane = self._plan(cars, car)
        line = cars.lanes.line(lane)
        along, aside = line.place(car.x, car.y)
        theta = heading_of(self.control_object)
        steering = self.heading_pid.get_result(-wrap(line.heading(along + 1) - theta))
        steering += self.lateral_pid.get_result(-aside)
        action = [steering, self._acceleration(theta, front, gap)]
        self.action_info["action"] = action
        return action

    def _plan(self, cars: Cars, car: Car) -> tuple[Car | None, float, Any]:
        """The car to follow, the distance to it, and the lane to steer for."""
        on_route = self.move_to_next_road()
        lane, reach = self.routing_target_lane, self.MAX_LONG_DIST
        front, ahead, _ = cars.neighbours(car, lane, reach)
        if not (on_route and self.enable_lane_change):
            return front, ahead, lane
        navigation = self.control_object.navigation
        lanes, index = navigation.current_ref_lanes, lane.index[-1]

        def beside(offset: int) -> Neighbours | None:
            exists = 0 <= index + offset < len(lanes)
            return cars.neighbours(car, lanes[index + offset], reach) if exists else None

        allowed = self._lanes_that_go_on(lanes, navigation.next_ref_lanes)
        self.available_routing_index_range = list(allowed)
        if index not in allowed:
            # The lane ends, so the car changes to the left or to the right, or creeps until it can.
            offset = -1 if index > allowed[-1] else 1
            other = beside(offset)
            assert other is not None
            if other[2] < self.SAFE_LANE_CHANGE_DISTANCE or other[1] < 5:
                self.target_speed = self.CREEP_SPEED
                return front, ahead, lane
            self.target_speed = self.NORMAL_SPEED
            return other[0], other[1], lanes[index + offset]
        if front is not None and self._held_up(front):
            overtaking = self._overtake(front, beside, allowed, index)
            if overtaking is not None:
                offset, other = overtaking
                return other[0], other[1], lanes[index + offset]
        self.target_speed = self.NORMAL_SPEED
        self.overtake_timer += 1
        return front, ahead, lane

    def _lanes_that_go_on(self, lanes: list[Any], following: list[Any] | None) -> range:
        """The indices of the lanes that the next road continues."""
        fewer = 0 if following is None else len(lanes) - len(following)
        if following is None or fewer <= 0:
            return range(len(lanes))
        return range(len(following)) if lanes[0].is_previous_lane_of(following[0]) else range(fewer, len(lanes))

    def _held_up(self, front: Car) -> bool:
        """Whether the car and the one in front both drive at another speed than they want, and for long enough."""
        return (
            self.overtake_timer > self.LANE_CHANGE_FREQ
            and abs(self.control_object.speed_km_h - self.NORMAL_SPEED) > 3
            and abs(front.vehicle.speed_km_h - self.NORMAL_SPEED) > 3
        )

    def _overtake(self, front: Car, beside: Any, allowed: range, index: int) -> tuple[int, Neighbours] | None:
        """The side on which the traffic is faster, the left one first, with the neighbours there."""
        speed = front.vehicle.speed_km_h
        for offset in (-1, 1):
            other = beside(offset)
            if other is None or index + offset not in allowed:
                continue
            if other[0] is not None:
                faster = other[0].vehicle.speed_km_h - speed > self.LANE_CHANGE_SPEED_INCREASE
            else:
                clear = min(other[1], other[2]) > self.SAFE_LANE_CHANGE_DISTANCE
                faster = clear and self.MAX_SPEED - speed > self.LANE_CHANGE_SPEED_INCREASE
            if faster:
                return offset, other
        return None

    def _acceleration(self, theta: float, front: Car | None, gap: float) -> float:
        """The intelligent driver model: towards the wanted speed, away from the car in front."""
        vx, vy = velocity_km_h(self.control_object)
        speed = self.control_object.speed_km_h
        # numpy's power may be another than the C library's, and its dot product fuses operations: both are kept.
        acceleration = self.ACC_FACTOR * (1 - float(np.power(max(speed, 0) / self.target_speed, self.DELTA)))
        if front is not None and not self.disable_idm_deceleration:
            fx, fy = velocity_km_h(front.vehicle)
            closing = float(np.dot([vx - fx, vy - fy], [math.cos(theta), math.sin(theta)]))
            comfort = 2 * math.sqrt(-self.ACC_FACTOR * self.DEACC_FACTOR)
            wished = self.DISTANCE_WANTED + speed * self.TIME_WANTED + speed * closing / comfort
            acceleration -= self.ACC_FACTOR * (wished / _not_zero(gap)) ** 2
        return acceleration


def heading_of(vehicle: Any) -> float:
    """The direction in which a vehicle points; Panda's zero is a quarter turn to the right of MetaDrive's."""
    return wrap(wrap(vehicle.origin.getH() / 180 * math.pi) + math.pi / 2)


def velocity_km_h(vehicle: Any) -> tuple[float, float]:
    velocity = vehicle.body.get_linear_velocity()
    return velocity[0] * 3.6, velocity[1] * 3.6


def _not_zero(distance: float) -> float:
    if abs(distance) > 1e-2:
        return distance
    return 1e-2 if distance > 0 else -1e-2


def control(vehicle: Any, steering: float, throttle: float) -> None:
    """Set the wheels: both front ones steer, all four drive or brake."""
    system, config = vehicle.system, vehicle.config
    vehicle.steering, vehicle.throttle_brake = steering, throttle
    for wheel in (0, 1):
        system.setSteeringValue(steering * vehicle.max_steering, wheel)
    if throttle >= 0:
        brake = 2.0
        force = 0.0 if vehicle.speed_km_h > config["max_speed_km_h"] else config["max_engine_force"] * throttle
    elif vehicle.enable_reverse:
        brake, force = 0.0, config["max_engine_force"] * throttle
    else:
        brake, force = abs(throttle) * config["max_brake_force"], 0.0
    for wheel in range(4):
        system.setBrake(brake, wheel)
        system.applyEngineForce(force, wheel)


def limited(value: float) -> float:
    """Within -1 and 1; what is not a number counts as 0."""
    return 0.0 if math.isnan(value) else min(max(value, -1.0), 1.0)
