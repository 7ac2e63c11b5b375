"""The end of a command on a node of a Ray cluster: an actor that keeps one process.

Every actor imports this module, so it imports little. What it passes on, and how it is told that the study still lives,
is in `vlmsafe.studies.launch.ray`, which has the other end.
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
"""Calls at a time: a run, a look, a beat and a stop."""
LOOK = 1.0
"""Seconds that a look at an actor waits for its command to end."""
ENVIRONMENT = {"RAY_kill_child_processes_on_worker_exit": "false"}
"""Of the actor's own process. Ray would kill the command as its worker leaves, before it could save."""
_PAUSE = 0.05  # seconds between two looks at a process
_MOST_OUTPUT = 2**20  # bytes of a log that are passed on at a time
_TO_SAVE = 0.25  # the last part of the patience is for the process to save and leave
_NOT_INHERITED = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_CLIENT_MODE", *ENVIRONMENT)  # wrong for a driver of its own


def package_version() -> str:
    """That of this package; empty where it was not installed but only found."""
    try:
        return metadata.version("vlmsafe")
    except metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class Words:
    """A command as it travels."""

    words: tuple[str, ...]
    python: str
    """The interpreter it was made with; every node has its own."""
    folder: str
    """Where it was called, if a node has that too."""
    environment: dict[str, str]
    version: str
    """Of this package."""


@dataclass(frozen=True)
class Look:
    """What a look at an actor found."""

    code: int | None
    output: bytes
    """What was printed since the last look, or its beginning."""
    rest: bool
    """Whether there is more of it."""
    node: str
    process: str
    given_up: bool
    """Whether it was ended because nothing was heard for too long."""


class Keeper:
    """The actor: keeps one process, and ends it when nothing is heard from the study any more."""

    def __init__(self, words: Words, patience: float) -> None:
        ray = import_ray()
        self._words, self._patience = words, patience
        self._node = f"{socket.gethostname()}:{ray.get_runtime_context().get_node_id()[:6]}"
        if words.version != (own := package_version()):
            raise RunError(f"{self._node} has vlmsafe {own or '?'}, and the study {words.version or '?'}; install that")
        self._heard = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        self._given_up = False
        self._began, self._ended = threading.Event(), threading.Event()
        # A local file, which is passed on piece by piece: a node need not see the study's folder to print.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the actor

    def run(self) -> None:
        """Start the process and stay with it: the kernel ends it with this thread, not with the actor."""
        given = self._words
        words = [sys.executable if word == given.python else word for word in given.words]
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        folder = Path(given.folder) if os.path.isdir(given.folder) else None
        try:
            process = start_process(words, self._output, environment | given.environment, folder)
        except Exception as error:  # of whatever kind: who looks must learn of it, or would wait for ever
            os.write(self._output.fileno(), f"error: cannot start {words[0]}: {error}\n".encode())
            self._code = EXIT_FAILED
            self._began.set()
        else:
            self._process = process
            self._began.set()
            self._code = self._stay_with(process)
        self._ended.set()

    def _stay_with(self, process: subprocess.Popen[bytes]) -> int:
        """Until it has ended, with time to save, before the study may take it for lost and start it elsewhere."""
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
        """A sign of life from the study."""
        self._heard = time.monotonic()

    def look(self, offset: int) -> Look:
        """How it stands, and what it printed from a place on; waits a moment for the end."""
        self.beat()
        self._began.wait()
        self._ended.wait(LOOK)
        # Before the output is read, so that nothing is printed in between.
        code = self._code if self._ended.is_set() else None
        output = os.pread(self._output.fileno(), _MOST_OUTPUT, offset)
        rest = os.fstat(self._output.fileno()).st_size > offset + len(output)
        process = "" if self._process is None else process_name(self._process.pid)
        return Look(code, output, rest, self._node, process, self._given_up)

    def stop(self, now: bool) -> None:
        self._began.wait()
        if self._process is not None:
            stop_process(self._process, now)
