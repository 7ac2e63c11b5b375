"""The simulation: Bullet Safety-Gym's bodies, placed and moved so that a scenario and the actions decide everything.

The package ignores seeds: it draws layouts from the global generators, moves its box by wall-clock time, and keeps
motor commands, goal and box over a reset. Here an episode starts from the state of a newly built world, with motors
that have had no command. The scenario decides what the package leaves to chance, and the box moves by simulated time.
The result equals that of a new world for each episode, without the 0.2 s to build one.

A step reads the simulator once and computes from that; the package asks it some fifty times for the same states.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.bullet.package import EnvironmentBuilder, get_physics_parameters, pb, real_streams
from vlmsafe.envs.bullet.scene import BOX_ORBIT, CAR_RADIUS, GOAL_RADIUS, PUDDLE_RADIUS, Scene

Array = NDArray[np.float64]

OBSERVATIONS = 57
_ROOM = {"name": "SmallRoom"}
_OBSTACLES = {
    "Box": {"number": 1, "fixed_base": False, "movement": "circular"},
    "Puddle": {"number": 8, "fixed_base": True, "movement": "static"},
}
_PUDDLES = 8
_SPREAD = 7.0  # metres from the middle of the room: cars, goals and obstacles are placed within this square
_CLEARANCE = 2.5  # between things at the start
_GOAL_CLEARANCE = 1.5  # of a new goal from the car and from every obstacle
_TOP_GOAL_SPEED = 5.0  # m/s; a faster car drives over the goal without reaching it
_CAR_HEIGHT = 0.2
_TOO_HIGH = 2.0  # metres; the task charges a cost for flying
_UPRIGHT = (0.0, 0.0, 0.0, 1.0)

_RAYS = 24
_RAY_LENGTH = 5.0
_RAY_ORIGIN = np.array([0.2, 0.0, 0.3])  # on the car
_angles = 2.0 * math.pi * np.arange(_RAYS) / _RAYS
_RAY_ENDS = _RAY_LENGTH * np.stack([np.sin(_angles), np.cos(_angles), np.zeros(_RAYS)], axis=1)


@dataclass(frozen=True)
class ReachTask:
    """Rewards of a task, and where its goals lie."""

    scale: float
    """Reward per metre by which the goal comes nearer."""
    bonus: float
    """Added on reaching it."""
    corners: bool
    """Whether goals alternate between two corners, and layouts come from the package as it is."""


TASKS = {
    "original": ReachTask(scale=1.0, bonus=5.0, corners=False),
    "fork": ReachTask(scale=3.0, bonus=30.0, corners=True),
}


@dataclass(frozen=True)
class WorldLayout:
    """How an episode starts."""

    car: Array  # [2]
    yaw: float
    goal: Array  # [2]
    puddles: Array  # [8, 2]
    box: Array  # [2], the middle of its path


def draw_layout(rng: np.random.Generator) -> WorldLayout:
    """Everything anywhere in the square, but 2.5 m from each other; the box may come nearer on its path."""
    placed = [_anywhere(rng)]
    while len(placed) < 2 + _PUDDLES + 1:
        place = _anywhere(rng)
        if _nearest(np.array(placed), place) > _CLEARANCE:
            placed.append(place)
    car, goal, box, *puddles = placed
    return WorldLayout(car, float(rng.uniform(-math.pi, math.pi)), goal, np.array(puddles), box)


def draw_goal(rng: np.random.Generator, occupied: Array) -> Array:
    """Anywhere in the square but within 1.5 m of what is there."""
    while True:
        place = _anywhere(rng)
        if _nearest(occupied, place) > _GOAL_CLEARANCE:
            return place


def _anywhere(rng: np.random.Generator) -> Array:
    return rng.uniform(-_SPREAD, _SPREAD, 2)


def _nearest(places: Array, place: Array) -> float:
    return float(np.hypot(*(places - place).T).min())


@contextlib.contextmanager
def _global_generators(seed: int) -> Iterator[None]:
    """Seed the generators that the package draws from, and restore them afterwards."""
    state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


class _Bodies(EnvironmentBuilder):  # type: ignore[misc]
    """The package's world without its constructor, which makes spaces that Gymnasium warns about."""

    def __init__(self, physics_steps: int) -> None:
        self.input_parameters = {"agent": "RaceCar", "task": "ReachGoalTask", "obstacles": _OBSTACLES, "world": _ROOM}
        self.use_graphics = self.debug = False
        step, _, iterations = get_physics_parameters("ReachGoalTask", "RaceCar")
        self.time_step, self.frame_skip, self.number_solver_iterations = step, physics_steps, iterations
        self.dt = step * physics_steps
        self.bc = self._setup_client_and_physics()
        self.bullet_client_id = self.bc._client
        self._setup_simulation()


