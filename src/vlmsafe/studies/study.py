"""A study: arms x environments x seeds x budget x protocols, and the runs that it consists of.

A study file says in what its runs differ. `Study.expand` turns it into runs with complete configurations. `scale`
shrinks the steps, seeds and episodes of a study and changes nothing else, so a trial of minutes uses the same code as a
study of weeks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vlmsafe.comparison.claims import Claims
from vlmsafe.comparison.looks import ONE_LOOK, Looks
from vlmsafe.config.methods import check_method, config_from, method
from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import nested
from vlmsafe.envs.registry import world_name
from vlmsafe.errors import InputError
from vlmsafe.evaluation.protocols import protocol, protocols_of
from vlmsafe.signals.scorers.registry import kind_of, parse_scorer

LEAST_SEEDS = 2  # one gives no interval, deviation or test
LEAST_EPOCHS = 2  # one gives nothing to resume, and every window is the same
LEAST_EPISODES = 2
LEAST_FRAMES = 50  # of a calibration buffer


@dataclass(frozen=True)
class Overrides:
    """What a study, an environment, an arm, or an arm in one environment sets for its runs; None sets nothing."""

    seeds: tuple[int, ...] | None = None
    total_steps: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """By dotted name."""

    def over(self, other: Overrides) -> Overrides:
        """These overrides on top of others."""
        return Overrides(
            other.seeds if self.seeds is None else self.seeds,
            other.total_steps if self.total_steps is None else self.total_steps,
            {**other.settings, **self.settings},
        )


@dataclass(frozen=True)
class StudyArm:
    """One arm of a study."""

    name: str
    method: str
    overrides: Overrides = Overrides()
    environments: Mapping[str, Overrides] | None = None
    """The environments in which it has runs and what it sets there; None for all environments of the study."""

    def in_environment(self, env: str) -> Overrides | None:
        """What the arm sets in an environment; None if it has no runs there."""
        if self.environments is None:
            return self.overrides
        return self.environments[env].over(self.overrides) if env in self.environments else None


@dataclass(frozen=True)
class EpisodeRequest:
    """An evaluation or a trace that a study asks for. An empty selection means all runs the protocol is defined for."""

    protocol: str
    episodes: int | None = None
    """None means the protocol's default."""
    environments: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    scorers: tuple[str, ...] = ()
    """Traces: the scorers; by default the run's own."""
    prompts: str | None = None
    """Traces: the prompt set, by name or as a file; by default the run's own, or its environment's."""
    every: int = 1
    """Traces: steps between two scored states."""
    frames: bool = False
    """Traces: whether scored frames are saved."""

    @property
    def count(self) -> int:
        """The number of episodes to run."""
        return protocol(self.protocol).episodes if self.episodes is None else self.episodes

    def takes(self, env: str, arm: str, seed: int) -> bool:
        chosen = all(
            not wanted or given in wanted
            for wanted, given in ((self.environments, env), (self.arms, arm), (self.seeds, seed))
        )
        return chosen and protocol(self.protocol).defined_for(env)


@dataclass(frozen=True)
class RunSpec:
    """One run of a study: its configuration, and the evaluations and traces to make once it is trained."""

    env: str
    arm: str
    seed: int
    config: TrainConfig
    """Resolved, including the run directory."""
    evaluations: tuple[EpisodeRequest, ...] = ()
    traces: tuple[EpisodeRequest, ...] = ()
    assumptions: tuple[str, ...] = ()
    """What the study does not say about it, of `TrainConfig.assumptions`."""

    @property
    def path(self) -> Path:
        assert self.config.run_dir is not None
        return self.config.run_dir

    @property
    def name(self) -> str:
        """Its path in the study's folder, which messages use as its name."""
        return "/".join(self.path.parts[-3:])


