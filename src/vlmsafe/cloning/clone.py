"""`clone`: a run whose policy imitates the environment's scripted driver, made in minutes and written in one go."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vlmsafe import kernels
from vlmsafe.cloning.demonstrate import (
    AFTER_COST,
    BRAKES,
    CUT,
    MEMORY,
    NOISE,
    NOISY,
    SHARE_STEPS,
    Demonstrations,
    DemonstrationTask,
)
from vlmsafe.cloning.regress import WEIGHT_DECAY, regress, statistics_of
from vlmsafe.config.methods import CLONE, method_defaults
from vlmsafe.config.settings import TrainConfig
from vlmsafe.envs.vector.pool import EnvRecipe, WorkerPool
from vlmsafe.errors import InputError, Interrupted
from vlmsafe.io.child import call_in_child
from vlmsafe.io.disk import make_directory
from vlmsafe.io.interrupts import StopRequest, stop_on_signals
from vlmsafe.io.locks import DirectoryLock
from vlmsafe.io.source import SourceHash
from vlmsafe.learners.learner import Losses
from vlmsafe.learners.networks import Stack
from vlmsafe.numerics.normaliser import STD_FLOOR, Normaliser
from vlmsafe.runs.checkpoint import Checkpoint
from vlmsafe.runs.digest import COLUMN, record_digest
from vlmsafe.runs.layout import is_run
from vlmsafe.runs.run import Row, Run
from vlmsafe.training.constraints import Constraints
from vlmsafe.training.summaries import EpisodeWindow, epoch_row

_RECORD, _FIT = range(2)  # what draws are for, as part of their seed

OnProgress = Callable[[str, int, int], None]
"""Is told the stage, and how much of how much of it is done."""


def clone(
    env: str,
    *,
    steps: int = 60_000,
    passes: int = CLONE.learner.update_iters,
    rounds: int = 0,
    hidden: Sequence[int] = CLONE.learner.hidden,
    observe_changes: int = 0,
    braking_weight: float = 1.0,
    observation_floor: float = STD_FLOOR,
    budget: float | None = None,
    seed: int = 0,
    processes: int = 2,
    run_dir: Path | str | None = None,
    on_progress: OnProgress = lambda stage, done, total: None,
) -> Run:
    """Make a run whose policy imitates the scripted driver of an environment (`expert()`), and return it.

    `steps` are recorded on training scenarios, and a policy is fitted to them in `passes` passes. Each of `rounds` more
    rounds records as many steps in which the clone drives and the scripted driver says what it would do, and fits a new
    policy to everything recorded so far. With `observe_changes` the clone also sees by how much its observation has
    changed over so many steps. A state in which the scripted driver brakes counts `braking_weight` times: few states
    decide whether a drive ends in a crash, and in most of them the driver brakes. Observations are divided by their
    standard deviation, or by `observation_floor` where that is larger. `budget` is the cost that an episode
    may have, by default the environment's; evaluations compare with it.

    The same settings and seed give the same run with any number of `processes`. Nothing is written before the clone is
    ready.

    >>> import vlmsafe
    >>> run = vlmsafe.clone("braking", steps=400, passes=1, hidden=(8, 8), processes=1, run_dir="runs/clone")
    >>> run.config.method
    'clone'
    """
    for name, value, least in (
        ("steps", steps, 1), ("passes", passes, 1), ("rounds", rounds, 0), ("observe_changes", observe_changes, 0),
        ("processes", processes, 1),
    ):  # fmt: skip
        if value < least:
            raise InputError(f"{name} is {value}; expected {least} or more")
    place = None if run_dir is None else Path(run_dir)
    settings = (
        steps, passes, rounds, tuple(hidden), seed, place, observe_changes, braking_weight, budget, observation_floor,
    )  # fmt: skip
    config = clone_config(env, *settings)
    if not kernels.fit(config.kernels):
        return call_in_child(
            config.kernels, clone, env, steps=steps, passes=passes, rounds=rounds, hidden=tuple(hidden),
            observe_changes=observe_changes, braking_weight=braking_weight, observation_floor=observation_floor,
            budget=budget, seed=seed, processes=processes, run_dir=run_dir, callbacks={"on_progress": on_progress},
        )  # fmt: skip
    _refuse_overwriting(config)
    config.spec.require()
    source = config.spec.source_hash(revision=True)
    began = time.monotonic()
    with stop_on_signals() as stop:
        rows: list[Row] = []
        recorded: list[Demonstrations] = []
        driver: tuple[Stack, Normaliser] | None = None
        for number in range(config.epochs):
            new = _record(config, number, driver, processes, stop, on_progress, source)
            recorded += new
            driver, error = _fit(config, number, recorded, stop, on_progress)
            rows.append(_row(config, number, new, error, _checkpoint(number + 1, *driver)))
        assert driver is not None
        return _write(config, rows, _checkpoint(config.epochs, *driver), time.monotonic() - began, source)


def clone_config(
    env: str,
    steps: int,
    passes: int,
    rounds: int,
    hidden: tuple[int, ...],
    seed: int,
    run_dir: Path | None,
    observe_changes: int = 0,
    braking_weight: float = 1.0,
    budget: float | None = None,
    observation_floor: float = STD_FLOOR,
) -> TrainConfig:
    """The settings of the run: a round is what an epoch is to trained runs."""
    defaults = method_defaults(CLONE.name)
    learner = dataclasses.replace(defaults.learner, hidden=hidden, update_iters=passes, braking_weight=braking_weight)
    return dataclasses.replace(
        defaults, env=env, seed=seed, total_steps=steps * (1 + rounds), steps_per_epoch=steps, run_dir=run_dir,
        observe_changes=observe_changes, observation_floor=observation_floor, budget=budget, learner=learner,
    ).resolved()  # fmt: skip


def _refuse_overwriting(config: TrainConfig) -> None:
    assert config.run_dir is not None
    if is_run(config.run_dir):
        raise InputError(f"{config.run_dir} already holds a run; choose another --run-dir")


def _record(
    config: TrainConfig,
    number: int,
    driver: tuple[Stack, Normaliser] | None,
    processes: int,
    stop: StopRequest,
    on_progress: OnProgress,
    source: SourceHash | None,
) -> list[Demonstrations]:
    """The steps of a round, in the order of their tasks."""
    spec, steps = config.spec.made_only_of(source), config.steps_per_epoch
    agent = None if driver is None else (driver[0].policy(), driver[1])
    sizes = [min(SHARE_STEPS, steps - start) for start in range(0, steps, SHARE_STEPS)]
    tasks = [
        DemonstrationTask(config.env, spec.training, spec.traffic, size, (config.seed, _RECORD, number, place), agent)
        for place, size in enumerate(sizes)
    ]
    stage = "record the scripted driver" if number == 0 else f"ask it in the clone's states, round {number}"
    # A fresh process per task: which tasks shared a simulator would otherwise matter.
    with WorkerPool[Demonstrations](EnvRecipe(spec, spec.training), size=processes, fresh=True) as pool:
        found = pool.run(tasks, lambda done: on_progress(stage, done, steps), lambda: stop.requested)
    if found is None:
        raise _interrupted(stop)
    on_progress(stage, steps, steps)
    return found


def _fit(
    config: TrainConfig, number: int, recorded: Sequence[Demonstrations], stop: StopRequest, on_progress: OnProgress
) -> tuple[tuple[Stack, Normaliser], float]:
    """A policy for everything recorded so far, with its normaliser and its error."""

    def on_pass(done: int) -> None:
        on_progress("fit the clone", done, config.learner.update_iters)
        if stop.requested:
            raise _interrupted(stop)

    normaliser = statistics_of(recorded, config.observation_clip, config.observation_floor)
    rng = np.random.default_rng((config.seed, _FIT, number))
    stack, error = regress(recorded, normaliser, config.learner, rng, on_pass)
    return (stack, normaliser), error


def _interrupted(stop: StopRequest) -> Interrupted:
    return Interrupted(f"stopped by {stop.reason} before the clone was ready; nothing was written")


def _checkpoint(epoch: int, stack: Stack, normaliser: Normaliser) -> Checkpoint:
    """The clone as a run's state. It has no critics, no optimiser and no multiplier."""
    arrays: dict[str, Any] = {"networks": stack.block.copy(), **normaliser.arrays()}
    return Checkpoint(epoch, arrays, {"trained": True, "shape": dataclasses.asdict(stack.shape)})


