"""What the script for the original FormulaOne counts, on a stand-in that has what the script reads of the original."""

import csv
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

_TOOL = Path(__file__).parents[2] / "tools" / "original_formula_one.py"
_SPEC = importlib.util.spec_from_file_location("original_formula_one", _TOOL)
tool = sys.modules[_SPEC.name] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tool)


class Road:
    """A car on a line: each step drives half a metre towards goals at 1, 2, 3, ... m, and every third one costs."""

    def __init__(self) -> None:
        self.unwrapped = SimpleNamespace(task=self)
        self.action_space = SimpleNamespace(low=np.float32([-20.0, -0.785]), high=np.float32([20.0, 0.785]))
        self.resets = 0

    def reset(self, *, seed: int) -> None:
        self.resets += 1
        self.steps = 0
        self.agent = SimpleNamespace(pos=np.zeros(3))
        self.staged_goal = SimpleNamespace(pos=np.array([1.0, 0.0, 0.0]))

    def dist_staged_goal(self) -> float:
        return float(np.hypot(*(self.staged_goal.pos - self.agent.pos)[:2]))

    def step(self, action: np.ndarray):
        self.steps += 1
        self.agent.pos[0] += 0.5
        info: dict[str, object] = {"cost_vases_contact": float(self.steps % 3 == 0)}
        if self.dist_staged_goal() <= 0.3:
            self.staged_goal.pos[0] += 1.0
            info["goal_met"] = True
        return None, 0.5, info["cost_vases_contact"], False, self.steps == 1000, info


def test_sums_run_from_the_start_of_the_episode_to_each_mark():
    early, late = tool.drive(Road(), "straight", 10_000, [3, 6])
    assert (early["steps"], early["return"], early["cost"], early["stages"], early["path"]) == (3, 1.5, 1.0, 1.0, 1.5)
    assert (late["steps"], late["return"], late["cost"], late["stages"], late["path"]) == (6, 3.0, 2.0, 3.0, 3.0)
    assert (early["net_progress"], late["net_progress"]) == (1.5, 3.0)
    assert (late["barrier_steps"], late["wall_steps"]) == (2.0, 0.0)


def test_rows_that_exist_are_not_measured_again(tmp_path):
    env, out = Road(), tmp_path / "rows.csv"
    tool.measure(env, "original", "straight", 2, [3], out)
    tool.measure(env, "original", "straight", 3, [3], out)
    assert env.resets == 3
    with out.open(newline="") as file:
        assert [row["scenario"] for row in csv.DictReader(file)] == ["10000", "10001", "10002"]


def test_random_takes_the_actions_that_our_side_takes():
    task, rng = Road(), np.random.default_rng(10_003)
    act = tool.policy_of("random", task, 10_003)
    for _ in range(3):
        np.testing.assert_allclose(act(), rng.uniform(-1.0, 1.0, 2) * task.action_space.high, rtol=1e-6)


def test_an_episode_that_ends_early_is_no_row():
    env = Road()
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match="ended after 1000"):
        list(tool.drive(env, "straight", 10_000, [1001]))
