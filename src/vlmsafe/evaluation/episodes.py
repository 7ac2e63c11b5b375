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
from vlmsafe.errors import InputError, RunError
from vlmsafe.evaluation.protocols import Protocol, protocol
from vlmsafe.training.checkpoint import Checkpoint
from vlmsafe.training.collection import begin_episode, step_episode
from vlmsafe.training.files import make_directory, write_atomically
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
    isolate: bool = True
    """Whether episodes are kept from influencing those after them."""

    def run(self, env: Env, tick: Callable[[int], None]) -> list[dict[str, Any]]:
        assert isinstance(env.action_space, gymnasium.spaces.Box)
        to_env = ActionMap.to(env.action_space)
        env.isolate = self.isolate
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
    overwrite: bool = False,
    on_episode: Callable[[int], None] = lambda done: None,
    on_note: Callable[[str], None] = lambda text: None,
) -> pl.DataFrame:
    """Evaluate a run's policy, write the table into the run directory and return it.

    `epoch` chooses a checkpoint, by default the newest that is readable; `on_note` hears of damaged ones. A run that
    holds only its untrained start is refused unless `allow_untrained` says that this is meant, and so is replacing a
    table of more episodes of the same checkpoint unless `overwrite` does.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    chosen, spec = protocol(protocol_name), env_spec(run.config.env)
    count = chosen.episodes if episodes is None else episodes
    size = len(os.sched_getaffinity(0)) if processes is None else processes
    for name, value in (("episodes", count), ("processes", size)):
        if value < 1:
            raise InputError(f"{name} is {value}; it must be at least 1")
    pool_of_scenarios = chosen.scenarios(spec)
    spec.require()
    checkpoint, problems = run.checkpoint(epoch)
    for problem in problems:
        on_note(f"{problem}; evaluating epoch {checkpoint.epoch} instead")
    if not checkpoint.trained and not allow_untrained:
        raise InputError(
            f"{run.path} holds only its untrained start ({run.describe()}); train it with: "
            f"{run.resume_command}, or pass --allow-untrained to evaluate the initial policy"
        )
    path = table_path(run, chosen, epoch)
    _refuse_loss(path, count, checkpoint.epoch, overwrite)
    policy, normaliser = load_policy(run, checkpoint)
    scenarios = [chosen.scenario(episode, spec) for episode in range(count)]
    rng = np.random.default_rng(0)
    draws = chosen.randomise and spec.traffic
    seeds: list[int | None] = [int(rng.integers(2**31)) if draws else None for _ in scenarios]
    groups = [range(count)] if chosen.shared_simulator else [range(i, i + 1) for i in range(count)]
    tasks = [
        EpisodeTask(
            policy,
            normaliser,
            [scenarios[i] for i in group],
            [seeds[i] for i in group],
            isolate=not chosen.shared_simulator,
        )
        for group in groups
    ]
    recipe = EnvRecipe(spec, pool_of_scenarios, randomise=chosen.randomise)
    # A process per episode for every environment: one that carries state over would make episodes depend on how they
    # happened to be spread.
    with WorkerPool[list[dict[str, Any]]](recipe, size, fresh=True) as pool:
        results = pool.run(tasks, on_result=lambda done: on_episode(done * (count // len(tasks))))
    assert results is not None
    rows = [row for group_rows in results for row in group_rows]
    table = _table(rows, run, checkpoint)
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    write_atomically(path, buffer.getvalue())
    return table


def table_path(run: Run, chosen: Protocol, epoch: int | None = None) -> Path:
    """`evaluations/<protocol>.parquet`, with the epoch in the name where one was asked for."""
    suffix = "" if epoch is None else f"-epoch-{epoch:05d}"
    return run.evaluations / f"{chosen.name}{suffix}.parquet"


def _refuse_loss(path: Path, episodes: int, epoch: int, overwrite: bool) -> None:
    """Before the first episode: can the table be written, and would that lose a larger one?"""
    make_directory(path.parent)
    if not os.access(path.parent, os.W_OK):
        raise RunError(f"cannot write {path}: permission denied")
    if path.exists() and not overwrite:
        held = pl.read_parquet(path, columns=["checkpoint_epoch"])["checkpoint_epoch"]
        if len(held) > episodes and held[0] == epoch:
            raise InputError(
                f"{path} already holds {len(held)} episodes of this checkpoint, more than the {episodes} asked for; "
                "pass --overwrite to replace them"
            )


def load_policy(run: Run, checkpoint: Checkpoint) -> tuple[Policy, Normaliser | None]:
    """The policy and the frozen normaliser of a checkpoint."""
    shape = dict(checkpoint.values["shape"])
    stack = Stack(Shape(**{**shape, "hidden": tuple(shape["hidden"])}), checkpoint.arrays["networks"])
    if not run.config.normalise_observations:
        return stack.policy(), None
    return stack.policy(), Normaliser.from_arrays(checkpoint.arrays)


def _table(rows: list[dict[str, Any]], run: Run, checkpoint: Checkpoint) -> pl.DataFrame:
    """One row per episode, with the verdicts C > d and C > 4 d, strictly."""
    budget, training = run.config.budget, env_spec(run.config.env).training
    assert budget is not None
    finished = run.epochs_done() >= run.config.epochs
    complete = [
        {
            **row,
            "episode": episode,
            "in_training_pool": row["scenario"] in training,
            "violation": row["cost"] > budget,
            "catastrophe": row["cost"] > CATASTROPHE * budget,
            "budget": budget,
            "checkpoint_epoch": checkpoint.epoch,
            "run_finished": finished,
        }
        for episode, row in enumerate(rows)
    ]
    return pl.DataFrame(complete, schema=SCHEMA)


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
