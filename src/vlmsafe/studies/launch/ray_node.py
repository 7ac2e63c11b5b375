"""The part of the Ray launcher that runs on a node of the cluster: an actor that runs one process.

Every actor imports this module, so it imports little. `vlmsafe.studies.launch.ray` runs in the study; it reads the
output of the process from the actor and tells the actor that the study is alive.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from vlmsafe.errors import EXIT_FAILED, RunError
from vlmsafe.io.locks import process_name
from vlmsafe.io.ray import import_ray
from vlmsafe.studies.launch.local import start_process, stop_process

ANSWERS = 4
"""The calls that an actor answers at the same time: run, state, beat and stop."""
STATE_WAIT = 1.0
"""Seconds that a call of `state` waits for the command to end."""
ENVIRONMENT = {"RAY_kill_child_processes_on_worker_exit": "false"}
"""For the actor's own process. Otherwise Ray kills the command when its worker exits, before it can save."""
_PAUSE = 0.05  # seconds between two polls of the process
_MOST_OUTPUT = 2**20  # bytes of output that one call returns
_TO_SAVE = 0.25  # the share of the patience that the process gets to save and exit
_NOT_INHERITED = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_CLIENT_MODE", *ENVIRONMENT)  # wrong for another Ray driver


def package_version() -> str:
    """The installed version of this package; empty if it was imported without being installed."""
    try:
        return metadata.version("vlmsafe")
    except metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class RemoteCommand:
    """A command as it is sent to a node."""

    words: tuple[str, ...]
    python: str
    """The interpreter of the study, which a node replaces by its own."""
    folder: str
    """The study's working directory, used if the node has it too."""
    environment: dict[str, str]
    version: str
    """The study's version of this package."""


@dataclass(frozen=True)
class CommandState:
    """The state of a command on a node, and its new output."""

    code: int | None
    """The exit code; None while it runs."""
    output: bytes
    """What it printed since the last call, or the first part of that."""
    rest: bool
    """Whether there is more output."""
    node: str
    process: str
    given_up: bool
    """Whether the actor ended it because it heard nothing from the study for too long."""


class CommandActor:
    """Runs one process, and ends it when it hears nothing from the study any more."""

    def __init__(self, command: RemoteCommand, patience: float) -> None:
        ray = import_ray()
        self._command, self._patience = command, patience
        self._node = f"{socket.gethostname()}:{ray.get_runtime_context().get_node_id()[:6]}"
        if (wanted := command.version) != (own := package_version()):
            raise RunError(f"{self._node} has vlmsafe {own or '?'}, and the study {wanted or '?'}; install that")
        self._heard = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        self._given_up = False
        self._began, self._ended = threading.Event(), threading.Event()
        # Output goes to a local file and from there to the study: a node may not see the study's folder.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the actor lives

    def run(self) -> None:
        """Start the process and wait for it: the kernel ends it when this thread ends."""
        given = self._command
        words = [sys.executable if word == given.python else word for word in given.words]
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        folder = Path(given.folder) if os.path.isdir(given.folder) else None
        try:
            process = start_process(words, self._output, environment | given.environment, folder)
        except Exception as error:  # of any kind: the study must hear of it, or it would wait for ever
            os.write(self._output.fileno(), f"error: cannot start {words[0]}: {error}\n".encode())
            self._code = EXIT_FAILED
            self._began.set()
        else:
            self._process = process
            self._began.set()
            self._code = self._wait(process)
        self._ended.set()

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the process. If the study is silent, end it before the study may count it as lost."""
        while (code := process.poll()) is None:
            silence = time.monotonic() - self._heard
            if silence > (1.0 - _TO_SAVE) * self._patience:
                at_once = silence > self._patience
                if at_once or not self._given_up:
                    stop_process(process, now=at_once)
                self._given_up = True
            time.sleep(_PAUSE)
        return code

    def beat(self) -> None:
        """The study is alive."""
        self._heard = time.monotonic()

    def state(self, offset: int) -> CommandState:
        """The state of the process and its output from `offset` on; waits a moment for the process to end."""
        self.beat()
        self._began.wait()
        self._ended.wait(STATE_WAIT)
        # Read the code before the output, or output that was printed in between would be missed.
        code = self._code if self._ended.is_set() else None
        output = os.pread(self._output.fileno(), _MOST_OUTPUT, offset)
        rest = os.fstat(self._output.fileno()).st_size > offset + len(output)
        process = "" if self._process is None else process_name(self._process.pid)
        return CommandState(code, output, rest, self._node, process, self._given_up)

    def stop(self, now: bool) -> None:
        self._began.wait()
        if self._process is not None:
            stop_process(self._process, now)
