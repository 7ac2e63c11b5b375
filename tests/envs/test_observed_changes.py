"""Observed changes are differences of the environment's own observations, within an episode."""

import dataclasses

import numpy as np
import pytest

from vlmsafe import clone, evaluate, make_env, train
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import InputError

SMALL = {"env": "braking", "total_steps": 400, "steps_per_epoch": 400, "learner": {"update_iters": 1}, "quiet": True}


@pytest.mark.parametrize("steps", [1, 3, 500])
def test_a_change_is_the_difference_to_the_observation_some_steps_ago_or_to_the_first(steps):
    plain, env = make_env("braking"), dataclasses.replace(env_spec("braking"), changes=steps).make()
    rng = np.random.default_rng(0)
    for scenario in (3, 4):  # the second episode knows nothing of the first
        seen = [plain.reset(seed=scenario)[0]]
        found = [env.reset(seed=scenario)[0]]
        for action in rng.uniform(-1, 1, (200, 1)).astype(np.float32):
            seen.append(plain.step(action)[0])
            found.append(env.step(action)[0])
        assert all(env.observation_space.contains(one) for one in found)
        for now, one in enumerate(found):
            np.testing.assert_array_equal(one[:2], seen[now])
            np.testing.assert_array_equal(one[2:], seen[now] - seen[max(0, now - steps)])


def test_changes_are_counted_in_kept_actions():
    env = dataclasses.replace(env_spec("braking"), repeat=4, changes=1).make()
    first, _ = env.reset(seed=3)
    observation, *_ = env.step(np.ones(1, np.float32))
    np.testing.assert_array_equal(observation[2:], observation[:2] - first[:2])


def test_runs_evaluations_and_clones_observe_them_and_a_start_must_too(tmp_path):
    made = clone("braking", steps=200, passes=1, observe_changes=2, processes=1, run_dir=tmp_path / "clone")
    assert made.checkpoint()[0].shape.observation == 4
    shape = {"update_iters": 1, "hidden": made.config.learner.hidden}
    warm = {**SMALL, "learner": shape, "init_from": str(made.path)}
    run = train(**warm, observe_changes=2, run_dir=str(tmp_path / "run"))
    assert run.checkpoint()[0].shape.observation == 4
    assert len(evaluate(run, episodes=2, processes=1)) == 2
    with pytest.raises(InputError, match="observation"):
        train(**warm, run_dir=str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()
