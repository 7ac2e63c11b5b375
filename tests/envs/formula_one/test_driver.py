import numpy as np
import pytest

pytest.importorskip("mujoco")
from vlmsafe.envs.formula_one.driver import _speed_limit
from vlmsafe.envs.registry import env_spec
from vlmsafe.learners.policy import ActionMap


def driven(name, scenario, until=None):
    """Stages and cost of the scripted driver's episode, or of its beginning."""
    env = env_spec(name).make()
    env.reset(seed=scenario)
    move, act, cost, truncated = ActionMap.to(env.action_space), env.expert(), 0.0, False
    while not truncated and (until is None or env.progress()["stages"] < until):
        *_, truncated, info = env.step(move(act().astype(np.float32)))
        cost += info["cost"]
    return env.progress()["stages"], cost


def test_it_completes_all_seven_stages_in_the_long_variant():
    assert driven("formula-one-l0:long", 0, until=7) == (7.0, 0.0)


def test_a_faster_car_gets_farther_within_the_published_horizon():
    assert driven("formula-one-l0:fast", 1)[0] > driven("formula-one-l0", 1)[0] > 0.0


def test_barriers_do_not_stop_the_faster_car():
    stages, cost = driven("formula-one-l2:fast", 3, until=3)
    assert stages == 3.0
    assert cost < 25.0


@pytest.mark.parametrize("scenario", [1, 7])
def test_it_completes_a_stage_on_level_two_within_the_published_horizon_without_cost(scenario):
    stages, cost = driven("formula-one-l2", scenario, until=1)
    assert stages == 1.0
    assert cost == 0.0


def test_a_car_that_sees_the_walls_completes_a_stage_at_the_original_speed_within_the_budget():
    stages, cost = driven("formula-one-l2:sighted", 1, until=1)
    assert stages == 1.0
    assert cost < 25.0


@pytest.mark.parametrize("name", ["formula-one-l2:sighted", "formula-one-l2:fast+sighted"])
def test_drivers_to_be_imitated_have_no_memory(name):
    env = env_spec(name).make()
    env.reset(seed=5)
    move, act = ActionMap.to(env.action_space), env.expert()
    for _ in range(150):
        action = act()
        assert (env.expert()() == action).all()
        env.step(move(action.astype(np.float32)))


def test_small_steps_between_lanes_do_not_slow_a_bold_driver_down():
    along = 0.25 * np.arange(24)
    weaving = np.stack([along, 0.16 * (np.arange(24) % 8 < 4)], axis=1)
    limits = [_speed_limit(weaving, 9.0, 5.0, smoothing) for smoothing in (3, 9)]
    assert limits[0] < 4.0 < limits[1]
