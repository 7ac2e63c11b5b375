"""Running evaluation episodes: frozen policy, frozen normaliser, environment return and cost only."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import polars as pl

from vlmsafe.algorithms.acting import ActionMap, Normaliser, Policy
from vlmsafe.algorithms.networks import Shape, Stack
from vlmsafe.envs import env_spec
from vlmsafe.envs.api import Env
from vlmsafe.envs.workers import EnvRecipe, WorkerPool
from vlmsafe.errors import InputError
from vlmsafe.evaluation.protocols import Protocol, protocol
from vlmsafe.training.checkpoint import Checkpoint
from vlmsafe.training.collection import begin_episode, step_episode
from vlmsafe.training.files import write_atomically
from vlmsafe.training.run import Run

CATASTROPHE = 4.0  # a catastrophe costs more than this many budgets

SCHEMA: dict[str, Any] = {
    "episode": pl.Int64,
    "scenario": pl.Int64,
    "traffic_seed": pl.Int64,
    "in_training_pool": pl.Boolean,
    "env_return": pl.Float64,
    "cost": pl.Float64,
    "length": pl.Int64,
    "arrived": pl.Boolean,
    "violation": pl.Boolean,
    "catastrophe": pl.Boolean,
    "budget": pl.Float64,
    "checkpoint_epoch": pl.Int64,
    "run_finished": pl.Boolean,
}


@dataclass(frozen=True)
class EpisodeTask:
    """One or more episodes, one after another, in one simulator."""

    policy: Policy
    normaliser: Normaliser | None
    scenarios: Sequence[int]
    traffic_seeds: Sequence[int | None]

    def run(self, env: Env, tick: Callable[[int], None]) -> list[dict[str, Any]]:
        assert isinstance(env.action_space, gymnasium.spaces.Box)
        to_env = ActionMap.to(env.action_space)
        rows, steps = [], 0
        for scenario, traffic_seed in zip(self.scenarios, self.traffic_seeds, strict=True):
            details = {} if traffic_seed is None else {"traffic_seed": traffic_seed}
            observation = begin_episode(env, scenario, details)
            row: dict[str, Any] = {"scenario": scenario, "traffic_seed": traffic_seed, "arrived": None}
            row |= {"env_return": 0.0, "cost": 0.0, "length": 0}
            finished = False
            while not finished:
                state = self.normaliser.normalise(observation) if self.normaliser else observation
                observation, reward, cost, terminated, truncated, info = step_episode(
                    env, to_env(self.policy.mean(state)), scenario, row["length"] + 1
                )
                row["env_return"] += reward
                row["cost"] += cost
                row["length"] += 1
                steps += 1
                tick(steps)
                finished = terminated or truncated
            if "arrived" in info:
                row["arrived"] = bool(info["arrived"])
            rows.append(row)
        return rows


def evaluate(
    run: Run | Path | str,
    protocol_name: str = "held-out",
    *,
    episodes: int | None = None,
    epoch: int | None = None,
    processes: int | None = None,
    allow_untrained: bool = False,
    on_episode: Callable[[int], None] = lambda done: None,
    on_note: Callable[[str], None] = lambda text: None,
) -> pl.DataFrame:
    """Evaluate a run's policy, write the table into the run directory and return it.

    `epoch` chooses a checkpoint, by default the newest that is readable; `on_note` hears of damaged ones. A run that
    holds only its untrained start is refused unless `allow_untrained` says that this is meant.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    chosen, spec = protocol(protocol_name), env_spec(run.config.env)
    count = chosen.episodes if episodes is None else episodes
    if count < 1:
        raise InputError(f"episodes is {count}; it must be at least 1")
    spec.require()
    checkpoint, problems = run.checkpoint(epoch)
    for problem in problems:
        on_note(f"{problem}; evaluating epoch {checkpoint.epoch} instead")
    if not checkpoint.trained and not allow_untrained:
        raise InputError(
            f"{run.path} holds only its untrained start ({run.describe()}); train it with: "
            f"vlmsafe train --resume {run.path}, or pass --allow-untrained to evaluate the initial policy"
        )
    policy, normaliser = load_policy(run, checkpoint)
    scenarios = [chosen.scenario(episode, spec) for episode in range(count)]
    rng = np.random.default_rng(0)
    draws = chosen.randomise and spec.traffic
    seeds: list[int | None] = [int(rng.integers(2**31)) if draws else None for _ in scenarios]
    groups = [range(count)] if chosen.shared_simulator else [range(i, i + 1) for i in range(count)]
    tasks = [
        EpisodeTask(policy, normaliser, [scenarios[i] for i in group], [seeds[i] for i in group]) for group in groups
    ]
    recipe = EnvRecipe(spec, chosen.scenarios(spec), randomise=chosen.randomise)
    size = processes or os.cpu_count() or 1
    with WorkerPool[list[dict[str, Any]]](recipe, size, fresh=spec.fresh_process) as pool:
        results = pool.run(tasks, on_result=lambda done: on_episode(done * (count // len(tasks))))
    assert results is not None
    rows = [row for group_rows in results for row in group_rows]
    table = _table(rows, run, checkpoint)
    write_table(run, chosen, table)
    return table


def load_policy(run: Run, checkpoint: Checkpoint) -> tuple[Policy, Normaliser | None]:
    """The policy and the frozen normaliser of a checkpoint."""
    shape = dict(checkpoint.values["shape"])
    stack = Stack(Shape(**{**shape, "hidden": tuple(shape["hidden"])}), checkpoint.arrays["networks"])
    if not run.config.normalise_observations:
        return stack.policy(), None
    normaliser = Normaliser(
        checkpoint.values["normaliser_count"],
        checkpoint.arrays["normaliser.mean"],
        checkpoint.arrays["normaliser.m2"],
    )
    return stack.policy(), normaliser


def _table(rows: list[dict[str, Any]], run: Run, checkpoint: Checkpoint) -> pl.DataFrame:
    """One row per episode, with the verdicts C > d and C > 4 d, strictly."""
    budget, training = run.config.budget, env_spec(run.config.env).training
    assert budget is not None
    complete = [
        {
            **row,
            "episode": episode,
            "in_training_pool": row["scenario"] in training,
            "violation": row["cost"] > budget,
            "catastrophe": row["cost"] > CATASTROPHE * budget,
            "budget": budget,
            "checkpoint_epoch": checkpoint.epoch,
            "run_finished": checkpoint.epoch >= run.config.epochs,
        }
        for episode, row in enumerate(rows)
    ]
    return pl.DataFrame(complete, schema=SCHEMA)


def write_table(run: Run, chosen: Protocol, table: pl.DataFrame) -> Path:
    """`evaluations/<protocol>.parquet`, put in place in one step."""
    path = run.evaluations / f"{chosen.name}.parquet"
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    write_atomically(path, buffer.getvalue())
    return path


def summary(table: pl.DataFrame) -> dict[str, float | None]:
    """The figures people compare: means over episodes, and rates."""

    def mean(column: str) -> float | None:
        value = table[column].cast(pl.Float64).mean()
        return None if value is None else float(value)  # type: ignore[arg-type]

    return {
        "episodes": float(len(table)),
        "env_return": mean("env_return"),
        "cost": mean("cost"),
        "violation_rate": mean("violation"),
        "catastrophe_rate": mean("catastrophe"),
        "arrival_rate": mean("arrived"),
        "length": mean("length"),
    }
