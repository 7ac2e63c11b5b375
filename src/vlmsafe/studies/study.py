"""A study: arms x environments x seeds x budget x protocols, and the runs that it is made of.

A study file says what differs; `Study.expand` turns it into runs, each with its whole configuration. `scale` shrinks
steps, seeds and episodes of any study and leaves everything else as it is, so that what is tried in minutes goes
through the code that runs for weeks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vlmsafe.comparison.claims import Claims
from vlmsafe.config.methods import check_method, config_from, method
from vlmsafe.config.settings import TrainConfig
from vlmsafe.errors import InputError
from vlmsafe.evaluation.protocols import protocol
from vlmsafe.signals.scorers.registry import kind_of, parse_scorer

LEAST_SEEDS = 2  # with one, no interval, deviation or test would be computed
LEAST_EPOCHS = 2  # with one, nothing would be resumed, and no window would differ from another
LEAST_EPISODES = 2
LEAST_FRAMES = 50  # of a calibration buffer


@dataclass(frozen=True)
class Part:
    """What an environment, an arm, or an arm in one environment sets for its runs; None leaves it as it was."""

    seeds: tuple[int, ...] | None = None
    total_steps: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """By dotted name."""

    def over(self, other: Part) -> Part:
        """This part put over another one."""
        return Part(
            other.seeds if self.seeds is None else self.seeds,
            other.total_steps if self.total_steps is None else self.total_steps,
            {**other.settings, **self.settings},
        )


@dataclass(frozen=True)
class Arm:
    """One arm of a study."""

    name: str
    method: str
    part: Part = Part()
    environments: Mapping[str, Part] | None = None
    """Those it has, where it has not all of the study's, and what it sets there."""

    def in_environment(self, env: str) -> Part | None:
        """What the arm sets in an environment; None where it has no runs."""
        if self.environments is None:
            return self.part
        return self.environments[env].over(self.part) if env in self.environments else None


@dataclass(frozen=True)
class Look:
    """An evaluation of finished runs, or a trace of them; an empty selection takes all for which it is defined."""

    protocol: str
    episodes: int | None = None
    """None takes the protocol's own number."""
    environments: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    scorers: tuple[str, ...] = ()
    """Traces: who looks on; by default the run's own scorer."""
    every: int = 1
    """Traces: steps between two scored states."""
    frames: bool = False
    """Traces: whether scored frames are kept."""

    @property
    def count(self) -> int:
        """Episodes to run."""
        return protocol(self.protocol).episodes if self.episodes is None else self.episodes

    def takes(self, env: str, arm: str, seed: int) -> bool:
        chosen = all(
            not wanted or given in wanted
            for wanted, given in ((self.environments, env), (self.arms, arm), (self.seeds, seed))
        )
        return chosen and protocol(self.protocol).defined_for(env)


@dataclass(frozen=True)
class RunSpec:
    """One run of a study: everything that decides it, and what is to be made of it once it is trained."""

    env: str
    arm: str
    seed: int
    config: TrainConfig
    """Resolved, its directory included."""
    evaluations: tuple[Look, ...] = ()
    traces: tuple[Look, ...] = ()

    @property
    def path(self) -> Path:
        assert self.config.run_dir is not None
        return self.config.run_dir

    @property
    def name(self) -> str:
        """Its place in the study's folder, by which it is called in messages."""
        return "/".join(self.path.parts[-3:])


