"""Commands of a study on the machines of a Ray cluster, or of a Ray that is started here for the time being.

Every command is a small Ray actor with the cores, the memory and the share of a GPU that it needs; Ray finds it a node.
The actor runs the same words as anywhere else, as a process of its own, and passes on what that prints.

No run is ever trained in two places. The launcher looks at each actor every second or so, and an actor at which nobody
has looked for `patience` seconds ends its process: the study was killed, or the network between them is cut. A command
counts as lost when its actor is dead or out of reach, and only after that time; by then its process is gone, wherever
it was, and may be started again. The process of an actor that dies is asked by the kernel to save and leave.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# Every actor imports this module, so it imports little.
from vlmsafe.errors import EXIT_FAILED, EXIT_INTERRUPTED, InputError, MissingDependencyError, RunError
from vlmsafe.studies.launchers import Command, Handle, Launcher, Lost, start_process, stop_process
from vlmsafe.training.files import disk_errors, make_directory, process_name

NAMESPACE = "vlmsafe"
PATIENCE = 60.0
_LEAST_PATIENCE = 3.0  # seconds; a busy study does not look more often
_STARTS = 3  # a busy machine may not start Ray within the half minute that Ray allows
_PAUSE = 0.05  # seconds between two looks at a process
_BEAT = 1.0  # seconds that a look at an actor waits for its command to end
_QUEUED = 2  # commands that wait for a node at a time: one is ready when another ends, and few are ahead of what is due
_OBJECTS = 256 * 2**20  # bytes of shared memory of a local Ray, through which frames to be scored go
_MOST_OUTPUT = 2**20  # bytes of a log that are passed on at a time
_NOT_INHERITED = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_CLIENT_MODE")  # a worker's own, wrong for a driver of its own
_MEBIBYTE = 2**20


def import_ray() -> Any:
    """Ray, or one line that says how to get it. Importing it takes most of a second, so only who needs it does."""
    # Ray reports its use to its makers unless told otherwise; whoever uses a study was not asked.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingDependencyError('Ray is not installed; get it with: pip install "vlmsafe[ray]"') from None


def chosen_address(address: str | None) -> str:
    """Where to find Ray: what the user says, what the machine says, or nowhere yet."""
    return address or os.environ.get("RAY_ADDRESS") or "local"


def connect(address: str | None, cores: int | None = None) -> Any:
    """Ray, connected to a cluster, or to one started here for as long as this process lives."""
    ray, wanted = import_ray(), chosen_address(address)
    if cores is not None and wanted != "local":
        raise InputError(f"--cores is for a Ray that is started here; that of {wanted} knows its own")
    options = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    if wanted == "local":
        options |= {"include_dashboard": False, "num_cpus": cores, "object_store_memory": _OBJECTS}
    if ray.is_initialized():
        raise RunError("this process is connected to a Ray already; close that launcher first")
    left = _STARTS if wanted == "local" else 1
    while not ray.is_initialized():
        left -= 1
        try:
            ray.init(address=wanted, **options)
        except Exception as error:  # some of Ray's own are of no narrower kind, such as that of a slow start
            ray.shutdown()
            if left:
                continue
            reason = _first_line(error)
            if wanted == "local":
                raise RunError(f"Ray could not be started on this machine: {reason}") from error
            raise InputError(
                f"cannot connect to Ray at '{wanted}': {reason}; --address is host:port of a cluster's head, 'auto' "
                "for the cluster of this machine, or 'local'. A cluster with a token wants RAY_AUTH_MODE=token and the "
                "token here too (docs/cluster.md)"
            ) from None
    return ray


class RayLauncher(Launcher):
    """Commands on the nodes of a Ray cluster, as far as their cores, memory and GPUs go."""

    def __init__(
        self,
        address: str | None = None,
        *,
        cores: int | None = None,
        jobs: int | None = None,
        patience: float = PATIENCE,
    ) -> None:
        for name, value in (("cores", cores), ("jobs", jobs)):
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be greater than 0")
        if patience < _LEAST_PATIENCE:
            raise InputError(f"patience is {patience:g} s; it must be at least {_LEAST_PATIENCE:g}")
        self.jobs, self.patience = jobs, patience
        self.alone = chosen_address(address) == "local"
        """Whether Ray is started here, and no other machine can join it."""
        self._ray = connect(address, cores)
        self.address: str = self._ray.get_runtime_context().gcs_address
        self._actor = self._ray.remote(max_restarts=0, max_concurrency=3)(_Keeper)  # a run, a look and a stop
        self._handles: list[_RayCommand] = []

    def launch(self, command: Command) -> Handle | None:
        self._handles = [handle for handle in self._handles if handle.poll() is None]
        waiting = sum(handle.place() is None for handle in self._handles)
        # A cluster that grows with demand doubles at each turn.
        if waiting >= max(_QUEUED, len(self._nodes())) or (self.jobs is not None and len(self._handles) >= self.jobs):
            return None
        handle = _RayCommand(self._ray, self._created(self._fitting(command)), command, self.patience)
        self._handles.append(handle)
        return handle

    def _created(self, command: Command) -> Any:
        """An actor with what a command needs. Ray counts memory in whole units, and nothing must wait for zero."""
        memory = max(_MEBIBYTE, command.memory)
        options = self._actor.options(num_cpus=command.cores, memory=memory, num_gpus=command.gpus)
        threads = os.environ.get("OMP_NUM_THREADS", str(command.cores))
        environment = {"OMP_NUM_THREADS": threads, "RAY_ADDRESS": self.address}
        words = _Words(command.words, sys.executable, os.getcwd(), environment)
        return options.remote(words, self.patience)

    def _fitting(self, command: Command) -> Command:
        """A command that needs more than any machine has gets all of one: refusing it would help nobody."""
        nodes = self._nodes()

        def most(resource: str) -> float:
            return max((node.get(resource, 0.0) for node in nodes), default=0.0)

        if command.gpus and command.gpus > most("GPU"):
            raise RunError(f"a run is to have {command.gpus:g} GPU, and no node of the cluster has as much; see --gpus")
        return replace(
            command,
            cores=min(command.cores, int(most("CPU")) or command.cores),
            memory=min(command.memory, int(most("memory")) or command.memory),
        )

    def describe(self) -> str:
        nodes = self._nodes()
        cpus, gpus = (sum(node.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU"))
        limit = "" if self.jobs is None else f", at most {self.jobs} at a time"
        plural = "" if len(nodes) == 1 else "s"
        return f"Ray at {self.address}: {len(nodes)} node{plural}, {cpus:g} cores, {gpus:g} GPUs{limit}"

    def _nodes(self) -> list[dict[str, float]]:
        """What each living node has."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def has_gpus(self) -> bool:
        return any(node.get("GPU") for node in self._nodes())

    def close(self) -> None:
        self._ray.shutdown()


