"""Commands of a study on the machines of a Ray cluster, or of a Ray that is started here for the time being.

Every command is a small Ray actor with the cores, the memory and the share of a GPU that it needs; Ray finds it a node.
The actor (`ray_node`) runs the same words as anywhere else, as a process of its own, and passes on what that prints.

No run is ever trained in two places. The launcher gives each actor a sign of life every second or so, from a thread of
its own, whatever the study is busy with. An actor that has heard nothing for most of `patience` seconds asks its
process to save and leave, and at their end kills it: the study was killed, or the network between them is cut. A
command counts as lost when its actor is dead or out of reach, and only after that time; by then its process is gone,
wherever it was, and may be started again. The process of an actor that dies is asked by the kernel to save and leave.
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

from vlmsafe.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    InputError,
    RunError,
)
from vlmsafe.io.disk import disk_errors, make_directory
from vlmsafe.io.ray import chosen_address, connect, first_line, reason_lines
from vlmsafe.studies.launch.local import (
    Command,
    Handle,
    Launcher,
    Lost,
)
from vlmsafe.studies.launch.ray_node import (
    ANSWERS,
    ENVIRONMENT,
    LOOK,
    Keeper,
    Look,
    Words,
    package_version,
)

PATIENCE = 60.0
_LEAST_PATIENCE = 3.0  # seconds; a busy machine gives no sign of life more often
_BEAT = 0.5  # seconds between two signs of life
_QUEUED = 2  # commands that wait for a node at a time: one is ready when another ends, and few are ahead of what is due
_LONG = 60.0  # seconds of waiting for a node, after which it is said
_MEBIBYTE = 2**20


class RayLauncher(Launcher):
    """Commands on the nodes of a Ray cluster, as far as their cores, memory and GPUs go."""

    def __init__(
        self,
        address: str | None = None,
        *,
        cores: int | None = None,
        jobs: int | None = None,
        patience: float = PATIENCE,
        tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        """`tell` says a line to whoever watches."""
        for name, value in (("cores", cores), ("jobs", jobs)):
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be greater than 0")
        if not _LEAST_PATIENCE <= patience < math.inf:
            raise InputError(f"patience is {patience:g} s; expected at least {_LEAST_PATIENCE:g}, and not for ever")
        self.jobs, self.patience = jobs, patience
        self.alone = chosen_address(address) == "local"
        """Whether Ray is started here, and no other machine can join it."""
        self._tell, self._told = tell, set[str]()
        self._ray = connect(address, cores)
        self.address: str = self._ray.get_runtime_context().gcs_address
        self._actor = self._ray.remote(max_restarts=0, max_concurrency=ANSWERS)(Keeper)
        self._most_gpus = 0.0  # of a node, since the beginning
        self._handles: list[_RayCommand] = []
        self._closing = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heart", daemon=True)
        self._heart.start()

    def _beat(self) -> None:
        """A thread: the study may be busy with a disk or a store for longer than actors are patient."""
        while not self._closing.wait(_BEAT) and self._ray.is_initialized():
            for handle in self._handles:
                handle.beat()

    def launch(self, command: Command) -> Handle | None:
        self._handles = [handle for handle in self._handles if handle.poll() is None]
        if self.jobs is not None and len(self._handles) >= self.jobs:
            return None
        # A cluster that grows with demand doubles at each turn. Who waits for a GPU is in nobody else's way.
        waiting = sum(handle.place() is None for handle in self._like(command))
        if waiting >= max(_QUEUED, len(self._nodes())):
            return None
        fitting = self._fitting(command)
        if fitting is None:
            self._say(f"no node has {command.gpus:g} GPU now, as one had before; commands that need it wait")
            return None
        handle = _RayCommand(self._ray, self._created(fitting), fitting, self.patience, self._waits)
        self._handles.append(handle)
        return handle

    def _like(self, command: Command) -> list[_RayCommand]:
        """Commands under way that need the same kind of node."""
        return [handle for handle in self._handles if bool(handle.command.gpus) == bool(command.gpus)]

    def _created(self, command: Command) -> Any:
        """An actor with what a command needs. Ray counts memory in whole units, and nothing must wait for zero."""
        options = self._actor.options(
            num_cpus=command.cores,
            memory=max(_MEBIBYTE, command.memory),
            num_gpus=command.gpus,
            runtime_env={"env_vars": ENVIRONMENT},
        )
        threads = os.environ.get("OMP_NUM_THREADS", str(command.cores))
        environment = {"OMP_NUM_THREADS": threads, "RAY_ADDRESS": self.address}
        words = Words(command.words, sys.executable, os.getcwd(), environment, package_version())
        return options.remote(words, self.patience)

    def _fitting(self, command: Command) -> Command | None:
        """A command that needs more cores or memory than any one machine has gets all of the best: refusing it would
        help nobody. None: the node with its GPU is away for the moment."""
        able = [node for node in self._nodes() if node.get("GPU", 0.0) >= command.gpus]
        if not able and command.gpus > self._most_gpus:
            raise RunError(f"a run is to have {command.gpus:g} GPU, and no node of the cluster has as much; see --gpus")
        if not able:
            return None

        def had(node: dict[str, float]) -> tuple[float, float]:
            return min(command.cores, node.get("CPU", 0.0)), min(command.memory, node.get("memory", 0.0))

        cores, memory = max(map(had, able))
        return replace(command, cores=int(cores) or command.cores, memory=int(memory) or command.memory)

    def _waits(self, command: Command) -> None:
        """Say what is waited for so long, unless a command like it runs, whose end makes room."""
        if not any(handle.running for handle in self._like(command)):
            needs = f"{command.cores} cores, {command.memory / 2**30:.1f} GiB of memory and {command.gpus:g} GPU"
            self._say(f"no node had {needs} free for {_LONG:g} s; commands that need so much wait")

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
        """What each living node has."""
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
    """The launcher's end of an actor. One look and one sign of life are under way at a time."""

    def __init__(
        self, ray: Any, actor: Any, command: Command, patience: float, on_long_wait: Callable[[Command], None]
    ) -> None:
        self._ray, self._actor, self.command, self._patience = ray, actor, command, patience
        self._log, self._on_long_wait = command.log, on_long_wait
        make_directory(command.log.parent)
        self._running = actor.run.remote()  # kept: Ray drops what nobody refers to
        self._seen = 0  # bytes of its output
        self._place: str | None = None
        self._process = ""
        self._ended: int | Lost | None = None
        self._began = self._answered = time.monotonic()
        self._silent: str | None = None  # why it does not answer any more
        self._lock = threading.Lock()  # no sign of life after it was taken to be silent
        self._beat = actor.beat.remote()
        self._look()

    def _look(self) -> None:
        self._asked = self._sent = time.monotonic()
        self._answer = self._actor.look.remote(self._seen)

    def beat(self) -> None:
        """Tell the actor that the study lives; another thread's, so it does nothing else."""
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
            # Whatever it was last asked or told may have reached it, and keeps it at work for so long.
            if now > self._sent + self._patience:
                self._end(Lost(self._silent, self._process))
            return
        ready, _ = self._ray.wait([self._answer], timeout=0)
        if not ready:
            if self._place is None and now > self._began + _LONG:
                self._began = now  # what made it wait may have ended just now, and room be found in a moment
                self._on_long_wait(self.command)
            return
        try:
            found: Look = self._ray.get(self._answer)
        except errors.ActorDiedError as error:
            if "creation task" in str(error):  # nothing was lost: it can never begin there
                self._fail(_last_line(error))
            else:
                self._fall_silent(f"{self._place or 'its node'} was lost: {first_line(error)}")
        except errors.ActorUnavailableError:
            if now > self._answered + self._patience:
                self._fall_silent(f"{self._place or 'its node'} cannot be reached")
            elif now > self._asked + LOOK:
                self._look()
        except errors.RayError as error:
            self._fail(first_line(error))
        else:
            self._answered = now
            self._take_in(found)

    def _fall_silent(self, why: str) -> None:
        with self._lock:
            self._silent = why

    def _fail(self, why: str) -> None:
        self._print(f"error: {why}\n".encode())
        self._end(EXIT_FAILED)

    def _take_in(self, found: Look) -> None:
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


def _last_line(error: Exception) -> str:
    """Why an actor could not be made, from the end of its traceback, and where."""
    lines = reason_lines(error)
    where = re.search(r"\bip=([^,)\s]+)", lines[0])
    why = lines[-1].removeprefix("vlmsafe.errors.RunError: ")
    return f"it cannot begin on {where[1] if where else 'a node'}: {why}"
