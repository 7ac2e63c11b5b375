import numpy as np
import pytest

pytest.importorskip("mujoco")
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
