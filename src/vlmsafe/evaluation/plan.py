"""The plan of an evaluation: its policy, its scenarios, its actions, and how processes share the work."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import uuid
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import gymnasium
import numpy as np

from vlmsafe import kernels
from vlmsafe.config.learning import OFF_POLICY
from vlmsafe.envs.api import Env, EnvSpec
from vlmsafe.envs.episodes import begin_episode, step_episode
from vlmsafe.envs.registry import env_spec, world_name
from vlmsafe.envs.vector.frames import Reader, Stream
from vlmsafe.envs.vector.pool import EnvRecipe, Task, WorkerPool
from vlmsafe.errors import InputError
from vlmsafe.evaluation.protocols import Protocol, protocol
from vlmsafe.io.source import SourceHash
from vlmsafe.learners.networks import Stack
from vlmsafe.learners.policy import ActionMap, Policy
from vlmsafe.learners.sac import policy_of
from vlmsafe.learners.squashed import SquashedPolicy
from vlmsafe.numerics.normaliser import Array, Normaliser
from vlmsafe.runs.checkpoint import Checkpoint
from vlmsafe.runs.drivers import open_run
from vlmsafe.runs.run import Run
from vlmsafe.runs.surroundings import package_versions
from vlmsafe.runs.versions import changed_source, other_world, recorded_source
from vlmsafe.training.collect import DescribeTask, Dimensions, progress_of

R = TypeVar("R")
Row = dict[str, Any]


class EpisodeStep(NamedTuple):
    """One step of an episode. The environment is still in the state after the step."""

    number: int
    """Counted from 1."""
    observation: Array
    reward: float
    cost: float
    info: dict[str, Any]
    last: bool
    """Whether the episode ended with this step."""


@dataclass(frozen=True)
class EpisodeTask:
    """One or more episodes, one after another, in one simulator."""

    policy: Policy | SquashedPolicy
    normaliser: Normaliser | None
    scenarios: Sequence[int]
    traffic_seeds: Sequence[int | None]
    isolate: bool = True
    """Whether an episode is kept from influencing later ones."""
    metrics: tuple[str, ...] = ()
    """Figures of the environment's progress that are recorded at the end of each episode."""
    first: int = 0
    """Number of the first episode in the evaluation."""
    action_seed: tuple[int, ...] | None = None
    """With the episode's number, seeds the draws of its actions; None takes the policy's mean instead."""

    @property
    def episodes(self) -> range:
        """Numbers of the episodes in the evaluation."""
        return range(self.first, self.first + len(self.scenarios))

    def drive(self, env: Env, tick: Callable[[int], None]) -> Iterator[tuple[int, EpisodeStep]]:
        """Every step of every episode, with the episode's number in this task, counted from 0."""
        assert isinstance(env.action_space, gymnasium.spaces.Box)
        to_env = ActionMap.to(env.action_space, clips=env.clips)
        env.isolate = self.isolate
        steps = 0
        for episode, (scenario, traffic_seed) in enumerate(zip(self.scenarios, self.traffic_seeds, strict=True)):
            details = {} if traffic_seed is None else {"traffic_seed": traffic_seed}
            act = self._action_of(self.first + episode)
            observation = begin_episode(env, scenario, details)
            finished, number = False, 0
            while not finished:
                state = self.normaliser.normalise(observation) if self.normaliser else observation
                number += 1
                observation, reward, cost, terminated, truncated, info = step_episode(
                    env, to_env(act(state)), scenario, number
                )
                finished = terminated or truncated or number == env.step_limit
                yield episode, EpisodeStep(number, observation, reward, cost, info, finished)
                steps += 1
                tick(steps)

    def _action_of(self, episode: int) -> Callable[[Array], Array]:
        """The function that chooses actions in an episode. Draws do not depend on earlier episodes."""
        if self.action_seed is None:
            return self.policy.mean
        rng = np.random.default_rng((*self.action_seed, episode))
        return lambda state: self.policy.sample(state, rng)

    def run(self, env: Env, tick: Callable[[int], None]) -> list[Row]:
        """One row per episode, with the environment's own return and cost and no signal."""
        rows: list[Row] = [
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
                row |= progress_of(env, self.metrics)
        return rows


@dataclass(frozen=True)
class Plan:
    """The episodes of a protocol, ready to run with the policy of a run."""

    run: Run
    protocol: Protocol
    spec: EnvSpec
    checkpoint: Checkpoint
    tasks: list[EpisodeTask]
    """One per episode, or a single one with all episodes if they share a simulator."""
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
        env: str | None = None,
    ) -> Plan:
        """Check everything that can be refused before the first episode. The arguments are those of `evaluate`."""
        run = open_run(run)
        chosen, spec = protocol(protocol_name), _spec(run, env)
        count = chosen.episodes if episodes is None else episodes
        size = len(os.sched_getaffinity(0)) if processes is None else processes
        require_counts(episodes=count, processes=size)
        if epoch is not None:
            require_counts(least=0, epoch=epoch)
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
        if elsewhere := other_world(run):
            on_note(f"{run.path} drives in another world than it was trained in: {elsewhere}")
        if (source := spec.source_hash()) is not None:
            spec = _with_source(spec, source, run, on_note)
        if spec.name != run.config.spec.name:
            _check_sizes(run, checkpoint, spec)
        policy, normaliser = load_policy(run, checkpoint)
        rng = np.random.default_rng(0)
        draws = chosen.randomise and spec.traffic
        seeds: list[int | None] = [int(rng.integers(2**31)) if draws else None for _ in scenarios]
        shared = chosen.shared_simulator
        groups = [range(count)] if shared else [range(i, i + 1) for i in range(count)]
        # The run's seed is part of it: runs of different seeds draw independently, while arms that are compared seed
        # by seed share their draws.
        action_seed = (run.config.seed, zlib.crc32(chosen.name.encode())) if chosen.stochastic else None
        tasks = [
            EpisodeTask(
                policy,
                normaliser,
                [scenarios[i] for i in group],
                [seeds[i] for i in group],
                isolate=not shared,
                metrics=spec.metrics,
                first=group[0],
                action_seed=action_seed,
            )
            for group in groups
        ]
        return cls(run, chosen, spec, checkpoint, tasks, size)

    @property
    def episodes(self) -> int:
        return sum(len(task.scenarios) for task in self.tasks)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that the episodes depend on, except their number, as plain values."""
        unused = {"summary", "episodes", "environments"}  # no episode depends on these
        settings = {name: value for name, value in dataclasses.asdict(self.protocol).items() if name not in unused}
        return {
            "protocol": settings,
            "env": {
                "name": world_name(self.spec.name),
                "version": self.spec.version,
                "horizon": self.spec.horizon,
                "settings": dict(self.spec.settings),
                **({"repeat": self.spec.repeat} if self.spec.repeat > 1 else {}),
                **({"changes": self.spec.changes} if self.spec.changes else {}),
                # An environment of the user's whose source is not known shares no episodes with any other evaluation.
                **({"source": self.spec.source or uuid.uuid4().hex} if self.spec.version is None else {}),
            },
            "run_seed": self.run.config.seed,
            "checkpoint_epoch": self.checkpoint.epoch,
            "policy": _policy_digest(self.checkpoint),
            "packages": package_versions(),
            # Named only if they are pinned, so that tables of before keep their fingerprint.
            **({"kernels": "baseline"} if kernels.in_effect() == "baseline" else {}),
        }

    @property
    def fingerprint(self) -> str:
        """The identity in 16 letters. Episodes belong together only if it is the same."""
        return fingerprint_of(self.identity)

    @property
    def repeatable(self) -> bool:
        """Whether another evaluation can have the same identity: not with source of the user's that is not known."""
        return self.spec.version is not None or self.spec.source is not None

    def recipe(self, *, frames: bool = False) -> EnvRecipe:
        """How the workers make the environment."""
        spec = dataclasses.replace(self.spec, frames=frames)
        return EnvRecipe(spec, self.protocol.scenarios(spec), randomise=self.protocol.randomise)

    def execute(
        self,
        tasks: Sequence[Task[R]],
        recipe: EnvRecipe,
        on_result: Callable[[int, R], None],
        stream: Stream | None = None,
        reader: Reader | None = None,
    ) -> list[R]:
        """Run some of the tasks, or tasks that wrap them, in order. `on_result` gets each one's place and result."""
        # A fresh process per episode: an environment that carries state over would otherwise make results depend on
        # which process ran which episodes.
        with WorkerPool[R](recipe, self.processes, fresh=True, stream=stream) as pool:
            results = pool.run(tasks, on_result=on_result, reader=reader)
        assert results is not None
        return results