@dataclass(frozen=True)
class Study:
    """A study as its file describes it."""

    name: str
    question: str
    environments: Mapping[str, Overrides]
    arms: tuple[StudyArm, ...]
    base: Overrides
    """What all runs share unless an environment or an arm overrides it."""
    paper: tuple[str, ...] = ()
    """Labels of the paper's tables and figures that it reproduces."""
    protocols: tuple[EpisodeRequest, ...] = ()
    traces: tuple[EpisodeRequest, ...] = ()
    claims: Claims = Claims()  # noqa: RUF009 - frozen
    looks: Looks = ONE_LOOK
    """When its claims are decided."""
    tables: tuple[Any, ...] = ()
    """Tables of the report, as docs/guides/report.md describes them."""
    figures: tuple[Any, ...] = ()
    independent: bool = False
    """Whether all its runs are trained, even if another study has equal ones."""
    scale: float = 1.0
    scorer: str | None = None
    """The scorer that replaces every model that must be downloaded, to try a study without the weights."""
    document: Mapping[str, Any] = field(default_factory=dict)
    """The content of the file, with scale and scorer."""

    @property
    def title(self) -> str:
        """The name with scale and scorer, if they were changed; also the name of the study's folder."""
        scale = "" if self.scale == 1.0 else f"-scale-{self.scale:g}"
        scorer = "" if self.scorer is None else f"-{self.scorer.replace(':', '-').replace('/', '-')}"
        return f"{self.name}{scale}{scorer}"

    def varied(self, scale: float = 1.0, scorer: str | None = None) -> Study:
        """The same study at a smaller scale, or with another scorer in place of models that must be downloaded."""
        if not 0.0 < scale <= 1.0:
            raise InputError(f"scale is {scale}; it must be greater than 0 and at most 1")
        if scale == 1.0 and scorer is None:
            return self
        if self.scale != 1.0 or self.scorer is not None:
            raise InputError(f"'{self.title}' already has another scale or scorer; start from '{self.name}'")
        if scorer is not None:
            parse_scorer(scorer)
        extra = {"scale": scale} | ({} if scorer is None else {"scorer": scorer})
        return replace(self, scale=scale, scorer=scorer, document={**self.document, **extra})

    @property
    def undefined(self) -> list[str]:
        """A line about each evaluation or trace that no run would have: its protocol is defined for no environment."""
        found = []
        for kind, requests in (("protocols", self.protocols), ("traces", self.traces)):
            for request in requests:
                envs = [env for env in self.environments if not request.environments or env in request.environments]
                if not any(protocol(request.protocol).defined_for(env) for env in envs):
                    found.append(
                        f"'{request.protocol}' under '{kind}' is defined for no environment that it is asked for "
                        f"({', '.join(envs)}); use {' or '.join(protocols_of(envs[0]))}"
                    )
        return found

    def expand(self, folder: Path, *, recorded: bool = False) -> tuple[RunSpec, ...]:
        """Every run, in the order in which to make them: all arms with their first seed, then with their second, ...

        `recorded` is for studies whose runs exist, as in `TrainConfig.resolved`.
        """
        return tuple(spec for _, spec in sorted(self._specs(folder, recorded), key=lambda pair: pair[0]))

    def settings_of(self, env: str, arm: str) -> Mapping[str, Any]:
        """The settings that the study names for an arm in an environment, by dotted name; the innermost place wins."""
        overrides = self._overrides(env, next(one for one in self.arms if one.name == arm))
        return {} if overrides is None else overrides.settings

    def _overrides(self, env: str, arm: StudyArm) -> Overrides | None:
        """What the study sets for an arm in an environment; None if the arm has no runs there."""
        own = arm.in_environment(env)
        return None if own is None else own.over(_for_method(self.environments[env].over(self.base), arm.method))

    def _specs(self, folder: Path, recorded: bool) -> Iterator[tuple[int, RunSpec]]:
        for env in self.environments:
            for arm in self.arms:
                overrides = self._overrides(env, arm)
                if overrides is None:
                    continue
                for place, seed in enumerate(fewer_seeds(overrides.seeds or (), self.scale)):
                    run_dir = folder / folder_of(env) / arm.name / f"seed-{seed}"
                    config, assumptions = self._config(env, arm, overrides, seed, run_dir, recorded)
                    evaluations, traces = (
                        tuple(
                            replace(request, episodes=shrunk(request.count, self.scale, LEAST_EPISODES))
                            for request in requests
                            if request.takes(env, arm.name, seed)
                        )
                        for requests in (self.protocols, self._traces())
                    )
                    yield place, RunSpec(env, arm.name, seed, config, evaluations, traces, assumptions)

    def _config(
        self, env: str, arm: StudyArm, overrides: Overrides, seed: int, run_dir: Path, recorded: bool
    ) -> tuple[TrainConfig, tuple[str, ...]]:
        source = f"arm '{arm.name}' on {env}"
        settings: dict[str, Any] = {"env": env, "method": arm.method, "seed": seed, **nested(overrides.settings)}
        if overrides.total_steps is not None:
            settings["total_steps"] = overrides.total_steps
        config = replace(config_from(settings, source), run_dir=run_dir)
        if self.scorer is not None:
            config = with_scorer(config, self.scorer, source)
        assumptions = tuple(config.assumptions)
        try:
            config = shrunk_config(config.resolved(recorded=recorded), self.scale).resolved(recorded=recorded)
            check_method(config)
        except InputError as error:
            raise InputError(f"{source}: {error}") from None
        return config, assumptions

    def _traces(self) -> Iterator[EpisodeRequest]:
        for request in self.traces:
            scorers = (self.scorer if self.scorer and kind_of(name).downloaded else name for name in request.scorers)
            yield replace(request, scorers=tuple(dict.fromkeys(scorers)))


