import numpy as np
import pytest

pytest.importorskip("mujoco")
from dataclasses import replace

from test_formula_one import barrier_ahead, drive, make, put

from vlmsafe.envs import opengl
from vlmsafe.envs.formula_one import painter
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import EnvironmentFailure

pytestmark = pytest.mark.skipif(opengl.choose() is None, reason="nothing can draw here")


def red(frame):
    """Pixels as red as the indicator makes them."""
    return int(((frame[..., 0] > 150) & (frame[..., 1] < 90) & (frame[..., 2] < 90)).sum())


def touching(indicators):
    env = replace(env_spec("formula-one-l1"), indicators=indicators).make()
    env.reset(seed=0)
    barrier_ahead(env, 0.8)
    assert drive(env, 30)[-1] == 1.0
    return env


def test_frames_are_256_pixels_of_rgb():
    frame = make("formula-one-l1").frame()
    assert frame.shape == (256, 256, 3)
    assert frame.dtype == np.uint8


def test_a_frame_does_not_show_whether_the_step_cost():
    env = touching(indicators=False)
    in_contact = env.frame()
    env._hit_wall = env._hit_barrier = False
    assert (env.frame() == in_contact).all()


def test_the_published_indicator_is_an_option():
    plain, marked = touching(indicators=False).frame(), touching(indicators=True)
    assert red(marked.frame()) > red(plain) + 500
    marked._hit_wall = marked._hit_barrier = False
    assert (marked.frame() == plain).all()


def test_leaving_out_what_is_out_of_view_changes_no_frame(monkeypatch):
    env, field = make("formula-one-l2"), painter._FIELD

    def with_field(angle):
        monkeypatch.setattr(painter, "_FIELD", angle)
        return env.frame().astype(int)

    for scenario in range(8):
        env.reset(seed=scenario)
        assert (with_field(field) == with_field(4.0)).all()
    for angle in np.radians((35, 45, 55, 70)):
        for distance in (0.6, 1.05, 1.5, 2.5):
            barrier_ahead(env, 5.0)
            direction = env._heading + angle
            env._data.qpos[env._barriers[0]] = env._position + distance * np.array(
                [np.cos(direction), np.sin(direction)]
            )
            assert (with_field(field) == with_field(4.0)).all(), (angle, distance)


def test_leaving_out_what_is_far_hardly_changes_a_frame(monkeypatch):
    env = make("formula-one-l2", 1)
    frame = env.frame().astype(int)
    monkeypatch.setattr(painter, "_SIGHT", 1e9)
    assert np.abs(env.frame().astype(int) - frame).mean() < 0.3


def test_barriers_and_the_goal_are_seen():
    env = make("formula-one-l1")
    barrier_ahead(env, 1.2)
    frame = env.frame().astype(int)
    assert ((frame[..., 0] > 180) & (frame[..., 2] < 60) & (frame[..., 1] > 60)).sum() > 300  # orange
    put(env, env._goal - (1.5, 0.0), 0.0)
    frame = env.frame().astype(int)
    assert ((frame[..., 1] > frame[..., 0] + 30) & (frame[..., 1] > frame[..., 2] + 30)).sum() > 300  # green


def test_the_overview_shows_the_whole_circuit():
    assert make("formula-one-l2").overview(512).shape == (512, 512, 3)


def test_without_any_way_to_draw_physics_goes_on_and_a_frame_says_what_to_install(monkeypatch):
    env = make("formula-one-l1")
    monkeypatch.setattr(opengl, "choose", lambda: None)
    drive(env, 2)
    with pytest.raises(EnvironmentFailure, match=r"FormulaOne cannot draw frames here: .*libegl1"):
        env.frame()
