"""The interface of environments: `Env`, `EnvSpec` and `Scenarios`.

This module imports no simulator, so that tables and help texts appear at once.
"""

from __future__ import annotations

import abc
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import EnvironmentFailure, InputError, MissingDependencyError, unknown_name
from vlmsafe.io.source import SourceHash, unchanged

STEP_LIMIT = 10_000
"""Steps after which evaluations cut an episode of an environment that is registered without max_episode_steps."""
Observation = NDArray[np.float32]
Frame = NDArray[np.uint8]


@dataclass(frozen=True)
class Scenarios:
    """A pool of scenario indices `start, ..., start + size - 1`; an index is what `reset(seed=...)` takes."""

    start: int
    size: int

    def __contains__(self, index: int) -> bool:
        return self.start <= index < self.start + self.size

    def choose(self, seed: int | None, rng: np.random.Generator) -> int:
        """The scenario that a reset's seed names, or a random one without a seed."""
        if seed is None:
            return self.draw(rng)
        if int(seed) not in self:
            last = self.start + self.size - 1
            raise InputError(f"scenario {seed} is not in the pool, which holds {self.start} to {last}")
        return int(seed)

    def draw(self, rng: np.random.Generator) -> int:
        """One scenario, uniformly."""
        return int(rng.integers(self.start, self.start + self.size))


class Env(gymnasium.Env[Observation, NDArray[np.floating[Any]]], abc.ABC):
    """Gymnasium's interface with `info["cost"]` on every step, plus what scoring and auditing need.

    Observations are float32 vectors and actions are a `Box`. `reset(seed=i)` starts scenario `i` of the pool that the
    environment was made with. An environment may set `info["arrived"]`, which says on the last step of an episode
    whether the task was completed.
    """

    @abc.abstractmethod
    def frame(self) -> Frame:
        """The current state as RGB [height, width, 3] for scoring; it shows the cost only where `indicators` ask."""

    steering: int = 0
    """The index of the action that steers, where there are two; the other one drives."""

    clips: bool = True
    """Whether policies' actions are clipped to the action space. Where not, they are passed on as they are."""

    isolate: bool = True
    """Whether a reset starts a clean simulator, where the simulator would carry state into the next episode."""

    observed: bool = True
    """Whether the caller reads the observation of the next step; set before a step.

    Where it does not, a simulator may save the time and return any array. The observation of an episode's last step,
    and that of a reset, are always made.
    """

    step_seconds: float | None = None
    """Simulated time per step, where the environment itself says it; None where `EnvSpec.step_seconds` does."""

    step_limit: int | None = None
    """Steps after which evaluations cut an episode, if the environment itself may have no end; None if it has one."""

    @property
    def pedal(self) -> int:
        """The index of the action that drives and brakes; a single action also steers."""
        assert self.action_space.shape is not None
        return self.action_space.shape[0] - 1 if self.steering == 0 else 0

    def progress(self) -> Mapping[str, float]:
        """Task metrics of the current episode, such as the share of the route covered."""
        return {}

    def hazard(self) -> float:
        """How close the current state is to something that costs, from 0 to 1, computed from the simulator's state.

        The oracle scorer reads it; no policy observes it. Calling it changes nothing. An environment where it has no
        meaning does not define it, and calling it then raises an error.
        """
        raise no_hazard(type(self).__name__)

    def expert(self) -> Callable[[], NDArray[np.float64]] | None:
        """A scripted driver for the current episode, or None. Called once per step, it returns actions in [-1, 1].

        Where actions are not clipped, it may ask for more. It may read anything in the simulator. Recordings and clones
        use it; no learner does.
        """
        return None

    def departure(self) -> str:
        """How the last observation departs from the declared space, in words; empty if it does not.

        Only environments of the user's can depart: their observations are converted to what is declared here.
        """
        return ""

    def made_of(self) -> tuple[str, ...]:
        """The files of the user's own modules that an environment has loaded so far."""
        return ()

    def facts(self) -> Mapping[str, float]:
        """Privileged measures of the current state by name, from which captions of its frame are written.

        `vlmsafe.distillation.facts` lists the names; an environment gives those that mean something in it. Calling it
        changes nothing.
        """
        return {}


