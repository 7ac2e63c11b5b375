"""Makes a Gymnasium or Safety-Gymnasium environment and adapts it to plain vectors, here or in another interpreter.

This is the only file that another interpreter needs. It imports nothing but the standard library, numpy and gymnasium
(0.26 or later), runs on Python 3.8 or later, and knows nothing of this package. `Adapter` is used in both places, so an
environment behaves the same in this process and behind the bridge. Started as a program, the file reads requests from
one pipe and answers on another. Standard output stays free for what the environment prints.

A message is two lengths, a JSON object and the bytes of at most one array. JSON keeps every finite and infinite float.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import io
import json
import os
import struct
import sys
import threading
import traceback
from typing import Any, Dict, Tuple  # noqa: UP035 - this file runs on Python 3.8 too

try:
    import gymnasium
    import numpy as np
except ImportError:
    if __name__ == "__main__":
        raise SystemExit(1) from None  # quietly: `remote.py` finds out what is missing, and says it in one line
    raise

Plain = Dict[str, Any]  # noqa: UP006
Reply = Tuple[Plain, Any]  # noqa: UP006

_LENGTHS = struct.Struct("<II")
_MOST_LETTERS = 200  # of a space in a message
METHODS = ("hazard", "expert", "progress", "facts", "frame")
"""What an environment may have beyond Gymnasium's interface."""


class Unusable(Exception):
    """An environment that cannot be used as it is; nothing was started."""


class UnknownId(Unusable):
    """An id that is not registered. The arguments are the id and all that are."""


class Misbehaviour(Exception):
    """An environment that does not keep to what it declares."""


class Adapter:
    """A made environment: vectors as observations, five values per step, its time limit kept here."""

    def __init__(self, inner: Any, time_limit: int | None = None, before: frozenset[str] = frozenset()) -> None:
        """`before` are the names of the modules that were loaded before the environment was made."""
        self.inner, self.time_limit, self._step = inner, time_limit, 0
        self.before = before.difference(_modules(inner))
        self._raw: Any = None
        box = gymnasium.spaces.Box
        space, action = inner.observation_space, inner.action_space
        if not isinstance(action, box) or len(action.shape) != 1:
            raise Unusable(
                f"has the action space {short(action)}; the learners need a one-dimensional Box of continuous actions"
            )
        try:
            flat = gymnasium.spaces.utils.flatten_space(space)
        except NotImplementedError:
            flat = None
        if not isinstance(flat, box):
            raise Unusable(
                f"has observations of {short(space)}, which are not a flat vector; the policies need a Box, or a Dict "
                "or Tuple of spaces of fixed size"
            )
        self.action_space, self.size, self._space = action, int(np.prod(flat.shape)), space
        self._flatten = not (isinstance(space, box) and space.shape == flat.shape)
        own = inner.unwrapped
        self.has = [name for name in METHODS if _can_be_called(getattr(own, name, None))]
        steering = getattr(own, "steering", 0)
        fits = isinstance(steering, int) and not isinstance(steering, bool) and 0 <= steering < action.shape[0]
        self.steering = steering if fits else 0  # anything else has another meaning there
        self.step_seconds = _step_seconds(own)

    def reset(self, seed: int | None, options: Plain | None = None) -> tuple[Any, Plain]:
        """The first observation of an episode, and its info."""
        self._step = 0
        result = self.inner.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise Misbehaviour("reset returned one value; expected Gymnasium's two, observation and info")
        observation, info = result
        return self._vector(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Plain]:
        """Observation, reward, terminated, truncated and info with the cost, where there is one."""
        result = tuple(self.inner.step(action.astype(self.action_space.dtype)))
        if len(result) == 6:
            observation, reward, cost, terminated, truncated, info = result
            info = {**info, "cost": cost}
        elif len(result) == 5:
            observation, reward, terminated, truncated, info = result
        else:
            raise Misbehaviour(
                f"step returned {len(result)} values; expected Gymnasium's five or Safety-Gymnasium's six"
            )
        self._step += 1
        timed_out = self.time_limit is not None and self._step >= self.time_limit
        return self._vector(observation), float(reward), bool(terminated), bool(truncated) or timed_out, info

    def departure(self) -> str:
        """How the last observation departs from the space that is declared for it; empty if it does not."""
        if self._space.contains(self._raw):
            return ""
        if not isinstance(self._space, gymnasium.spaces.Box):
            return f"is not in {short(self._space)}"
        raw = np.asarray(self._raw)
        if not np.can_cast(raw.dtype, self._space.dtype):
            return f"is {raw.dtype}, and its space is {self._space.dtype}"
        return f"has values from {raw.min():g} to {raw.max():g}, beyond the bounds of {short(self._space)}"

    def _vector(self, observation: Any) -> Any:
        self._raw = observation
        if self._flatten:
            try:
                observation = gymnasium.spaces.utils.flatten(self._space, observation)
            except (ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError) as error:
                raise Misbehaviour(
                    f"returned an observation {_described(observation)} that does not fit its observation space "
                    f"{short(self._space)} ({one_line(error)}); return what the space declares"
                ) from error
        vector = np.asarray(observation, dtype=np.float32)
        if vector.shape != (self.size,):
            raise Misbehaviour(
                f"returned an observation of shape {vector.shape}, but its observation space is {short(self._space)}; "
                "return what the space declares"
            )
        return vector

    def render(self) -> Any:
        """The environment's picture for scoring: its own `frame()` where it has one, else what it renders."""
        return self.inner.unwrapped.frame() if "frame" in self.has else self.inner.render()

    def call(self, name: str) -> Any:
        """What one of its own methods returns."""
        found = getattr(self.inner.unwrapped, name)()
        try:
            if name == "hazard":
                return float(found)
            if name in ("progress", "facts"):
                return {str(key): float(value) for key, value in found.items()}
        except (TypeError, ValueError, AttributeError):
            expected = "a number" if name == "hazard" else "numbers by name, such as {'height': 2.5}"
            raise Misbehaviour(f"{name}() returned something {_described(found)}; expected {expected}") from None
        return found

    def close(self) -> None:
        self.inner.close()