@dataclass(frozen=True)
class Study:
    """A study as its file describes it."""

    name: str
    question: str
    environments: Mapping[str, Part]
    arms: tuple[Arm, ...]
    base: Part
    """What all runs have unless something else is said."""
    paper: tuple[str, ...] = ()
    """Labels of the paper's tables and figures that it makes."""
    protocols: tuple[Look, ...] = ()
    traces: tuple[Look, ...] = ()
    claims: Claims = Claims()  # noqa: RUF009 - frozen
    tables: tuple[Any, ...] = ()
    """What the report prints, in its words (docs/report.md)."""
    figures: tuple[Any, ...] = ()
    independent: bool = False
    """Whether equal runs of other studies are not to be taken in place of its own."""
    scale: float = 1.0
    scorer: str | None = None
    """What stands in for every model that is not part of the package, to try a study without its weights."""
    document: Mapping[str, Any] = field(default_factory=dict)
    """What the file holds, scale and scorer included."""

    @property
    def title(self) -> str:
        """The name, and by how much and with what it was made smaller: also the name of its folder."""
        scale = "" if self.scale == 1.0 else f"-scale-{self.scale:g}"
        scorer = "" if self.scorer is None else f"-{self.scorer.replace(':', '-').replace('/', '-')}"
        return f"{self.name}{scale}{scorer}"

    def varied(self, scale: float = 1.0, scorer: str | None = None) -> Study:
        """The same study smaller, or with another scorer in place of models that must be downloaded."""
        if not 0.0 < scale <= 1.0:
            raise InputError(f"scale is {scale}; it must be greater than 0 and at most 1")
        if scale == 1.0 and scorer is None:
            return self
        if self.scale != 1.0 or self.scorer is not None:
            raise InputError(f"'{self.title}' is a smaller or changed study already; start from '{self.name}'")
        if scorer is not None:
            parse_scorer(scorer)
        extra = {"scale": scale} | ({} if scorer is None else {"scorer": scorer})
        return replace(self, scale=scale, scorer=scorer, document={**self.document, **extra})

    def expand(self, folder: Path) -> tuple[RunSpec, ...]:
        """Every run, in the order in which they are best made: all arms with their first seed, then the second, ..."""
        found = [(place, spec) for place, spec in self._specs(folder)]
        return tuple(spec for _, spec in sorted(found, key=lambda pair: pair[0]))

    def _specs(self, folder: Path) -> Iterator[tuple[int, RunSpec]]:
        for env, own in self.environments.items():
            for arm in self.arms:
                part = arm.in_environment(env)
                if part is None:
                    continue
                part = part.over(_for_method(own.over(self.base), arm.method))
                for place, seed in enumerate(fewer_seeds(part.seeds or (), self.scale)):
                    config = self._config(env, arm, part, seed, folder / folder_of(env) / arm.name / f"seed-{seed}")
                    evaluations, traces = (
                        tuple(
                            replace(look, episodes=shrunk(look.count, self.scale, LEAST_EPISODES))
                            for look in looks
                            if look.takes(env, arm.name, seed)
                        )
                        for looks in (self.protocols, self._traces())
                    )
                    yield place, RunSpec(env, arm.name, seed, config, evaluations, traces)

    def _config(self, env: str, arm: Arm, part: Part, seed: int, run_dir: Path) -> TrainConfig:
        source = f"arm '{arm.name}' on {env}"
        settings: dict[str, Any] = {"env": env, "method": arm.method, "seed": seed, **nested(part.settings)}
        if part.total_steps is not None:
            settings["total_steps"] = part.total_steps
        config = replace(config_from(settings, source), run_dir=run_dir)
        if self.scorer is not None:
            config = with_scorer(config, self.scorer, source)
        try:
            config = shrunk_config(config.resolved(), self.scale).resolved()
            check_method(config)
        except InputError as error:
            raise InputError(f"{source}: {error}") from None
        return config

    def _traces(self) -> Iterator[Look]:
        for look in self.traces:
            scorers = (self.scorer if self.scorer and kind_of(name).downloaded else name for name in look.scorers)
            yield replace(look, scorers=tuple(dict.fromkeys(scorers)))


def _for_method(part: Part, name: str) -> Part:
    """What a study or an environment sets for all arms; what it says of the signal is for those that have one."""
    if method(name).signal.scorer != "none":
        return part
    kept = {key: value for key, value in part.settings.items() if not key.startswith(("signal.", "multiplier.signal_"))}
    return replace(part, settings=kept)


def folder_of(env: str) -> str:
    """An environment's name as the name of a folder."""
    return env.replace(":", "-").replace("/", "-")


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under dotted names as the mappings in mappings that a configuration is read from.

    >>> nested({"signal.every": 4, "signal.gate": "off", "num_envs": 2})
    {'signal': {'every': 4, 'gate': 'off'}, 'num_envs': 2}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        *path, last = name.split(".")
        place = found
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return found


# -- smaller ----------------------------------------------------------------------------------------------------


def shrunk(number: int, scale: float, least: int) -> int:
    """A number made smaller, but not smaller than `least` unless it was.

    >>> shrunk(50, 0.01, 2), shrunk(50, 0.5, 2), shrunk(1, 0.01, 2)
    (2, 25, 1)
    """
    return min(number, max(least, round(number * scale)))


def fewer_seeds(seeds: Sequence[int], scale: float) -> tuple[int, ...]:
    """The first of the seeds: two at least, where there are two, so that intervals and tests are computed."""
    return tuple(seeds[: shrunk(len(seeds), scale, LEAST_SEEDS)])


def shrunk_config(config: TrainConfig, scale: float) -> TrainConfig:
    """A resolved run with fewer steps. Epochs become fewer and shorter alike, by the root of the scale each.

    Two epochs remain, and an epoch keeps a whole episode per worker if it had one: without a finished episode there is
    no cost to learn from. So a very small scale may leave more steps than it says.
    """
    if scale == 1.0:
        return config
    steps = config.total_steps * scale
    epochs = shrunk(config.epochs, math.sqrt(scale), LEAST_EPOCHS)
    episode = (config.spec.horizon or 1) * config.num_envs
    least = min(config.steps_per_epoch, math.ceil(steps / epochs))
    per_epoch = min(config.steps_per_epoch, max(least, episode))
    per_epoch = math.ceil(per_epoch / config.num_envs) * config.num_envs
    epochs = max(min(LEAST_EPOCHS, config.epochs), min(epochs, round(steps / per_epoch)))
    calibration = config.signal.calibration
    frames = None if calibration.frames is None else shrunk(calibration.frames, scale, LEAST_FRAMES)
    signal = replace(config.signal, calibration=replace(calibration, frames=frames))
    return replace(config, total_steps=epochs * per_epoch, steps_per_epoch=per_epoch, signal=signal)


def with_scorer(config: TrainConfig, scorer: str, source: str) -> TrainConfig:
    """A run with another scorer in place of a model that must be downloaded; other scorers stay."""
    if not kind_of(config.signal.scorer).downloaded:
        return config
    rules = kind_of(scorer).rules
    if rules is not None and config.signal.rule not in rules:
        raise InputError(
            f"{source}: the scorer '{scorer}' cannot stand in for '{config.signal.scorer}', because it does not know "
            f"the rule '{config.signal.rule}'; noise and oracle know every rule"
        )
    return replace(config, signal=replace(config.signal, scorer=scorer, precision="float32"))
