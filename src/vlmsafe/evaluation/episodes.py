"""Running evaluation episodes: frozen policy, frozen normaliser, environment return and cost only."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import gymnasium
import numpy as np
import polars as pl

from vlmsafe.algorithms.acting import ActionMap, Array, Normaliser, Policy
from vlmsafe.algorithms.networks import Shape, Stack
from vlmsafe.analysis.statistics import CATASTROPHE
from vlmsafe.envs.api import Env, EnvSpec
from vlmsafe.envs.stream import Reader, Stream
from vlmsafe.envs.workers import EnvRecipe, Task, WorkerPool
from vlmsafe.errors import InputError, RunError
from vlmsafe.evaluation.protocols import Protocol, protocol
from vlmsafe.training.checkpoint import Checkpoint
from vlmsafe.training.collection import begin_episode, step_episode
from vlmsafe.training.files import make_directory, write_atomically
from vlmsafe.training.run import Run

R = TypeVar("R")

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


class Step(NamedTuple):
    """One step of an episode, with the environment still in the state that it led to."""

    number: int
    """From 1."""
    observation: Array
    reward: float
    cost: float
    info: dict[str, Any]
    last: bool
    """Whether the episode ended with it."""


@dataclass(frozen=True)
class EpisodeTask:
    """One or more episodes, one after another, in one simulator."""

    policy: Policy
    normaliser: Normaliser | None
    scenarios: Sequence[int]
    traffic_seeds: Sequence[int | None]
    isolate: bool = True
    """Whether episodes are kept from influencing those after them."""
    metrics: tuple[str, ...] = ()
    """What of the environment's progress is noted at the end of each."""

    def drive(self, env: Env, tick: Callable[[int], None]) -> Iterator[tuple[int, Step]]:
        """Every step of every episode, with the episode's number in this task, from 0."""
        assert isinstance(env.action_space, gymnasium.spaces.Box)
        to_env = ActionMap.to(env.action_space)
        env.isolate = self.isolate
        steps = 0
        for episode, (scenario, traffic_seed) in enumerate(zip(self.scenarios, self.traffic_seeds, strict=True)):
            details = {} if traffic_seed is None else {"traffic_seed": traffic_seed}
            observation = begin_episode(env, scenario, details)
            finished, number = False, 0
            while not finished:
                state = self.normaliser.normalise(observation) if self.normaliser else observation
                number += 1
                observation, reward, cost, terminated, truncated, info = step_episode(
                    env, to_env(self.policy.mean(state)), scenario, number
                )
                finished = terminated or truncated
                yield episode, Step(number, observation, reward, cost, info, finished)
                steps += 1
                tick(steps)

    def run(self, env: Env, tick: Callable[[int], None]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [
            {"scenario": scenario, "traffic_seed": seed, "arrived": None, "env_return": 0.0, "cost": 0.0, "length": 0}
            for scenario, seed in zip(self.scenarios, self.traffic_seeds, strict=True)
        ]
        for episode, step in self.drive(env, tick):
            row = rows[episode]
            row["env_return"] += step.reward
            row["cost"] += step.cost
            row["length"] = step.number
            if step.last:
                row["arrived"] = bool(step.info["arrived"]) if "arrived" in step.info else None
                progress = env.progress()
                row |= {name: progress[name] for name in self.metrics}
        return rows


@dataclass(frozen=True)
class Plan:
    """The episodes of a protocol, ready to be run with a run's policy."""

    run: Run
    protocol: Protocol
    spec: EnvSpec
    checkpoint: Checkpoint
    tasks: list[EpisodeTask]
    """One per episode, or one with all of them where they share a simulator."""
    processes: int

    @classmethod
    def of(
        cls,
        run: Run | Path | str,
        protocol_name: str,
        *,
        episodes: int | None,
        epoch: int | None,
        processes: int | None,
        allow_untrained: bool,
        on_note: Callable[[str], None],
    ) -> Plan:
        """Everything that can be refused before the first episode; the arguments are those of `evaluate`."""
        run = run if isinstance(run, Run) else Run.open(run)
        chosen, spec = protocol(protocol_name), run.config.spec
        count = chosen.episodes if episodes is None else episodes
        size = len(os.sched_getaffinity(0)) if processes is None else processes
        for name, value in (("episodes", count), ("processes", size)):
            if value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1")
        scenarios = [chosen.scenario(episode, spec) for episode in range(count)]
        spec.require()
        checkpoint, problems = run.checkpoint(epoch)
        for problem in problems:
            on_note(f"{problem}; evaluating epoch {checkpoint.epoch} instead")
        if not checkpoint.trained and not allow_untrained:
            raise InputError(
                f"{run.path} holds only its untrained start ({run.describe()}); train it with: "
                f"{run.resume_command}, or pass --allow-untrained to evaluate the initial policy"
            )
        policy, normaliser = load_policy(run, checkpoint)
        rng = np.random.default_rng(0)
        draws = chosen.randomise and spec.traffic
        seeds: list[int | None] = [int(rng.integers(2**31)) if draws else None for _ in scenarios]
        shared = chosen.shared_simulator
        groups = [range(count)] if shared else [range(i, i + 1) for i in range(count)]
        tasks = [
            EpisodeTask(
                policy, normaliser, [scenarios[i] for i in group], [seeds[i] for i in group], not shared, spec.metrics
            )
            for group in groups
        ]
        return cls(run, chosen, spec, checkpoint, tasks, size)

    @property
    def episodes(self) -> int:
        return sum(len(task.scenarios) for task in self.tasks)

    def recipe(self, *, frames: bool = False) -> EnvRecipe:
        """How its workers make the environment."""
        spec = dataclasses.replace(self.spec, frames=frames)
        return EnvRecipe(spec, self.protocol.scenarios(spec), randomise=self.protocol.randomise)

    def execute(
        self,
        tasks: Sequence[Task[R]],
        recipe: EnvRecipe,
        on_episode: Callable[[int], None],
        stream: Stream | None = None,
        reader: Reader | None = None,
    ) -> list[R]:
        """The results of its tasks, or of others that stand for them one by one."""
        # A process per episode for every environment: one that carries state over would make episodes depend on how
        # they happened to be spread.
        with WorkerPool[R](recipe, self.processes, fresh=True, stream=stream) as pool:
            share = self.episodes // len(tasks)
            results = pool.run(tasks, on_result=lambda done: on_episode(done * share), reader=reader)
        assert results is not None
        return results


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
    plan = Plan.of(
        run, protocol_name, episodes=episodes, epoch=epoch, processes=processes,
        allow_untrained=allow_untrained, on_note=on_note,
    )  # fmt: skip
    path = table_path(plan.run, plan.protocol, epoch)
    require_writable(path)
    if not overwrite:
        _refuse_loss(path, plan)
    results = plan.execute(plan.tasks, plan.recipe(), on_episode)
    table = _table([row for rows in results for row in rows], plan.run, plan.checkpoint)
    write_table(path, table)
    return table


def table_path(run: Run, chosen: Protocol, epoch: int | None = None, prefix: str = "") -> Path:
    """`evaluations/<protocol>.parquet`, with the epoch in the name where one was asked for."""
    suffix = "" if epoch is None else f"-epoch-{epoch:05d}"
    return run.evaluations / f"{prefix}{chosen.name}{suffix}.parquet"


def require_writable(path: Path) -> None:
    """Before the first episode rather than after the last: can the table be written?"""
    make_directory(path.parent)
    if not os.access(path.parent, os.W_OK):
        raise RunError(f"cannot write {path}: permission denied")


def write_table(path: Path, table: pl.DataFrame) -> None:
    """As Parquet, whole or not at all."""
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    write_atomically(path, buffer.getvalue())


def _refuse_loss(path: Path, plan: Plan) -> None:
    """Would writing the table lose a larger one?"""
    if path.exists():
        held = pl.read_parquet(path, columns=["checkpoint_epoch"])["checkpoint_epoch"]
        if len(held) > plan.episodes and held[0] == plan.checkpoint.epoch:
            raise InputError(
                f"{path} already holds {len(held)} episodes of this checkpoint, more than the {plan.episodes} asked "
                "for; pass --overwrite to replace them"
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
    budget, training = run.config.budget, run.config.spec.training
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
    return pl.DataFrame(complete, schema={**SCHEMA, **dict.fromkeys(run.config.spec.metrics, pl.Float64)})


def summary(table: pl.DataFrame) -> dict[str, float | None]:
    """The figures people compare: means over episodes, and rates, then the environment's own task metrics."""

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
        **{name: mean(name) for name in table.columns if name not in SCHEMA},
    }
