"""Any registered Gymnasium environment that reports a cost, as `gym:<id>` or `gym:<module>:<id>`.

The cost is `info["cost"]`, or the third element of Safety-Gymnasium's six-tuple (observation, reward, cost,
terminated, truncated, info). Dictionary and image-shaped observations are flattened.

`safety-gymnasium:<id>` is an environment of the original Safety-Gymnasium, which has its own registry. Its renderer
draws a red sphere around the agent while there is a cost, and markers of the lidar. Its frames may therefore tell a
scorer the cost, which runs record as `frame_indicators: true`. FormulaOne's default camera sees neither.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as EnvSpecOfGym
from gymnasium.envs.registration import load_env_creator
from numpy.typing import NDArray

from vlmsafe.envs.api import Env, EnvSpec, Frame, Observation, Scenarios, as_frame, no_hazard
from vlmsafe.errors import EnvironmentFailure, InputError, unknown_name


class GymEnv(Env):
    """A Gymnasium environment behind this package's interface."""

    def __init__(self, inner: gymnasium.Env[Any, Any], name: str, time_limit: int | None, scenarios: Scenarios) -> None:
        self._inner, self._name, self._time_limit, self._scenarios = inner, name, time_limit, scenarios
        self._step = 0
        if not isinstance(inner.action_space, gymnasium.spaces.Box) or len(inner.action_space.shape) != 1:
            raise InputError(
                f"environment '{name}' has the action space {inner.action_space}; "
                "the learners need a one-dimensional Box of continuous actions"
            )
        self.action_space = inner.action_space
        flat = gymnasium.spaces.utils.flatten_space(inner.observation_space)
        if not isinstance(flat, gymnasium.spaces.Box):
            raise InputError(f"environment '{name}': observations of {inner.observation_space} are not a flat vector")
        self._flatten = not (
            isinstance(inner.observation_space, gymnasium.spaces.Box) and inner.observation_space.shape == flat.shape
        )
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, flat.shape, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        scenario = self._scenarios.draw(self.np_random) if seed is None else seed
        observation, info = self._inner.reset(seed=scenario, options=options)
        return self._vector(observation), {**info, "scenario": scenario}

    def step(self, action: NDArray[np.floating[Any]]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        result: tuple[Any, ...] = tuple(self._inner.step(action.astype(self.action_space.dtype)))
        if len(result) == 6:
            observation, reward, cost, terminated, truncated, info = result
            info = {**info, "cost": cost}
        elif len(result) == 5:
            observation, reward, terminated, truncated, info = result
        else:
            raise EnvironmentFailure(
                f"environment '{self._name}': step returned {len(result)} values; expected Gymnasium's five or "
                "Safety-Gymnasium's six"
            )
        self._step += 1
        timed_out = self._time_limit is not None and self._step >= self._time_limit
        return self._vector(observation), float(reward), bool(terminated), bool(truncated) or timed_out, info

    def _vector(self, observation: Any) -> Observation:
        if self._flatten:
            observation = gymnasium.spaces.utils.flatten(self._inner.observation_space, observation)
        return np.asarray(observation, dtype=np.float32)

    def frame(self) -> Frame:
        return as_frame(self._inner.render(), f"environment '{self._name}'")

    def hazard(self) -> float:
        """The registered environment's own `hazard()`, read through its wrappers."""
        own = getattr(self._inner.unwrapped, "hazard", None)
        if not callable(own):
            raise no_hazard(self._name)
        hazard = float(own())
        if not 0.0 <= hazard <= 1.0:
            raise EnvironmentFailure(f"environment '{self._name}': hazard() returned {hazard}; it must lie from 0 to 1")
        return hazard

    def expert(self) -> Callable[[], NDArray[np.float64]] | None:
        """The registered environment's own `expert()`, read through its wrappers; None if it has none."""
        own = getattr(self._inner.unwrapped, "expert", None)
        return own() if callable(own) else None

    def close(self) -> None:
        self._inner.close()


def make(spec: EnvSpec, scenarios: Scenarios, randomise: bool) -> Env:
    """Called by `EnvSpec.make`. A Gymnasium environment has only its seed, so there is nothing else to randomise."""
    family, _, env_id = spec.name.partition(":")
    if family == "safety-gymnasium":
        return GymEnv(_make_safe(spec, env_id), spec.name, None, scenarios)
    module, _, registered_id = env_id.rpartition(":")
    if module:
        _import(module, spec)  # which registers the environment
    if any(name.startswith(f"{registered_id}-v") for name in gymnasium.registry):  # the version was left out
        raise unknown_name("Gymnasium environment", registered_id, sorted(gymnasium.registry))
    try:
        registered = copy.deepcopy(gymnasium.spec(registered_id))
    except gymnasium.error.NameNotFound:
        raise unknown_name("Gymnasium environment", registered_id, sorted(gymnasium.registry)) from None
    except gymnasium.error.Error as error:
        raise _cannot_be_made(spec, error) from None
    # Gymnasium's time limit and checkers unpack five values. They are switched off so that a six-tuple passes through,
    # and `GymEnv` keeps the limit.
    time_limit, registered.max_episode_steps = registered.max_episode_steps, None
    registered.order_enforce, registered.disable_env_checker = False, True
    if spec.frames and "rgb_array" in _render_modes(registered):
        registered.kwargs.setdefault("render_mode", "rgb_array")
    try:
        inner: gymnasium.Env[Any, Any] = gymnasium.make(registered)
    except gymnasium.error.Error as error:
        raise _cannot_be_made(spec, error) from None
    return GymEnv(inner, spec.name, time_limit, scenarios)


def _make_safe(spec: EnvSpec, env_id: str) -> gymnasium.Env[Any, Any]:
    """Make it with the original package, whose own time limit knows six-tuples."""
    package = _import("safety_gymnasium", spec)
    try:
        inner: gymnasium.Env[Any, Any] = package.make(env_id, render_mode="rgb_array" if spec.frames else None)
    except gymnasium.error.Error as error:  # the package raises Gymnasium's
        raise _cannot_be_made(spec, error) from None
    return inner


def _import(module: str, spec: EnvSpec) -> Any:
    try:
        return importlib.import_module(module)
    except Exception as error:  # a foreign module may raise anything on import
        raise InputError(f"cannot import '{module}' for environment '{spec.name}': {_one_line(error)}") from None


def _cannot_be_made(spec: EnvSpec, error: Exception) -> InputError:
    return InputError(f"environment '{spec.name}' cannot be made: {_one_line(error)}")


def _render_modes(registered: EnvSpecOfGym) -> list[str]:
    creator = registered.entry_point
    try:
        made_by = load_env_creator(creator) if isinstance(creator, str) else creator
    except (ImportError, AttributeError):
        return []  # making the environment reports it
    modes: list[str] = (getattr(made_by, "metadata", None) or {}).get("render_modes") or []
    return modes


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
