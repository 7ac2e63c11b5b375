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

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from vlmsafe.io.source import SourceHash, hash_source, loaded_files

_REGISTERED_BY: dict[str, set[str]] = {}
"""The ids that appeared while a module was imported in this process."""


class GymEnv(Env):
    """A Gymnasium environment, of this process or of another interpreter, behind this package's interface."""

    def __init__(self, inner: adapter.Adapter | RemoteEnv, name: str, scenarios: Scenarios) -> None:
        self.inner, self._name, self._scenarios = inner, name, scenarios
        self.action_space = inner.action_space
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (inner.size,), np.float32)
        self.steering, self.step_seconds = inner.steering, inner.step_seconds
        self.metadata = {"render_modes": ["rgb_array"] if _renders(inner) else []}
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
        image = self.inner.render()
        try:
            return as_frame(image, f"environment '{self._name}'")
        except EnvironmentFailure as error:
            raise EnvironmentFailure(f"{error}: {_frame_advice(image)}") from None

    def hazard(self) -> float:
        """The registered environment's own `hazard()`, read through its wrappers."""
        if "hazard" not in self.inner.has:
            raise no_hazard(self._name)
        with _named(self._name):
            hazard = float(self.inner.call("hazard"))
        if not 0.0 <= hazard <= 1.0:
            raise EnvironmentFailure(f"environment '{self._name}': hazard() returned {hazard}; it must lie from 0 to 1")
        return hazard

    def expert(self) -> Callable[[], NDArray[np.float64]] | None:
        """The registered environment's own `expert()`, read through its wrappers; None if it has none."""
        found = self.inner.call("expert") if "expert" in self.inner.has else None
        if found is None or callable(found):
            return found
        raise EnvironmentFailure(
            f"environment '{self._name}': expert() returned {type(found).__name__}; it must return a function without "
            "arguments, which returns the action of a step each time it is called"
        )

    def progress(self) -> Mapping[str, float]:
        return self._figures("progress")

    def facts(self) -> Mapping[str, float]:
        return self._figures("facts")

    def _figures(self, method: str) -> dict[str, float]:
        """Figures by name from a method of the registered environment's; empty if it has none."""
        if method not in self.inner.has:
            return {}
        with _named(self._name):
            return dict(self.inner.call(method))

    def made_of(self) -> tuple[str, ...]:
        if isinstance(self.inner, RemoteEnv):
            return self.inner.files()
        return tuple(loaded_files(self.inner.before))

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
            return GymEnv(_make_here(module, registered_id, spec), spec.name, scenarios)
        return GymEnv(adapter.make_safe(registered_id, spec.frames, spec.indicators is not False), spec.name, scenarios)


def _make_here(module: str, env_id: str, spec: EnvSpec) -> adapter.Adapter:
    known = set(gymnasium.registry)
    try:
        return adapter.make_gym(module, env_id, spec.frames)
    except TypeError as error:
        if not spec.frames or "unexpected keyword argument 'render_mode'" not in str(error):
            raise
        raise InputError(
            f"environment '{spec.name}' has 'rgb_array' in metadata['render_modes'], and its constructor takes no "
            "render_mode; accept render_mode=None in __init__, and keep it as self.render_mode"
        ) from None
    finally:
        _REGISTERED_BY.setdefault(module, set()).update(set(gymnasium.registry) - known)


def _renders(inner: adapter.Adapter | RemoteEnv) -> bool:
    """Whether an environment says that it can render; it is then made for frames (`adapter.make_gym`)."""
    if "frame" in inner.has:
        return True
    registered = inner.inner.spec if isinstance(inner, adapter.Adapter) else None
    creator = None if registered is None else registered.entry_point
    if isinstance(creator, str):
        creator = gymnasium.envs.registration.load_env_creator(creator)
    return "rgb_array" in ((getattr(creator, "metadata", None) or {}).get("render_modes") or ())


def _frame_advice(image: Any) -> str:
    """What to do about something rendered that is no frame."""
    if image is None:
        return "return the picture from render(), and keep render_mode as self.render_mode in __init__"
    if isinstance(image, list | tuple):
        return "return one array, and not several in a list"
    if not isinstance(image, np.ndarray):
        return "return a numpy array"
    if image.dtype != np.uint8:
        small = image.dtype.kind == "f" and image.size > 0 and float(image.max()) <= 1.0
        return f"return uint8 from 0 to 255, such as {'(255 * image)' if small else 'image'}.astype(np.uint8)"
    if image.ndim == 2:
        return "return three channels, such as np.stack([image] * 3, axis=-1)"
    if image.ndim == 3 and image.shape[2] == 4:
        return "leave out the fourth channel, such as image[:, :, :3]"
    return "return height, width and three channels, in this order"


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


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Report what is wrong with an environment under its name."""
    try:
        yield
    except adapter.UnknownId as error:
        raise _unknown_id(name, *error.args) from None
    except adapter.Unusable as error:
        raise InputError(f"environment '{name}' {error}{_import_advice(name, str(error))}") from None
    except adapter.Misbehaviour as error:
        raise EnvironmentFailure(f"environment '{name}': {error}") from error


def _module_on(name: str) -> str:
    """The module that the name of an environment has before its id; empty if there is none."""
    bare = name.partition("@")[0]
    return bare.removeprefix("gym:").rpartition(":")[0] if bare.startswith("gym:") else ""


def _unknown_id(name: str, env_id: str, known: Iterable[str]) -> InputError:
    """The error for an id that is not registered. The ids of the module on the name come first."""
    module, here = _module_on(name), "@" not in name
    if module and here:
        own = [one for one in known if one in _REGISTERED_BY.get(module, ()) or _is_of(module, one)]
        if own:
            return unknown_name(f"environment of the module '{module}':", env_id, own)
        return InputError(
            f"the module '{module}' registers no environment; call gymnasium.register('{env_id}', ...) in it, outside "
            "of any function"
        )
    if here and _is_module(env_id):
        return InputError(
            f"unknown Gymnasium environment '{env_id}', which is the name of a module; add the id of an environment "
            f"that it registers: gym:{env_id}:<id>"
        )
    error = unknown_name("Gymnasium environment", env_id, known)
    if module:
        return error
    return InputError(
        f"{error}. One that your own code registers must be in a module that can be imported, and not only in the "
        f"script that is run: gym:<module>:{env_id}"
    )


def _is_of(module: str, env_id: str) -> bool:
    """Whether a registered environment is made by something in a module."""
    registered = gymnasium.registry.get(env_id)
    return registered is not None and f"{_module_of(registered.entry_point)}.".startswith(f"{module}.")


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _import_advice(name: str, problem: str) -> str:
    """What to do where the module on a name, or a package around it, was not found."""
    parts = _module_on(name).split(".")
    packages = [".".join(parts[: count + 1]) for count in range(len(parts))]
    if not any(package and f"No module named '{package}'" in problem for package in packages):
        return ""
    return "; run the command in the folder that holds it, or add that folder to PYTHONPATH"