def _row(
    config: TrainConfig, number: int, new: Sequence[Demonstrations], error: float, state: Checkpoint
) -> dict[str, Any]:
    """The row of a round, with the fields of any run. Figures of training episodes are empty, because there were none.

    What was recorded has names of its own: in the first round it is not the clone that drove.
    """
    episodes = [episode for part in new for episode in part.episodes]
    means = {
        f"recorded_{name}": float(np.mean([episode[name] for episode in episodes])) if episodes else None
        for name in ("return", "cost", "length")
    }
    losses = Losses(error**2, (), kl=0.0, passes=config.learner.update_iters, entropy=0.0)
    steps = (number + 1) * config.steps_per_epoch
    row = epoch_row(number + 1, steps, [], EpisodeWindow(1), Constraints(config).figures(), losses, scored=False)
    row |= {"kl": None, "entropy": None, "recorded_episodes": len(episodes), **means, "imitation_error": error}
    return row | {COLUMN: record_digest(row, []) | state.digest()}


def _write(
    config: TrainConfig, rows: Sequence[Row], state: Checkpoint, seconds: float, source: SourceHash | None
) -> Run:
    """Write the run. The configuration comes last, and a directory without one is no run."""
    assert config.run_dir is not None
    with DirectoryLock(make_directory(config.run_dir)):
        _refuse_overwriting(config)  # another process may have been faster
        run = Run(config.run_dir, config)
        run.checkpoints.mkdir(exist_ok=True)
        run.start_over()
        run.append("epochs", list(rows))
        run.save(state)
        run.event(
            "cloned", noisy_share=NOISY, noise=list(NOISE), noise_memory=MEMORY, cut_share=CUT,
            steps_after_cost=AFTER_COST, braking_below=BRAKES,
            weight_decay=WEIGHT_DECAY, seconds=round(seconds, 1),
        )  # fmt: skip
        return Run.create(config, source={} if source is None else {"environment": source})
