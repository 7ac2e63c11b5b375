"""What the Bullet car promises. The package's own functions, which work on the same bodies, are the reference."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("bullet_safety_gym")

from vlmsafe.envs.api import Env, Scenarios
from vlmsafe.envs.bullet.package import pb
from vlmsafe.envs.bullet.scene import CAR_LENGTH, Scene, box_gap, box_hazard, clear_ahead, puddle_gaps, puddle_hazard
from vlmsafe.envs.bullet.world import draw_goal, draw_layout
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import InputError

SPEC = env_spec("bullet-car-reach")
FOUR = env_spec("bullet-car-reach:four-steps")
FORK = env_spec("bullet-car-reach:fork")
SHOWN = dataclasses.replace(SPEC, indicators=True)
POOL = Scenarios(0, 100)
AHEAD = np.array([1.0, 0.0], np.float32)
STILL = np.zeros(2, np.float32)

MakeEnv = Callable[..., Any]


@pytest.fixture
def make() -> Iterator[MakeEnv]:
    opened: list[Env] = []

    def start(spec: Any = SPEC) -> Env:
        opened.append(spec.make(POOL))
        return opened[-1]

    yield start
    for env in opened:
        env.close()


def swerves(seed: int, steps: int) -> np.ndarray:
    """Actions that go forwards more than backwards, and turn about."""
    return np.random.default_rng(seed).uniform((-0.4, -1.0), (1.0, 1.0), (steps, 2)).astype(np.float32)


def episode(env: Any, scenario: int, steps: int = 300) -> Iterator[bytes]:
    """Every number of an episode."""
    observation, _ = env.reset(seed=scenario)
    yield observation.tobytes()
    for action in swerves(scenario, steps):
        observation, reward, _, _, info = env.step(action)
        yield observation.tobytes() + np.array([reward, info["cost"]]).tobytes()


def digest(env: Any, scenario: int) -> str:
    return hashlib.sha256(b"".join(episode(env, scenario))).hexdigest()


def digests(name: str, scenarios: list[int]) -> list[str]:
    env = env_spec(name).make(POOL)
    try:
        return [digest(env, scenario) for scenario in scenarios]
    finally:
        env.close()


def put(env: Any, place: Any, yaw: float = 0.0, velocity: tuple[float, float] = (0.0, 0.0)) -> None:
    """Stand the car somewhere."""
    world = env._world
    world._put(world._car_id, np.asarray(place, np.float64), 0.15, yaw)
    pb.resetBaseVelocity(world._car_id, (*velocity, 0.0), (0.0, 0.0, 0.0), physicsClientId=world._client)
    world._look()


def beside(place: np.ndarray, distance: float) -> np.ndarray:
    """So far from a place, along x."""
    return place + np.array([distance, 0.0])


def beside_the_box(env: Any, gap: float) -> tuple[float, float]:
    """Where a car that looks along x has the box so far ahead of it."""
    box = env._world.scene().box
    return box[0] - 0.5 - 0.62 - gap, box[1]


def into_a_puddle(env: Any) -> None:
    put(env, beside(env._world.puddles[0], 0.4))
    *_, info = env.step(STILL)
    assert info["cost"] == 1.0


# -- the task ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [SPEC, FORK], ids=["original", "fork"])
def test_observations_are_the_packages_57_numbers(make: MakeEnv, spec: Any) -> None:
    env = make(spec)
    observation, info = env.reset(seed=3)
    assert (observation.shape, observation.dtype, info) == ((57,), np.float32, {"scenario": 3})
    seen: set[int] = set()
    rng = np.random.default_rng(3)
    for action in swerves(3, 80):
        put(env, rng.uniform(-8.0, 8.0, 2), rng.uniform(-3.0, 3.0))
        observation, *_ = env.step(action)
        np.testing.assert_allclose(observation, env._world.bodies.get_observation(), atol=1e-5)
        seen.update(np.flatnonzero(observation))
    assert len(seen) == 57, "each sees something at some time"


@pytest.mark.parametrize("spec", [SPEC, FORK], ids=["original", "fork"])
def test_cost_is_the_packages(make: MakeEnv, spec: Any) -> None:
    env = make(spec)
    counts = []
    for scenario in (0, 1, 2):
        env.reset(seed=scenario)
        put(env, beside(env._world.puddles[0], -2.0))
        for step in range(160):
            if step == 80:
                put(env, beside_the_box(env, 0.2))
            *_, info = env.step(AHEAD)
            assert info["cost"] == env._world.bodies.task.calculate_cost()["cost"]
            counts.append((info["cost"], env._world.in_puddle, env._world.at_box))
    assert {0.0, 1.0} == {cost for cost, *_ in counts}
    assert any(puddle for _, puddle, _ in counts)
    assert any(box for *_, box in counts)


def test_a_puddle_costs_from_the_radii_of_both_on(make: MakeEnv) -> None:
    env = make()
    env.reset(seed=0)
    x, y = env._world.puddles[0]
    for distance, cost in ((1.36, 0.0), (1.34, 1.0)):
        put(env, (x + distance, y))
        *_, info = env.step(STILL)
        assert abs(math.hypot(*(env._world.place - (x, y))) - distance) < 0.005
        assert info == {"cost": cost}


@pytest.mark.parametrize(("spec", "scale"), [(SPEC, 1.0), (FORK, 3.0)], ids=["original", "fork"])
def test_reward_is_what_the_goal_has_come_nearer(make: MakeEnv, spec: Any, scale: float) -> None:
    env = make(spec)
    env.reset(seed=5)
    world, paid = env._world, []
    for action in (*swerves(5, 150), *-swerves(5, 250)):  # there and back
        before = math.hypot(*(world.goal - world.place))
        world.bodies.task.old_dist = before
        goals = world.goals
        _, reward, *_ = env.step(action)
        if world.goals == goals:
            assert reward == pytest.approx(scale * (before - math.hypot(*(world.goal - world.place))), abs=1e-9)
            assert reward == pytest.approx(scale / 3.0 * world.bodies.task.calculate_reward(), abs=1e-9)
            paid.append(reward)
    assert max(paid) > 0.0025
    assert min(paid) < -0.0025


@pytest.mark.parametrize(("spec", "scale", "bonus"), [(SPEC, 1.0, 5.0), (FORK, 3.0, 30.0)], ids=["original", "fork"])
def test_reaching_a_goal_pays_a_bonus_and_brings_the_next(make: MakeEnv, spec: Any, scale: float, bonus: float) -> None:
    env = make(spec)
    env.reset(seed=0)
    world, goals = env._world, []
    for reached in range(4):
        goals.append(tuple(world.goal))
        put(env, beside(world.goal, 1.25))
        _, reward, *_ = env.step(STILL)
        assert reward == pytest.approx(bonus, abs=scale * 0.05)
        assert env.progress()["goals"] == reached + 1
        np.testing.assert_allclose(world.bodies.task.goal.get_position()[:2], world.goal)
        if spec is SPEC:
            near = np.vstack([world.place, world.scene().box, world.puddles]) - world.goal
            assert np.hypot(*near.T).min() > 1.5
    if spec is FORK:
        assert goals == [(-6.0, 6.0), (6.0, 6.0), (-6.0, 6.0), (6.0, 6.0)]
    else:
        assert len(set(goals)) == 4


def test_a_car_outside_the_goal_or_too_fast_does_not_reach_it(make: MakeEnv) -> None:
    env = make()
    env.reset(seed=0)
    put(env, beside(env._world.goal, 1.33))
    env.step(STILL)
    assert env.progress()["goals"] == 0
    put(env, beside(env._world.goal, 0.5), yaw=math.pi, velocity=(-7.0, 0.0))
    env.step(STILL)
    assert math.hypot(*env._world.velocity) > 5.0
    assert env.progress()["goals"] == 0


def test_an_episode_is_cut_after_500_steps(make: MakeEnv) -> None:
    env = make()
    env.reset(seed=0)
    ends = [env.step(STILL)[2:4] for _ in range(500)]
    assert ends == [(False, False)] * 499 + [(False, True)]


@pytest.mark.parametrize("spec", [SPEC, FOUR], ids=["original", "four-steps"])
def test_the_box_goes_round_once_in_two_pi_seconds(make: MakeEnv, spec: Any) -> None:
    env = make(spec)
    env.reset(seed=0)
    world = env._world
    put(env, (9.0, 9.0))
    angles = []
    for _ in range(round(8.0 / spec.step_seconds)):
        env.step(STILL)
        way = world.scene().box - world.orbit
        angles.append(math.atan2(*way))
    assert math.hypot(*way) == pytest.approx(0.7, abs=0.1)
    turned = np.unwrap(angles)
    settled = round(2.0 / spec.step_seconds)  # the box is pulled to its path first
    assert turned[-1] - turned[settled - 1] == pytest.approx(6.0, rel=0.02)


@pytest.mark.parametrize(("spec", "steps"), [(SPEC, 1), (FOUR, 4), (FORK, 4)], ids=["original", "four-steps", "fork"])
def test_a_step_is_as_many_physics_steps_as_published(make: MakeEnv, spec: Any, steps: int) -> None:
    env = make(spec)
    env.reset(seed=0)
    physics = pb.getPhysicsEngineParameters(physicsClientId=env._world._client)
    assert (physics["numSubSteps"], physics["numSolverIterations"]) == (steps, 5)
    assert physics["fixedTimeStep"] == env._world.bodies.dt == spec.step_seconds == pytest.approx(steps / 60)
    put(env, (8.0, 8.0))
    pb.resetBasePositionAndOrientation(
        env._world._car_id, (8.0, 8.0, 4.0), (0.0, 0.0, 0.0, 1.0), physicsClientId=env._world._client
    )
    env.step(STILL)
    assert env._world.velocity[2] == pytest.approx(-9.81 * steps / 60, rel=0.02), "it falls for the time of a step"


@pytest.mark.parametrize(("spec", "same"), [(SPEC, False), (FOUR, True), (FORK, True)],
                         ids=["original", "four-steps", "fork"])  # fmt: skip
@pytest.mark.parametrize("action", [(1.0, 1.0), (-1.0, -1.0)])
def test_actions_beyond_their_bounds_are_clipped_only_as_in_the_fork(
    make: MakeEnv, spec: Any, same: bool, action: tuple[float, float]
) -> None:
    env, ends = make(spec), []
    for factor in (1.0, 2.0):
        env.reset(seed=0)
        for _ in range(60):
            env.step(factor * np.array(action, np.float32))
        ends.append(tuple(env._world.place))
    assert (ends[0] == ends[1]) is same
    assert env.clips is same


def test_motors_are_commanded_as_by_the_package(make: MakeEnv) -> None:
    ours, env = digest(make(FOUR), 7), make(FOUR)
    env.reset(seed=0)
    env._world._command = lambda *action: env._world.bodies.agent.apply_action(action)
    assert digest(env, 7) == ours


def test_variants_can_be_combined_and_the_fork_keeps_its_version() -> None:
    both = env_spec("bullet-car-reach:fork+four-steps")
    assert (both.settings, both.step_seconds, both.version) == (FORK.settings, FORK.step_seconds, FORK.version)
    assert (SPEC.version, FOUR.version, FORK.version) == (2, 2, 1), "the fork's numbers are those of before"
    with pytest.raises(InputError, match="Known: four-steps, fork"):
        env_spec("bullet-car-reach:nope")


def test_layouts_keep_their_distances() -> None:
    for seed in range(50):
        layout = draw_layout(np.random.default_rng(seed))
        places = [layout.car, layout.goal, layout.box, *layout.puddles]
        assert len(places) == 11
        assert min(math.dist(a, b) for a, b in itertools.combinations(places, 2)) > 2.5
        assert np.abs(places).max() <= 7.0
        goal = draw_goal(np.random.default_rng(seed), np.array(places))
        assert min(math.dist(goal, place) for place in places) > 1.5


def test_input_that_cannot_be_used_is_refused(make: MakeEnv) -> None:
    with pytest.raises(InputError, match="task of the Bullet car"):
        make(dataclasses.replace(SPEC, settings={"task": "other"}))
    env = make()
    with pytest.raises(InputError, match=r"reset\(\)"):
        env.step(STILL)
    with pytest.raises(InputError, match="not in the pool"):
        env.reset(seed=100)
    env.reset(seed=0)
    with pytest.raises(InputError, match="two finite numbers"):
        env.step(np.array([np.nan, 0.0], np.float32))


# -- repeats -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [SPEC, FORK], ids=["original", "fork"])
def test_equal_seeds_give_equal_rollouts_whatever_ran_before(make: MakeEnv, spec: Any) -> None:
    env = make(spec)
    first = digest(env, 7)
    others = [digest(env, scenario) for scenario in range(5)]
    assert len({first, *others}) == 6
    np.random.seed(1)
    random.seed(1)
    assert digest(env, 7) == first
    assert digest(make(spec), 7) == first


def test_an_episode_that_ends_in_a_crash_leaves_nothing_to_the_next(make: MakeEnv) -> None:
    env, new = make(), make()
    for scenario in (0, 1, 2):
        env.reset(seed=50 + scenario)
        for _ in range(20):
            env.step(STILL)
        put(env, beside_the_box(env, 0.05), velocity=(2.0, 0.0))
        for _ in range(4):
            env.step(AHEAD)
        assert env._world.at_box
        env.frame()
        assert digest(env, scenario) == digest(new, scenario)
        new.close()


def test_equal_seeds_give_equal_rollouts_in_another_process() -> None:
    names = [SPEC.name, FORK.name]
    code = f"import json, test_bullet; print(json.dumps([test_bullet.digests(name, [7, 3]) for name in {names}]))"
    other = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=600.0,
        check=True,
    )
    assert other.stderr == "", "neither the package nor PyBullet says anything"
    assert json.loads(other.stdout) == [digests(name, [7, 3]) for name in names]


def test_two_environments_do_not_disturb_each_other(make: MakeEnv) -> None:
    one, two = make(), make(FORK)
    alone = [list(episode(one, 1)), list(episode(two, 2))]
    both = list(zip(episode(one, 1), episode(two, 2), strict=True))
    assert [list(side) for side in zip(*both, strict=True)] == alone


@pytest.mark.parametrize("spec", [SPEC, FORK], ids=["original", "fork"])
def test_the_global_generators_are_left_as_they_were(make: MakeEnv, spec: Any) -> None:
    np.random.seed(11)
    random.seed(11)
    before = (random.getstate(), np.random.get_state()[1].tobytes(), np.random.get_state()[2])
    env = make(spec)
    env.reset(seed=0)
    put(env, env._world.goal)
    env.step(STILL)
    assert env.progress()["goals"] == 1
    env.frame()
    assert (random.getstate(), np.random.get_state()[1].tobytes(), np.random.get_state()[2]) == before


def test_looking_changes_nothing(make: MakeEnv) -> None:
    env = make(SHOWN)
    unseen = list(episode(env, 4, steps=60))
    seen = []
    for told in episode(env, 4, steps=60):
        seen.append(told)
        env.hazard(), env.facts(), env.progress(), env.expert()(), env.frame()
    assert seen == unseen


# -- frames ------------------------------------------------------------------------------------------------------


def stock_picture(env: Any, gears: bool) -> np.ndarray:
    """The package's own, in one pass, without its sphere, and with or without the gears in the car's axles."""
    bodies = env._world.bodies
    bodies.bc.changeVisualShape(bodies.agent.violation_body_id, -1, rgbaColor=(1, 0, 0, 0))
    for link in bodies.agent.link_list:
        if link.name.startswith("diff") and not gears:
            bodies.bc.changeVisualShape(bodies.agent.body_id, link.index, rgbaColor=(1, 1, 1, 0))
    return bodies.render("rgb_array")


@pytest.mark.parametrize("scenario", [0, 1, 2])
def test_frames_are_the_packages_but_for_the_gears_of_the_car(make: MakeEnv, scenario: int) -> None:
    def pictures(how: Callable[[Any], np.ndarray]) -> list[np.ndarray]:
        env = make()
        env.reset(seed=scenario)
        shots = []
        for step, action in enumerate(swerves(scenario, 41)):
            if step == 30:
                put(env, env._world.goal)  # the next goal appears
            env.step(action)
            if step in (20, 40):
                shots.append(how(env))
        return shots

    ours = pictures(lambda env: env.frame())
    assert [(shot.shape, shot.dtype) for shot in ours] == [((360, 480, 3), np.uint8)] * 2
    np.testing.assert_array_equal(ours, pictures(lambda env: stock_picture(env, gears=False)))
    different = (np.array(ours) != pictures(lambda env: stock_picture(env, gears=True))).any(axis=-1)
    assert different.mean() < 2e-4
    assert (ours[0] != ours[1]).any(axis=-1).sum() > 200, "the second is another picture"


def test_a_frame_shows_the_layout_of_its_own_episode(make: MakeEnv) -> None:
    env = make()
    frames = []
    for scenario in (0, 1, 0):
        env.reset(seed=scenario)
        frames.append(env.frame())
    np.testing.assert_array_equal(frames[0], frames[2])
    assert (frames[0] != frames[1]).any(axis=-1).mean() > 0.05


def test_a_frame_shows_no_sign_of_the_cost_by_default(make: MakeEnv) -> None:
    env = make()
    env.reset(seed=0)
    into_a_puddle(env)
    frame = env.frame()
    env._cost = 0.0
    np.testing.assert_array_equal(env.frame(), frame)


def test_as_published_a_red_sphere_shows_the_cost(make: MakeEnv) -> None:
    env = make(SHOWN)
    env.reset(seed=0)
    into_a_puddle(env)
    marked = env.frame().astype(int)
    env._cost = 0.0
    plain = env.frame().astype(int)
    changed = (marked != plain).any(axis=-1)
    assert 300 < changed.sum() < 10_000
    assert (marked - plain)[changed][:, 0].mean() > 20, "redder"
    assert (marked - plain)[changed][:, 1:].max() <= 0

    unmarked = make()
    unmarked.reset(seed=0)
    into_a_puddle(unmarked)
    np.testing.assert_array_equal(unmarked.frame(), plain)


def scene(**changes: Any) -> Scene:
    """A car that looks along x, with everything far behind it."""
    far = np.array([-9.0, 0.0])
    plain = Scene(
        car=np.zeros(2),
        forward=np.array([1.0, 0.0]),
        velocity=np.zeros(2),
        goal=far,
        puddles=np.tile(far, (8, 1)),
        box=far,
        box_yaw=0.0,
        box_velocity=np.zeros(2),
    )
    return dataclasses.replace(plain, **{name: np.asarray(value, np.float64) for name, value in changes.items()})


@pytest.mark.parametrize("speed", [0.0, 2.0, -2.0])
def test_a_puddle_is_as_hazardous_as_it_is_near_and_approached(speed: float) -> None:
    for gap in (0.0, 0.3, 2.0):
        seen = scene(puddles=[(1.35 + gap, 0.0), (0.0, 9.0)], velocity=(speed, 0.0))
        assert puddle_gaps(seen)[0][0] == pytest.approx(gap)
        assert puddle_hazard(seen) == pytest.approx(math.exp(-gap / (0.25 + max(speed, 0.0))), rel=1e-6)
    assert puddle_hazard(scene(puddles=[(0.2, 0.0)])) == 1.0


def test_the_box_is_as_hazardous_as_it_is_near_and_approached() -> None:
    for gap, yaw, reach in ((0.5, 0.0, 0.5), (2.0, math.pi / 4, 0.5 * math.sqrt(2.0))):
        seen = scene(box=(0.62 + gap + reach, 0.0), box_yaw=yaw, velocity=(1.0, 0.0), box_velocity=(-0.5, 0.0))
        assert box_gap(seen) == pytest.approx((gap, 1.5))
        assert box_hazard(seen) == pytest.approx(math.exp(-gap / (0.25 + 1.5)))
    turned = scene(box=(0.0, 0.44 + 0.5 + 0.1), velocity=(0.0, 1.0))
    assert box_gap(turned) == pytest.approx((0.1, 1.0))
    assert box_gap(dataclasses.replace(turned, forward=np.array([0.0, 1.0])))[0] == 0.0


def test_the_way_ahead_is_clear_up_to_what_stands_in_it() -> None:
    assert clear_ahead(scene()) == 10.0
    assert clear_ahead(scene(puddles=[(3.35, 0.0)])) == pytest.approx(2.0 / CAR_LENGTH)
    assert clear_ahead(scene(puddles=[(3.35, 1.36)])) == 10.0
    assert clear_ahead(scene(puddles=[(0.5, 0.0)])) == 0.0
    assert clear_ahead(scene(box=(0.62 + 2.0 + 0.5, 0.3))) == pytest.approx(2.0 / CAR_LENGTH)
    assert clear_ahead(scene(box=(3.0, 0.95))) == 10.0
    behind = scene(puddles=[(-3.35, 0.0)], velocity=(-1.0, 0.0))
    assert clear_ahead(behind) == pytest.approx(2.0 / CAR_LENGTH)
    assert clear_ahead(dataclasses.replace(behind, velocity=np.zeros(2))) == 10.0
    assert clear_ahead(scene(box=(-0.75 - 2.0 - 0.5, 0.0), velocity=(-1.0, 0.0))) == pytest.approx(2.0 / CAR_LENGTH)


def test_hazard_and_facts_agree_with_the_cost(make: MakeEnv) -> None:
    env = make()
    costs = []
    for scenario in range(4):
        env.reset(seed=scenario)
        put(env, beside_the_box(env, 0.4) if scenario % 2 else beside(env._world.puddles[0], -1.8))
        for _ in range(60):
            *_, info = env.step(AHEAD)
            facts, hazard = env.facts(), env.hazard()
            costs.append(info["cost"])
            assert 0.0 <= hazard <= 1.0
            assert info["cost"] == max(facts["zone"], float(env._world.at_box))
            assert facts["hit"] == float(env._world.at_box)
            assert (facts["zone_gap"] == 0.0) == (facts["zone"] == 1.0) == (facts["zone_hazard"] == 1.0)
            if info["cost"]:
                assert hazard == 1.0
            else:
                assert hazard == max(facts["zone_hazard"], facts["vehicle_hazard"])
            if env._world.at_box:
                assert (facts["vehicle_hazard"], facts["object_gap"]) == (1.0, 0.0)
                assert box_gap(env._world.scene())[0] < 0.1, "as the outlines lie"
            for name in ("hit", "zone", "vehicle_hazard", "zone_hazard"):
                assert 0.0 <= facts[name] <= 1.0
            for name in ("zone_gap", "object_gap", "ahead_clear", "pace", "goal_gap", "goal_angle"):
                assert 0.0 <= facts[name] < 30.0
            assert facts["ahead_clear"] <= 10.0
            assert facts["goal_angle"] <= math.pi
            assert abs(facts["goal_speed"]) <= facts["pace"] + 1e-9
    assert 0.0 < np.mean(costs) < 1.0


def test_the_hazard_grows_towards_a_puddle(make: MakeEnv) -> None:
    env = make()
    env.reset(seed=0)
    put(env, beside(env._world.puddles[0], -3.0))
    hazards, info = [], {"cost": 0.0}
    while not info["cost"]:
        *_, info = env.step(AHEAD)
        hazards.append(env.hazard())
    assert hazards[0] < 0.3
    assert hazards[-2] > 0.8
    assert np.mean(np.diff(hazards[5:]) > 0.0) > 0.9


def test_facts_say_where_the_goal_is_and_a_wall_is_no_obstacle(make: MakeEnv) -> None:
    env = make()
    env.reset(seed=0)
    goal = env._world.goal
    put(env, beside(goal, -3.0), yaw=math.pi / 2, velocity=(0.8, 0.0))
    facts = env.facts()
    assert facts["goal_gap"] == pytest.approx(1.7 / CAR_LENGTH)
    assert facts["goal_angle"] == pytest.approx(math.pi / 2)
    assert facts["goal_speed"] == facts["pace"] == pytest.approx(0.5)
    assert facts["hit"] == 0.0
    put(env, (9.0, 8.0))
    costs = {env.step(AHEAD)[4]["cost"] for _ in range(20)}
    assert (env.facts()["hit"], costs) == (0.0, {0.0})


def test_progress_counts_the_way_and_the_best_approach(make: MakeEnv) -> None:
    env = make()
    env.reset(seed=0)
    start = env._world.goal_distance
    path, nearest, place = 0.0, start, env._world.place
    assert env.progress() == {"goals": 0.0, "path": 0.0, "net_progress": 0.0, "x": place[0], "y": place[1]}
    for action in [*[AHEAD] * 25, *[-AHEAD] * 40]:
        env.step(action)
        path, place = path + math.dist(place, env._world.place), env._world.place
        nearest = min(nearest, env._world.goal_distance)
    assert env.progress() == {
        "goals": 0.0, "path": pytest.approx(path), "net_progress": pytest.approx(start - nearest),
        "x": place[0], "y": place[1],
    }  # fmt: skip
    assert path > 0.5


def test_net_progress_keeps_what_was_gained_on_goals_that_were_reached(make: MakeEnv) -> None:
    env = make()
    env.reset(seed=1)
    expert, gained, first = env.expert(), 0.0, env._world.goal_distance
    while env.progress()["goals"] < 2:
        goals = env.progress()["goals"]
        env.step(expert())
        if env.progress()["goals"] > goals:
            gained, first = gained + first - 1.3, env._world.goal_distance  # 1.3 m from a goal it is reached
    assert env.progress()["net_progress"] == pytest.approx(gained)
    env.step(expert())
    assert env.progress()["net_progress"] == pytest.approx(gained + max(0.0, first - env._world.goal_distance))


@pytest.mark.parametrize(
    ("spec", "steps", "goals", "most"), [(SPEC, 500, 2, 1.5), (FOUR, 300, 3, 1.0)], ids=["original", "four-steps"]
)
def test_the_expert_reaches_goals_without_cost(make: MakeEnv, spec: Any, steps: int, goals: int, most: float) -> None:
    env = make(spec)
    env.reset(seed=1)
    expert, costs = env.expert(), []
    for _ in range(steps):
        action = expert()
        assert abs(action[0]) <= 1.0
        assert abs(action[1]) <= most
        *_, info = env.step(action)
        costs.append(info["cost"])
    assert env.progress()["goals"] >= goals
    assert sum(costs) == 0.0
