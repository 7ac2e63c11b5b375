"""MetaDrive: drive a generated road to its end among other cars; every step off the road or in a crash costs 1.

The simulator is `SafeMetaDriveEnv` of metadrive-simulator 0.4. Here an episode is a function of its scenario, its
traffic seed and the actions alone, whatever ran in the process before. That takes three changes:

* every reset builds a new engine: a reused one recycles cars and keeps a physics world with a history (`isolate =
  False` reuses it all the same, for the protocol that measures what this does);
* traffic has a seed of its own, where MetaDrive's `random_traffic` has a generator that nothing ever seeds;
* a car's neighbours are listed in an order that does not depend on memory addresses.

MetaDrive allows one engine per process. The package is imported with this module, so that a fork server that has
preloaded it starts workers without paying for the import again.
"""

from __future__ import annotations

import importlib
import logging
import math
import types
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from metadrive.component.sensors.lidar import Lidar
from metadrive.constants import Decoration, MetaDriveType, PGDrivableAreaProperty
from metadrive.engine.base_engine import BaseEngine
from metadrive.engine.core import engine_core
from metadrive.engine.engine_utils import engine_initialized
from metadrive.envs.safe_metadrive_env import SafeMetaDriveEnv
from metadrive.manager.traffic_manager import PGTrafficManager

# Imported from MetaDrive, pygame does not print its greeting.
from metadrive.obs.top_down_obs_impl import LaneGraphics, WorldSurface, pygame
from metadrive.policy.idm_policy import IDMPolicy
from numpy.typing import NDArray

from vlmsafe.envs.api import (
    Env,
    EnvSpec,
    Frame,
    Observation,
    Scenarios,
)
from vlmsafe.envs.hazard import (
    gaps_to_box,
    hazard_of,
    outlines,
    wrapped,
)
from vlmsafe.errors import EnvironmentFailure, InputError

# The engine would download textures for its 3D renderer on first use; state vectors and top-down frames need none.
BaseEngine.try_pull_asset = staticmethod(lambda: None)

# Panda3D's task manager takes over SIGINT for part of every step, so a worker that ignores Ctrl-C, or whose caller has
# its own handler, would still be interrupted. It leaves signals alone where Python has no `signal` module.
_panda_tasks: Any = importlib.import_module("direct.task.Task")
_panda_tasks.signal = None

# Closing an engine would collect garbage twice over everything the process has imported, which takes ten times as long
# as building the next one. The interpreter's own collections free a closed engine soon enough.
engine_core.gc = types.SimpleNamespace(collect=lambda: None)


_FRAME_SIZE = 256  # pixels; what the paper gives the vision-language model
_SCALE = 4.0  # pixels per metre: the frame is 64 m across
_CROP_SIZE = 2 * math.ceil(_FRAME_SIZE / math.sqrt(2))  # a square that covers the frame at any heading
_EGO_COLOUR = "#029e73"
# The palette MetaDrive's renderer takes traffic from.
_TRAFFIC_COLOURS = ["#0173b2", "#de8f05", "#d55e00", "#cc78bc", "#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9"]

# Hazard. A car in the middle of its lane has 0.8 m to a solid line beside it, which must count as next to nothing: a
# reach of a quarter of a metre makes it 0.04. Contact in one second, which is ten steps, gives 1/e.
_REACH = 0.25  # metres
_SECONDS = 1.0
_SIGHT = 60.0  # metres; a gap this wide that closes at 20 m/s would give 0.05
_USUAL_SPEED = 10.0  # m/s
_AHEAD = 0.9  # cosine between straight ahead and the way to a car that counts as ahead
_LINE_HALF_WIDTH = PGDrivableAreaProperty.LANE_LINE_WIDTH / 4  # the simulator's own, for contact


def make(spec: EnvSpec, scenarios: Scenarios, randomise: bool) -> Env:
    """Start MetaDrive at the level `spec` names."""
    return MetaDrive(spec, scenarios, randomise)


class _Traffic(PGTrafficManager):  # type: ignore[misc]
    """Traffic that is placed by its own seed, or by the scenario where that is None."""

    traffic_seed: int | None = None  # set before each reset

    def seed(self, random_seed: int) -> None:
        super().seed(random_seed if self.traffic_seed is None else self.traffic_seed)


class _OrderedLidar(Lidar):  # type: ignore[misc]
    """Lists a car's neighbours by position.

    MetaDrive returns a set, which iterates in the order of memory addresses. Which car a traffic car follows depends
    on that order once in some 100,000 decisions: seldom, but enough to part two otherwise equal training runs.
    """

    def get_surrounding_objects(self, vehicle: Any, radius: float = 50) -> list[Any]:
        nearby = super().get_surrounding_objects(vehicle, radius)
        return sorted(nearby, key=lambda other: (other.origin.getX(), other.origin.getY()))


