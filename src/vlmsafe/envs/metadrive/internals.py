"""Whether the installed MetaDrive is the one whose parts the fast path replaces.

The fast path computes what MetaDrive computes, so it holds only for the code it was written from. Each part that it
replaces or relies on is compared with a digest of its source; another version, or a changed copy, is driven by its own
code instead.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from functools import lru_cache
from pydoc import locate

from metadrive.version import VERSION as INSTALLED

VERSION = "0.4.3"

PARTS: Mapping[str, str] = {
    "metadrive.policy.idm_policy.IDMPolicy": "002bbab91d00",
    "metadrive.policy.idm_policy.FrontBackObjects": "c92f1c85ecb3",
    "metadrive.component.vehicle.PID_controller.PIDController": "1be0bcc0b80e",
    "metadrive.manager.traffic_manager.PGTrafficManager": "3f38e743f6b2",
    "metadrive.manager.base_manager.BaseManager": "f7c51a931ec7",
    "metadrive.component.vehicle.base_vehicle.BaseVehicle": "208c4d0b5fdc",
    "metadrive.base_class.base_object.BaseObject": "6fd707b89622",
    "metadrive.component.navigation_module.node_network_navigation.NodeNetworkNavigation": "301f9a5e452b",
    "metadrive.component.navigation_module.base_navigation.BaseNavigation": "05e558391ea5",
    "metadrive.utils.pg.utils.ray_localization": "3fee9ae41e44",
    "metadrive.utils.utils.get_object_from_node": "1cac83516c6c",
    "metadrive.utils.math.wrap_to_pi": "2babad982aad",
    "metadrive.utils.math.norm": "d235b9136aa5",
    "metadrive.utils.math.not_zero": "9dadcc0c40b0",
    "metadrive.utils.math.safe_clip_for_small_array": "100fa6e0e3e2",
    "metadrive.component.lane.abs_lane.AbstractLane": "cb546c6b9739",
    "metadrive.component.lane.straight_lane.StraightLane": "788d07413691",
    "metadrive.component.lane.circular_lane.CircularLane": "412f86d51e4d",
    "metadrive.component.sensors.lidar.Lidar": "84eba4b6ae2c",
    "metadrive.constants.CollisionGroup": "b9101eac8267",
    "metadrive.engine.core.physics_world.PhysicsWorld": "74d3c21829fb",
    "metadrive.engine.core.engine_core.EngineCore.step_physics_world": "8b7f3062a263",
    "metadrive.engine.base_engine.BaseEngine.before_step": "3677a607d418",
    "metadrive.engine.base_engine.BaseEngine.step": "b8c2828221f6",
    "metadrive.engine.base_engine.BaseEngine.after_step": "654e293a2946",
    "metadrive.envs.base_env.BaseEnv._step_simulator": "8b957747b5a3",
    # what `agent` replaces or leaves out
    "metadrive.manager.agent_manager.VehicleAgentManager": "1961bc2d4e81",
    "metadrive.manager.base_manager.BaseAgentManager": "c60a63f28364",
    "metadrive.obs.state_obs.LidarStateObservation": "d75bd82df2d9",
    "metadrive.obs.state_obs.StateObservation": "cafd1cbc009f",
    "metadrive.component.sensors.distance_detector.DistanceDetector": "483958df8115",
    "metadrive.envs.base_env.BaseEnv._get_step_return": "d8e039490ca6",
    "metadrive.envs.base_env.BaseEnv.step": "c776cbeaa8e5",
    "metadrive.obs.observation_base.BaseObservation": "906f3830e5cf",
    "metadrive.envs.base_env.BaseEnv._get_reset_return": "47f485c74069",
    "metadrive.envs.base_env.BaseEnv._get_agent_manager": "4f8053aedb93",
    "metadrive.envs.base_env.BaseEnv.get_single_observation": "db9b86fc786d",
    # the objects of accidents, which traffic cars follow and overtake like cars
    "metadrive.component.static_object.base_static_object.BaseStaticObject": "1badfb038e64",
    "metadrive.manager.object_manager.TrafficObjectManager": "987c530d62eb",
    # what `reuse`, `maps` and `roads` replace or rely on
    "metadrive.base_class.base_runnable.BaseRunnable": "94efc6858dbf",
    "metadrive.base_class.configurable.Configurable": "068b66bfbc3b",
    "metadrive.base_class.randomizable.Randomizable": "bfd366bf4359",
    "metadrive.component.algorithm.BIG.BIG": "693db4ba38fd",
    "metadrive.component.block.base_block.BaseBlock": "c284e23d032c",
    "metadrive.component.lane.extension_lane.ExtendingLane": "c7bd63434a7e",
    "metadrive.component.map.base_map.BaseMap": "bfad7937bf70",
    "metadrive.component.map.pg_map.PGMap": "affb4a4335dd",
    "metadrive.component.pg_space.Box": "4e7818f3c94c",
    "metadrive.component.pg_space.Dict": "5e25baffb1b7",
    "metadrive.component.pgblock.first_block.FirstPGBlock": "b8f588b5051e",
    "metadrive.component.pgblock.pg_block.PGBlock": "b20fa86b4e59",
    "metadrive.component.road_network.node_road_network.NodeRoadNetwork": "1442b239aec8",
    "metadrive.constants.PGDrivableAreaProperty": "76f9133bb1b4",
    "metadrive.constants.PGLineType": "69d25046fbd6",
    "metadrive.constants.TerrainProperty": "196133938021",
    "metadrive.engine.base_engine.BaseEngine.close": "62be2d8f8f5a",
    "metadrive.engine.base_engine.BaseEngine.reset": "62a3de547a71",
    "metadrive.engine.base_engine.BaseEngine.spawn_object": "154a78e0ab20",
    "metadrive.manager.pg_map_manager.PGMapManager": "3596c701b728",
    "metadrive.utils.config.Config": "2a7e3ac1128c",
    "metadrive.utils.math.Vector": "8221daa18341",
    "metadrive.utils.math.get_points_bounding_box": "51bb9fd6cd51",
    "metadrive.utils.pg.utils.check_lane_on_road": "d0cdedf0c940",
    "metadrive.utils.pg.utils.get_curve_contour": "86c1d304273f",
    "metadrive.utils.pg.utils.get_lanes_bounding_box": "6a4c1ea49808",
    "metadrive.utils.pg.utils.get_straight_contour": "daa4ee36c151",
    "metadrive.utils.random_utils.get_np_random": "fb8ed938d85b",
    "metadrive.utils.vertex.make_polygon_model": "948e7b70f2cf",
}


@lru_cache
def difference() -> str | None:
    """What is different about the installed MetaDrive, in a few words; None if nothing is."""
    if INSTALLED != VERSION:
        return f"MetaDrive {INSTALLED} is installed, and the fast path was written for {VERSION}"
    for name, digest in PARTS.items():
        if digest_of(name) != digest:
            return f"MetaDrive's {name} is not as in version {VERSION}"
    return None


def digest_of(name: str) -> str:
    """A short digest of the source of a part, named by its path; empty where there is no such part."""
    part = locate(name)
    if isinstance(part, property):
        part = part.fget
    try:
        return hashlib.sha256(inspect.getsource(part).encode()).hexdigest()[:12]  # type: ignore[arg-type]
    except (TypeError, OSError):
        return ""
