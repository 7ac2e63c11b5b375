"""Maps of a small pool are kept, and an interrupted reset leaves them usable."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("metadrive")

from metadrive.component.block.base_block import BaseBlock

from vlmsafe.envs.api import Scenarios
from vlmsafe.envs.registry import env_spec


@pytest.mark.parametrize(("size", "kept"), [(100, True), (101, False)])
def test_a_map_is_kept_if_its_pool_is_small(size: int, kept: bool) -> None:
    env: Any = env_spec("metadrive-easy").make(Scenarios(0, size))
    try:
        seen = []
        for scenario in (1, 2, 1):
            env.reset(seed=scenario)
            seen.append(env._simulator.current_map)
        assert (seen[0] is seen[2]) is kept
        assert sum(len(block.static_nodes) for block in seen[1].blocks) == 0, "a map out of use has no bodies"
    finally:
        env.close()


def test_an_interrupted_reset_leaves_the_next_one_as_it_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    attach = BaseBlock.attach_to_world

    def interrupted(block: Any, *args: Any) -> None:
        attach(block, *args)
        if block.block_index == 2:
            raise KeyboardInterrupt

    env: Any = env_spec("metadrive-easy").make(Scenarios(0, 20))
    try:
        first, _ = env.reset(seed=1, options={"traffic_seed": 2})
        bodies = env._simulator.engine.physics_world.report_bodies()
        with monkeypatch.context() as patch:
            patch.setattr(BaseBlock, "attach_to_world", interrupted)
            with pytest.raises(KeyboardInterrupt):
                env.reset(seed=1, options={"traffic_seed": 2})
        again, _ = env.reset(seed=1, options={"traffic_seed": 2})
        assert again.tobytes() == first.tobytes()
        assert env._simulator.engine.physics_world.report_bodies() == bodies
    finally:
        env.close()