def short(space: Any) -> str:
    """A space in one line of moderate length."""
    text = " ".join(str(space).split())
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."


def _modules(env: Any) -> Any:
    """The modules of the classes of an environment and of all wrappers around it."""
    layer = env
    while layer is not None:
        for kind in type(layer).__mro__:
            yield kind.__module__
        layer = getattr(layer, "env", None) if layer is not getattr(layer, "unwrapped", layer) else None


def _step_seconds(env: Any) -> float | None:
    """Simulated time per step: an environment's own `step_seconds`, else by its frame rate; None if it has neither."""
    named: Any = getattr(env, "step_seconds", None)
    rate: Any = (getattr(env, "metadata", None) or {}).get("render_fps")
    if _positive(named):
        return float(named)
    return float(1.0 / rate) if _positive(rate) else None


def _positive(value: Any) -> bool:
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    return number and bool(np.isfinite(value)) and value > 0


def _can_be_called(method: Any) -> bool:
    """Whether a method needs no arguments. One that does has another meaning in the environment."""
    try:
        inspect.signature(method).bind()
    except (TypeError, ValueError):
        return False
    return callable(method)


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"of type {type(value).__name__}" if shape is None else f"of shape {tuple(shape)}"


def make_gym(module: str, env_id: str, frames: bool) -> Adapter:
    """A registered environment. `module`, where it is not empty, is imported first and registers it."""
    before = frozenset(sys.modules)
    if module:
        import_module(module)
    registry = gymnasium.registry if hasattr(gymnasium, "registry") else gymnasium.envs.registry
    if any(name.startswith(f"{env_id}-v") for name in registry):  # the version was left out
        raise UnknownId(env_id, sorted(registry))
    try:
        registered = copy.deepcopy(gymnasium.spec(env_id))
    except gymnasium.error.NameNotFound:
        raise UnknownId(env_id, sorted(registry)) from None
    except gymnasium.error.Error as error:
        raise _cannot_be_made(error) from None
    # Gymnasium's time limit and checkers unpack five values. They are switched off so that a six-tuple passes through,
    # and `Adapter` keeps the limit.
    limit, registered.max_episode_steps = registered.max_episode_steps, None
    registered.order_enforce, registered.disable_env_checker = False, True
    if hasattr(registered, "autoreset"):  # before Gymnasium 1.0; it unpacks five values too
        registered.autoreset = False
    if frames and "rgb_array" in _render_modes(registered):
        registered.kwargs.setdefault("render_mode", "rgb_array")
    try:
        return Adapter(gymnasium.make(registered), limit, before)
    except gymnasium.error.Error as error:
        raise _cannot_be_made(error) from None


