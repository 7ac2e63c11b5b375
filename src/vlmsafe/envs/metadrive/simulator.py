"""MetaDrive's simulator, changed so that an episode depends only on its scenario, its traffic seed and the actions.

Three changes make it so:

* every reset builds a new engine (`MetaDrive.reset`): a reused one recycles cars and keeps a physics world with a
  history;
* traffic has its own seed; MetaDrive's `random_traffic` draws from a generator that nothing seeds;
* a car's neighbours are listed in an order that does not depend on memory addresses.

MetaDrive is imported with this module, so that a fork server that has preloaded it starts workers without importing it
again. It allows one engine per process.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

from metadrive.component.sensors.lidar import Lidar
from metadrive.engine.base_engine import BaseEngine
from metadrive.engine.core import engine_core
from metadrive.envs.safe_metadrive_env import SafeMetaDriveEnv
from metadrive.manager.traffic_manager import PGTrafficManager

# The engine would download textures for its 3D renderer on first use. State vectors and top-down frames need none.
BaseEngine.try_pull_asset = staticmethod(lambda: None)

# Panda3D's task manager takes over SIGINT for part of every step, so a worker that ignores Ctrl-C, or whose caller has
# its own handler, would still be interrupted. It leaves signals alone where Python has no `signal` module.
_panda_tasks: Any = importlib.import_module("direct.task.Task")
_panda_tasks.signal = None

# Closing an engine would collect garbage twice over everything the process has imported, which takes ten times as long
# as building the next one. The interpreter's own collections free a closed engine soon enough.
engine_core.gc = types.SimpleNamespace(collect=lambda: None)


class SeededTraffic(PGTrafficManager):  # type: ignore[misc]
    """Traffic that is placed by its own seed, or by the scenario where that is None."""

    traffic_seed: int | None = None  # set before each reset

    def seed(self, random_seed: int) -> None:
        super().seed(random_seed if self.traffic_seed is None else self.traffic_seed)


class OrderedLidar(Lidar):  # type: ignore[misc]
    """Lists a car's neighbours by position.

    MetaDrive returns a set, which iterates in the order of memory addresses. Which car a traffic car follows depends
    on that order once in some 100,000 decisions, which is enough to make two otherwise equal training runs differ.
    """

    def get_surrounding_objects(self, vehicle: Any, radius: float = 50) -> list[Any]:
        nearby = super().get_surrounding_objects(vehicle, radius)
        return sorted(nearby, key=lambda other: (other.origin.getX(), other.origin.getY()))


def on_the_road(engine: Any) -> list[Any]:
    """The traffic cars, and the cones, barriers and broken-down cars of accidents, where there are any."""
    accidents = getattr(engine, "object_manager", None)
    objects = () if accidents is None else accidents.spawned_objects.values()
    return [*engine.traffic_manager.spawned_objects.values(), *objects]


class Simulator(SafeMetaDriveEnv):  # type: ignore[misc]
    """MetaDrive with the seeded traffic."""

    def setup_engine(self) -> None:
        super().setup_engine()
        self.engine.update_manager("traffic_manager", SeededTraffic())

    def close(self) -> None:
        engine = self.engine
        super().close()
        if engine is not None:
            # These tasks refer to the engine where Python's collector does not look, which would keep it for ever:
            # 0.7 MB an episode on the hard level.
            engine._all_panda_tasks.clear()
