"""The learners learn: on a problem with a known answer they end where they should."""

import numpy as np
import pytest

from vlmsafe import train
from vlmsafe.envs.registry import ENVS
from vlmsafe.envs.small.speeding import optimum

SPEC = ENVS["speeding"]
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 5))]
# Larger learning rates than on a simulator: the problem is small. The discount is short because no action has
# consequences beyond its own step.
LEARNER = {"update_iters": 10, "actor_lr": 3e-3, "critic_lr": 3e-3, "target_kl": 0.05, "gamma": 0.5}


def last_ten(run, column):
    return float(np.mean([row[column] for row in run.rows("epochs")[-10:]]))


@pytest.mark.parametrize("seed", SEEDS)
def test_ppo_lagrangian_ends_within_budget_near_the_constrained_optimum(tmp_path, seed):
    run = train(
        env="speeding", method="ppo-lag", seed=seed, total_steps=140_000, steps_per_epoch=2_000,
        run_dir=str(tmp_path / "run"), learner=LEARNER, multiplier={"learning_rate": 0.025}, quiet=True,
    )  # fmt: skip
    best, _ = optimum(SPEC.horizon, SPEC.budget)
    assert last_ten(run, "episode_cost") == pytest.approx(SPEC.budget, rel=0.10)
    assert last_ten(run, "env_return") == pytest.approx(best, rel=0.03)


# method -> steps, learner, multiplier. PID's gains are scaled to the size of this problem's costs.
OTHERS = {
    "cppo-pid": (120_000, LEARNER, {"pid_kp": 0.01, "pid_ki": 0.004, "pid_kd": 0.01}),
    "focops": (120_000, LEARNER, {}),
    "cup": (120_000, LEARNER, {}),
    "p3o": (60_000, LEARNER, {}),
    "cpo": (60_000, {"update_iters": 10, "critic_lr": 3e-3, "gamma": 0.5}, {}),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("method", OTHERS)
def test_every_constrained_learner_ends_within_ten_percent_of_its_budget_or_below(tmp_path, method, seed):
    steps, learner, multiplier = OTHERS[method]
    run = train(
        env="speeding", method=method, seed=seed, total_steps=steps, steps_per_epoch=2_000,
        run_dir=str(tmp_path / "run"), learner=learner, multiplier=multiplier, quiet=True,
    )  # fmt: skip
    assert last_ten(run, "episode_cost") <= 1.10 * SPEC.budget
    assert last_ten(run, "env_return") > 0.4 * optimum(SPEC.horizon, SPEC.budget)[0], "and not by standing still"


@pytest.mark.parametrize("seed", SEEDS)
def test_ppo_without_a_constraint_exceeds_the_budget(tmp_path, seed):
    run = train(
        env="speeding", method="ppo", seed=seed, total_steps=40_000, steps_per_epoch=2_000,
        run_dir=str(tmp_path / "run"), learner=LEARNER, quiet=True,
    )  # fmt: skip
    assert last_ten(run, "episode_cost") > 1.5 * SPEC.budget
    assert last_ten(run, "env_return") > optimum(SPEC.horizon, SPEC.budget)[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_recipes_learn_and_then_keep_the_budget_without_learning_again(tmp_path, seed):
    rates = {"actor_lr": 1e-3, "critic_lr": 1e-3, "gamma": 0.5}
    small = {"env": "speeding", "steps_per_epoch": 2_000, "quiet": True, "seed": seed, "learner": rates}
    run = train(**small, recipe="driver", total_steps=40_000, run_dir=str(tmp_path / "run"))
    best, _ = optimum(SPEC.horizon, SPEC.budget)
    assert last_ten(run, "env_return") > 0.9 * best, "its noise, which never falls below 0.3, costs some return"
    warm = train(
        **small, recipe="driver-warm", init_from=str(run.path), total_steps=12_000, run_dir=str(tmp_path / "w")
    )
    assert last_ten(warm, "episode_cost") <= 1.10 * SPEC.budget
    assert min(row["env_return"] for row in warm.rows("epochs")) > 0.9 * best, "it never has to learn again"