class SafeAdapter(Adapter):
    """An environment of the original Safety-Gymnasium.

    Its renderer marks the lidar's readings and draws a red sphere while a step costs. Without `indicators` both are
    left out. `progress` counts the goals that were reached.
    """

    def __init__(self, inner: Any, frames: bool, indicators: bool, before: frozenset[str]) -> None:
        own = inner.unwrapped
        task = getattr(own, "task", None)
        # Its own wrapper ends episodes after as many steps.
        super().__init__(inner, getattr(task, "num_steps", None), before)
        # Environments without a task, such as those of velocities, have Gymnasium's renderer, which draws no cost.
        self._indicators, self._goals = indicators or task is None, 0
        self.has = [*self.has, "progress"]
        plain = hasattr(task, "render_conf") and hasattr(own, "render_parameters")
        if frames and not self._indicators and not plain:
            raise Unusable("draws cost indicators that cannot be left out; pass --frame-indicators to use its frames")

    def reset(self, seed: int | None, options: Plain | None = None) -> tuple[Any, Plain]:
        self._goals = 0
        return super().reset(seed, options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Plain]:
        result = super().step(action)
        self._goals += bool(result[4].get("goal_met"))
        return result

    def render(self) -> Any:
        if self._indicators:
            return super().render()
        own = self.inner.unwrapped
        own.task.render_conf.lidar_markers = False
        return own.task.render(cost={}, **vars(own.render_parameters))

    def call(self, name: str) -> Any:
        return {"stages": float(self._goals)} if name == "progress" else super().call(name)


def make_safe(env_id: str, frames: bool, indicators: bool = True) -> Adapter:
    """An environment of the original Safety-Gymnasium, `<id>` or `<id>:<camera>`."""
    before = frozenset(sys.modules)
    package = import_module("safety_gymnasium")
    env_id, _, camera = env_id.partition(":")
    chosen = {"camera_name": camera} if camera else {}
    try:
        made = package.make(env_id, render_mode="rgb_array" if frames else None, **chosen)
    except (gymnasium.error.Error, AssertionError) as error:  # the package raises both for an unknown id
        raise _cannot_be_made(error) from None
    if camera:  # the renderer takes a view of its own for a name that it does not know
        model = made.unwrapped.task.model
        known = [model.camera(number).name for number in range(model.ncam)]
        if camera not in known:
            raise Unusable(f"has no camera '{camera}'; it has {', '.join(known)}")
    return SafeAdapter(made, frames, indicators, before)


def import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a foreign module may raise anything on import
        raise Unusable(f"needs the module '{name}', which cannot be imported: {one_line(error)}") from error


def _cannot_be_made(error: Exception) -> Unusable:
    return Unusable(f"cannot be made: {one_line(error)}")


def _render_modes(registered: Any) -> Any:
    creator = registered.entry_point
    try:
        if isinstance(creator, str):
            module, _, name = creator.partition(":")
            creator = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return []  # making the environment reports it
    return (getattr(creator, "metadata", None) or {}).get("render_modes") or []


def one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"


def raised(error: BaseException) -> str:
    """An exception of an environment's own code in one line, with the place in its file where it was raised.

    The place is the innermost one outside of installed packages and of this package, if there is one.
    """
    frames = traceback.extract_tb(error.__traceback__)
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    foreign = (os.path.dirname(os.__file__), here)
    own = [one for one in frames if "site-packages" not in one.filename and not one.filename.startswith(foreign)]
    if not own:
        return one_line(error)
    return f"{one_line(error)} ({own[-1].filename}, line {own[-1].lineno}, in {own[-1].name})"


class BridgePipes:
    """Messages over two pipes."""

    def __init__(self, reading: int, writing: int) -> None:
        self._in = os.fdopen(reading, "rb", 1 << 16)
        self._out = writing

    def send(self, head: Plain, array: Any = None) -> None:
        text = json.dumps(head).encode()
        data = b"" if array is None else np.ascontiguousarray(array).tobytes()
        message = memoryview(_LENGTHS.pack(len(text), len(data)) + text + data)
        while message:  # a pipe takes a large message in parts
            message = message[os.write(self._out, message) :]

    def receive(self) -> tuple[Plain, bytes]:
        """The next message as (object, bytes); EOFError where the other end is gone."""
        text, data = _LENGTHS.unpack(self._read(_LENGTHS.size))
        return json.loads(self._read(text)), self._read(data) if data else b""

    def _read(self, count: int) -> bytes:
        found = self._in.read(count)
        if len(found) < count:
            raise EOFError
        return found

    def close(self) -> None:
        self._in.close()
        os.close(self._out)


