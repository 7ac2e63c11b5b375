"""A launcher that runs commands on a Ray cluster, or on a Ray that it starts on this machine.

Each command is a small Ray actor (`ray_node`) that asks for the cores, the memory and the share of a GPU that the
command needs. Ray places it on a node. The actor runs the command as a process and returns what the process prints.

A run is never trained in two places at once. A thread of the launcher tells each actor every half second that the
study is alive. An actor that hears nothing for most of `patience` seconds asks its process to save and exit, and kills
it when the time is over: either the study was killed or the network is cut. If an actor dies, the kernel asks its
process to save and exit. The launcher counts a command as lost only after the same time, when its process is certainly
gone and the command can be started elsewhere.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vlmsafe.errors import EXIT_FAILED, EXIT_INTERRUPTED, InputError, RunError
from vlmsafe.io.disk import disk_errors, make_directory
from vlmsafe.io.ray import chosen_address, connect, first_line, reason_lines
from vlmsafe.studies.launch.api import Command, Handle, Launcher, Lost
from vlmsafe.studies.launch.ray_node import (
    ANSWERS,
    ENVIRONMENT,
    STATE_WAIT,
    CommandActor,
    CommandState,
    RemoteCommand,
    package_version,
)

PATIENCE = 60.0
_LEAST_PATIENCE = 3.0  # seconds; a busy machine may not send a heartbeat more often
_BEAT = 0.5  # seconds between two heartbeats
_QUEUED = 2  # commands that wait for a node at a time: enough to keep nodes busy, few enough to keep the study's order
_LONG = 60.0  # seconds of waiting for a node after which a line is printed
_MEBIBYTE = 2**20


class RayLauncher(Launcher):
    """Runs commands on the nodes of a Ray cluster, within their cores, memory and GPUs."""

    def __init__(
        self,
        address: str | None = None,
        *,
        cores: int | None = None,
        jobs: int | None = None,
        patience: float = PATIENCE,
        tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        """`tell` prints a line for the user."""
        for name, value in (("cores", cores), ("jobs", jobs)):
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be greater than 0")
        if not _LEAST_PATIENCE <= patience < math.inf:
            raise InputError(f"patience is {patience:g} s; expected at least {_LEAST_PATIENCE:g}, and a finite time")
        self.jobs, self.patience = jobs, patience
        self.alone = chosen_address(address) == "local"
        """Whether Ray was started here and no other machine can join it."""
        self._tell, self._told = tell, set[str]()
        self._ray = connect(address, cores)
        self.address: str = self._ray.get_runtime_context().gcs_address
        self._actor = self._ray.remote(max_restarts=0, max_concurrency=ANSWERS)(CommandActor)
        self._most_gpus = 0.0  # the most that any node has had so far
        self._handles: list[_RayCommand] = []
        self._closing = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heart", daemon=True)
        self._heart.start()

    def _beat(self) -> None:
        """Runs in a thread, because the study may be busy with a disk or a store for longer than the patience."""
        while not self._closing.wait(_BEAT) and self._ray.is_initialized():
            for handle in self._handles:
                handle.beat()

    def launch(self, command: Command) -> Handle | None:
        self._handles = [handle for handle in self._handles if handle.poll() is None]
        if self.jobs is not None and len(self._handles) >= self.jobs:
            return None
        # As many may wait as there are nodes, so that a cluster that grows with demand can double. Commands that wait
        # for a GPU do not block those that need none.
        waiting = sum(handle.place() is None for handle in self._like(command))
        if waiting >= max(_QUEUED, len(self._nodes())):
            return None
        fitting = self._fitting(command)
        if fitting is None:
            self._say(f"the node with {command.gpus:g} GPU is gone; commands that need it wait")
            return None
        handle = _RayCommand(self._ray, self._created(fitting), fitting, self.patience, self._waits)
        self._handles.append(handle)
        return handle

    def _like(self, command: Command) -> list[_RayCommand]:
        """Running or waiting commands that need the same kind of node."""
        return [handle for handle in self._handles if bool(handle.command.gpus) == bool(command.gpus)]

    def _created(self, command: Command) -> Any:
        """An actor with the resources of a command. Ray refuses 0 bytes of memory, so it asks for at least 1 MiB."""
        options = self._actor.options(
            num_cpus=command.cores,
            memory=max(_MEBIBYTE, command.memory),
            num_gpus=command.gpus,
            runtime_env={"env_vars": ENVIRONMENT},
        )
        threads = os.environ.get("OMP_NUM_THREADS", str(command.cores))
        environment = {"OMP_NUM_THREADS": threads, "RAY_ADDRESS": self.address}
        sent = RemoteCommand(command.words, sys.executable, os.getcwd(), environment, package_version())
        return options.remote(sent, self.patience)

    def _fitting(self, command: Command) -> Command | None:
        """The command with resources that some node has: one that needs more cores or memory than any node gets all of
        the largest node. None if the node with its GPU is gone for the moment."""
        able = [node for node in self._nodes() if node.get("GPU", 0.0) >= command.gpus]
        if not able and command.gpus > self._most_gpus:
            raise RunError(f"a run needs {command.gpus:g} GPU, and no node of the cluster has that many; see --gpus")
        if not able:
            return None

        def had(node: dict[str, float]) -> tuple[float, float]:
            return min(command.cores, node.get("CPU", 0.0)), min(command.memory, node.get("memory", 0.0))

        cores, memory = max(map(had, able))
        return replace(command, cores=int(cores) or command.cores, memory=int(memory) or command.memory)

    def _waits(self, command: Command) -> None:
        """Say that a command has waited long, unless a similar one is running: it will make room when it ends."""
        if not any(handle.running for handle in self._like(command)):
            needs = f"{command.cores} cores, {command.memory / 2**30:.1f} GiB of memory and {command.gpus:g} GPU"
            self._say(f"no node had {needs} free for {_LONG:g} s; commands that need them wait")

    def _say(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._tell(line)

    def describe(self) -> str:
        nodes = self._nodes()
        cpus, gpus = (sum(node.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU"))
        limit = "" if self.jobs is None else f", at most {self.jobs} at a time"
        plural = "" if len(nodes) == 1 else "s"
        return f"Ray at {self.address}: {len(nodes)} node{plural}, {cpus:g} cores, {gpus:g} GPUs{limit}"

    def _nodes(self) -> list[dict[str, float]]:
        """The resources of each live node."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self._most_gpus = max([self._most_gpus, *(node.get("GPU", 0.0) for node in nodes)])
        return nodes

    def has_gpus(self) -> bool:
        return any(node.get("GPU") for node in self._nodes())

    def close(self) -> None:
        self._closing.set()
        self._heart.join()
        self._ray.shutdown()


