"""The agent's car without the work that nobody reads: the same trajectories and observations in less time.

Where an action is kept for several steps, the policy sees the observation after the last one only. The lidar and the
way to the next checkpoints take a noticeable part of a step (`benchmarks/metadrive.py --repeat 4`), and they change
nothing in the simulator.
"""

from __future__ import annotations

from typing import Any

from metadrive.component.navigation_module.node_network_navigation import NodeNetworkNavigation
from metadrive.manager.agent_manager import VehicleAgentManager
from metadrive.obs.state_obs import LidarStateObservation

_NO_CHECKPOINT = [0.0] * NodeNetworkNavigation.CHECK_POINT_INFO_DIM, 0.0, None


class Navigation(NodeNetworkNavigation):  # type: ignore[misc]
    """MetaDrive's navigation, which describes the way to the next two checkpoints when it is told to."""

    described = True

    def _get_info_for_checkpoint(self, lanes_id: int, ref_lane: Any, ego_vehicle: Any) -> Any:
        return super()._get_info_for_checkpoint(lanes_id, ref_lane, ego_vehicle) if self.described else _NO_CHECKPOINT

    def describe(self, vehicle: Any) -> None:
        """Describe the way as `update_localization` does."""
        half = self.CHECK_POINT_INFO_DIM
        following = self.current_ref_lanes if self.next_ref_lanes is None else self.next_ref_lanes
        for number, lanes in enumerate((self.current_ref_lanes, following)):
            information, *_ = super()._get_info_for_checkpoint(number, lanes[0], vehicle)
            self._navi_info[number * half : (number + 1) * half] = information


class Agents(VehicleAgentManager):  # type: ignore[misc]
    """MetaDrive's manager of agents where no episode is replayed, which it asks twenty times a step."""

    @property
    def active_agents(self) -> dict[str, Any]:
        return {self._object_to_agent[name]: agent for name, agent in self._active_objects.items()}


class Observation(LidarStateObservation):  # type: ignore[misc]
    """MetaDrive's observation, made when it is read."""

    read = True

    def observe(self, vehicle: Any) -> Any:
        return super().observe(vehicle) if self.read else self.current_observation

    def made_now(self, vehicle: Any) -> Any:
        """The observation of a step for which none was made."""
        vehicle.navigation.describe(vehicle)
        return super().observe(vehicle)
