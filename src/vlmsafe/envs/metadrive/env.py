"""MetaDrive: drive a generated road to its end among other cars; every step off the road or in a crash costs 1.

The simulator is `SafeMetaDriveEnv` of metadrive-simulator 0.4. `simulator` describes what was changed so that episodes
can be repeated exactly, and `fast` how the same episodes are simulated in less time.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
from metadrive.engine.engine_utils import engine_initialized
from numpy.typing import NDArray

from vlmsafe.envs.api import Env, EnvSpec, Frame, Observation, Scenarios
from vlmsafe.envs.metadrive.careful import CarefulDriver
from vlmsafe.envs.metadrive.internals import difference
from vlmsafe.envs.metadrive.painter import draw_frame, draw_roads
from vlmsafe.envs.metadrive.ramps import mended_blocks
from vlmsafe.envs.metadrive.scene import Nearby, SolidLines, facts_of, look_around, solid_lines
from vlmsafe.envs.metadrive.simulator import OrderedLidar, Simulator, on_the_road
from vlmsafe.errors import EnvironmentFailure, InputError

if difference() is None:
    from vlmsafe.envs.metadrive.fast import FastSimulator
    from vlmsafe.envs.metadrive.reuse import Reuse
else:
    # Printed where the module is imported: once for all workers, which their server forks.
    line = f"MetaDrive runs at its own speed: {difference()}; steps take about three times as long"
    print(line, file=sys.stderr, flush=True)


PAPER: Mapping[str, Any] = MappingProxyType(
    {
        "accident_prob": 0.0,
        "success_reward": 10.0,
        "out_of_road_penalty": 5.0,
        "crash_vehicle_penalty": 5.0,
        "crash_object_penalty": 5.0,
        "out_of_road_done": False,
        "crash_vehicle_done": False,
        "crash_object_done": False,
        "on_continuous_line_done": True,  # not an end here: it makes a solid line count as off the road
    }
)
"""The rules of the paper's world. The settings of a variant replace them."""


def make(spec: EnvSpec, scenarios: Scenarios, randomise: bool) -> Env:
    """Called by `EnvSpec.make`."""
    return MetaDrive(spec, scenarios, randomise)


