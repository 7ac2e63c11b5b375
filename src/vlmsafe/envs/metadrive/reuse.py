"""What makes a reset of MetaDrive cheap, with the same episode afterwards.

Generating a map takes two thirds of a reset, and making cars a quarter. `Reuse` keeps maps. For the time of a reset it
also replaces functions of MetaDrive by others with the same results: configurations are copied without
`copy.deepcopy`, generators of random numbers are seeded again where MetaDrive makes new ones, a road's bounding box is
worked out once, and the bodies of a map are planned instead of created.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from metadrive.base_class import base_object, randomizable
from metadrive.base_class.base_runnable import BaseRunnable
from metadrive.component import pg_space
from metadrive.component.algorithm import BIG
from metadrive.component.block.base_block import BaseBlock
from metadrive.component.lane.circular_lane import CircularLane
from metadrive.component.lane.straight_lane import StraightLane
from metadrive.component.navigation_module import node_network_navigation
from metadrive.component.pgblock import create_pg_block_utils, intersection, ramp
from metadrive.component.road_network import node_road_network
from metadrive.constants import Decoration
from metadrive.utils import config as configs
from metadrive.utils import random_utils
from metadrive.utils.math import Vector
from metadrive.utils.pg import utils as lane_utils

from vlmsafe.envs.metadrive.lanes import line_of
from vlmsafe.envs.metadrive.maps import MapStore
from vlmsafe.envs.metadrive.roads import plan

Config = configs.Config
_PLAIN = frozenset({type(None), bool, int, float, str})
_MISSING = object()


class Replacement(NamedTuple):
    """A name of MetaDrive's that stands for something else while a reset runs."""

    owner: Any
    name: str
    by: Any


class Reuse:
    """What the resets of one environment share."""

    def __init__(self, pool_size: int) -> None:
        self.maps = MapStore(pool_size)
        self._generators = Generators()
        self._boxes = BoundingBoxes()
        copying = SimpleNamespace(deepcopy=deep_copy, copy=copy.copy)
        block_makers = (create_pg_block_utils, intersection, ramp)
        random_users = (base_object, randomizable, pg_space, BIG, node_network_navigation)
        self.replacements = [
            Replacement(configs, "copy", copying),
            Replacement(base_object, "copy", copying),
            Replacement(Config, "update", _update),
            Replacement(BaseRunnable, "sample_parameters", _sample_parameters),
            Replacement(CircularLane, "position", _position_on_circle),
            Replacement(BaseBlock, "_create_in_world", _plan_bodies),
            *(Replacement(owner, "get_lanes_bounding_box", self._boxes) for owner in (lane_utils, node_road_network)),
            *(Replacement(owner, "check_lane_on_road", self._boxes.crossed) for owner in block_makers),
            *(Replacement(owner, "get_np_random", self._generators) for owner in random_users),
        ]

    @contextmanager
    def resetting(self) -> Iterator[None]:
        """MetaDrive with its functions replaced."""
        self._generators.start_over()
        self._boxes.clear()
        stock = [vars(owner)[name] for owner, name, _ in self.replacements]
        try:
            for owner, name, by in self.replacements:
                setattr(owner, name, by)
            yield
        finally:
            for (owner, name, _), function in zip(self.replacements, stock, strict=True):
                setattr(owner, name, function)


# -- configurations ----------------------------------------------------------------------------------------------


def deep_copy(value: Any) -> Any:
    """`copy.deepcopy` of what MetaDrive's configurations hold."""
    if type(value) in _PLAIN or isinstance(value, type):
        return value
    if type(value) is dict:
        return {key: deep_copy(item) for key, item in value.items()}
    if type(value) is Config:
        twin = object.__new__(Config)
        own = value._config
        items = {key: deep_copy(item) for key, item in own.items()}
        # A configuration has each item as an attribute too.
        for key, item in vars(value).items():
            if item is not own:
                twin.__dict__[key] = items[key] if own.get(key, _MISSING) is item else deep_copy(item)
        twin.__dict__["_config"] = items
        return twin
    return copy.deepcopy(value)


_stock_update = Config.update


def _update(
    self: Any, new_dict: Any, allow_add_new_key: bool = True, stop_recursive_update: list[str] | None = None
) -> Any:
    """`Config.update`, quicker for items that are as they were in kind."""
    items = self._config
    if not new_dict:
        return self
    if stop_recursive_update or self._unchangeable or not (allow_add_new_key or items.keys() >= new_dict.keys()):
        return _stock_update(self, new_dict, allow_add_new_key, stop_recursive_update)
    for key, value in new_dict.items():
        old = items.get(key, _MISSING)
        if type(value) in _PLAIN and (old is _MISSING or old is None or type(old) is type(value)):
            items[key] = self.__dict__[key] = value
        elif type(old) is Config and type(value) is Config:
            _update(old, value, allow_add_new_key)
        elif _fits(old, value, allow_add_new_key):
            items[key] = self.__dict__[key] = deep_copy(value)
        else:
            _stock_update(self, {key: value}, allow_add_new_key)
    return self