@dataclass(frozen=True)
class _Words:
    """A command as it travels."""

    words: tuple[str, ...]
    python: str
    """The interpreter it was made with; every node has its own."""
    folder: str
    """Where it was called, if a node has that too."""
    environment: dict[str, str]


@dataclass(frozen=True)
class _Look:
    """What a look at an actor found."""

    code: int | None
    output: bytes
    """What was printed since the last look, or its beginning."""
    rest: bool
    """Whether there is more of it."""
    node: str
    process: str
    given_up: bool
    """Whether it was ended because nobody looked for too long."""


class _Keeper:
    """The actor: keeps one process, and ends it when nobody looks any more."""

    def __init__(self, words: _Words, patience: float) -> None:
        ray = import_ray()
        self._words, self._patience = words, patience
        self._node = f"{socket.gethostname()}:{ray.get_runtime_context().get_node_id()[:6]}"
        self._looked = time.monotonic()
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
        process = start_process(words, self._output, environment | given.environment, folder)
        self._process = process
        self._began.set()
        while (code := process.poll()) is None:
            if time.monotonic() > self._looked + self._patience:
                self._given_up = True
                stop_process(process, now=True)
            time.sleep(_PAUSE)
        self._code = code
        self._ended.set()

    def look(self, offset: int) -> _Look:
        """How it stands, and what it printed from a place on; waits a moment for the end."""
        self._looked = time.monotonic()
        self._began.wait()
        self._ended.wait(_BEAT)
        code = self._code  # before the output is read, so that nothing is printed in between
        output = os.pread(self._output.fileno(), _MOST_OUTPUT, offset)
        rest = os.fstat(self._output.fileno()).st_size > offset + len(output)
        assert self._process is not None
        return _Look(code, output, rest, self._node, process_name(self._process.pid), self._given_up)

    def stop(self, now: bool) -> None:
        self._began.wait()
        assert self._process is not None
        stop_process(self._process, now)