class _RayCommand(Handle):
    """The launcher's side of an actor. At most one call of `state` and one of `beat` are in flight."""

    def __init__(
        self, ray: Any, actor: Any, command: Command, patience: float, on_long_wait: Callable[[Command], None]
    ) -> None:
        self._ray, self._actor, self.command, self._patience = ray, actor, command, patience
        self._log, self._on_long_wait = command.log, on_long_wait
        make_directory(command.log.parent)
        self._running = actor.run.remote()  # kept, because Ray drops what nothing refers to
        self._seen = 0  # bytes of output received
        self._place: str | None = None
        self._process = ""
        self._ended: int | Lost | None = None
        self._began = self._answered = time.monotonic()
        self._silent: str | None = None  # why it no longer answers
        self._lock = threading.Lock()  # no heartbeat may follow once the actor counts as silent
        self._beat = actor.beat.remote()
        self._ask()

    def _ask(self) -> None:
        self._asked = self._sent = time.monotonic()
        self._answer = self._actor.state.remote(self._seen)

    def beat(self) -> None:
        """Tell the actor that the study is alive; called from another thread, so it does nothing else."""
        with self._lock:
            if self._ended is None and self._silent is None and self._ray.wait([self._beat], timeout=0)[0]:
                self._sent = time.monotonic()
                self._beat = self._actor.beat.remote()

    @property
    def running(self) -> bool:
        return self._place is not None and self._ended is None

    def poll(self) -> int | Lost | None:
        if self._ended is None:
            self._receive()
        return self._ended

    def _receive(self) -> None:
        errors, now = self._ray.exceptions, time.monotonic()
        if self._silent is not None:
            # The last call may have reached the actor, which then keeps its process running for this long.
            if now > self._sent + self._patience:
                self._end(Lost(self._silent, self._process))
            return
        ready, _ = self._ray.wait([self._answer], timeout=0)
        if not ready:
            if self._place is None and now > self._began + _LONG:
                self._began = now
                self._on_long_wait(self.command)
            return
        try:
            found: CommandState = self._ray.get(self._answer)
        except errors.ActorDiedError as error:
            if "creation task" in str(error):  # nothing was lost: it cannot start on that node
                self._fail(_last_line(error))
            else:
                self._fall_silent(f"{self._place or 'its node'} was lost: {first_line(error)}")
        except errors.ActorUnavailableError:
            if now > self._answered + self._patience:
                self._fall_silent(f"{self._place or 'its node'} cannot be reached")
            elif now > self._asked + STATE_WAIT:
                self._ask()
        except errors.RayError as error:
            self._fail(first_line(error))
        else:
            self._answered = now
            self._update(found)

    def _fall_silent(self, why: str) -> None:
        with self._lock:
            self._silent = why

    def _fail(self, why: str) -> None:
        self._print(f"error: {why}\n".encode())
        self._end(EXIT_FAILED)

    def _update(self, found: CommandState) -> None:
        self._place, self._process = found.node, found.process
        self._seen += len(found.output)
        self._print(found.output)
        if found.code is None or found.rest:
            self._ask()
        elif found.given_up:  # the study was slow or cut off; the command did not fail
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
        if self._place is None:  # it still waits for a node
            self._end(EXIT_INTERRUPTED)
        else:
            self._actor.stop.remote(now)

    def _end(self, how: int | Lost) -> None:
        self._ended = how
        self._ray.kill(self._actor)


def _last_line(error: Exception) -> str:
    """Why an actor could not be created, from the end of its traceback, and on which node."""
    lines = reason_lines(error)
    where = re.search(r"\bip=([^,)\s]+)", lines[0])
    why = lines[-1].removeprefix("vlmsafe.errors.RunError: ")
    return f"it cannot start on {where[1] if where else 'a node'}: {why}"