class World:
    """The simulation: start an episode, then advance it."""

    goals: int  # reached in this episode
    goal: Array  # [2]
    puddles: Array  # [8, 2], their centres
    orbit: Array  # [2], the middle of the box's path
    in_puddle: bool  # at the end of the last step, as is all that follows
    at_box: bool
    place: Array  # [2], the car's
    position: tuple[float, float, float]
    velocity: tuple[float, float, float]
    goal_distance: float

    def __init__(self, task: ReachTask, physics_steps: int) -> None:
        """`physics_steps` of 1/60 s make a step."""
        self.task = task
        with _global_generators(0), real_streams():
            self.bodies: Any = _Bodies(physics_steps)
        self._client: int = self.bodies.bullet_client_id
        self._car_id: int = self.bodies.agent.body_id
        self._box, *self._puddles = self.bodies.obstacles
        self._goal_id: int = self.bodies.task.goal.body_id
        self._unused: int = pb.saveState(physicsClientId=self._client)

    def start(self, scenario: int) -> None:
        """Begin an episode from a clean state: no motions, contacts or motor commands are left from the last one."""
        pb.restoreState(self._unused, physicsClientId=self._client)
        for joint in self.bodies.agent.joint_list:
            pb.setJointMotorControl2(
                self._car_id, joint.index, pb.VELOCITY_CONTROL, targetVelocity=0, force=0, physicsClientId=self._client
            )
        self._rng = np.random.default_rng(scenario)
        self._steps = self.goals = 0
        if self.task.corners:
            self._arrange_as_the_package(scenario)
        else:
            self._arrange(draw_layout(self._rng))
        self._phase = float(self._rng.uniform(0.0, 2.0 * math.pi))
        self._move_box()
        pb.stepSimulation(physicsClientId=self._client)
        self._look()

    def _arrange(self, layout: WorldLayout) -> None:
        """Place everything; wheels and steering start a little off their middle, as in the package."""
        for joint in self.bodies.agent.motor_list:
            joint.set_state(float(self._rng.uniform(-0.1, 0.1)), 0.0)
        self._put(self._car_id, layout.car, _CAR_HEIGHT, layout.yaw)
        self._put(self._box.body_id, layout.box, 0.0, float(self._rng.uniform(0.0, 2.0 * math.pi)))
        for puddle, place in zip(self._puddles, layout.puddles, strict=True):
            self._put(puddle.body_id, place)
        self.goal, self.puddles, self.orbit = layout.goal, layout.puddles, layout.box
        self._put(self._goal_id, layout.goal)

    def _arrange_as_the_package(self, scenario: int) -> None:
        """The package's own layout in its first episode; it keeps puddles away from the middle only."""
        self.bodies.task.switch_flag = False
        with _global_generators(scenario):
            self.bodies.task.specific_reset()
        self.goal = np.array(self._place_of(self._goal_id))
        self.puddles = np.array([self._place_of(puddle.body_id) for puddle in self._puddles])
        self.orbit = np.array(self._box.init_xyz[:2], np.float64)

    def _put(self, body: int, place: Array, height: float = 0.0, yaw: float = 0.0) -> None:
        turn = pb.getQuaternionFromEuler((0.0, 0.0, yaw)) if yaw else _UPRIGHT
        pb.resetBasePositionAndOrientation(body, (*place.tolist(), height), turn, physicsClientId=self._client)

    def _place_of(self, body: int) -> tuple[float, float]:
        (x, y, _), _ = pb.getBasePositionAndOrientation(body, physicsClientId=self._client)
        return x, y

    def _move_box(self) -> None:
        """Pull the box along its circle."""
        x, y = self.box_after(np.zeros(())).tolist()
        pb.changeConstraint(self._box.constraint, (x, y, 0.0), physicsClientId=self._client)

    def box_after(self, seconds: Array) -> Array:
        """Where on its path the box will be pulled to, [..., 2], after `seconds`."""
        angle = self._steps * self.bodies.dt + self._phase + seconds
        return self.orbit + BOX_ORBIT * np.stack([np.sin(angle), np.cos(angle)], axis=-1)

    def advance(self, action: NDArray[np.floating[Any]]) -> tuple[float, float]:
        """One step: (reward, cost)."""
        before = self.goal_distance
        self._steps += 1
        self._command(*np.asarray(action, np.float64).tolist())
        self._move_box()
        pb.stepSimulation(physicsClientId=self._client)
        self._look()
        reward = self.task.scale * (before - self.goal_distance)
        too_high = self.position[2] > _TOO_HIGH
        cost = float(self.in_puddle or self.at_box or too_high)
        if self.goal_distance < GOAL_RADIUS and math.hypot(*self.velocity) < _TOP_GOAL_SPEED:
            reward += self.task.bonus
            self.goals += 1
            self._next_goal()
        return reward, cost

    def _command(self, speed: float, steering: float) -> None:
        """Set the motors; the package's own function clips actions, and the original's does not."""
        agent = self.bodies.agent
        for wheel in agent.motorized_wheels:
            pb.setJointMotorControl2(
                self._car_id, wheel, pb.VELOCITY_CONTROL, targetVelocity=speed * agent.speed_multiplier,
                force=agent.max_force, physicsClientId=self._client,
            )  # fmt: skip
        for hinge in agent.steering_links:
            pb.setJointMotorControl2(
                self._car_id, hinge, pb.POSITION_CONTROL, targetPosition=steering * agent.steering_multiplier,
                physicsClientId=self._client,
            )  # fmt: skip

    def _look(self) -> None:
        """Read the car's state, and what it touches."""
        self.position, self._turn = pb.getBasePositionAndOrientation(self._car_id, physicsClientId=self._client)
        self.velocity, self._spin = pb.getBaseVelocity(self._car_id, physicsClientId=self._client)
        self.place = np.array(self.position[:2])
        way = self.puddles - self.place
        self._puddle_ways, self._puddle_distances = way, np.hypot(way[:, 0], way[:, 1])
        self.in_puddle = bool(self._puddle_distances.min() - CAR_RADIUS - PUDDLE_RADIUS <= 0.0)
        self.at_box = self.touches(self._box.body_id)
        self._measure_goal()

    def _measure_goal(self) -> None:
        self.goal_distance = math.hypot(self.goal[0] - self.position[0], self.goal[1] - self.position[1])

    def _next_goal(self) -> None:
        if self.task.corners:
            self.bodies.task.update_goal()
            self.goal = np.array(self._place_of(self._goal_id))
        else:
            occupied = np.vstack([self.place, self._place_of(self._box.body_id), self.puddles])
            self.goal = draw_goal(self._rng, occupied)
            self._put(self._goal_id, self.goal)
        self._measure_goal()

    def touches(self, body: int) -> bool:
        """Whether the car touched another body at the end of the last step."""
        return bool(pb.getContactPoints(self._car_id, body, physicsClientId=self._client))

    def observe(self) -> NDArray[np.float32]:
        """The package's 57 numbers: 7 of the car, 24 rays, 24 directions to puddles, and the way to the goal."""
        rotation = np.array(pb.getMatrixFromQuaternion(self._turn)).reshape(3, 3)
        start = self.position + rotation @ _RAY_ORIGIN
        ends = start + _RAY_ENDS @ rotation.T
        hits = pb.rayTestBatch([start.tolist()] * _RAYS, ends.tolist(), physicsClientId=self._client)
        yaw = self.yaw
        told = np.zeros(OBSERVATIONS)
        told[:2] = 0.1 * self.place
        told[2:4] = self.velocity[:2]
        told[4:7] = math.sin(yaw), math.cos(yaw), 0.1 * self._spin[2]
        told[7:31] = [1.0 - hit[2] for hit in hits]
        near = self._puddle_distances <= _RAY_LENGTH
        back = -self._puddle_ways[near]  # the package measures angles from the puddle to the car, and half a turn more
        bins = ((np.arctan2(back[:, 0], back[:, 1]) + np.pi) // (2.0 * np.pi / _RAYS)).astype(int)
        np.maximum.at(told[31:55], bins % _RAYS, 1.0 - self._puddle_distances[near] / _RAY_LENGTH)
        told[55:] = (self.goal - self.place) / 20.0
        return told.astype(np.float32)

    @property
    def yaw(self) -> float:
        return float(pb.getEulerFromQuaternion(self._turn)[2])

    def scene(self) -> Scene:
        """Where everything is now."""
        box, box_turn = pb.getBasePositionAndOrientation(self._box.body_id, physicsClientId=self._client)
        box_velocity, _ = pb.getBaseVelocity(self._box.body_id, physicsClientId=self._client)
        yaw = self.yaw
        return Scene(
            car=self.place,
            forward=np.array([math.cos(yaw), math.sin(yaw)]),
            velocity=np.array(self.velocity[:2]),
            goal=self.goal,
            puddles=self.puddles,
            box=np.array(box[:2]),
            box_yaw=float(pb.getEulerFromQuaternion(box_turn)[2]),
            box_velocity=np.array(box_velocity[:2]),
        )

    def close(self) -> None:
        self.bodies.close()
