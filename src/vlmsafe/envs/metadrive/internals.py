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
