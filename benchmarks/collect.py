"""Collecting on MetaDrive Hard: what more workers bring, and what collecting costs on top of the bare simulator.

    python benchmarks/collect.py [--workers 2] [--steps 1000] [--rounds 5]
    python benchmarks/collect.py --run driver:braking

Scaling: a share of experience collected by one worker, and the same share by each of several at once; it needs as many
free cores. (The shares are equal because episodes differ several times in cost per step, and an epoch waits for its
slowest worker.)
Overhead: the same episodes driven once through `collect` (policy, normaliser, checks, records) and once through
MetaDrive's own SafeMetaDriveEnv with the actions replayed and nothing else, in CPU time of the process. Each pair is
measured side by side in every round. Exit code 1 if a promise is missed.
With `--run`, only the CPU time of collecting with the policy of a run or a shipped driver is measured, in its world.
"""

from __future__ import annotations

import vlmsafe  # isort: skip  # noqa: F401 - first: it pins the kernels, as for a run

import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from vlmsafe.envs.api import Env
from vlmsafe.envs.registry import ENVS, env_spec
from vlmsafe.envs.vector.pool import EnvRecipe, WorkerPool
from vlmsafe.evaluation.plan import load_policy
from vlmsafe.learners.networks import Shape, Stack
from vlmsafe.learners.policy import ActionMap, Policy
from vlmsafe.numerics.normaliser import Array, Normaliser
from vlmsafe.runs.drivers import open_run
from vlmsafe.training.collect import CollectTask, Share, collect

PROMISE_SCALING, PROMISE_OVERHEAD = 0.9, 0.05  # of ideal scaling at least; of the bare simulator's time at most


@dataclass(frozen=True)
class Options:
    """Measure collection."""

    env: str = "metadrive-hard"
    """Environment, one of MetaDrive's."""
    workers: int = len(os.sched_getaffinity(0))
    """How many workers are compared with one; by default one per core."""
    steps: int = 1000
    """Steps of one worker's share."""
    rounds: int = 5
    """How often each pair is measured."""
    run: str | None = None
    """Run directory or driver:<name> whose policy collects."""


@dataclass(frozen=True)
class Timed:
    """Actions and scenarios of a share, and the CPU seconds it took."""

    seconds: float
    actions: Array
    scenarios: list[int]
    lengths: list[int]
    rewards: float


@dataclass(frozen=True)
class CollectTimed:
    """A share through this package, the start of the simulator left out."""

    task: CollectTask

    def run(self, env: Env, tick: Callable[[int], None]) -> Timed:
        assert isinstance(env.action_space, gymnasium.spaces.Box)
        begun = time.process_time()
        share = collect(env, self.task, tick)
        seconds = time.process_time() - begun
        to_env = ActionMap.to(env.action_space, clips=env.clips)
        actions = np.stack([to_env(action) for action in share.rollout.actions])
        scenarios = [row["scenario"] for row in share.episodes]
        lengths = [row["length"] for row in share.episodes]
        return Timed(seconds, actions, scenarios, lengths, float(share.rollout.rewards.sum()))


@dataclass(frozen=True)
class ReplayBare:
    """The same episodes in MetaDrive's own environment with nothing around it."""

    like: Timed

    def run(self, env: Env, tick: Callable[[int], None]) -> tuple[float, float]:
        from metadrive.component.sensors.lidar import Lidar
        from metadrive.envs.safe_metadrive_env import SafeMetaDriveEnv

        env.close()
        settings: dict[str, Any] = {**env._config, "sensors": {"lidar": (Lidar,)}}  # type: ignore[attr-defined]
        bare = SafeMetaDriveEnv(settings)
        bare.lazy_init()
        moves = self.like.actions.tolist()
        rewards, at = 0.0, 0
        begun = time.process_time()
        for scenario, length in zip(self.like.scenarios, self.like.lengths, strict=True):
            bare.reset(seed=scenario)
            for action in moves[at : at + length]:
                rewards += bare.step(action)[1]
            at += length
        return time.process_time() - begun, rewards


def make_task(options: Options, traffic: bool) -> CollectTask:
    """A share with a policy that mostly drives ahead, so that traffic comes into play."""
    stack = Stack(Shape(259, (64, 64), 2, 2))
    stack.initialise(np.random.default_rng(0))
    stack.biases[-1][0, 0, 1] = 0.5
    stack.log_std[:] = -1.0
    policy: Policy = stack.policy()
    scenarios = ENVS[options.env].training
    return CollectTask(policy, Normaliser.empty(259), scenarios, traffic, options.steps, seed=(0,))


