"""The bodies built from a plan are those that MetaDrive creates: names, shapes, places, masks and order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("metadrive")

from panda3d.bullet import BulletBoxShape
from panda3d.core import BitMask32, Point3

from vlmsafe.envs.api import Scenarios
from vlmsafe.envs.registry import env_spec

# Together these maps have every kind of block that MetaDrive draws: straight, bend, ramps, crossings and roundabout.
SCENARIOS = (0, 1, 2, 3)
DOWN = np.random.default_rng(0).uniform(-120.0, 120.0, (400, 2))


def worlds(name: str) -> tuple[set[str], list[Any]]:
    """The kinds of blocks of some maps, and all that can be asked about the bodies of their worlds."""
    env: Any = env_spec(name).make(Scenarios(0, 20))
    kinds, told = set(), []
    try:
        for scenario in SCENARIOS:
            env.reset(seed=scenario, options={"traffic_seed": 0})
            simulator = env._simulator
            kinds |= {block.ID for block in simulator.current_map.blocks}
            for world in (simulator.engine.physics_world.static_world, simulator.engine.physics_world.dynamic_world):
                told.append([describe(body) for body in (*world.getRigidBodies(), *world.getGhosts())])
                # Hits in the world's order, which follows from the order in which the bodies entered it.
                for x, y in DOWN.tolist():
                    result = world.rayTestAll(Point3(x, y, 5.0), Point3(x, y, -5.0), BitMask32.allOn())
                    told.append([(hit.getNode().getName(), hit.getHitFraction()) for hit in result.getHits()])
            network = simulator.current_map.road_network
            told.append([np.asarray(lane.polygon).tolist() for lane in network.get_all_lanes()])
    finally:
        env.close()
    return kinds, told


def describe(body: Any) -> tuple[Any, ...]:
    place, (shape,) = body.getTransform(), body.getShapes()
    size = tuple(shape.getHalfExtentsWithMargin()) if isinstance(shape, BulletBoxShape) else None
    return (
        body.getName(),
        str(body.getIntoCollideMask()),
        (body.isStatic(), body.isKinematic(), body.isActive(), body.getFriction()),
        (tuple(place.getPos()), tuple(place.getQuat()), tuple(place.getScale())),
        (type(shape), shape.getMargin(), size, str(body.getShapeBounds())),
    )


def test_built_bodies_are_those_of_metadrive_in_the_same_order() -> None:
    kinds, told = worlds("metadrive-hard")
    assert (kinds, told) == worlds("metadrive-hard:stock")
    assert kinds == {"I", "S", "C", "r", "R", "X", "T", "O"}
