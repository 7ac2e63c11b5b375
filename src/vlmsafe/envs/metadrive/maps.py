"""MetaDrive's maps, without bodies of their own.

A map holds plans of its bodies (see `roads`), and the bodies only while an episode runs: they are built in the worlds
of the episode's own engine, so no episode finds anything that an earlier one left in the physics. A map of a small pool
of scenarios is kept for the next episode of its scenario. In a large pool a scenario hardly ever comes again.
"""

from __future__ import annotations

from typing import Any

from metadrive.component.map.pg_map import PGMap
from metadrive.manager.pg_map_manager import PGMapManager

from vlmsafe.envs.metadrive.roads import build_dynamics, build_statics

_MOST_MAPS = 100  # a kept map takes 0.4 MB on the easy level and 1.2 MB on the hard one


class KeptMap(PGMap):  # type: ignore[misc]
    """A map whose blocks hold plans of their bodies, and the bodies only while an episode runs."""

    def attach_to_world(self, parent_np: Any = None, physics_world: Any = None) -> None:
        self._clear()  # an interrupted reset may have left bodies
        for block in self.blocks:
            block.dynamic_nodes.extend(build_dynamics(block.plan))
            block.static_nodes.extend(build_statics(block.plan))
        super().attach_to_world(parent_np, physics_world)

    def drop_bodies(self) -> None:
        """Let go of an episode's bodies; the static world goes with them, so they need not be taken out of it."""
        for block in self.blocks:
            block.dynamic_nodes.detach_from_physics_world(self.engine.physics_world.dynamic_world)
        self._clear()

    def _clear(self) -> None:
        for block in self.blocks:
            block.origin.detachNode()
            for nodes in (block.dynamic_nodes, block.static_nodes):
                nodes.clear()
                nodes.attached = False


class MapStore:
    """The maps of a pool of scenarios, if it is small."""

    def __init__(self, pool_size: int) -> None:
        self._keeps = pool_size <= _MOST_MAPS
        self._maps: dict[int, KeptMap] = {}

    def get(self, scenario: int) -> KeptMap | None:
        return self._maps.get(scenario)

    def add(self, scenario: int, kept: KeptMap) -> None:
        if self._keeps:
            self._maps[scenario] = kept


class KeptMaps(PGMapManager):  # type: ignore[misc]
    """Takes maps from a store; without a store it is MetaDrive's manager."""

    store: MapStore | None = None  # set before each reset

    def spawn_object(self, object_class: Any, *args: Any, **kwargs: Any) -> Any:
        return super().spawn_object(object_class if self.store is None else KeptMap, *args, **kwargs)

    def reset(self) -> None:
        if self.store is None:
            super().reset()
            return
        scenario = self.engine.global_seed
        kept = self.store.get(scenario)
        if kept is None:
            super().reset()
            self.store.add(scenario, self.current_map)
            self.maps[scenario] = None  # closing the engine would destroy it
        else:
            self.load_map(kept)

    def destroy(self) -> None:
        if isinstance(self.current_map, KeptMap):
            self.current_map.drop_bodies()
        super().destroy()
