"""The variants of MetaDrive do what they say: what ends an episode, what stands on the road, and who else drives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("metadrive")

from metadrive.component.static_object.traffic_object import TrafficBarrier
from metadrive.envs.safe_metadrive_env import SafeMetaDriveEnv

from vlmsafe.envs.api import Env, Scenarios
from vlmsafe.envs.metadrive.env import PAPER
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import InputError

POOL = Scenarios(0, 20)
AHEAD = np.array([0.0, 1.0], dtype=np.float32)
BEND, CRASH = 0, 6  # scenarios of the easy level where driving ahead leaves the road, or with traffic 1 hits a car
OBJECTS = 0  # a scenario of the easy level with a barrier and cones
LEVELS = ("easy", "medium", "hard")

Start = Callable[..., Any]


@pytest.fixture
def start() -> Iterator[Start]:
    opened: list[Env] = []

    def begin(spec: Any, scenario: int) -> Env:
        env = (env_spec(spec) if isinstance(spec, str) else spec).make(POOL)
        opened.append(env)
        env.reset(seed=scenario, options={"traffic_seed": 1})
        return env

    yield begin
    for env in opened:
        env.close()


def drive(env: Any, steps: int = 110) -> list[tuple[float, bool, dict[str, Any]]]:
    """Straight ahead until the episode ends: reward, whether it terminated, and info of each step."""
    seen: list[tuple[float, bool, dict[str, Any]]] = []
    while len(seen) < steps and not (seen and seen[-1][1]):
        _, reward, terminated, _, info = env.step(AHEAD)
        seen.append((reward, terminated, info))
    return seen


def put_before_a_barrier(env: Any, metres: float) -> Any:
    """Put the agent's car in front of a barrier, pointing at its middle; the barrier."""
    thing = next(thing for thing in env._traffic if isinstance(thing, TrafficBarrier))
    along, across = thing.lane.local_coordinates(thing.position)
    car = env._simulator.agent
    car.set_position(thing.lane.position(along - metres, across))
    car.set_heading_theta(thing.lane.heading_theta_at(along - metres))
    return thing


def put_on_a_line(env: Any) -> None:
    car = env._simulator.agent
    lane = car.navigation.current_ref_lanes[0]
    car.set_position(lane.position(20.0, -lane.width / 2))
    car.set_heading_theta(lane.heading_theta_at(20.0))


# -- ends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scenario", "event"), [(BEND, "out_of_road"), (CRASH, "crash_vehicle")])
def test_the_first_step_that_costs_ends_the_episode(start: Start, scenario: int, event: str) -> None:
    *before, (reward, terminated, info) = drive(start("metadrive-easy:ends", scenario))
    assert all(info["cost"] == 0.0 and not ended for _, ended, info in before)
    assert (reward, terminated, info["cost"], info[event], info["arrived"]) == (-5.0, True, 1.0, True, False)


@pytest.mark.parametrize(("name", "ends"), [("metadrive-easy", False), ("metadrive-easy:ends", True)])
def test_a_solid_line_costs_and_ends_only_the_ending_world(start: Start, name: str, ends: bool) -> None:
    env = start(name, BEND)
    put_on_a_line(env)
    _, _, terminated, _, info = env.step(AHEAD)
    assert (info["cost"], info["out_of_road"], terminated) == (1.0, True, ends)
    assert env._simulator.agent.on_lane, "it is the line that counts"


@pytest.mark.parametrize(("name", "ends"), [("metadrive-easy:native", False), ("metadrive-easy:ends+native", True)])
def test_an_object_costs_and_ends_only_the_ending_world(start: Start, name: str, ends: bool) -> None:
    env = start(name, OBJECTS)
    put_before_a_barrier(env, 8.0)
    seen = drive(env, 40)
    reward, terminated, info = next(step for step in seen if step[2]["cost"])
    assert (info["crash_object"], reward, terminated) == (True, -5.0, ends)
    assert env.facts()["hit"] == 1.0 or not ends


# -- native ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_the_native_rules_are_those_of_safe_metadrive(level: str) -> None:
    own = SafeMetaDriveEnv.default_config(SafeMetaDriveEnv.__new__(SafeMetaDriveEnv))
    rules = {**PAPER, **env_spec(f"metadrive-{level}:native").settings}
    assert {name: own[name] for name in PAPER} == {name: rules[name] for name in PAPER}
    assert {**PAPER, **env_spec(f"metadrive-{level}").settings}.items() >= PAPER.items()


def test_leaving_the_road_ends_a_native_episode_and_a_crash_does_not(start: Start) -> None:
    env = start("metadrive-easy:native", BEND)
    assert drive(env)[-1][1:] == (True, {"cost": 1.0, "arrived": False, "crash_vehicle": False,
                                         "out_of_road": True, "crash_object": False})  # fmt: skip
    env.reset(seed=CRASH, options={"traffic_seed": 1})
    crashes = [terminated for _, terminated, info in drive(env) if info["crash_vehicle"] and not info["out_of_road"]]
    assert len(crashes) > 1
    assert not any(crashes)


