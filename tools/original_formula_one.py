"""What three fixed policies achieve in Safety-Gymnasium's own FormulaOne, one row per episode.

    MUJOCO_GL=egl PYTHONPATH=ORIGINAL:src PYTHON tools/original_formula_one.py [--levels 2] [--policies random straight]
        [--episodes 20] [--steps 500 1000] [--out benchmarks/original/three_policies.csv]

`benchmarks/three_policies.py` measures the same policies in our world. Both drive the held-out scenarios from 10000 on,
and `random` takes the same actions in both: `numpy.random.default_rng(scenario)` draws one action per step. `straight`
is full throttle without steering. `scripted` is our driver (`vlmsafe.envs.formula_one.driver`), which reads the
original's state here. Rows are appended as episodes advance, and rows that exist are not measured again. Each number of
`--steps` gives one row, counted from the start of the episode, and the last one ends the episode.

No package index has FormulaOne. ORIGINAL is a checkout of the repository PKU-Alignment/safety-gymnasium at commit
ae966e5, and PYTHON a Python 3.10 with mujoco 2.3.3, gymnasium 0.28.1, gymnasium-robotics 1.2.2, numpy 1.23.5, pygame
2.6.1, scipy 1.11.4, xmltodict, imageio, glfw and PyYAML. Of this project it needs only the scripted driver. An episode
of 1000 steps takes about 75 s of CPU time on levels 1 and 2, and 4 s on level 0.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = (
    "environment", "policy", "scenario", "steps", "return", "cost", "stages", "path", "net_progress",
    "barrier_steps", "wall_steps",
)  # fmt: skip
KEY = COLUMNS[:4]
FIRST = 10_000  # of the held-out scenarios
EPISODE = 1000  # steps
IN_THE_AIR = 0.5  # metres; barriers above it were thrown out of a wall


def main() -> int:
    options = _options()
    try:
        import safety_gymnasium
    except ModuleNotFoundError as error:
        sys.exit(f"{error}: PYTHONPATH must name a checkout of Safety-Gymnasium; --help says which, and what it needs")
    for level in options.levels:
        env = safety_gymnasium.make(f"SafetyRacecarFormulaOne{level}-v0")
        for policy in options.policies:
            measure(env, f"original-formula-one-l{level}", policy, options.episodes, options.steps, options.out)
        env.close()
    return 0


def measure(env: Any, name: str, policy: str, episodes: int, marks: Sequence[int], out: Path) -> None:
    """Append the rows that a file lacks, each after a number of steps in `marks`."""
    done = _keys_of(out)
    for scenario in range(FIRST, FIRST + episodes):
        missing = [mark for mark in sorted(set(marks)) if (name, policy, str(scenario), str(mark)) not in done]
        for sums in drive(env, policy, scenario, missing) if missing else ():
            row = {"environment": name, "policy": policy, "scenario": scenario, **sums}
            _append(out, row)
            print(*row.values(), flush=True)


def drive(env: Any, policy: str, scenario: int, marks: Sequence[int]) -> Iterator[dict[str, float]]:
    """Drive one episode up to the last of `marks`; yield the sums from its start at each of them."""
    env.reset(seed=scenario)
    task = env.unwrapped.task
    act = policy_of(policy, task, scenario)
    row = dict.fromkeys(COLUMNS[4:], 0.0)
    position = task.agent.pos[:2].copy()
    gained, first = 0.0, task.dist_staged_goal()
    closest = first
    for step in range(1, marks[-1] + 1):
        goal = task.staged_goal.pos[:2].copy()
        _, reward, cost, terminated, truncated, info = env.step(act())
        before, position = position, task.agent.pos[:2].copy()
        row["return"] += float(reward)
        row["cost"] += float(cost)
        row["barrier_steps"] += float(info.get("cost_vases_contact", 0.0) > 0.0)
        row["wall_steps"] += float(info.get("cost_static_geoms_contact", 0.0) > 0.0)
        row["path"] += math.hypot(*(position - before))
        if "goal_met" in info:  # the task has the next goal already
            row["stages"] += 1
            gained += first - math.hypot(*(goal - position))
            first = closest = task.dist_staged_goal()
        closest = min(closest, task.dist_staged_goal())
        row["net_progress"] = gained + first - closest
        if step in marks:
            yield {"steps": step, **{name: round(value, 4) for name, value in row.items()}}
        if (terminated or truncated) and step < marks[-1]:
            raise RuntimeError(f"scenario {scenario} ended after {step} of {marks[-1]} steps: {info}")


def policy_of(name: str, task: Any, scenario: int) -> Callable[[], np.ndarray]:
    """The actions of a policy, for the episode that has just begun."""
    low, high = (bound.astype(np.float64) for bound in (task.action_space.low, task.action_space.high))
    if name == "straight":
        return lambda: np.array([high[0], 0.0])
    if name == "random":
        rng = np.random.default_rng(scenario)
        return lambda: rng.uniform(low, high)
    from vlmsafe.envs.formula_one.circuit import GOALS
    from vlmsafe.envs.formula_one.driver import CircuitDriver, Situation

    def look() -> Situation:
        ahead = task.agent.mat[:, 0]
        barriers = np.array(task.vases.pos).reshape(-1, 3) if hasattr(task, "vases") else np.zeros((0, 3))
        return Situation(
            position=task.agent.pos[:2].copy(),
            heading=math.atan2(ahead[1], ahead[0]),
            velocity=task.agent.vel[:2].copy(),
            goal=int(np.hypot(*(GOALS - task.staged_goal.pos[:2]).T).argmin()),
            barriers=barriers[barriers[:, 2] < IN_THE_AIR, :2],
            top_speed=1.0,
        )

    driver = CircuitDriver(look)
    return lambda: driver() * high


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", type=int, nargs="+", choices=(0, 1, 2), default=[2, 1, 0])
    parser.add_argument(
        "--policies", nargs="+", choices=("random", "straight", "scripted"), default=["random", "straight", "scripted"]
    )
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--steps", type=int, nargs="+", default=[EPISODE])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/original/three_policies.csv"))
    options = parser.parse_args()
    if not all(0 < steps <= EPISODE for steps in options.steps):
        parser.error(f"--steps is {options.steps}; expected numbers from 1 to {EPISODE}, an episode")
    if not options.out.parent.is_dir():
        parser.error(f"--out is {options.out}, but there is no folder {options.out.parent}; make it first")
    return options


def _keys_of(path: Path) -> set[tuple[str, ...]]:
    """The keys of the rows that a file has."""
    if not path.exists():
        return set()
    with path.open(newline="") as file:
        return {tuple(row[name] for name in KEY) for row in csv.DictReader(file)}


def _append(path: Path, row: Mapping[str, object]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    sys.exit(main())
