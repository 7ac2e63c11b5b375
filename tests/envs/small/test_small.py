"""What the small shipped environments promise alike: scenarios come from their pools."""

import pytest

from vlmsafe.envs.api import Scenarios
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import InputError

pytestmark = pytest.mark.parametrize("spec", [env_spec("speeding"), env_spec("braking")], ids=lambda spec: spec.name)


@pytest.mark.parametrize("scenario", [9, 15])
def test_a_scenario_outside_the_pool_is_refused(spec, scenario):
    env = spec.make(Scenarios(10, 5))
    with pytest.raises(InputError, match=rf"scenario {scenario} is not in the pool, which holds 10 to 14"):
        env.reset(seed=scenario)


def test_an_unseeded_reset_draws_from_the_pool(spec):
    env = spec.make(Scenarios(10, 3))
    env.reset(seed=10)
    assert {env.reset()[1]["scenario"] for _ in range(40)} == {10, 11, 12}


def test_the_held_out_pool_shares_no_scenario_with_training(spec):
    assert spec.training.start + spec.training.size <= spec.held_out.start
    assert spec.make(spec.held_out).reset(seed=spec.held_out.start)[1]["scenario"] == spec.held_out.start