def _for_method(shared: Overrides, name: str) -> Overrides:
    """What a study or an environment sets for all arms, without settings of the signal if the method has none."""
    if method(name).signal.scorer != "none":
        return shared
    signal = ("signal.", "multiplier.signal_")
    kept = {key: value for key, value in shared.settings.items() if not key.startswith(signal)}
    return replace(shared, settings=kept)


def assumptions(specs: Sequence[RunSpec]) -> list[str]:
    """What the study does not say about its runs, each once."""
    return list(dict.fromkeys(note for spec in specs for note in spec.assumptions))


def cells(specs: Sequence[RunSpec]) -> dict[tuple[str, str], list[RunSpec]]:
    """The runs of each environment and arm."""
    found: dict[tuple[str, str], list[RunSpec]] = {}
    for spec in specs:
        found.setdefault((spec.env, spec.arm), []).append(spec)
    return found


def folder_of(env: str) -> str:
    """The folder name of an environment. The interpreter that runs it is a place and no part of the name."""
    return world_name(env).replace(":", "-").replace("/", "-")


# -- scaling down ----------------------------------------------------------------------------------------------------


def shrunk(number: int, scale: float, least: int) -> int:
    """A number times `scale`, but at least `least` unless the number itself is smaller.

    >>> shrunk(50, 0.01, 2), shrunk(50, 0.5, 2), shrunk(1, 0.01, 2)
    (2, 25, 1)
    """
    return min(number, max(least, round(number * scale)))


def fewer_seeds(seeds: Sequence[int], scale: float) -> tuple[int, ...]:
    """The first of the seeds, at least two of them if there are two, so that intervals and tests can be computed."""
    return tuple(seeds[: shrunk(len(seeds), scale, LEAST_SEEDS)])


def shrunk_config(config: TrainConfig, scale: float) -> TrainConfig:
    """A resolved configuration with fewer steps. The number of epochs and their length shrink by the root of the scale.

    At least two epochs remain, and an epoch keeps a whole episode per worker if it had one, because without a finished
    episode there is no cost to learn from. So a very small scale may leave more steps than it says.
    """
    if scale == 1.0:
        return config
    steps = config.total_steps * scale
    epochs = shrunk(config.epochs, math.sqrt(scale), LEAST_EPOCHS)
    episode = (config.spec.longest or 1) * config.num_envs
    least = min(config.steps_per_epoch, math.ceil(steps / epochs))
    per_epoch = min(config.steps_per_epoch, max(least, episode))
    per_epoch = math.ceil(per_epoch / config.num_envs) * config.num_envs
    epochs = max(min(LEAST_EPOCHS, config.epochs), min(epochs, round(steps / per_epoch)))
    calibration = config.signal.calibration
    frames = None if calibration.frames is None else shrunk(calibration.frames, scale, LEAST_FRAMES)
    signal = replace(config.signal, calibration=replace(calibration, frames=frames))
    return replace(config, total_steps=epochs * per_epoch, steps_per_epoch=per_epoch, signal=signal)


def with_scorer(config: TrainConfig, scorer: str, source: str) -> TrainConfig:
    """The configuration with another scorer in place of a model that must be downloaded; other scorers stay."""
    named = parse_scorer(config.signal.scorer) if config.signal.scorer != "none" else None
    if named is None or not named.kind.downloaded:
        return config
    scorer = f"{named.kind.name}:{scorer}" if named.kind.shuffles else scorer
    rules = kind_of(scorer).rules
    if rules is not None and config.signal.rule not in rules:
        raise InputError(
            f"{source}: the scorer '{scorer}' cannot stand in for '{config.signal.scorer}', because it does not know "
            f"the rule '{config.signal.rule}'; noise and oracle know every rule"
        )
    return replace(config, signal=replace(config.signal, scorer=scorer, precision=None, batch=None))
