"""A repeated action is as many single steps as it says."""

import dataclasses

import numpy as np
import pytest

from vlmsafe import make_env
from vlmsafe.envs.registry import env_spec


def singly(times, actions):
    """What single steps give, summed in groups of `times`."""
    env = make_env("speeding")
    env.reset(seed=3)
    for action in actions:
        total, cost = 0.0, 0.0
        for _ in range(times):
            observation, reward, terminated, truncated, info = env.step(action)
            total, cost = total + reward, cost + info["cost"]
            if terminated or truncated:
                break
        yield observation, total, terminated, truncated, cost
        if terminated or truncated:
            return


@pytest.mark.parametrize("times", [2, 3, 7])
def test_rewards_and_costs_are_summed_until_the_end_of_the_episode(times):
    spec = dataclasses.replace(env_spec("speeding"), repeat=times)
    env = spec.make()
    env.reset(seed=3)
    actions = np.random.default_rng(0).uniform(-1, 1, (200, *env.action_space.shape)).astype(np.float32)
    steps = 0
    for action, (observation, total, terminated, truncated, cost) in zip(actions, singly(times, actions), strict=False):
        seen = env.step(action)
        np.testing.assert_array_equal(seen[0], observation)
        assert seen[1:4] == (pytest.approx(total), terminated, truncated)
        assert seen[4]["cost"] == pytest.approx(cost)
        steps += 1
    assert truncated or terminated
    assert steps == spec.longest == -(-20 // times)
    assert env.hazard() >= 0.0
    assert env.frame().ndim == 3


def test_a_whole_evaluation_sees_the_same_environment(tmp_path):
    from vlmsafe import evaluate, train

    run = train(env="speeding", total_steps=400, steps_per_epoch=200, action_repeat=4, run_dir=str(tmp_path / "run"),
                learner={"update_iters": 1}, quiet=True)  # fmt: skip
    longest = max(row["length"] for row in run.rows("episodes"))
    assert longest == run.config.spec.longest == env_spec("speeding").horizon // 4
    assert evaluate(run, episodes=2, processes=1)["length"].max() <= longest


@pytest.mark.parametrize(("name", "clips"), [("bullet-car-reach", False), ("bullet-car-reach:four-steps", True)])
def test_what_clips_actions_does_so_when_they_are_repeated(name, clips):
    pytest.importorskip("pybullet")
    env = dataclasses.replace(env_spec(name), repeat=4).make()
    assert env.clips is clips
    env.close()


def test_a_negative_cost_is_not_hidden_by_the_others(monkeypatch):
    env = dataclasses.replace(env_spec("speeding"), repeat=2).make()
    env.reset(seed=3)
    costs = iter([-60.0, 70.0])
    step = env._env.step
    monkeypatch.setattr(env._env, "step", lambda action: (*step(action)[:4], {"cost": next(costs)}))
    assert env.step(np.zeros(env.action_space.shape, np.float32))[4]["cost"] == -60.0
