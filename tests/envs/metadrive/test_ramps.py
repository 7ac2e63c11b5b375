"""A mended exit ramp leaves the road, where MetaDrive's crosses it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("metadrive")

from vlmsafe.envs.api import Scenarios
from vlmsafe.envs.metadrive.scene import look_around, solid_lines
from vlmsafe.envs.registry import env_spec

EXIT = 62  # an easy scenario whose route ends with an exit ramp


@pytest.mark.parametrize(("name", "crossed"), [("no-traffic", True), ("no-traffic+mended", False)])
def test_no_solid_line_crosses_the_route_where_the_ramps_are_mended(name: str, crossed: bool) -> None:
    env = env_spec(f"metadrive-easy:{name}").make(Scenarios(EXIT, 1))
    try:
        env.reset(seed=EXIT)
        car, world = env._simulator.agent, env._simulator.current_map
        lines, stops = solid_lines(world), car.navigation.checkpoints
        assert [block.ID for block in world.blocks][-1] == "R"
        gaps = []
        for start, end in pairwise(stops):
            lane = world.road_network.graph[start][end][1]
            for along in np.arange(2.5, lane.length, 2.0):
                car.set_heading_theta(lane.heading_theta_at(along))
                car.set_position(lane.position(along, 0.0))
                gaps.append(float(look_around(car, [], lines).gaps[0]))
        assert (min(gaps) <= 0.0) == crossed
    finally:
        env.close()