class MetaDrive(Env):
    """One MetaDrive simulator; `reset(seed=i)` starts scenario `i`, which fixes the map and the agent's lane.

    With `randomise` each episode also has a traffic seed: `reset(options={"traffic_seed": n})` sets it, otherwise it
    is drawn, and the reset's info holds it. Without `randomise`, traffic is part of the scenario.

    The seed of a reset is an index and does not seed `np_random`, because a scenario would then have the same traffic
    each time. `np_random` draws what a reset leaves open; assign a generator to it for repeatable draws.

    Every reset builds a new engine; `isolate = False` reuses it, for the protocol that measures what this does.

    The variant `stock` (the setting `fast: False`) runs MetaDrive's own code, and so does a MetaDrive that the fast
    path does not know.
    """

    _simulator: Any = None
    _roads: Any = None  # drawn at an episode's first frame
    _lines: SolidLines | None = None  # read at an episode's first hazard
    _events: Mapping[str, bool] = MappingProxyType({})  # what went wrong in the last step

    def __init__(self, spec: EnvSpec, scenarios: Scenarios, randomise: bool) -> None:
        settings = dict(spec.settings)
        self._fast = (
            bool(settings.pop("fast", True))
            and settings.get("traffic_mode", "trigger") == "trigger"
            and difference() is None
        )
        fixed: dict[str, Any] = {
            "start_seed": scenarios.start,
            "num_scenarios": scenarios.size,
            "horizon": spec.horizon,
            "random_traffic": False,
            "sensors": {"lidar": (OrderedLidar,)},
            "log_level": logging.CRITICAL,
        }
        self._soft = bool(settings.pop("soft_brake", False))
        self._route = bool(settings.pop("route", False))
        if settings.pop("mended", False):
            fixed["block_dist_config"] = mended_blocks()
        if taken := sorted(fixed.keys() & settings.keys()):
            raise InputError(f"the settings of '{spec.name}' contain {', '.join(taken)}, which the environment sets")
        self._config = {**PAPER, **settings, **fixed}
        # What can cost. Accidents put objects on the road; without them there is nothing else to hit.
        objects = ("crash_object",) if self._config["accident_prob"] else ()
        self._costly = ("crash_vehicle", "out_of_road", *objects)
        self._scenarios = scenarios
        self._randomise = randomise
        self._reuse = Reuse(scenarios.size) if self._fast else None
        self._start()
        self.observation_space = self._simulator.observation_space
        if self._route:
            size = self._simulator.observation_space.shape[0] + 2
            self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (size,), np.float32)
        self.action_space = self._simulator.action_space

    def _start(self) -> None:
        self.close()
        if engine_initialized():
            raise EnvironmentFailure(
                "MetaDrive allows one environment per process and one is open; close it, or use another process"
            )
        self._simulator = (FastSimulator if self._fast else Simulator)(self._config)
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
        if self._fast:
            self._simulator.reuse = self._reuse if self.isolate else None
        observation, _ = self._simulator.reset(seed=scenario)
        return self._observed(observation), info

    def step(self, action: NDArray[np.floating[Any]]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        # Python floats, because the simulator computes with what it gets: float32 actions would be rounded otherwise.
        steering, pedal = (float(value) for value in action)
        controls = [steering, soft_brake(pedal) if self._soft else pedal]
        unread = {"observed": False} if self._fast and not self.observed else {}
        observation, reward, terminated, truncated, info = self._simulator.step(controls, **unread)
        events = {event: bool(info[event]) for event in self._costly}
        plain = {"cost": float(info["cost"]), "arrived": bool(info["arrive_dest"]), **events}
        self._events = {**events, "cost": plain["cost"] > 0.0}
        return self._observed(observation), float(reward), bool(terminated), bool(truncated), plain

    def _observed(self, observation: Observation) -> Observation:
        """The simulator's observation; with `route` also the shares of the route and of the time that are left."""
        if not self._route:
            return observation
        route = min(max(1.0 - float(self._simulator.agent.navigation.route_completion), 0.0), 1.0)
        time = max(1.0 - self._simulator.episode_step / self._config["horizon"], 0.0)
        return np.append(observation, np.array([route, time], np.float32))

    def progress(self) -> Mapping[str, float]:
        """The share of the route covered, the speed in m/s and the position in metres."""
        car = self._simulator.agent
        (x, y), completion = car.position, car.navigation.route_completion
        return {"route_completion": float(completion), "speed": float(car.speed), "x": float(x), "y": float(y)}

    def frame(self) -> Frame:
        """The surroundings from above; see `painter`."""
        if self._roads is None:
            self._roads = draw_roads(self._simulator.current_map.road_network)
        return draw_frame(self._roads, self._simulator.agent, self._traffic)

    def hazard(self) -> float:
        """1 while a step costs, otherwise how near the nearest thing is that would: a solid line or another car.

        Solid lines run along both edges of every road, so a car that leaves it touches one first. Only the nearest line
        counts: every car that drives along a line approaches a farther part of it at full speed.
        """
        return 1.0 if self._events.get("cost", False) else float(self._nearby().hazards.max())

    def facts(self) -> Mapping[str, float]:
        return facts_of(self._simulator.agent, self._nearby(), self._events)

    def expert(self) -> Callable[[], NDArray[np.float64]]:
        """A driver that keeps to its lane and goes on only where it meets nobody; see `careful`."""
        act = CarefulDriver(self._simulator, lambda: self._traffic).act
        return (lambda: soft_brake_action(act())) if self._soft else act

    def _nearby(self) -> Nearby:
        if self._lines is None:
            self._lines = solid_lines(self._simulator.current_map)
        return look_around(self._simulator.agent, self._traffic, self._lines)

    @property
    def _traffic(self) -> Iterable[Any]:
        """The other cars, and the objects of accidents."""
        return on_the_road(self._simulator.engine)

    def close(self) -> None:
        # MetaDrive closes the engine of the process, so closing twice could close another environment's.
        if self._simulator is not None:
            self._simulator.close()
        self._simulator = None
        self._roads = self._lines = None


def soft_brake(pedal: float) -> float:
    """What the car gets for a pedal that brakes by the square of its position: little at first, and fully at -1.

    The brake is six times as strong as the engine, so that noise on the plain pedal brakes the car on average. On this
    one, noise of a usual size hardly does, and the same force is there when it is asked for.

    >>> [soft_brake(pedal) for pedal in (0.5, -0.5, -1.0)]
    [0.5, -0.25, -1.0]
    """
    return pedal if pedal >= 0.0 else -(max(pedal, -1.0) ** 2)


def soft_brake_action(action: NDArray[np.float64]) -> NDArray[np.float64]:
    """The action with the soft brake that does what `action` does without it.

    >>> soft_brake_action(np.array([0.1, -0.25])).tolist()
    [0.1, -0.5]
    """
    steering, pedal = action
    return np.array([steering, pedal if pedal >= 0.0 else -math.sqrt(-pedal)])
