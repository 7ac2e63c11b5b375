"""MetaDrive's own code against the fast path: the same trajectories, and what a step and a reset cost.

    python benchmarks/metadrive.py [--episodes 300] [--repeat 4] [--runs RUN ...] [--profile metadrive-hard]

Episodes are spread over the levels, their traffic densities and the drivers: the scripted one, random actions,
and the sampled actions of trained runs given by --runs. Each episode is driven by both paths, in processes of their own
that run at the same time. With --repeat an action is kept for several steps, as `action_repeat` does, and the fast path
leaves out observations that nobody reads. A digest covers every observation, reward and cost, and position, heading and
speed of every car after every step. Times are CPU time of the process; a pair's ratio is taken on the same episodes.

--profile prints instead what is left of the fast path's step in one environment, by function.

Exit code 1 if a digest differs, or if a promise is missed: a step 2 times as fast on Hard, 1.8 on Medium, 1.5 on Easy,
and a reset in half the time.
"""

from __future__ import annotations

import vlmsafe  # isort: skip  # noqa: F401 - first: it pins the kernels, as for a run

import cProfile
import hashlib
import os
import pstats
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from vlmsafe.envs.registry import env_spec
from vlmsafe.evaluation.plan import load_policy
from vlmsafe.learners.policy import ActionMap
from vlmsafe.runs.run import Run

PROMISED = {"hard": 2.0, "medium": 1.8, "easy": 1.5}
PROMISED_RESET = 2.0
EPISODES_PER_TASK = 3  # in one process, so that a reset after an episode is measured too
HELD = 10  # steps for which a random action is held; shorter and the car hardly moves


@dataclass(frozen=True)
class Options:
    """Compare MetaDrive's own code with the fast path."""

    episodes: int = 300
    """Episodes of the comparison, at least."""
    steps: int = 1000
    """Steps after which an episode is cut."""
    repeat: int = 1
    """Steps for which every action is kept; a step of the table is then a decision."""
    runs: tuple[Path, ...] = ()
    """Run directories whose policies drive as well."""
    levels: tuple[str, ...] = ("easy", "medium", "hard")
    densities: tuple[float, ...] = (0.1, 0.2, 0.35)
    """Traffic densities, each on every level."""
    variant: str = ""
    """A variant for every episode, such as `native`; by default the paper's world."""
    processes: int = 2
    """Processes at once; an even number, so that both paths run under the same load."""
    profile: str | None = None
    """Environment whose steps are profiled instead."""


@dataclass(frozen=True)
class Task:
    """Some episodes of one driver in one environment."""

    env: str
    driver: str
    """`scripted`, `random`, or a run directory."""
    first: int
    count: int
    steps: int
    repeat: int = 1


@dataclass(frozen=True)
class Driven:
    """What an episode gave and took."""

    digest: str
    steps: int
    step_seconds: float
    reset_seconds: float


Act = Callable[[NDArray[np.float32]], NDArray[Any]]


def drive(task: Task, profiler: cProfile.Profile | None = None) -> list[Driven]:
    """Drive a task's episodes one after the other in one environment; the profiler sees the steps."""
    spec = replace(env_spec(task.env), repeat=task.repeat)
    env: Any = spec.make(spec.training)
    simulator: Any = env if task.repeat == 1 else env._env
    driven = []
    for episode in range(task.first, task.first + task.count):
        begun = time.process_time()
        observation, _ = env.reset(seed=37 * episode, options={"traffic_seed": 11 * episode + 5})
        reset_seconds = time.process_time() - begun
        act = _driver(task.driver, env, np.random.default_rng(episode))
        digest = hashlib.sha256(observation.tobytes())
        steps, seconds, over = 0, 0.0, False
        while not over and steps * task.repeat < task.steps:
            action = act(observation)
            begun = time.process_time()
            with profiler or nullcontext():
                observation, reward, terminated, truncated, info = env.step(action)
            seconds += time.process_time() - begun
            digest.update(observation.tobytes() + np.array([reward, info["cost"]]).tobytes() + _cars(simulator))
            steps, over = steps + 1, terminated or truncated
        driven.append(Driven(digest.hexdigest(), steps, seconds, reset_seconds))
    env.close()
    return driven


def _driver(name: str, env: Any, rng: np.random.Generator) -> Act:
    if name == "scripted":
        expert = env.expert()
        return lambda _: expert()
    if name == "random":
        actions = _random_actions(rng)
        return lambda _: next(actions)
    run = Run.open(Path(name))
    policy, normaliser = load_policy(run, run.checkpoint(None)[0])
    to_env = ActionMap.to(env.action_space)

    def act(observation: NDArray[np.float32]) -> NDArray[Any]:
        seen = observation if normaliser is None else normaliser.normalise(observation)
        return to_env(policy.sample(seen, rng))

    return act