class _Simulator(SafeMetaDriveEnv):  # type: ignore[misc]
    def setup_engine(self) -> None:
        super().setup_engine()
        self.engine.update_manager("traffic_manager", _Traffic())


class MetaDrive(Env):
    """One MetaDrive simulator; `reset(seed=i)` starts scenario `i`, which fixes the map and the agent's lane.

    With `randomise` each episode also has a traffic seed: `reset(options={"traffic_seed": n})` sets it, otherwise it
    is drawn, and the reset's info holds it. Without, traffic is part of the scenario.

    The seed of a reset is an index and does not touch `np_random`: seeded by it, the traffic of a scenario would be
    the same each time. `np_random` draws what a reset leaves open; assign a generator to it for repeatable draws.
    """

    _simulator: Any = None
    _roads: Any = None  # drawn at an episode's first frame
    _lines: _Lines | None = None  # read at an episode's first hazard
    _events: Mapping[str, bool] = MappingProxyType({})  # what went wrong in the last step

    def __init__(self, spec: EnvSpec, scenarios: Scenarios, randomise: bool) -> None:
        self._config = {
            **spec.settings,  # the number of map blocks and the traffic density
            "start_seed": scenarios.start,
            "num_scenarios": scenarios.size,
            "horizon": spec.horizon,
            "accident_prob": 0.0,
            "success_reward": 10.0,
            "out_of_road_penalty": 5.0,
            "crash_vehicle_penalty": 5.0,
            "crash_object_penalty": 5.0,
            "out_of_road_done": False,
            "crash_vehicle_done": False,
            "crash_object_done": False,
            "on_continuous_line_done": True,  # not an end here: it makes a solid line count as off the road
            "random_traffic": False,
            "sensors": {"lidar": (_OrderedLidar,)},
            "log_level": logging.CRITICAL,
        }
        self._scenarios = scenarios
        self._randomise = randomise
        self._start()
        self.observation_space = self._simulator.observation_space
        self.action_space = self._simulator.action_space

    def _start(self) -> None:
        self.close()
        if engine_initialized():
            raise EnvironmentFailure(
                "MetaDrive allows one environment per process and one is open; close it, or use another process"
            )
        self._simulator = _Simulator(self._config)
        self._simulator.lazy_init()
        self._used = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        scenario = self._scenarios.choose(seed, self.np_random)
        info = {"scenario": scenario}
        traffic_seed = (options or {}).get("traffic_seed")
        if self._randomise:
            info["traffic_seed"] = int(self.np_random.integers(2**32) if traffic_seed is None else traffic_seed)
        elif traffic_seed is not None:
            raise InputError("a traffic seed was given, but without randomisation the scenario fixes the traffic")
        if self._simulator is None or (self._used and self.isolate):
            self._start()
        self._used, self._roads, self._lines, self._events = True, None, None, {}
        self._simulator.engine.traffic_manager.traffic_seed = info.get("traffic_seed")
        observation, _ = self._simulator.reset(seed=scenario)
        return observation, info

    def step(self, action: NDArray[np.floating[Any]]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        # Python floats, because the simulator computes with what it gets: float32 actions would be rounded otherwise.
        steering, acceleration = (float(value) for value in action)
        observation, reward, terminated, truncated, info = self._simulator.step([steering, acceleration])
        events = {event: bool(info[event]) for event in ("crash_vehicle", "out_of_road")}
        plain = {"cost": float(info["cost"]), "arrived": bool(info["arrive_dest"]), **events}
        self._events = {**events, "cost": plain["cost"] > 0.0}
        return observation, float(reward), bool(terminated), bool(truncated), plain

    def progress(self) -> Mapping[str, float]:
        """The share of the route covered, the speed in m/s and the position in metres."""
        car = self._simulator.agent
        (x, y), completion = car.position, car.navigation.route_completion
        return {"route_completion": float(completion), "speed": float(car.speed), "x": float(x), "y": float(y)}

    def frame(self) -> Frame:
        """The surroundings from above, the car in the middle and heading up.

        A frame shows the current state only: MetaDrive's trails of earlier positions would grow with the number of
        frames taken, which is a setting of the scorer and not a property of the scene.
        """
        if self._roads is None:
            self._roads = _draw_roads(self._simulator.current_map.road_network)
        ego = self._simulator.agent
        x, y = self._roads.pos2pix(*ego.position)
        crop = pygame.Surface((_CROP_SIZE, _CROP_SIZE))
        crop.fill("white")
        crop.blit(self._roads, (0, 0), (x - _CROP_SIZE // 2, y - _CROP_SIZE // 2, _CROP_SIZE, _CROP_SIZE))
        turned = pygame.transform.rotozoom(crop, 90 - math.degrees(ego.heading_theta), 1.0)
        screen = pygame.Surface((_FRAME_SIZE, _FRAME_SIZE))
        screen.blit(turned, turned.get_rect(center=(_FRAME_SIZE // 2, _FRAME_SIZE // 2)))
        for box, colour in self._cars(ego):
            pygame.draw.polygon(screen, colour, box)
            pygame.draw.polygon(screen, "#3c3c3c", box, width=1)
        pixels: Frame = pygame.surfarray.array3d(screen)  # [x, y, RGB]
        return np.ascontiguousarray(pixels.transpose(1, 0, 2))

    def _cars(self, ego: Any) -> Iterator[tuple[list[tuple[float, float]], str]]:
        """Corners in pixels and colour of every car in view, the agent's own last and so on top."""
        ahead, left = _axes(ego.heading_theta)
        to_screen = -_SCALE * np.stack([left, ahead])  # the screen's x goes right, its y down
        for car in [*self._simulator.engine.traffic_manager.spawned_objects.values(), ego]:
            centre = to_screen @ (car.position - ego.position)
            if np.abs(centre).max() > _CROP_SIZE / 2:
                continue
            along, across = _axes(car.heading_theta)
            half_length = to_screen @ along * car.top_down_length / 2
            half_width = to_screen @ across * car.top_down_width / 2
            corners = half_length + half_width, half_length - half_width
            # MetaDrive draws a car's colour from the operating system's entropy; a car's seed repeats.
            colour = _EGO_COLOUR if car is ego else _TRAFFIC_COLOURS[car.random_seed % len(_TRAFFIC_COLOURS)]
            middle = _FRAME_SIZE / 2 + centre
            yield [tuple(middle + sign * corner) for sign in (1, -1) for corner in corners], colour

    def hazard(self) -> float:
        """1 while a step costs, otherwise how near the nearest thing is that would: a solid line or another car.

        Solid lines run along both edges of every road, so whoever leaves it touches one first. Of all of them the
        nearest counts: a line farther ahead is approached at full speed by everyone who drives beside it.
        """
        return 1.0 if self._events.get("cost", False) else float(self._surroundings().hazard.max())

    def facts(self) -> Mapping[str, float]:
        """Place in the lane, heading, speed, gaps, what is being touched, and how near lines and cars are."""
        ego, around = self._simulator.agent, self._surroundings()
        along, across = ego.lane.local_coordinates(ego.position)
        turn = ego.heading_theta - ego.lane.heading_theta_at(along)
        ahead = around.directions[1:, 0] > _AHEAD
        nearest = int(np.where(ahead, around.gaps[1:], np.inf).argmin()) if ahead.any() else None
        return {
            "hit": float(self._events.get("crash_vehicle", False)),
            "off_road": float(self._events.get("out_of_road", False)),
            "pace": float(ego.speed) / _USUAL_SPEED,
            "lane_offset": abs(float(across)) / (ego.lane.width_at(along) / 2),
            "heading_error": abs(wrapped(turn)),
            "edge_gap": float(around.gaps[0]),
            "vehicle_gap": float(around.gaps[1:].min(initial=_SIGHT)),
            "ahead_gap": _SIGHT if nearest is None else float(around.gaps[1 + nearest]),
            "closing_speed": 0.0 if nearest is None else float(around.speeds[1 + nearest]),
            "edge_hazard": float(around.hazard[0]),
            "vehicle_hazard": float(around.hazard[1:].max(initial=0.0)),
        }

    def expert(self) -> Callable[[], NDArray[np.float64]]:
        """MetaDrive's own driver of traffic cars: keeps its lane and its distance, and changes lanes to get on."""
        driver = IDMPolicy(self._simulator.agent, 0)
        return lambda: np.array(driver.act(), np.float64)

    def _surroundings(self) -> _Surroundings:
        """The nearest solid line and every car in sight."""
        ego = self._simulator.agent
        if self._lines is None:
            self._lines = _solid_lines(self._simulator.current_map)
        position, velocity = ego.position, ego.velocity
        to_ego = np.stack(_axes(ego.heading_theta))  # the agent's box is upright in its own coordinates
        half = np.array([ego.LENGTH, ego.WIDTH]) / 2

        # Every line that could be the nearest: a box and a line are at most their own sizes nearer than their centres.
        distances = np.hypot(*(self._lines.middles - position).T)
        near = distances <= distances.min() + np.hypot(*half) + self._lines.half_lengths
        starts, ends = (self._lines.ends[:, near] - position) @ to_ego.T

        traffic = self._simulator.engine.traffic_manager.spawned_objects.values()
        here = ego.origin.getPos()  # of dozens of cars most are far away; this is the quickest way to ask
        cars = [car for car in traffic if (car.origin.getPos() - here).length() < _SIGHT]
        axes = np.array([_axes(car.heading_theta) for car in cars]).reshape(-1, 2, 2)  # [N, along or across, 2]
        sizes = np.array([(car.LENGTH / 2, car.WIDTH / 2) for car in cars]).reshape(-1, 2, 1)
        reaches = sizes * axes @ to_ego.T
        centres = (np.array([car.position for car in cars]).reshape(-1, 2) - position) @ to_ego.T
        sides = [side.reshape(-1, 2) for side in outlines(centres, reaches[:, 0], reaches[:, 1])]

        gaps, directions = gaps_to_box(np.concatenate([starts, sides[0]]), np.concatenate([ends, sides[1]]), half)
        gaps[: len(starts)] -= _LINE_HALF_WIDTH
        # The nearest line, which stands still, and the nearest side of each car.
        nearest = np.array([gaps[: len(starts)].argmin(), *gaps[len(starts) :].reshape(-1, 4).argmin(axis=1)])
        nearest[1:] += len(starts) + 4 * np.arange(len(cars))
        closing = (velocity - np.array([(0.0, 0.0), *(car.velocity for car in cars)])) @ to_ego.T
        return _Surroundings(gaps[nearest], directions[nearest], (directions[nearest] * closing).sum(axis=1))

    def close(self) -> None:
        # MetaDrive closes whichever engine the process has, so closing twice could close another environment's.
        if self._simulator is not None:
            self._simulator.close()
        self._simulator = None
        self._roads = self._lines = None


def _axes(heading: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Unit vectors along a heading and to its left."""
    cos, sin = math.cos(heading), math.sin(heading)
    return np.array([cos, sin]), np.array([-sin, cos])


class _Surroundings(NamedTuple):
    """What is near the agent's car, the nearest line first and then cars; in its own coordinates, ahead first."""

    gaps: NDArray[np.float64]
    directions: NDArray[np.float64]
    """Unit vectors from the agent's car."""
    speeds: NDArray[np.float64]
    """At which each gap closes."""

    @property
    def hazard(self) -> NDArray[np.float64]:
        pairs = zip(self.gaps.tolist(), self.speeds.tolist(), strict=True)
        return np.array([hazard_of(gap, speed, reach=_REACH, seconds=_SECONDS) for gap, speed in pairs])


class _Lines(NamedTuple):
    """Straight pieces of solid line."""

    ends: NDArray[np.float64]
    """[2, N, 2], starts and ends."""
    middles: NDArray[np.float64]
    half_lengths: NDArray[np.float64]


def _solid_lines(world: Any) -> _Lines:
    """Every solid line of a map, read from the bodies with which the simulator tests contact."""
    solid = (MetaDriveType.LINE_SOLID_SINGLE_WHITE, MetaDriveType.LINE_SOLID_SINGLE_YELLOW)
    middles, half_lengths, headings = [], [], []
    for body in (body for block in world.blocks for body in block.static_nodes if body.getName() in solid):
        place = body.getTransform()
        middles.append(tuple(place.getPos())[:2])
        half_lengths.append(body.getShape(0).getHalfExtentsWithMargin()[0])
        headings.append(_axes(math.radians(place.getHpr()[0]))[0])
    half = np.array(half_lengths)[:, None] * np.array(headings)
    return _Lines(np.array(middles) + np.stack([-half, half]), np.array(middles), np.array(half_lengths))


def _draw_roads(network: Any) -> Any:
    """The road lines of a whole map at the frame's scale.

    MetaDrive's own top-down renderer draws them on a film of fixed size and shrinks the scale of maps that are too
    large for it. This one is as large as the map, so that a pixel is the same length on every map.
    """
    lanes_to_draw = [
        (lane, lane is lanes[-1] or start == Decoration.start)
        for start, ends in network.graph.items()
        for lanes in ends.values()
        for lane in lanes
    ]
    # The network's own bounding box cuts off up to 4 m of a bend.
    outline = np.concatenate([lane.polygon for lane, _ in lanes_to_draw])
    lowest, highest = outline.min(axis=0)[:2] - 1.0, outline.max(axis=0)[:2] + 1.0
    width, height = np.ceil((highest - lowest) * _SCALE).astype(int).tolist()
    roads = WorldSurface((width, height), 0, pygame.Surface((1, 1)))
    roads.scaling = _SCALE
    roads.origin = lowest
    for lane, both_sides in lanes_to_draw:
        LaneGraphics.display(lane, roads, both_sides, use_line_color=True)
    return roads
