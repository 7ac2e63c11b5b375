import numpy as np
import pytest

pytest.importorskip("mujoco")
from dataclasses import replace

import mujoco
from test_formula_one import barrier_ahead, drive, make, put

from vlmsafe.envs import opengl
from vlmsafe.envs.formula_one import painter
from vlmsafe.envs.formula_one.circuit import GOALS
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import EnvironmentFailure

pytestmark = pytest.mark.skipif(opengl.choose() is None, reason="nothing can draw here")


BOTH = pytest.mark.parametrize("name", ["formula-one-l1", "formula-one-l1:track"])


def red(frame):
    """Pixels as red as the indicator makes them."""
    return int(((frame[..., 0] > 150) & (frame[..., 1] < 90) & (frame[..., 2] < 90)).sum())


def touching(name, indicators):
    """An environment whose last step ended with a touch."""
    env = replace(env_spec(name), indicators=indicators).make()
    env.reset(seed=0)
    barrier_ahead(env, 0.8)
    while not drive(env, 1)[0]:
        pass
    return env


@BOTH
def test_frames_are_256_pixels_of_rgb(name):
    frame = make(name).frame()
    assert frame.shape == (256, 256, 3)
    assert frame.dtype == np.uint8


@pytest.mark.parametrize("heading", [0.0, 2.0])
def test_cameras_are_where_the_original_has_them(heading):
    env = make("formula-one-l0")
    put(env, GOALS[1], heading)
    cosine, sine = np.cos(heading), np.sin(heading)
    vision, track, car = env._data.camera("vision"), env._data.camera("track"), env._data.body("car").xpos
    np.testing.assert_allclose(vision.xpos - car, (0.10 * cosine, 0.10 * sine, 0.10), atol=1e-6)
    # A camera looks along its negative third axis, and its second points up in the picture: ahead, and level.
    np.testing.assert_allclose(-vision.xmat[2::3], (cosine, sine, 0.0), atol=1e-6)
    np.testing.assert_allclose(vision.xmat[1::3], (0.0, 0.0, 1.0), atol=1e-6)
    assert env._model.camera("vision").fovy[0] == 90.0
    # The other one hangs on one side of the world, however the car turns, and looks at the car.
    np.testing.assert_allclose(track.xpos - car, (0.0, 2.0, 2.0), atol=1e-6)
    np.testing.assert_allclose(-track.xmat[2::3], (0.0, -np.sqrt(0.5), -np.sqrt(0.5)), atol=1e-6)
    assert env._model.camera("track").fovy[0] == 45.0


def test_the_camera_is_vision_unless_another_is_asked_for():
    assert make("formula-one-l1")._camera == "vision"
    vision, track = make("formula-one-l1", 3).frame(), make("formula-one-l1:track", 3).frame()
    assert (vision != track).any(axis=-1).mean() > 0.5


@BOTH
def test_a_frame_does_not_show_whether_the_step_cost(name):
    env = touching(name, indicators=False)
    in_contact = env.frame()
    env._hit_wall = env._hit_barrier = False
    assert (env.frame() == in_contact).all()


def test_indicators_change_no_pixel_of_vision():
    plain = touching("formula-one-l1", indicators=False).frame()
    assert (touching("formula-one-l1", indicators=True).frame() == plain).all()


def test_indicators_are_a_red_ball_where_it_costs_and_lidar_readings_in_the_picture_of_track():
    plain, marked = touching("formula-one-l1:track", indicators=False).frame(), touching("formula-one-l1:track", True)
    assert red(marked.frame()) > red(plain) + 500
    marked._hit_wall = marked._hit_barrier = False
    without_cost = marked.frame()
    assert red(without_cost) <= red(plain)
    changed = (without_cost != plain).any(axis=-1)
    assert 200 < changed.sum() < 3000
    cyan = (without_cost[..., 0] < 60) & (without_cost[..., 1] > 180) & (without_cost[..., 2] > 180)
    assert cyan.sum() > 10  # the barrier in front


def test_level_zero_has_no_cost_to_indicate():
    env = replace(env_spec("formula-one-l0:track"), indicators=True).make()
    env.reset(seed=0)
    before = red(env.frame())
    env._hit_wall = True
    assert red(env.frame()) == before


@pytest.mark.parametrize(("name", "limit"), [("formula-one-l2", "_FIELD"), ("formula-one-l2:track", "_TRACKED")])
def test_leaving_out_what_is_out_of_view_changes_no_frame(monkeypatch, name, limit):
    env, usual = make(name), getattr(painter, limit)

    def with_limit(value):
        monkeypatch.setattr(painter, limit, value)
        return env.frame().astype(int)

    def alike():
        return bool((with_limit(usual) == with_limit(60.0)).all())

    for scenario in range(8):
        env.reset(seed=scenario)
        assert alike(), scenario
    env.reset(seed=0)
    barrier_ahead(env, 5.0)
    for angle in np.radians((0, 35, 45, 54, 70, 120, 250, 310)):
        for distance in (0.6, 1.05, 1.5, 2.5, 4.1):
            direction = env._heading + angle
            env._data.qpos[env._barriers[0]] = env._position + distance * np.array(
                [np.cos(direction), np.sin(direction)]
            )
            mujoco.mj_forward(env._model, env._data)
            assert alike(), (angle, distance)


@pytest.mark.parametrize("limit", ["_SIGHT", "_DETAIL"])
def test_leaving_out_what_is_far_hardly_changes_a_frame(monkeypatch, limit):
    env, changes = make("formula-one-l2"), []
    for scenario in range(12):
        env.reset(seed=scenario)
        frame = env.frame().astype(int)
        with monkeypatch.context() as patch:
            patch.setattr(painter, limit, 1e9)
            changes.append(np.abs(env.frame().astype(int) - frame).mean())
    assert 0.0 < max(changes) < 0.5


@BOTH
def test_barriers_and_the_goal_are_seen(name):
    env = make(name)
    barrier_ahead(env, 1.2)
    frame = env.frame().astype(int)
    assert ((frame[..., 0] > 180) & (frame[..., 2] < 60) & (frame[..., 1] > 60)).sum() > 150  # orange
    put(env, env._goal - (1.2, 0.0), 0.0)
    frame = env.frame().astype(int)
    assert ((frame[..., 1] > frame[..., 0] + 30) & (frame[..., 1] > frame[..., 2] + 30)).sum() > 300  # green


def test_a_barrier_that_fell_over_is_drawn_lying():
    env = make("formula-one-l1")
    barrier_ahead(env, 1.2)
    standing = env.frame().astype(int)
    first = int(env._barriers[0, 0])
    env._data.qpos[first + 2 : first + 7] = (0.16, np.sqrt(0.5), np.sqrt(0.5), 0.0, 0.0)
    mujoco.mj_forward(env._model, env._data)
    lying = env.frame().astype(int)

    def height(frame):
        orange = (frame[..., 0] > 180) & (frame[..., 2] < 60) & (frame[..., 1] > 60)
        return np.ptp(np.flatnonzero(orange.any(axis=1)))

    assert height(lying) < 0.9 * height(standing)


def test_the_overview_shows_the_whole_circuit():
    assert make("formula-one-l2").overview(512).shape == (512, 512, 3)


def test_without_any_way_to_draw_physics_goes_on_and_a_frame_says_what_to_install(monkeypatch):
    env = make("formula-one-l1")
    monkeypatch.setattr(opengl, "choose", lambda: None)
    drive(env, 2)
    with pytest.raises(EnvironmentFailure, match=r"FormulaOne cannot draw frames here: .*libegl1"):
        env.frame()
