"""A cheap reset begins the same episode as MetaDrive's own, and leaves MetaDrive as it was."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

pytest.importorskip("metadrive")

from metadrive.component.lane.circular_lane import CircularLane
from metadrive.component.lane.straight_lane import StraightLane
from metadrive.utils.config import Config
from metadrive.utils.pg.utils import check_lane_on_road
from metadrive.utils.random_utils import get_np_random

from vlmsafe.envs.api import Scenarios
from vlmsafe.envs.metadrive.reuse import BoundingBoxes, Generators, Reuse, deep_copy
from vlmsafe.envs.registry import env_spec

SMALL, LARGE = Scenarios(0, 20), Scenarios(0, 10_000)


def episodes(name: str, pool: Scenarios, resets: list[tuple[int, int]], steps: int = 15) -> list[Any]:
    """All that a sequence of short episodes gave, in one environment."""
    env: Any = env_spec(name).make(pool)
    seen: list[Any] = []
    try:
        for scenario, traffic_seed in resets:
            observation, _ = env.reset(seed=scenario, options={"traffic_seed": traffic_seed})
            seen.append((observation.tobytes(), [settings(car) for car in vehicles(env)]))
            rng = np.random.default_rng(scenario)
            for _ in range(steps):
                observation, reward, _, _, info = env.step(rng.uniform((-0.4, 0.3), (0.4, 1.0)))
                places = [(*car.origin.getPos(), car.origin.getH(), car.speed) for car in vehicles(env)]
                seen.append((observation.tobytes(), reward, info, places))
            seen.append((env.frame().tobytes(), env.hazard(), env.facts()))
    finally:
        env.close()
    return seen


def settings(car: Any) -> dict[str, Any]:
    """A car's settings but for the class of its navigation, which the fast path replaces."""
    return {name: value for name, value in car.config.get_serializable_dict().items() if name != "navigation_module"}


def vehicles(env: Any) -> list[Any]:
    return [env._simulator.agent, *env._traffic]


@pytest.mark.parametrize(("pool", "variants"), [(SMALL, ""), (LARGE, ""), (SMALL, "native+")])
def test_two_scenarios_and_the_first_again_are_driven_as_in_metadrive_bit_for_bit(
    pool: Scenarios, variants: str
) -> None:
    resets = [(3, 5), (11, 6), (3, 7), (3, 5)]
    fast = f"metadrive-medium:{variants}".rstrip(":+")
    assert episodes(fast, pool, resets) == episodes(f"metadrive-medium:{variants}stock", pool, resets)


def test_an_engine_in_use_is_reset_as_metadrive_does_it() -> None:
    env: Any = env_spec("metadrive-easy").make(SMALL)
    try:
        for isolate, kept in ((True, True), (False, False), (False, False), (True, True)):
            env.isolate = isolate
            env.reset(seed=0, options={"traffic_seed": 1})
            assert hasattr(env._simulator.current_map.blocks[0], "plan") is kept
    finally:
        env.close()


def test_metadrive_is_as_it_was_after_a_reset_that_fails() -> None:
    reuse = Reuse(20)
    stock = {(owner, name): vars(owner)[name] for owner, name, _ in reuse.replacements}
    with reuse.resetting():
        assert all(vars(owner)[name] is by for owner, name, by in reuse.replacements)
    with pytest.raises(ValueError, match="nothing"), reuse.resetting():
        int("nothing")
    assert all(vars(owner)[name] is function for (owner, name), function in stock.items())


def nested() -> Config:
    config = Config({"a": 1, "b": {"c": 2.0, "d": None}, "e": (1, 2), "f": [1, {"g": 3}], "h": np.ones(2), "i": int})
    config.update({"j": np.array([0.5], np.float32)})
    return config


def test_a_copied_configuration_shares_nothing_that_can_change() -> None:
    config = nested()
    twin, known = deep_copy(config), copy.deepcopy(config)
    assert repr(twin) == repr(known)
    assert vars(twin).keys() == vars(known).keys()
    assert twin.b is twin["b"]
    assert twin["b"] is not config["b"]
    twin["b"]["c"], twin["f"][1]["g"], twin["h"][0] = 5.0, 6, 7.0
    assert repr(config) == repr(known)


UPDATES: list[dict[str, Any]] = [
    {"a": 3, "b": {"c": 4.0}},
    {"a": 2.5, "b": Config({"c": 4, "d": "x"})},
    {"e": (3, 4), "f": [], "h": np.zeros(2), "i": None},
    {"j": np.array([0.25], np.float32)},
    {"new": 1, "b": {"new": Config({"k": 1})}},
    {"b": 1},
    {"a": "text"},
]


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("new_keys", [True, False])
def test_an_update_leaves_what_metadrives_own_leaves(update: dict[str, Any], new_keys: bool) -> None:
    def outcome() -> tuple[str, str]:
        config = nested()
        try:
            config.update(update, allow_add_new_key=new_keys)
        except (KeyError, TypeError, AssertionError) as error:
            return type(error).__name__, ""
        return repr(config), repr({key: value for key, value in vars(config).items() if key != "_config"})

    stock = outcome()
    with Reuse(20).resetting():
        assert outcome() == stock


def test_generators_draw_what_new_ones_would() -> None:
    generators = Generators()
    first = [generators(seed) for seed in (0, 7, 65535)]
    assert len({id(generator) for generator in first}) == 3
    for generator in first:
        generator.normal()  # leaves a second number behind, which must not reach the next episode
    generators.start_over()
    for seed in (7, 3):
        again = generators(seed)
        assert any(again is generator for generator in first)
        known = get_np_random(seed)
        assert [again.normal(), again.randint(0, 2**31)] == [known.normal(), known.randint(0, 2**31)]


def test_a_place_on_a_circle_is_metadrives_bit_for_bit() -> None:
    for clockwise in (True, False):
        lane = CircularLane((3.1, -7.3), 23.7, 1.1, 2.3, clockwise=clockwise)
        places = [(0.1 * step, lateral) for step in range(500) for lateral in (-1.75, 0, np.float64(1.3))]
        stock = [lane.position(*place) for place in places]
        with Reuse(20).resetting():
            assert [lane.position(*place) for place in places] == stock


def test_a_new_lane_crosses_the_roads_that_it_crosses_in_metadrive() -> None:
    env: Any = env_spec("metadrive-hard").make(SMALL)
    rng = np.random.default_rng(0)
    try:
        env.reset(seed=3, options={"traffic_seed": 0})
        roads = env._simulator.current_map.road_network
        answers = set()
        for radius in range(20, 60, 2):
            start, turn = rng.uniform(-200, 200, 2), rng.uniform(-3, 3)
            ahead = start + 40 * np.array([np.cos(turn), np.sin(turn)])
            for lane in (StraightLane(start, ahead), CircularLane(tuple(start), radius, turn, 1.5)):
                for factor in (-0.95, 0, 2.2):
                    stock = check_lane_on_road(roads, lane, factor, ignore_intersection_checking=False)
                    ours = BoundingBoxes().crossed(roads, lane, factor, ignore_intersection_checking=False)
                    assert ours == stock
                    answers.add(stock)
        assert answers == {True, False}
    finally:
        env.close()