def fingerprint_of(identity: Mapping[str, Any]) -> str:
    """Plain values in 16 letters."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def require_counts(*, least: int = 1, **given: Any) -> None:
    """Raise an InputError for a number that is not whole or is too small."""
    for name, value in given.items():
        if not isinstance(value, Integral):
            raise InputError(f"{name} is {value!r}; expected a whole number")
        if value < least:
            raise InputError(f"{name} is {value}; it must be at least {least}")


def warn(note: str) -> None:
    """Give a note to who calls from Python. The warning points to the first caller outside of this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "vlmsafe":
        level, frame = level + 1, frame.f_back
    warnings.warn(note, UserWarning, stacklevel=level)


def _spec(run: Run, env: str | None) -> EnvSpec:
    """The environment of an evaluation: the run's, or another one of the same simulator."""
    own = run.config.spec
    if env is None or env == run.config.env:
        return own
    other = env_spec(env)
    if other.module != own.module:
        raise InputError(
            f"{run.path} was trained in '{run.config.env}', and '{env}' is another world; expected another level or "
            f"variant of '{run.config.env.partition(':')[0]}'"
        )
    return dataclasses.replace(other, repeat=own.repeat, changes=own.changes)


def _with_source(spec: EnvSpec, source: SourceHash, run: Run, on_note: Callable[[str], None]) -> EnvSpec:
    """An environment of the user's that is made only of its present source, with a note if a run had another one."""
    own = spec.name == run.config.env
    then = recorded_source(run.recorded()).get("environment") if own else None
    if then is not None and then.unknown:  # found when the environment was made, and no less true now
        source = then
    if source.unknown:
        on_note(f"the source of '{spec.name}' is not known, so no episodes are kept: {source.unknown}")
    elif own and (changed := changed_source(run, {"environment": source})):
        on_note(f"{run.path} was trained with other code: {changed}")
    return spec.made_only_of(source)