def as_frame(image: Any, source: str) -> Frame:
    """Check that what `source` rendered is a frame."""
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        what = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise EnvironmentFailure(
            f"{source} rendered {what}; scoring needs uint8 arrays [height, width, 3], render_mode='rgb_array'"
        )
    return image


def no_episode() -> InputError:
    """The error for an environment that is used before it is reset."""
    return InputError("the environment has no episode; expected reset() before anything else")


def no_hazard(name: str) -> InputError:
    """The error for an environment without a hazard."""
    return InputError(
        f"environment '{name}' has no hazard, which the oracle scorer reads; define hazard() on it, from 0 (nothing "
        "that costs is near) to 1 (contact), or use one that `vlmsafe envs` lists: they all have it"
    )


@dataclass(frozen=True)
class Variant:
    """A named change of a published environment, chosen as `<environment>:<variant>`."""

    summary: str
    horizon: int | None = None
    """Another horizon, where it differs."""
    budget: float | None = None
    """Another default budget, where it differs; the smallest one counts where variants are joined."""
    step_seconds: float | None = None
    """Another simulated time per step, where it differs."""
    version: int | None = None
    """The variant's own version, where it changed at other times than the environment."""
    indicators: bool | None = None
    """As in `EnvSpec`, where its frames can show the cost and those of the environment cannot."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that replace the environment's own."""


