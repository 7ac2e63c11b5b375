"""Where a distillation gets its frames: runs, shipped drivers and environments, as the user names them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vlmsafe.config.settings import DRIVER
from vlmsafe.distillation.drivers import Agent
from vlmsafe.distillation.plan import file_name
from vlmsafe.envs.api import EnvSpec
from vlmsafe.envs.registry import env_spec, world_name
from vlmsafe.errors import InputError
from vlmsafe.evaluation.plan import load_policy
from vlmsafe.runs.checkpoint import Checkpoint
from vlmsafe.runs.drivers import open_run
from vlmsafe.runs.layout import is_run
from vlmsafe.runs.run import Run
from vlmsafe.signals.prompts import PromptSet, load_prompts


@dataclass(frozen=True)
class Source:
    """An environment, and the policies that drive in it."""

    spec: EnvSpec
    agents: tuple[Agent, ...] = ()
    """Policies of runs; without any, actions are random, or those of the environment's scripted driver."""
    policies: tuple[dict[str, Any], ...] = ()
    """What identifies each policy, for the card: name, method, seed, epochs, and a digest of its weights."""

    @property
    def file_name(self) -> str:
        """The beginning of the names of its recordings."""
        repeat = f"-repeat-{self.spec.repeat}" if self.spec.repeat > 1 else ""
        changes = f"-changes-{self.spec.changes}" if self.spec.changes else ""
        indicators = "-indicators" if self.spec.indicators else ""
        return f"{file_name(world_name(self.spec.name))}{repeat}{changes}{indicators}"

    def identity(self) -> dict[str, Any]:
        """Everything of it that recorded frames depend on, as plain values."""
        return {
            "env": world_name(self.spec.name),
            "version": self.spec.version,
            "source": self.spec.source,
            "repeat": self.spec.repeat,
            "changes": self.spec.changes,
            "indicators": self.spec.indicators,
            "policies": [policy["digest"] for policy in self.policies],
        }


def read_sources(names: Sequence[str]) -> tuple[list[Source], list[Run]]:
    """One source per environment, with the policies of all runs in it, and the runs in their order."""
    if not names:
        raise InputError("nothing to record; name run directories, driver:<name>, or an environment")
    found: dict[tuple[Any, ...], Source] = {}
    runs: list[Run] = []
    for name in names:
        spec, agents, policies = _read(name, runs)
        spec = replace(spec, frames=True)
        key = spec.name, spec.repeat, spec.changes, spec.indicators
        known = found.get(key) or Source(spec.made_only_of(spec.source_hash()))
        known_digests = {policy["digest"] for policy in known.policies}
        if any(policy["digest"] in known_digests for policy in policies):
            raise InputError(f"'{name}' has the same policy as a run before it; name each run once")
        found[key] = replace(known, agents=known.agents + agents, policies=known.policies + policies)
    for source in found.values():
        source.spec.require()
    return list(found.values()), runs


def prompts_for(given: str | None, sources: Sequence[Source], runs: Sequence[Run]) -> PromptSet:
    """The prompts that the user names, else those of the runs, else those of the environments."""
    if given is not None:
        return load_prompts(given)
    own = [prompts for run in runs if (prompts := run.prompts()) is not None]
    own = own or [load_prompts(source.spec.prompts) for source in sources if source.spec.prompts is not None]
    if not own:
        raise InputError(
            f"'{sources[0].spec.name}' has no prompts of its own; pass --prompts with a YAML file, which the scorer "
            "will then know"
        )
    if any(prompts != own[0] for prompts in own):
        raise InputError("the runs and environments have different prompts; say which ones to distil with --prompts")
    return own[0]


def _read(name: str, runs: list[Run]) -> tuple[EnvSpec, tuple[Agent, ...], tuple[dict[str, Any], ...]]:
    if name.startswith(DRIVER) or is_run(Path(name)):
        run = open_run(name)
        runs.append(run)
        checkpoint, _ = run.checkpoint()
        if not checkpoint.trained:
            raise InputError(
                f"{run.path} holds only its untrained start; train it with: {run.resume_command}, or give "
                f"'{run.config.env}' for random actions"
            )
        about = {
            "name": name if name.startswith(DRIVER) else run.path.name,
            "env": world_name(run.config.env),
            "method": run.config.method,
            "seed": run.config.seed,
            "epochs": checkpoint.epoch,
            "digest": _digest(checkpoint),
        }
        return run.config.spec, (Agent(name, *load_policy(run, checkpoint)),), (about,)
    if Path(name).exists():
        Run.open(name)  # says what is missing in the directory
    try:
        return env_spec(name), (), ()
    except InputError as error:
        raise InputError(f"'{name}' is no run directory and no driver:<name>; as an environment: {error}") from None


def _digest(checkpoint: Checkpoint) -> str:
    """A digest of everything that chooses actions."""
    digest = hashlib.sha256()
    for name in sorted(checkpoint.arrays):
        if name == "networks" or name.startswith("normaliser."):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(checkpoint.arrays[name]).tobytes())
    return digest.hexdigest()[:16]