def _check_sizes(run: Run, checkpoint: Checkpoint, spec: EnvSpec) -> None:
    """Refuse an environment whose observations or actions have other sizes than the policy's."""
    with WorkerPool[Dimensions](EnvRecipe(spec, spec.held_out), 1) as pool:
        answers = pool.run([DescribeTask()])
    assert answers is not None
    shape = checkpoint.shape
    for what, has, wants in (
        ("observations", answers[0].observation, shape.observation),
        ("actions", answers[0].action, shape.action),
    ):
        if has != wants:
            raise InputError(
                f"'{spec.name}' has {what} of size {has}, but the policy of {run.path} was trained with size {wants} "
                f"in '{run.config.env}'; choose an environment with the same {what}"
            )


def load_policy(run: Run, checkpoint: Checkpoint) -> tuple[Policy | SquashedPolicy, Normaliser | None]:
    """The policy and the frozen normaliser of a checkpoint."""
    networks = checkpoint.arrays["networks"]
    policy: Policy | SquashedPolicy
    if run.config.learner.algorithm in OFF_POLICY:
        policy = policy_of(checkpoint.shape, networks)
    else:
        policy = Stack(checkpoint.shape, networks).policy()
    return policy, Normaliser.from_arrays(checkpoint.arrays) if run.config.normalise_observations else None


def _policy_digest(checkpoint: Checkpoint) -> str:
    """A digest of everything that chooses actions: networks and normaliser."""
    digest = hashlib.sha256(json.dumps(checkpoint.values["shape"], sort_keys=True).encode())
    for name in sorted(checkpoint.arrays):
        if name == "networks" or name.startswith("normaliser."):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(checkpoint.arrays[name]).tobytes())
    return digest.hexdigest()