def test_frames_and_hazard_show_the_objects_of_accidents(start: Start) -> None:
    env = start("metadrive-easy:native+no-traffic", OBJECTS)
    barrier = put_before_a_barrier(env, 8.0)
    car = env._simulator.agent
    car.set_velocity(10.0 * car.heading)
    gap = 8.0 - car.LENGTH / 2 - barrier.WIDTH / 2
    assert env.hazard() == pytest.approx(np.exp(-gap / (0.25 + 10.0)), rel=0.02)
    rows, columns = np.nonzero((env.frame() == (235, 84, 42)).all(axis=-1))
    # MetaDrive draws a barrier across its lane, 2 m wide; a frame has four pixels per metre and shows ahead as up.
    assert rows.mean() == pytest.approx(128 - 8.0 * 4, abs=3)
    assert columns.mean() == pytest.approx(128, abs=3)
    assert np.ptp(columns) > 2 * np.ptp(rows)


# -- traffic -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "cars"), [("metadrive-easy", True), ("metadrive-easy:no-traffic", False)])
def test_without_traffic_no_other_car_is_there(start: Start, name: str, cars: bool) -> None:
    assert bool(list(start(name, CRASH)._traffic)) is cars


# -- settings ----------------------------------------------------------------------------------------------------


def test_the_settings_of_an_environment_replace_the_papers_rules(start: Start) -> None:
    easy = env_spec("metadrive-easy")
    settings = {**easy.settings, "out_of_road_penalty": 2.0}
    paid = [reward for reward, _, info in drive(start(dataclasses.replace(easy, settings=settings), BEND))
            if info["cost"]]  # fmt: skip
    assert set(paid) == {-2.0}


def test_a_setting_that_the_environment_sets_itself_is_refused(start: Start) -> None:
    easy = env_spec("metadrive-easy")
    wrong = dataclasses.replace(easy, settings={**easy.settings, "horizon": 5})
    with pytest.raises(InputError, match="the settings of 'metadrive-easy' contain horizon, which the environment set"):
        start(wrong, 0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("variants", "budget"), [("no-traffic", 25.0), ("ends", 0.1), ("native", 1.0), ("native+ends+stock", 0.1)]
)
def test_every_level_has_the_variants_with_their_budgets(level: str, variants: str, budget: float) -> None:
    spec = env_spec(f"metadrive-{level}:{variants}")
    assert (spec.budget, spec.horizon) == (budget, 1000)
    assert spec.settings["map"] == env_spec(f"metadrive-{level}").settings["map"]


def test_variants_that_contradict_each_other_are_refused() -> None:
    message = "the variants 'density-0.2' and 'no-traffic' of metadrive-easy both set traffic_density"
    with pytest.raises(InputError, match=message):
        env_spec("metadrive-easy:density-0.2+no-traffic")


def test_the_soft_brake_brakes_by_the_square_of_the_action_and_accelerates_as_before(start: Start) -> None:
    def speeds(name: str, pedals: list[float]) -> list[float]:
        env = start(name, BEND)
        found = []
        for pedal in pedals:
            env.step(np.array([0.0, pedal]))
            found.append(env.progress()["speed"])
        env.close()
        return found

    plain = speeds("metadrive-easy:no-traffic", [1.0] * 20 + [-0.25, -1.0])
    assert speeds("metadrive-easy:no-traffic+soft-brake", [1.0] * 20 + [-0.5, -1.0]) == plain
    assert plain[19] > plain[20] > plain[21]


def test_the_scripted_driver_drives_the_same_with_the_soft_brake(start: Start) -> None:
    def drive_by_script(name: str) -> list[float]:
        env = start(name, CRASH)
        driver = env.expert()
        assert driver is not None
        found = []
        for _ in range(150):
            env.step(driver())
            found.append(env.progress()["speed"])
        env.close()
        return found

    plain, soft = drive_by_script("metadrive-easy"), drive_by_script("metadrive-easy:soft-brake")
    assert np.diff(plain).min() < -0.05  # it brakes
    # The square of a root is not always the same number, and MetaDrive computes in float32.
    np.testing.assert_allclose(soft, plain, atol=0.05)


def test_the_route_variant_observes_what_is_left_of_the_route_and_of_the_time(start: Start) -> None:
    plain = start("metadrive-easy:no-traffic", BEND)
    before = [plain.step(AHEAD)[0] for _ in range(30)]
    plain.close()
    routed = start("metadrive-easy:no-traffic+route", BEND)
    after = [routed.step(AHEAD)[0] for _ in range(30)]
    assert routed.observation_space.shape == (len(before[0]) + 2,)
    assert all(routed.observation_space.contains(one) for one in after)
    np.testing.assert_array_equal([one[:-2] for one in after], before)
    assert after[-1][-2] == pytest.approx(1.0 - routed.progress()["route_completion"])
    assert [one[-1] for one in after] == pytest.approx([1.0 - step / 1000 for step in range(1, 31)])
