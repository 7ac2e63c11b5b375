"""An environment in another interpreter, seen from here: `RemoteEnv` has the methods of `Adapter`."""

from __future__ import annotations

import os
import select
import subprocess
import weakref
from collections.abc import Mapping
from typing import Any, NoReturn

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.bridge import adapter
from vlmsafe.envs.bridge.interpreters import Interpreter
from vlmsafe.envs.vector.pool import WORKER_VARIABLES, EnvironmentDied, WorkerError, describe_exit
from vlmsafe.errors import EXIT_FAILED, InputError
from vlmsafe.io import source

_START_SECONDS = 300.0  # imports of a simulator from a slow disk


class RemoteEnv:
    """A process with an environment. It ends with this object's process, however that ends."""

    def __init__(self, interpreter: Interpreter, name: str) -> None:
        """`name` is that of the environment, for messages."""
        self._interpreter, self._name = interpreter, name
        inner = [os.pipe(), os.pipe(), os.pipe()]  # requests, replies, and one that only closes
        (read_request, write_request), (read_reply, write_reply), (read_end, lifeline) = inner
        theirs = [read_request, write_reply, read_end]
        self._process = subprocess.Popen(
            [str(interpreter.python), adapter.__file__, *map(str, theirs)],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what an environment prints must not mix with the output of a command
            env={**interpreter.environment(), **WORKER_VARIABLES, **interpreter.variables},
            pass_fds=theirs,
            start_new_session=True,  # Ctrl-C is for the main process, which decides what it means
        )
        for number in theirs:
            os.close(number)
        self._pipes = adapter.BridgePipes(read_reply, write_request)
        self._reply_number = read_reply
        self._end = weakref.finalize(self, _end, self._process, self._pipes, lifeline)

    def make(self, **arguments: Any) -> None:
        """Make the environment there; the arguments are those of `adapter.BridgeServer._make`."""
        self._send({"op": "make", "arguments": arguments})
        if not select.select([self._reply_number], [], [], _START_SECONDS)[0]:
            self.close()
            raise InputError(f"{self._interpreter.python} did not answer within {_START_SECONDS:g} s; is it a Python?")
        head, data = self._receive()
        dtype = np.dtype(head["dtype"])
        low, high = np.frombuffer(data, dtype).reshape(2, head["actions"])
        self.action_space = gymnasium.spaces.Box(low, high, dtype=dtype.type)
        self.size: int = head["size"]
        self.time_limit: int | None = head["limit"]
        self.has: list[str] = head["has"]
        self.steering: int = head["steering"]
        self.step_seconds: float | None = head["step_seconds"]
        self._dtype: str = dtype.str

    def reset(self, seed: int | None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        scenario = None if seed is None else int(seed)
        head, data = self._ask({"op": "reset", "seed": scenario, "options": options})
        return np.frombuffer(data, np.float32), head["info"]

    def step(self, action: NDArray[Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        head, data = self._ask({"op": "step", "dtype": self._dtype}, action.astype(self._dtype))
        return np.frombuffer(data, np.float32), head["reward"], head["terminated"], head["truncated"], head["info"]

    def render(self) -> Any:
        head, data = self._ask({"op": "render"})
        return None if head["shape"] is None else np.frombuffer(data, head["dtype"]).reshape(head["shape"])

    def files(self) -> tuple[str, ...]:
        """The files of the user's that were loaded there."""
        return tuple(self._ask({"op": "files", "rule": source.__file__})[0]["value"])

    def departure(self) -> str:
        return str(self._ask({"op": "departure"})[0]["value"])

    def call(self, name: str) -> Any:
        """What one of the environment's own methods returns."""
        head, _ = self._ask({"op": name})
        if name == "expert":
            return self._act if head["there"] else None
        return head["value"]

    def _act(self) -> NDArray[np.float64]:
        return np.frombuffer(self._ask({"op": "act"})[1], np.float64)

    def close(self) -> None:
        """End the other process. An environment's own clean-up is left out, because it can hang."""
        self._end()

    def _ask(self, head: dict[str, Any], array: NDArray[Any] | None = None) -> tuple[dict[str, Any], bytes]:
        self._send(head, array)
        return self._receive()

    def _send(self, head: dict[str, Any], array: NDArray[Any] | None = None) -> None:
        if not self._end.alive:
            raise EnvironmentDied(f"environment '{self._name}' is closed")
        try:
            self._pipes.send(head, array)
        except BrokenPipeError:
            self._died()

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        try:
            head, data = self._pipes.receive()
        except EOFError:
            self._died()
        kind = head.get("error")
        if kind is None:
            return head, data
        if kind == "unknown":
            raise adapter.UnknownId(head["id"], head["known"])
        if kind == "unusable":
            raise adapter.Unusable(head["message"])
        if kind == "misbehaviour":
            raise adapter.Misbehaviour(head["message"])
        raise WorkerError(f"environment '{self._name}' raised {head['message']}", head["traceback"], EXIT_FAILED, True)

    def _died(self) -> NoReturn:
        code = self._process.wait()
        made = hasattr(self, "action_space")
        self._end()
        if not made:
            self._explain_start()
        ended = f"its Python, {self._interpreter.python}, died"
        if not made:
            ended += " while the environment was made; import its module there to see why"
        raise EnvironmentDied(f"environment '{self._name}': {ended}: {describe_exit(code)}")

    def _explain_start(self) -> None:
        """Say what is missing, where the process ended because the interpreter lacks what it needs."""
        python = self._interpreter.python
        program = "import sys; assert sys.version_info >= (3, 8), sys.version; import numpy, gymnasium"
        try:
            tried = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InputError(f"{python} cannot be run as a Python: {adapter.one_line(error)}") from None
        if tried.returncode != 0:
            reason = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
            raise InputError(
                f"{python} cannot run an environment ({reason}); it needs Python 3.8 or later and gymnasium 0.26 or "
                f"later: {python} -m pip install gymnasium"
            )


def _end(process: subprocess.Popen[bytes], pipes: adapter.BridgePipes, lifeline: int) -> None:
    process.kill()
    process.wait()
    pipes.close()
    os.close(lifeline)