def _fits(old: Any, new: Any, any_type: bool) -> bool:
    """Whether `Config.update` would put the new value in the old one's place as it is."""
    if isinstance(old, dict | Config) or isinstance(new, dict | np.ndarray | Path):
        return False
    return any_type or old is None or new is None or type(new) is type(old)


# -- random numbers ----------------------------------------------------------------------------------------------


class Generators:
    """`get_np_random` with generators of the last episode seeded again: making one takes ten times as long."""

    def __init__(self) -> None:
        self._made: list[np.random.RandomState] = []
        self._free: Iterator[np.random.RandomState] = iter(())

    def start_over(self) -> None:
        """Take the generators back, when the engine that had them is closed."""
        self._free = iter(list(self._made))

    def __call__(self, seed: int | None = None, return_seed: bool = False) -> Any:
        generator = next(self._free, None)
        if generator is None:
            generator = np.random.RandomState()
            self._made.append(generator)
        seed = random_utils.create_seed(seed)
        generator.seed(random_utils._int_list_from_bigint(random_utils.hash_seed(seed)))
        return (generator, seed) if return_seed else generator


_SCRATCH = np.random.RandomState(0)  # seeded before each use


def _sample_parameters(self: Any) -> None:
    """`BaseRunnable.sample_parameters`: every parameter is the first number of the same seed, within its bounds."""
    seed = self.np_random.randint(low=0, high=int(1e6))
    words = random_utils._int_list_from_bigint(random_utils.hash_seed(random_utils.create_seed(seed)))
    sample = {}
    for name, box in self.PARAMETER_SPACE.spaces.items():
        low, high = box.low.item(), box.high.item()
        whole = box.dtype.kind == "i"
        if whole or low != high:  # the bounds of some are the wrong way round
            _SCRATCH.seed(words)
            low = _SCRATCH.uniform(low, high + whole)
        sample[name] = box.dtype.type(math.floor(low) if whole else low).item()
    self.update_config(sample)


# -- roads -------------------------------------------------------------------------------------------------------

_stock_bounding_box = lane_utils.get_lanes_bounding_box


class BoundingBoxes:
    """`get_lanes_bounding_box`, worked out once for each geometry: every new lane is compared with every road."""

    def __init__(self) -> None:
        self._boxes: dict[Any, Any] = {}

    def clear(self) -> None:
        self._boxes.clear()

    def __call__(self, lanes: list[Any], extra_lateral: float = 3) -> Any:
        key = (extra_lateral, *_geometry(lanes[0]), *_geometry(lanes[-1]))
        box = self._boxes.get(key)
        if box is None:
            box = self._boxes[key] = _stock_bounding_box(lanes, extra_lateral)
        return box

    def crossed(
        self,
        road_network: Any,
        lane: Any,
        positive: float = 0,
        ignored: tuple[str, str] | None = None,
        ignore_intersection_checking: bool | None = None,
    ) -> bool:
        """`check_lane_on_road`: whether a line along a new lane touches a road; its points are worked out once."""
        assert ignore_intersection_checking is not None
        if ignore_intersection_checking:
            return True
        right, left, top, bottom = self([lane])
        points: list[tuple[float, float]] | None = None
        for start, ends in road_network.graph.items():
            for end, lanes in ends.items():
                if not lanes or (start, end) in (ignored, (Decoration.start, Decoration.end)):
                    continue
                x_max, x_min, y_max, y_min = self(lanes)
                if x_min > right or left > x_max or y_min > top or bottom > y_max:
                    continue
                if points is None:
                    places = [lane.position(i, positive * lane.width_at(i) / 2.0) for i in range(1, int(lane.length))]
                    points = [(float(x), float(y)) for x, y in places]
                if any(_touches(other, points) for other in lanes):
                    return True
        return False


def _touches(lane: Any, points: list[tuple[float, float]]) -> bool:
    line = line_of(lane)
    for x, y in points:
        along, aside = line.place(x, y)
        if 0 <= along <= lane.length and abs(aside) <= lane.width_at(along) / 2.0:
            return True
    return False


def _geometry(lane: Any) -> tuple[float, ...]:
    """All that a lane's bounding box depends on."""
    if isinstance(lane, StraightLane):
        return (*lane.start, *lane.direction, *lane.direction_lateral, lane.length, lane.width)
    return (*lane.center, lane.radius, lane.start_phase, lane.end_phase, lane.direction, lane.length, lane.width)


def _position_on_circle(self: Any, longitudinal: float, lateral: float) -> Any:
    """`CircularLane.position` without arithmetic of vectors."""
    phase = self.direction * longitudinal / self.radius + self.start_phase
    reach = self.radius + lateral * self.direction
    return Vector((self.center[0] + math.cos(phase) * reach, self.center[1] + math.sin(phase) * reach))


def _plan_bodies(self: Any, skip: bool = False) -> None:
    """In place of `BaseBlock._create_in_world`; `KeptMap` builds the bodies."""
    self.plan = plan(self)
    self._bounding_box = self.block_network.get_bounding_box()