@dataclass(frozen=True)
class EnvSpec:
    """What is known of an environment without starting it."""

    name: str
    """The name users type."""
    summary: str
    """One line for `vlmsafe envs`."""
    module: str
    """Module with `make(spec, scenarios, randomise) -> Env`; imported only when an environment is made."""
    horizon: int | None
    """Simulator steps after which an episode is cut; None where only the environment knows."""
    budget: float
    """Default cost budget d per episode."""
    training: Scenarios
    """Scenarios training draws from."""
    held_out: Scenarios
    """Scenarios training never sees."""
    version: int | None = 1
    """Rises whenever the same seed and actions give other numbers; None where the environment is not this package's."""
    step_seconds: float = 0.1
    """Simulated time per step of the simulator."""
    fresh_process: bool = False
    """Whether an episode depends on what ran before it in the same process, so that exact repeats need a new one."""
    seeds_honoured: bool = True
    """Whether an episode can be repeated from its scenario, so that evaluations of two policies can be paired."""
    traffic: bool = False
    """Whether a scenario index leaves something open (traffic) that `randomise=True` draws anew."""
    package: str | None = None
    """Import name of the simulator's package; None where none is needed."""
    install: str = ""
    """The command that installs it."""
    metrics: tuple[str, ...] = ()
    """The entries of `Env.progress` that measure the task at the end of an episode."""
    passive_below: float | None = None
    """Return below which an episode without cost achieved nothing; None where no such return is known."""
    prompts: str | None = None
    """Name of the prompt set that describes this environment."""
    score_every: int = 1
    """Steps between two scored frames where neither the method nor the user says: the paper's k_clip, if it has one."""
    frames: bool = False
    """Whether frames will be asked for; some environments must know before they are made."""
    indicators: bool | None = None
    """Whether cost is drawn into frames, as in the published simulator; None where no frame would show it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings in which it differs from other environments of the same module."""
    formerly: Mapping[int, str] = field(default_factory=dict)
    """The names under which the worlds of earlier versions are still there, by version."""
    variants: Mapping[str, Variant] = field(default_factory=dict)
    """Its named variants; several are joined by `+`."""
    repeat: int = 1
    """Simulator steps for which an action is kept; together they are one step for those who use the environment."""
    changes: int = 0
    """Steps over which changes of the observation are observed too; 0 for none."""
    source: str | None = None
    """The digest that the source of an environment of the user's must have when it is made; None for any."""
    seen: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)
    """Stamps of the files of that source, which say quickly that nothing changed."""

    @property
    def longest(self) -> int | None:
        """Steps of the longest episode for those who use the environment; None where only the environment knows."""
        return None if self.horizon is None else -(-self.horizon // self.repeat)

    def varied(self, names: str) -> EnvSpec:
        """The environment in one or more of its variants, such as `long` or `long+sighted`."""
        if not self.variants:
            raise InputError(f"unknown environment '{self.name}:{names}'; {self.name} has no variants")
        changed = replace(self, name=f"{self.name}:{names}", variants={}, formerly={})
        chosen = names.split("+")
        if len(set(chosen)) < len(chosen):
            raise InputError(f"'{self.name}:{names}' names a variant twice")
        for name in chosen:
            if name not in self.variants:
                raise unknown_name(f"variant of {self.name}", name, list(self.variants))
            variant = self.variants[name]
            changed = replace(
                changed,
                horizon=variant.horizon or changed.horizon,
                step_seconds=variant.step_seconds or changed.step_seconds,
                version=variant.version or changed.version,
                indicators=changed.indicators if variant.indicators is None else variant.indicators,
                settings={**changed.settings, **variant.settings},
            )
        self._refuse_contradictions(chosen)
        budgets = [budget for name in chosen if (budget := self.variants[name].budget) is not None]
        return replace(changed, budget=min(budgets, default=self.budget))

    def _refuse_contradictions(self, chosen: list[str]) -> None:
        """Raise an error where two variants set the same setting to different values."""
        setters: dict[str, str] = {}
        for name in chosen:
            for setting, value in self.variants[name].settings.items():
                first = setters.setdefault(setting, name)
                if self.variants[first].settings[setting] != value:
                    raise InputError(
                        f"the variants '{first}' and '{name}' of {self.name} both set {setting}; choose one of them"
                    )

    def require(self) -> None:
        """Raise an error with the command that installs the simulator, where it is missing."""
        if self.package is not None and importlib.util.find_spec(self.package) is None:
            raise MissingDependencyError(
                f"environment '{self.name}' needs the Python package '{self.package}', which is not installed; "
                f"install it with: {self.install}"
            )

    def source_hash(self, *, revision: bool = False) -> SourceHash | None:
        """The source of an environment of the user's, see `vlmsafe.io.source`; None for those of this package."""
        if self.version is not None:
            return None
        found: SourceHash = importlib.import_module(self.module).source_hash(self, revision)
        return found

    def source_digest(self) -> str | None:
        """The digest of its present source; None if it is not known."""
        found = self.source_hash()
        return None if found is None else found.digest

    def made_only_of(self, source: SourceHash | None) -> EnvSpec:
        """The environment, which from now on can be made only while its source is this one, where it is known."""
        return self if source is None else replace(self, source=source.digest, seen=source.seen)

    def make(self, scenarios: Scenarios | None = None, *, randomise: bool = True) -> Env:
        """Start the environment on a pool of scenarios, by default the training pool.

        With `randomise`, each episode draws anew what a scenario index leaves open; without, it is fixed.
        """
        self.require()
        module = importlib.import_module(self.module)
        env: Env = module.make(self, scenarios or self.training, randomise)
        # After it was made: what was loaded is then what the files held at the latest now.
        if self.source is not None and not unchanged(self.seen) and self.source != self.source_digest():
            raise EnvironmentFailure(
                f"the source of environment '{self.name}' was changed while it was in use; undo the change, or start "
                "the command again"
            )
        from vlmsafe.envs.wrappers import wrapped  # here, because wrappers are environments of this module

        return wrapped(env, self.repeat, self.changes)
