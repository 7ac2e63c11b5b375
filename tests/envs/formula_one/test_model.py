"""How the world behaves: the car, walls, and barriers that sleep."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mujoco")
import mujoco
from test_formula_one import barrier_ahead, drive, facing_a_wall, make, put, speed_of

from vlmsafe.envs.formula_one.circuit import circuit, exits
from vlmsafe.envs.registry import env_spec

ORIGINAL = json.loads((Path(__file__).parents[3] / "benchmarks/original/formula_one.json").read_text())


@pytest.mark.parametrize("scenario", range(3))
def test_barriers_stay_where_they_were_settled_and_sleep(scenario):
    env = make("formula-one-l2", scenario)
    before = env._barrier_positions.copy()
    drive(env, 10, 0.0)
    np.testing.assert_allclose(env._barrier_positions, before, atol=0.005)
    assert env._data.ntree_awake == 1  # the car


def test_top_speed_is_one_metre_per_second_and_six_in_the_fast_variant():
    for name, speed, steps in (("formula-one-l0", 1.0, 45), ("formula-one-l0:fast", 6.0, 95)):
        env = make(name)
        put(env, np.array([100.0, 100.0]), 0.0)  # an empty plane
        drive(env, steps)
        assert speed_of(env) == pytest.approx(speed, rel=0.03)
        assert abs(env._position[1] - 100.0) < 0.2  # straight on


def test_the_fast_car_does_not_turn_over():
    env = make("formula-one-l0:fast")
    put(env, np.array([100.0, 100.0]), 0.0)
    for throttle, steer in ((1.0, 0.0), (0.5, 1.0), (1.0, -0.5), (-1.0, 1.0)):
        for _ in range(60):
            drive(env, 1, throttle, steer)
            assert env._data.body("car").xmat[8] > 0.95


@pytest.mark.parametrize("steer", [1.0, -1.0])
def test_full_steering_turns_in_0_4_metres_to_the_left_when_positive(steer):
    env = make("formula-one-l0")
    put(env, np.array([100.0, 100.0]), 0.0)
    drive(env, 50, 1.0, steer)
    speeds, yaw_rates = [], []
    for _ in range(40):
        drive(env, 1, 1.0, steer)
        speeds.append(speed_of(env))
        yaw_rates.append(steer * env._data.sensor("gyro").data[2])
    assert np.mean(speeds) / np.mean(yaw_rates) == pytest.approx(0.41, abs=0.03)


@pytest.mark.parametrize("throttle", [1.0, -1.0])
def test_a_wall_stops_the_car_at_its_face(throttle):
    env = facing_a_wall("formula-one-l1")
    deepest, nearest = 0.0, 1.0
    for _ in range(90):
        drive(env, 1, throttle)
        deepest = min(deepest, env._data.contact.dist.min(initial=0.0))
        nearest = min(nearest, exits(env._position[None])[0][0])
    assert -0.01 < deepest < 0.0
    assert nearest == pytest.approx(0.2465 if throttle > 0 else 0.21, abs=0.015)


def test_a_barrier_that_is_hit_costs_moves_and_hardly_slows_the_car():
    env = make("formula-one-l1")
    place = barrier_ahead(env, 2.0)
    others = env._barrier_positions[1:].copy()
    costs = drive(env, 50)
    assert sum(costs) == 0.0
    before, slowest = speed_of(env), 1.0
    for _ in range(30):
        costs += drive(env, 1)
        slowest = min(slowest, speed_of(env))
    assert sum(costs) > 10
    assert slowest > 0.999 * before  # the barrier weighs 14 mg
    drive(env, 30, -1.0)
    assert drive(env, 30, -1.0) == [0.0] * 30  # away from it, while it comes to rest
    pushed = env._barrier_positions[0].copy()
    assert np.hypot(*(pushed - place)) > 0.3
    drive(env, 20, -1.0)
    np.testing.assert_allclose(env._barrier_positions[0], pushed, atol=1e-3)
    np.testing.assert_allclose(env._barrier_positions[1:], others, atol=1e-4)


def test_the_car_and_barriers_weigh_and_measure_what_the_original_s_do():
    model = make("formula-one-l1")._model
    parts = ("car", "front_left", "front_left_wheel", "front_right", "front_right_wheel", "axle")
    assert sum(model.body(part).mass[0] for part in parts) == pytest.approx(ORIGINAL["car"]["mass"], rel=1e-3)
    assert model.body("barrier_0").mass[0] == pytest.approx(ORIGINAL["barrier"]["mass"], rel=0.01)
    mesh = model.mesh("barrier")
    corners = model.mesh_vert[mesh.vertadr[0] : mesh.vertadr[0] + mesh.vertnum[0]]
    # MuJoCo turns a mesh to its own axes; the diameters stay.
    diameter = 2 * ORIGINAL["barrier"]["radius"]
    widths = np.sort(np.ptp(corners, axis=0))
    assert widths == pytest.approx([diameter, diameter, ORIGINAL["barrier"]["height"]], rel=0.02)


def test_sleeping_barriers_change_nothing_but_time():
    rollouts = []
    for asleep in (True, False):
        env = env_spec("formula-one-l2").make()
        if not asleep:
            env._model.opt.enableflags &= ~int(mujoco.mjtEnableBit.mjENBL_SLEEP)
        env.reset(seed=4)
        barrier_ahead(env, 0.8)
        costs = drive(env, 30)
        assert env._data.ntree_awake == (2 if asleep else 201)
        rollouts.append((env._data.qpos[env._car].copy(), env._barrier_positions, costs))
    np.testing.assert_allclose(rollouts[0][0], rollouts[1][0], atol=1e-4)
    np.testing.assert_allclose(rollouts[0][1], rollouts[1][1], atol=0.01)  # the first was pushed for 18 steps
    assert rollouts[0][2] == rollouts[1][2]


@pytest.mark.parametrize("scenario", [0, 4, 8])
def test_energy_and_penetration_stay_bounded_in_random_drives(scenario):
    """Scenario 0 throws a barrier over, 4 and 8 drive into walls; `benchmarks` has many more episodes."""
    env = make("formula-one-l2", scenario)
    model, data, rng = env._model, env._data, np.random.default_rng(scenario)
    velocities = model.jnt_dofadr[model.body_jntadr[env._barrier_bodies]][:, None] + np.arange(3)
    touched = 0.0
    for throttle, steer in rng.uniform(-1.0, 1.0, (15, 2)):
        for _ in range(10):
            touched += drive(env, 1, throttle, steer)[0]
            pairs = data.contact.geom
            at_wall = env._is_car[pairs].any(axis=1) & env._is_wall[pairs].any(axis=1)
            assert data.contact.dist[at_wall].min(initial=0.0) > -0.02
            assert speed_of(env) < 1.5
            assert abs(data.qpos[env._car][2] - 0.05) < 0.02
            assert np.hypot(*np.moveaxis(data.qvel[velocities], -1, 0)[:2]).max() < 8.0
            assert np.abs(data.qpos[env._barriers[:, 0] + 2]).max() < 0.5
    assert touched > 0.0
    assert np.isfinite(data.qpos).all()
    assert np.isfinite(data.qvel).all()


def test_a_barrier_pinned_between_car_and_wall_stays_bounded():
    env = facing_a_wall("formula-one-l1")
    ahead = np.array([math.cos(env._heading), math.sin(env._heading)])
    env._data.qpos[env._barriers[:2]] = env._position + np.array([[1.0], [1.35]]) * ahead
    mujoco.mj_forward(env._model, env._data)
    velocities = env._model.jnt_dofadr[env._model.body_jntadr[env._barrier_bodies[:2]]][:, None] + np.arange(3)
    for _ in range(90):
        drive(env, 1)
        assert np.abs(env._data.qvel[velocities]).max() < 8.0
        assert abs(env._data.qpos[env._car][2] - 0.05) < 0.02
    assert circuit().lane(env._position) < 1.0