def _random_actions(rng: np.random.Generator) -> Iterator[NDArray[Any]]:
    while True:
        action = rng.uniform(-1.0, 1.0, 2)
        yield from [action] * HELD


def _cars(env: Any) -> bytes:
    """Position, heading and speed of every car."""
    simulator = env._simulator
    cars = [simulator.agent, *simulator.engine.traffic_manager.spawned_objects.values()]
    return np.array([(*car.origin.getPos(), car.origin.getH(), car.speed) for car in cars]).tobytes()


def compare(options: Options, console: Console) -> int:
    drivers = ["scripted", "random", *(str(run) for run in options.runs)]
    cases = list(product(options.levels, options.densities, drivers))
    each = -(-options.episodes // (len(cases) * EPISODES_PER_TASK)) * EPISODES_PER_TASK
    variant = f"+{options.variant}" if options.variant else ""
    tasks = [
        Task(
            f"metadrive-{level}:density-{density:g}{variant}{path}",
            driver,
            first,
            EPISODES_PER_TASK,
            options.steps,
            options.repeat,
        )
        for level, density, driver in cases
        for first in range(0, each, EPISODES_PER_TASK)
        for path in ("+stock", "")
    ]
    os.environ["PYTHONHASHSEED"] = "0"
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        pairs: dict[str, list[tuple[Driven, Driven]]] = defaultdict(list)
        driven = pool.map(drive, tasks)
        for index, (task, stock, fast) in enumerate(zip(tasks[1::2], driven, driven, strict=True), 1):
            pairs[task.env.removeprefix("metadrive-").partition(":")[0]] += zip(stock, fast, strict=True)
            equal = sum(one.digest == other.digest for one, other in zip(stock, fast, strict=True))
            line = f"{index} of {len(tasks) // 2}: {task.env}, {Path(task.driver).name}: {equal} of {task.count} equal"
            print(line, file=sys.stderr, flush=True)
    return _report(pairs, console)


def _report(pairs: dict[str, list[tuple[Driven, Driven]]], console: Console) -> int:
    table = Table(title="MetaDrive, stock and fast (CPU milliseconds)")
    columns = ("level", "episodes", "steps", "equal", "step", "fast", "ratio", "reset", "fast", "ratio")
    for column in columns:
        table.add_column(column, justify="left" if column == "level" else "right")
    missed = []
    for level, driven in pairs.items():
        equal = sum(stock.digest == fast.digest for stock, fast in driven)
        steps = sum(fast.steps for _, fast in driven)
        step = [1e3 * sum(pair[path].step_seconds for pair in driven) / steps for path in (0, 1)]
        reset = [1e3 * sum(pair[path].reset_seconds for pair in driven) / len(driven) for path in (0, 1)]
        faster, sooner = step[0] / step[1], reset[0] / reset[1]
        table.add_row(
            level, str(len(driven)), str(steps), str(equal), *(f"{value:.2f}" for value in (*step, faster)),
            *(f"{value:.0f}" for value in reset), f"{sooner:.2f}",
        )  # fmt: skip
        if equal < len(driven):
            missed.append(f"{level}: {len(driven) - equal} of {len(driven)} trajectories differ")
        if faster < PROMISED[level]:
            missed.append(f"{level}: a step is {faster:.2f} times as fast, promised {PROMISED[level]}")
        if sooner < PROMISED_RESET:
            missed.append(f"{level}: a reset is {sooner:.2f} times as fast, promised {PROMISED_RESET}")
    console.print(table)
    console.print(f"{sum(map(len, pairs.values()))} episodes, each driven by both paths")
    for line in missed:
        console.print(f"missed: {line}")
    return int(bool(missed))


def profile(env: str, steps: int, console: Console) -> None:
    """Print where the time of the fast path's steps goes, by function."""
    profiler = cProfile.Profile()
    drive(Task(env, "scripted", 0, 2, steps), profiler)
    stats: dict[tuple[str, int, str], Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    total = sum(own for _, _, own, _, _ in stats.values())
    table = Table(title=f"{env}: what is left of a step (profiled, which makes Python code look slower)")
    for column in ("function", "calls", "share of its own", "with what it calls"):
        table.add_column(column, justify="left" if column == "function" else "right")
    for (file, _, name), (_, calls, own, whole, _) in sorted(stats.items(), key=lambda item: -item[1][2])[:15]:
        table.add_row(f"{Path(file).stem}: {name}", str(calls), f"{own / total:.1%}", f"{whole / total:.1%}")
    console.print(table)


def main() -> int:
    # Python puts this file's folder first on its path, where `metadrive` would be this file and not the simulator.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    options = tyro.cli(Options, description=__doc__)
    console = Console(width=120)
    if options.profile is not None:
        profile(options.profile, options.steps, console)
        return 0
    return compare(options, console)


if __name__ == "__main__":
    sys.exit(main())
