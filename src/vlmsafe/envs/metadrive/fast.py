"""MetaDrive without the work that changes nothing: the same trajectories for about a third of the time.

* Traffic: see `traffic`.
* Physics: the five physics steps of a decision are one call, so the scene graph is updated once. Wheels have no nodes
  in it, because nothing is rendered. (`setForceUpdateAllAabbs(False)` would save more, but it changes the order in
  which touching cars are pushed apart, and so their velocities after some crashes.)
* Resets: see `reuse`.
* Observations that nobody reads: see `agent`.
* Panda's task manager is left out: it renders nothing here. Its one lasting duty, to free transforms, is done directly.

`Simulator` is MetaDrive's own code; `internals` says when it has to be used.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
from metadrive.component.vehicle.base_vehicle import BaseVehicle
from metadrive.constants import DEFAULT_AGENT
from metadrive.utils.utils import merge_dicts
from panda3d.core import TransformState, Vec3

from vlmsafe.envs.metadrive.agent import Agents, Navigation, Observation
from vlmsafe.envs.metadrive.maps import KeptMaps
from vlmsafe.envs.metadrive.reuse import Reuse
from vlmsafe.envs.metadrive.simulator import Simulator
from vlmsafe.envs.metadrive.traffic import FastTraffic

_STOCK_WHEEL = BaseVehicle._add_wheel


class FastSimulator(Simulator):
    """The simulator with faster steps and resets."""

    reuse: Reuse | None = None  # set before each reset; a reset of an engine in use takes nothing from it

    def default_config(self) -> Any:
        config = super().default_config()
        config["vehicle_config"]["navigation_module"] = Navigation
        return config

    def _get_agent_manager(self) -> Agents:
        return Agents(init_observations=self._get_observations())

    def get_single_observation(self) -> Observation:
        return Observation(self.config)

    def setup_engine(self) -> None:
        super().setup_engine()
        self.engine.update_manager("map_manager", KeptMaps())
        self.engine.update_manager("traffic_manager", FastTraffic())
        BaseVehicle._add_wheel = _bare_wheel

    def close(self) -> None:
        BaseVehicle._add_wheel = _STOCK_WHEEL
        super().close()

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        self.engine.map_manager.store = None if self.reuse is None else self.reuse.maps
        with nullcontext() if self.reuse is None else self.reuse.resetting():
            return super().reset(*args, **kwargs)

    def step(self, actions: Any, observed: bool = True) -> Any:
        """A step; without `observed`, its observation is made only if it is the last one of the episode."""
        agent = self.agent
        observation = self.observations[DEFAULT_AGENT]
        navigation = agent.navigation
        navigation.described = observation.read = observed
        try:
            result = super().step(actions)
        finally:  # a reset reads its observation, also where it keeps the car
            navigation.described = observation.read = True
        if not observed and (result[2] or result[3]):
            result = (observation.made_now(agent), *result[1:])
        return result

    def _step_simulator(self, actions: Any) -> dict[str, Any]:
        engine = self.engine
        before = engine.before_step(actions)
        steps, size = self.config["decision_repeat"], self.config["physics_world_step_size"]
        # The physics engine counts time in float32. This product is what it has counted after all steps, so that no
        # rest is left which it would extrapolate over.
        engine.physics_world.dynamic_world.doPhysics(float(np.float32(size) * np.float32(steps)), steps, size)
        TransformState.garbageCollect()
        return dict(merge_dicts(engine.after_step(), before, allow_new_keys=True, without_copy=True))


def _bare_wheel(vehicle: Any, position: Any, radius: float, front: bool, left: bool) -> Any:
    """A wheel as `BaseVehicle` makes it, but without a node in the scene graph that would follow it."""
    wheel = vehicle.system.createWheel()
    wheel.setChassisConnectionPointCs(position)
    wheel.setFrontWheel(front)
    wheel.setWheelDirectionCs(Vec3(0, 0, -1))
    wheel.setWheelAxleCs(Vec3(1, 0, 0))
    wheel.setWheelRadius(radius)
    wheel.setMaxSuspensionTravelCm(vehicle.SUSPENSION_LENGTH)
    wheel.setSuspensionStiffness(vehicle.SUSPENSION_STIFFNESS)
    wheel.setWheelsDampingRelaxation(4.8)
    wheel.setWheelsDampingCompression(1.2)
    wheel.setFrictionSlip(0 if vehicle.config["no_wheel_friction"] else vehicle.config["wheel_friction"])
    wheel.setRollInfluence(0.5)
    return wheel