def plain(value: Any) -> Any:
    """A value as JSON can carry it; None where it cannot."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (np.generic, np.ndarray)) and value.size == 1 and value.dtype.kind in "biuf":
        return value.reshape(()).item()
    return None


def plain_info(info: Plain) -> Plain:
    """The single numbers, truths and texts of an info. What else it holds stays here."""
    if "cost" in info and not isinstance(plain(info["cost"]), (int, float)):
        raise Misbehaviour(f"reported a cost of type {type(info['cost']).__name__}; expected a number")
    kept = ((key, plain(value)) for key, value in info.items())
    return {str(key): value for key, value in kept if value is not None}


class BridgeServer:
    """Answers requests for one environment."""

    def __init__(self, pipes: BridgePipes) -> None:
        self._pipes = pipes
        self._env: Any = None
        self._expert: Any = None

    def answer(self, head: Plain, data: bytes) -> Reply:
        """The reply to a request: an object and perhaps an array."""
        op = head["op"]
        if op == "step":
            action = np.frombuffer(data, np.dtype(head["dtype"]))
            observation, reward, terminated, truncated, info = self._env.step(action)
            ends = {"reward": reward, "terminated": terminated, "truncated": truncated}
            return {**ends, "info": plain_info(info)}, observation
        if op == "reset":
            observation, info = self._env.reset(head["seed"], head["options"])
            self._expert = None
            return {"info": plain_info(info)}, observation
        if op == "render":
            image = np.asarray(self._env.render())
            if image.dtype == object:
                return {"shape": None}, None
            return {"shape": image.shape, "dtype": image.dtype.str}, image
        if op == "departure":
            return {"value": self._env.departure()}, None
        if op == "make":
            return self._make(**head["arguments"])
        if op == "files":
            return {"value": _loaded_by(head["rule"], self._env.before)}, None
        return self._extra(op)

    def _make(self, family: str, module: str, env_id: str, frames: bool, indicators: bool) -> Reply:
        if family == "safety-gymnasium":
            self._env = make_safe(env_id, frames, indicators)
        else:
            self._env = make_gym(module, env_id, frames)
        space = self._env.action_space
        description = {
            "size": self._env.size, "limit": self._env.time_limit, "has": self._env.has,
            "steering": self._env.steering, "step_seconds": self._env.step_seconds,
            "dtype": space.dtype.str, "actions": space.shape[0],
        }  # fmt: skip
        return description, np.stack([space.low, space.high])

    def _extra(self, op: str) -> Reply:
        """The environment's own methods beyond Gymnasium's."""
        if op == "act":
            return {}, np.asarray(self._expert(), np.float64)
        result = self._env.call(op)
        if op == "expert":
            self._expert = result
            return {"there": result is not None}, None
        return {"value": result}, None

    def serve(self) -> None:
        """Answer until the other end is gone."""
        while True:
            try:
                head, data = self._pipes.receive()
            except EOFError:
                return
            try:
                reply: Reply = self.answer(head, data)
            except UnknownId as error:
                reply = {"error": "unknown", "id": error.args[0], "known": error.args[1]}, None
            except (Unusable, Misbehaviour) as error:
                kind = "unusable" if isinstance(error, Unusable) else "misbehaviour"
                reply = {"error": kind, "message": str(error), "traceback": traceback.format_exc()}, None
            except (Exception, SystemExit) as error:
                reply = {"error": "raised", "message": raised(error), "traceback": traceback.format_exc()}, None
            try:
                self._pipes.send(*reply)
            except BrokenPipeError:
                return


def _loaded_by(rule: str, before: frozenset[str]) -> list[str]:
    """The files of the user's that were loaded, by the rule in a file of this package, which needs nothing else."""
    spec = importlib.util.spec_from_file_location("_source_of_users", rule)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return list(module.loaded_files(before | {spec.name}))
    finally:
        del sys.modules[spec.name]


class _Silenced(io.FileIO):
    """A file that swallows what is written after its reader has closed the pipe, as in `io/output.py`.

    It is written again here because this file must do without the package.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def _leave_with(lifeline: int) -> None:
    """End this process when the other one is gone, even in the middle of a step."""
    os.read(lifeline, 1)
    os._exit(0)


def main() -> None:
    reading, writing, lifeline = (int(number) for number in sys.argv[1:4])
    for number in (reading, writing, lifeline):
        os.set_inheritable(number, False)  # a process that the environment starts must not keep them open
    threading.Thread(target=_leave_with, args=(lifeline,), daemon=True).start()
    for name in ("stdout", "stderr"):
        silent = io.BufferedWriter(_Silenced(getattr(sys, name).fileno(), "w", closefd=False))
        setattr(sys, name, io.TextIOWrapper(silent, errors="replace", line_buffering=True))
    # The folder of this file is no place for the environment's modules; the current one is, as for the command line.
    sys.path[0:1] = []
    sys.path.append(os.getcwd())
    BridgeServer(BridgePipes(reading, writing)).serve()


if __name__ == "__main__":
    main()