class _RayCommand(Handle):
    """The launcher's end of an actor. One look is under way at a time."""

    def __init__(self, ray: Any, actor: Any, command: Command, patience: float) -> None:
        self._ray, self._actor, self._log, self._patience = ray, actor, command.log, patience
        make_directory(command.log.parent)
        self._running = actor.run.remote()  # kept: Ray drops what nobody refers to
        self._seen = 0  # bytes of its output
        self._place: str | None = None
        self._process = ""
        self._ended: int | Lost | None = None
        self._answered = time.monotonic()
        self._silent: str | None = None  # why it does not answer any more
        self._look()

    def _look(self) -> None:
        self._sent = time.monotonic()
        self._answer = self._actor.look.remote(self._seen)

    def poll(self) -> int | Lost | None:
        if self._ended is None:
            self._receive()
        return self._ended

    def _receive(self) -> None:
        errors, now = self._ray.exceptions, time.monotonic()
        if self._silent is not None:
            # Whatever it was last asked may have reached it, and keeps it at work for so long.
            if now > self._sent + self._patience:
                self._end(Lost(self._silent, self._process))
            return
        ready, _ = self._ray.wait([self._answer], timeout=0)
        if not ready:
            return
        try:
            found: _Look = self._ray.get(self._answer)
        except errors.ActorDiedError as error:
            self._silent = f"{self._place or 'its node'} was lost: {_first_line(error)}"
        except errors.ActorUnavailableError:
            if now > self._answered + self._patience:
                self._silent = f"{self._place or 'its node'} cannot be reached"
            elif now > self._sent + _BEAT:
                self._look()
        except errors.RayError as error:  # it could not even begin: the package is missing on a node, for example
            self._print(f"error: {_first_line(error)}\n".encode())
            self._end(EXIT_FAILED)
        else:
            self._answered = now
            self._take_in(found)

    def _take_in(self, found: _Look) -> None:
        self._place, self._process = found.node, found.process
        self._seen += len(found.output)
        self._print(found.output)
        if found.code is None or found.rest:
            self._look()
        elif found.given_up:  # the study, not the command, was slow or cut off
            self._end(Lost(f"{found.node} heard nothing for {self._patience:g} s", found.process))
        else:
            self._end(found.code)

    def _print(self, output: bytes) -> None:
        if output:
            with disk_errors(self._log), self._log.open("ab") as log:
                log.write(output)

    def place(self) -> str | None:
        return self._place

    def stop(self, now: bool = False) -> None:
        if self.poll() is not None:
            return
        if self._place is None:  # it waits for a node, and need not begin
            self._end(EXIT_INTERRUPTED)
        else:
            self._actor.stop.remote(now)

    def _end(self, how: int | Lost) -> None:
        self._ended = how
        self._ray.kill(self._actor)


def _first_line(error: Exception) -> str:
    """Ray's reason, without its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