def measure_scaling(options: Options) -> list[tuple[float, float]]:
    """(steps/s with one worker, with several) per round."""
    spec = ENVS[options.env]
    task = make_task(options, traffic=True)

    def speed(workers: int) -> float:
        with WorkerPool[Share](EnvRecipe(spec, spec.training), workers, fresh=True) as pool:
            pool.prepare()
            begun = time.perf_counter()
            pool.run([task] * workers)
            return workers * options.steps / (time.perf_counter() - begun)

    speed(1)  # starts the server of worker processes
    return [(speed(1), speed(options.workers)) for _ in range(options.rounds)]


def measure_overhead(options: Options) -> list[tuple[float, float]]:
    """(CPU seconds through this package, bare) per round."""
    spec = env_spec(f"{options.env}:stock")  # the simulator's own code on both sides
    recipe = EnvRecipe(spec, spec.training, randomise=False)
    task = make_task(options, traffic=False)
    pairs = []
    for _ in range(options.rounds):
        with WorkerPool[Any](recipe, 1, fresh=True) as pool:
            collected = pool.run([CollectTimed(task)])
            assert collected is not None
            replayed = pool.run([ReplayBare(collected[0])])
            assert replayed is not None
        seconds, rewards = replayed[0]
        assert rewards == collected[0].rewards, "the replay drove other episodes"
        pairs.append((collected[0].seconds, seconds))
    return pairs


def measure_run(options: Options, console: Console) -> None:
    """Print the CPU time per step of collecting with the policy of a run."""
    assert options.run is not None
    run = open_run(options.run)
    spec, (policy, normaliser) = run.config.spec, load_policy(run, run.checkpoint()[0])
    task = CollectTask(policy, normaliser, spec.training, spec.traffic, options.steps, seed=(0,), metrics=spec.metrics)
    table = Table("round", "collect, ms/step", "episodes", title=f"{run.config.env}: collecting in CPU time")
    for number in range(1, options.rounds + 1):
        with WorkerPool[Timed](EnvRecipe(spec, spec.training), 1, fresh=True) as pool:
            found = pool.run([CollectTimed(dataclasses.replace(task, seed=(number,)))])
        assert found is not None
        table.add_row(str(number), f"{1e3 * found[0].seconds / options.steps:.3f}", str(len(found[0].lengths)))
    console.print(table)


def main() -> int:
    options = tyro.cli(Options)
    console = Console(highlight=False)
    if options.run is not None:
        measure_run(options, console)
        return 0
    scaling, overhead = measure_scaling(options), measure_overhead(options)
    gain = statistics.median(several / one for one, several in scaling)
    promised = PROMISE_SCALING * options.workers
    extra = statistics.median(ours / bare - 1 for ours, bare in overhead)

    several_workers = f"{options.workers} workers, steps/s"
    table = Table("round", "1 worker, steps/s", several_workers, "gain", title=f"{options.env}: scaling")
    for number, (one, several) in enumerate(scaling, 1):
        table.add_row(str(number), f"{one:.1f}", f"{several:.1f}", f"{several / one:.2f}")
    console.print(table)
    table = Table(
        "round", "collect, ms/step", "bare, ms/step", "overhead", title=f"{options.env}, overhead in CPU time"
    )
    for number, (ours, bare) in enumerate(overhead, 1):
        per_step = 1e3 / options.steps
        table.add_row(
            str(number), f"{ours * per_step:.3f}", f"{bare * per_step:.3f}", f"{100 * (ours / bare - 1):.1f} %"
        )
    console.print(table)
    kept = gain >= promised and extra <= PROMISE_OVERHEAD
    console.print(
        f"median gain {gain:.2f} (promised {promised:.2f}), median overhead {100 * extra:.1f} % "
        f"(promised at most {100 * PROMISE_OVERHEAD:.0f} %): {'kept' if kept else 'MISSED'}"
    )
    return int(not kept)


if __name__ == "__main__":
    # Tasks travel to the workers by name, and the workers know this file as a module, not as a script.
    import collect as this_module

    sys.exit(this_module.main())
