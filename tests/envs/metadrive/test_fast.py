"""The fast path drives every car exactly as MetaDrive's own code does, and steps aside for another MetaDrive.

`benchmarks/metadrive.py` compares hundreds of whole episodes; these are a few short ones, and the parts by themselves.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("metadrive")

from metadrive.policy.idm_policy import FrontBackObjects

from vlmsafe.envs.api import Scenarios
from vlmsafe.envs.metadrive import internals
from vlmsafe.envs.metadrive.fast import FastSimulator
from vlmsafe.envs.metadrive.lanes import line_of
from vlmsafe.envs.metadrive.simulator import Simulator
from vlmsafe.envs.registry import env_spec

POOL = Scenarios(0, 200)


@contextmanager
def started(name: str, scenario: int = 3, traffic_seed: int = 5) -> Iterator[Any]:
    env: Any = env_spec(name).make(POOL)
    try:
        env.reset(seed=scenario, options={"traffic_seed": traffic_seed})
        yield env
    finally:
        env.close()


def vehicles(env: Any) -> list[Any]:
    return [env._simulator.agent, *env._traffic]


def trajectory(name: str, driver: str, scenario: int, steps: int) -> tuple[int, list[Any]]:
    """How many traffic cars had set off, and all that an episode gave: numbers, and where every car was."""
    seen: list[Any] = []
    with started(name, scenario) as env:
        expert, rng = env.expert(), np.random.default_rng(scenario)
        for step in range(steps):
            if driver == "scripted":
                action = expert()
            elif step % 10 == 0:
                action = rng.uniform((-0.3, 0.2), (0.3, 1.0))
            observation, reward, terminated, _, info = env.step(action)
            cars = [(*car.origin.getPos(), car.origin.getH(), car.speed) for car in vehicles(env)]
            seen.append((observation.tobytes(), reward, info, cars))
            if terminated:
                break
        return len(env._simulator.engine.traffic_manager._traffic_vehicles), seen


@pytest.mark.parametrize(
    ("name", "driver", "scenario", "steps"),
    [
        ("metadrive-easy", "scripted", 3, 150),
        ("metadrive-easy:density-0.35", "random", 37, 100),
        ("metadrive-hard", "scripted", 111, 60),
        ("metadrive-medium:native+ends", "scripted", 4, 150),  # cars come upon the objects of accidents
    ],
)
def test_every_car_drives_as_in_metadrive_bit_for_bit(name: str, driver: str, scenario: int, steps: int) -> None:
    moving, fast = trajectory(name, driver, scenario, steps)
    stock = name + ("+stock" if ":" in name else ":stock")
    assert (moving, fast) == trajectory(stock, driver, scenario, steps)
    assert moving > 0, "no traffic car has set off, so this compares nothing"


@pytest.mark.parametrize(("name", "scenario"), [("metadrive-easy", 3), ("metadrive-easy:ends", 37)])
def test_what_an_action_that_is_kept_shows_is_what_metadrive_shows(name: str, scenario: int) -> None:
    """The fast path leaves out observations that nobody reads, and makes the last one of an episode all the same."""

    def seen(world: str) -> Iterator[Any]:
        env: Any = dataclasses.replace(env_spec(world), repeat=4).make(POOL)
        try:
            yield env.reset(seed=scenario, options={"traffic_seed": 5})[0].tobytes()
            expert, over = env.expert(), False
            for step in range(60):
                action = expert() if step < 15 else np.array([0.4, 1.0])  # off the road
                observation, reward, over, _, info = env.step(action)
                cars = [(*car.origin.getPos(), car.origin.getH()) for car in vehicles(env._env)]
                yield observation.tobytes(), reward, over, info, env.hazard(), cars
                if over:
                    break
            assert over == ("ends" in world)
        finally:
            env.close()

    assert list(seen(name)) == list(seen(name + ("+stock" if ":" in name else ":stock")))


def test_a_reset_that_keeps_the_engine_after_a_kept_action_shows_the_new_episode() -> None:
    def seen(world: str) -> Iterator[bytes]:
        env: Any = dataclasses.replace(env_spec(world), repeat=4).make(POOL)
        env.isolate = False
        try:
            for scenario in (37, 3):
                yield env.reset(seed=scenario, options={"traffic_seed": 5})[0].tobytes()
                for _ in range(40):
                    observation, _, over, _, _ = env.step(np.array([0.4, 1.0]))  # off the road
                    yield observation.tobytes()
                    if over:
                        break
                assert over
        finally:
            env.close()

    assert list(seen("metadrive-easy:ends")) == list(seen("metadrive-easy:ends+stock"))


def test_a_place_in_a_lane_is_metadrives_bit_for_bit() -> None:
    with started("metadrive-hard") as env:
        rng = np.random.default_rng(0)
        kinds = set()
        for lane in env._simulator.current_map.road_network.get_all_lanes():
            line = line_of(lane)
            kinds.add(type(line).__name__)
            for along, aside in rng.uniform((-20.0, -8.0), (lane.length + 20.0, 8.0), (5, 2)):
                x, y = (float(value) for value in lane.position(along, aside))
                assert line.place(x, y) == lane.local_coordinates((x, y))
                assert line.heading(along) == lane.heading_theta_at(along)
        assert kinds == {"Straight", "Arc"}


def test_cars_see_the_neighbours_that_metadrive_shows_them() -> None:
    with started("metadrive-hard", scenario=111) as env:
        expert = env.expert()
        met = 0
        for _ in range(6):
            for _ in range(8):
                env.step(expert())
            manager = env._simulator.engine.traffic_manager
            for vehicle in vehicles(env):
                lanes = vehicle.navigation.current_ref_lanes
                if vehicle.lane not in lanes:
                    continue
                nearby = vehicle.lidar.get_surrounding_objects(vehicle)
                known = FrontBackObjects.get_find_front_back_objs(nearby, vehicle.lane, vehicle.position, 30, lanes)
                index = vehicle.lane.index[-1]
                for place, lane_index in ((0, index - 1), (1, index), (2, index + 1)):
                    if not 0 <= lane_index < len(lanes):
                        assert known.front_dist[place] is None
                        continue
                    cars = manager.cars
                    front, ahead, behind = cars.neighbours(cars[vehicle], lanes[lane_index], 30)
                    assert (front and front.vehicle) is known.front_objs[place]
                    assert (ahead, behind) == (known.front_dist[place], known.back_dist[place])
                    met += front is not None
        assert met > 50


def test_a_car_in_doubtful_distance_is_looked_up_in_the_physics_engine() -> None:
    with started("metadrive-hard", scenario=111) as env:
        cars = env._simulator.engine.traffic_manager.cars
        doubtful = 0
        for car in list(cars)[:20]:
            nearby = car.vehicle.lidar.get_surrounding_objects(car.vehicle)
            for other in cars:
                if other is not car:
                    assert car.sees(other) == (other.vehicle in nearby)
            doubtful += car.reached is not None
        assert doubtful > 0


def test_the_installed_metadrive_is_the_one_that_the_fast_path_knows() -> None:
    assert internals.difference() is None
    with started("metadrive-easy") as env:
        assert isinstance(env._simulator, FastSimulator)


@pytest.mark.parametrize("part", internals.PARTS)
def test_a_part_of_metadrive_that_has_changed_is_noticed(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "PARTS", {**internals.PARTS, part: "000000000000"})
    assert internals.difference.__wrapped__() == f"MetaDrive's {part} is not as in version {internals.VERSION}"


OTHER_METADRIVE = """
import metadrive.version
metadrive.version.VERSION = "0.5.0"
from vlmsafe.envs.registry import env_spec
env = env_spec("metadrive-easy").make()
env.reset(seed=0)
print(type(env._simulator).__name__)
"""


def test_another_metadrive_runs_its_own_code_and_says_so_in_one_line() -> None:
    answer = subprocess.run([sys.executable, "-c", OTHER_METADRIVE], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == [Simulator.__name__]
    assert answer.stderr.splitlines() == [
        "MetaDrive runs at its own speed: MetaDrive 0.5.0 is installed, and the fast path was written for 0.4.3; "
        "steps take about three times as long"
    ]
