"""How alike two worlds are for an agent: what three fixed policies achieve in each environment.

    python benchmarks/three_policies.py --envs bullet-car-reach bullet-car-reach:four-steps [--episodes 20]

`random` draws each action uniformly, `straight` drives at full throttle without steering, and `scripted` is the
environment's own driver, where it has one. Every policy drives the same held-out scenarios, from the first one on. The
table has the mean of each figure over the episodes and, in brackets, the least and the most: return, cost, and the
environment's own metrics, such as metres driven and goals or stages reached. `--save` writes one row per episode.
`--beside` adds saved rows of worlds whose names end in the environment's, for the same policies, scenarios and steps.
`tools/original_formula_one.py` measured such rows in the original FormulaOne:

    python benchmarks/three_policies.py --envs formula-one-l2 --steps 500 \\
        --beside benchmarks/original/three_policies.csv
"""

from __future__ import annotations

import vlmsafe  # isort: skip  # noqa: F401 - first: it pins the kernels, as for a run

import csv
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, get_args

import gymnasium
import numpy as np
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from vlmsafe.envs.api import Env
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.learners.policy import ActionMap

PolicyName = Literal["random", "straight", "scripted"]
Row = dict[str, float]


@dataclass(frozen=True)
class Options:
    """Let fixed policies drive."""

    envs: tuple[str, ...] = ("bullet-car-reach", "bullet-car-reach:four-steps")
    """Environments, variants too."""
    policies: tuple[PolicyName, ...] = get_args(PolicyName)
    """What drives."""
    episodes: int = 20
    """Episodes of each policy in each environment."""
    steps: int | None = None
    """Steps after which an episode is left; by default where it ends."""
    beside: Path | None = None
    """A CSV file with rows of another world."""
    processes: int = 2
    """Processes that drive at once."""
    save: Path | None = None
    """A CSV file for one row per episode."""


def policy_of(name: PolicyName, env: Env, scenario: int) -> Callable[[], NDArray[np.float64]]:
    """The actions of a policy in [-1, 1], for the episode that has just begun."""
    if name == "scripted":
        if (expert := env.expert()) is None:
            raise InputError(f"{type(env).__name__} has no scripted driver; choose other --policies")
        return expert
    assert env.action_space.shape is not None
    size = env.action_space.shape[0]
    if name == "random":
        rng = np.random.default_rng(scenario)
        return lambda: rng.uniform(-1.0, 1.0, size)
    straight = np.ones(size)
    if size > 1:
        straight[env.steering] = 0.0
    return lambda: straight


def drive(env_name: str, policy: PolicyName, episodes: int, steps: int | None) -> list[Row]:
    """One row per episode."""
    spec = env_spec(env_name)
    first = spec.held_out.start
    env = spec.make(spec.held_out, randomise=False)
    assert isinstance(env.action_space, gymnasium.spaces.Box)
    to_env = ActionMap.to(env.action_space, clips=env.clips)
    rows = []
    try:
        for scenario in range(first, first + episodes):
            env.reset(seed=scenario)
            act, over = policy_of(policy, env, scenario), False
            row: Row = {"scenario": scenario, "return": 0.0, "cost": 0.0, "steps": 0}
            while not over:
                _, reward, terminated, truncated, info = env.step(to_env(act().astype(np.float32)))
                row["return"] += float(reward)
                row["cost"] += info["cost"]
                row["steps"] += 1
                over = terminated or truncated or row["steps"] == steps
            rows.append(row | {metric: env.progress()[metric] for metric in spec.metrics})
    finally:
        env.close()
    return rows


def main(options: Options) -> int:
    specs = {name: env_spec(name) for name in options.envs}
    for spec in specs.values():
        spec.require()
    beside = {} if options.beside is None else _saved(options.beside)
    metrics = list(dict.fromkeys(metric for spec in specs.values() for metric in spec.metrics))
    console = Console(width=150, highlight=False)
    table = Table(title="Held-out episodes: mean (least to most)")
    for column in ("environment", "policy", "episodes", "return", "cost", *metrics):
        table.add_column(column, justify="left" if column in ("environment", "policy") else "right", no_wrap=True)
    written: list[dict[str, str | float]] = []
    # One environment per process: MetaDrive allows no more.
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        driven = {
            (name, policy): pool.submit(drive, name, policy, options.episodes, options.steps)
            for name in specs
            for policy in options.policies
        }
        for (name, policy), rows in driven.items():
            table.add_row(name, policy, *_cells(rows.result(), metrics))
            written += [{"environment": name, "policy": policy, **row} for row in rows.result()]
    measured = {(row["scenario"], row["steps"]) for row in written}
    for (world, driver), others in beside.items():
        alike = [row for row in others if (row["scenario"], row["steps"]) in measured]
        if alike and driver in options.policies and world.endswith(tuple(base.partition(":")[0] for base in specs)):
            table.add_row(world, driver, *_cells(alike, metrics))
    console.print(table)
    if options.save is not None:
        with options.save.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["environment", "policy", "scenario", "steps", "return", "cost", *metrics])
            writer.writeheader()
            writer.writerows(written)
    return 0


def _saved(path: Path) -> dict[tuple[str, str], list[Row]]:
    """The rows of a file by environment and policy."""
    if not path.is_file():
        raise InputError(f"--beside is {path}, which is no file; name a CSV file that --save wrote")
    rows: dict[tuple[str, str], list[Row]] = {}
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if not {"environment", "policy", "scenario", "steps"} <= set(reader.fieldnames or ()):
            raise InputError(f"--beside is {path}, which has other columns; name a CSV file that --save wrote")
        for row in reader:
            key = (row.pop("environment"), row.pop("policy"))
            rows.setdefault(key, []).append({name: float(value) for name, value in row.items()})
    return rows


def _cells(rows: list[Row], metrics: list[str]) -> list[str]:
    figures = [_spread([row[key] for row in rows]) if key in rows[0] else "" for key in ("return", "cost", *metrics)]
    return [str(len(rows)), *figures]


def _spread(values: list[float]) -> str:
    return f"{np.mean(values):.2f} ({min(values):.0f} to {max(values):.0f})"


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose metadrive.py hides the package of that name
    try:
        sys.exit(main(tyro.cli(Options, description=__doc__)))
    except VlmsafeError as error:
        sys.exit(str(error))
