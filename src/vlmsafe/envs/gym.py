"""Any registered Gymnasium environment that reports a cost, as `gym:<id>` or `gym:<module>:<id>`.

The cost is `info["cost"]`, or the third element of Safety-Gymnasium's six-tuple (observation, reward, cost,
terminated, truncated, info). Dictionary and image-shaped observations are flattened.

`safety-gymnasium:<id>` is an environment of the original Safety-Gymnasium, which has its own registry, and
`safety-gymnasium:<id>:<camera>` shows frames of another of its cameras. Its renderer draws a red sphere around the
agent while there is a cost, and markers of the lidar. Its frames may therefore tell a scorer the cost, which runs
record as `frame_indicators: true`. FormulaOne's default camera sees neither. In another interpreter they are left out
unless --frame-indicators asks for them.

`<name>@<python>` runs in another interpreter, with the packages that are installed there (`bridge/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.api import STEP_LIMIT, Env, EnvSpec, Frame, Observation, Scenarios, as_frame, no_hazard
from vlmsafe.envs.bridge import adapter
from vlmsafe.envs.bridge.identity import source_there
from vlmsafe.envs.bridge.interpreters import find_interpreter
from vlmsafe.envs.bridge.remote import RemoteEnv
from vlmsafe.errors import EnvironmentFailure, InputError, unknown_name
from vlmsafe.io.source import SourceHash, hash_source


class GymEnv(Env):
    """A Gymnasium environment, of this process or of another interpreter, behind this package's interface."""

    def __init__(self, inner: adapter.Adapter | RemoteEnv, name: str, scenarios: Scenarios) -> None:
        self.inner, self._name, self._scenarios = inner, name, scenarios
        self.action_space = inner.action_space
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (inner.size,), np.float32)
        self.steering = inner.steering
        self.made_of = tuple(sorted(set(_modules(inner.inner)))) if isinstance(inner, adapter.Adapter) else ()
        self.step_limit = STEP_LIMIT if inner.time_limit is None else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        scenario = self._scenarios.draw(self.np_random) if seed is None else seed
        with _named(self._name):
            observation, info = self.inner.reset(scenario, options)
        return observation, {**info, "scenario": scenario}

    def step(self, action: NDArray[np.floating[Any]]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        try:  # a context manager would take a tenth of a fast environment's step
            return self.inner.step(action)
        except adapter.Misbehaviour as error:
            raise EnvironmentFailure(f"environment '{self._name}': {error}") from error

    def frame(self) -> Frame:
        return as_frame(self.inner.render(), f"environment '{self._name}'")

    def hazard(self) -> float:
        """The registered environment's own `hazard()`, read through its wrappers."""
        if "hazard" not in self.inner.has:
            raise no_hazard(self._name)
        hazard = float(self.inner.call("hazard"))
        if not 0.0 <= hazard <= 1.0:
            raise EnvironmentFailure(f"environment '{self._name}': hazard() returned {hazard}; it must lie from 0 to 1")
        return hazard

    def expert(self) -> Callable[[], NDArray[np.float64]] | None:
        """The registered environment's own `expert()`, read through its wrappers; None if it has none."""
        return self.inner.call("expert") if "expert" in self.inner.has else None

    def progress(self) -> Mapping[str, float]:
        return self._figures("progress")

    def facts(self) -> Mapping[str, float]:
        return self._figures("facts")

    def _figures(self, method: str) -> dict[str, float]:
        """Figures by name from a method of the registered environment's; empty if it has none."""
        found = self.inner.call(method) if method in self.inner.has else {}
        return {str(name): float(value) for name, value in found.items()}

    def departure(self) -> str:
        return self.inner.departure()

    def close(self) -> None:
        self.inner.close()


def make(spec: EnvSpec, scenarios: Scenarios, randomise: bool) -> Env:
    """Called by `EnvSpec.make`. A Gymnasium environment has only its seed, so there is nothing else to randomise."""
    name, _, python = spec.name.partition("@")
    family, _, env_id = name.partition(":")
    module, _, registered_id = env_id.rpartition(":") if family == "gym" else ("", "", env_id)
    with _named(spec.name):
        if python:
            remote = RemoteEnv(find_interpreter(python), spec.name)
            try:
                remote.make(
                    family=family, module=module, env_id=registered_id, frames=spec.frames,
                    indicators=spec.indicators is not False,
                )  # fmt: skip
            except BaseException:
                remote.close()
                raise
            return GymEnv(remote, spec.name, scenarios)
        if family == "gym":
            return GymEnv(adapter.make_gym(module, registered_id, spec.frames), spec.name, scenarios)
        return GymEnv(adapter.make_safe(registered_id, spec.frames, spec.indicators is not False), spec.name, scenarios)


def source_hash(spec: EnvSpec, revision: bool) -> SourceHash:
    """Called by `EnvSpec.source_hash`: the source of the module on the id, or of what the id is registered with."""
    name, _, python = spec.name.partition("@")
    family, _, env_id = name.partition(":")
    module, _, registered_id = env_id.rpartition(":")
    named = ["safety_gymnasium"] if family == "safety-gymnasium" else [module] if module else []
    if python:
        return source_there(python, named, registered_id, revision)
    if named:
        return hash_source(named, revision=revision)
    registered = gymnasium.registry.get(registered_id)
    if registered is None:
        return SourceHash(unknown=f"'{registered_id}' is not registered with Gymnasium")
    makers = [registered.entry_point, *(wrapper.entry_point for wrapper in registered.additional_wrappers)]
    return hash_source([_module_of(maker) for maker in makers], revision=revision)


def _module_of(maker: Any) -> str:
    """The module of an entry point, which may be a text, a class, a function or an object that can be called."""
    if isinstance(maker, str):
        return maker.partition(":")[0]
    maker = getattr(maker, "func", maker)  # of functools.partial
    return str(getattr(maker, "__module__", None) or type(maker).__module__)


def _modules(env: gymnasium.Env[Any, Any]) -> Iterator[str]:
    """The modules of the classes of an environment and of all wrappers around it."""
    layer: Any = env
    while layer is not None:
        yield from (kind.__module__ for kind in type(layer).__mro__)
        layer = getattr(layer, "env", None) if layer is not getattr(layer, "unwrapped", layer) else None


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Report what is wrong with an environment under its name."""
    try:
        yield
    except adapter.UnknownId as error:
        raise unknown_name("Gymnasium environment", *error.args) from None
    except adapter.Unusable as error:
        raise InputError(f"environment '{name}' {error}") from None
    except adapter.Misbehaviour as error:
        raise EnvironmentFailure(f"environment '{name}': {error}") from error
