"""Where the commands of a study run. A launcher takes a command when it has room and says how it ended.

The interface is three functions: `launch`, and of what it returns `poll` and `stop`. A command is a list of words that
needs nothing but the files it names, so that a launcher may run it on another machine that sees them. There a command
may be lost with its machine, which `poll` then says: nothing is wrong with the command, and it may be launched again.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from vlmsafe.errors import InputError
from vlmsafe.io.disk import disk_errors, make_directory

_SHARE_OF_MEMORY = 0.9  # the rest is for whatever else the machine does
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Command:
    """Something to run, and what it needs."""

    words: tuple[str, ...]
    log: Path
    """File to which all that it prints is added."""
    cores: int = 1
    memory: int = 0
    """Bytes it will hold at most, as far as known."""
    gpus: float = 0.0
    """Share of a GPU, or how many; 0 where it needs none."""


@dataclass(frozen=True)
class Lost:
    """What became of a command whose machine died, or can no longer be reached; it runs no more."""

    reason: str
    process: str = ""
    """Its process as a lock names it, where it is known: see `DirectoryLock`."""


class Handle(abc.ABC):
    """A command that was launched."""

    @abc.abstractmethod
    def poll(self) -> int | Lost | None:
        """Its exit code; None while it runs. A signal that ended it counts negative, as everywhere in Python."""

    def place(self) -> str | None:
        """The machine it runs on; None while it waits for one."""
        return socket.gethostname()

    @abc.abstractmethod
    def stop(self, now: bool = False) -> None:
        """Ask it to save and leave, or end it at once."""


class Launcher(abc.ABC):
    """Runs commands as far as there is room."""

    @abc.abstractmethod
    def launch(self, command: Command) -> Handle | None:
        """Start a command; None where there is no room until another one has ended."""

    @abc.abstractmethod
    def describe(self) -> str:
        """In a few words, for people."""

    def close(self) -> None:  # noqa: B027 - most are connected to nothing
        """Leave whatever the launcher is connected to; nothing is running any more."""


class LocalLauncher(Launcher):
    """A pool of processes on this machine, no more at a time than its cores and its memory allow.

    One command is always taken: refusing what no machine of the user's could ever run would help nobody. Commands get
    a session of their own, so that Ctrl-C reaches the study alone, which then asks them to save. If the study itself is
    killed, the kernel asks them in its place.
    """

    def __init__(self, *, cores: int | None = None, memory: int | None = None, jobs: int | None = None) -> None:
        for name, value in (("cores", cores), ("memory", memory), ("jobs", jobs)):
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be greater than 0")
        self.cores = cores or usable_cores()
        self.memory = memory or int(_SHARE_OF_MEMORY * free_memory())
        self.jobs = jobs
        self._running: list[tuple[Command, _Process]] = []

    def launch(self, command: Command) -> Handle | None:
        self._running = [(other, process) for other, process in self._running if process.poll() is None]
        if self._running and not self._room_for(command):
            return None
        process = _Process(command)
        self._running.append((command, process))
        return process

    def _room_for(self, command: Command) -> bool:
        busy = [other for other, _ in self._running]
        return (
            (self.jobs is None or len(busy) < self.jobs)
            and sum(other.cores for other in busy) + command.cores <= self.cores
            and sum(other.memory for other in busy) + command.memory <= self.memory
        )

    def describe(self) -> str:
        limit = "" if self.jobs is None else f", at most {self.jobs} at a time"
        return f"this machine: {self.cores} cores, {self.memory / 2**30:.1f} GiB of memory to use{limit}"


class _Process(Handle):
    def __init__(self, command: Command) -> None:
        make_directory(command.log.parent)
        environment = dict(os.environ)
        # Libraries would start a thread per core of the machine in every one of the processes that share it.
        environment.setdefault("OMP_NUM_THREADS", str(command.cores))
        with disk_errors(command.log), command.log.open("ab") as log:
            self._process = start_process(command.words, log, environment)

    def poll(self) -> int | None:
        return self._process.poll()

    def stop(self, now: bool = False) -> None:
        stop_process(self._process, now)


def start_process(
    words: Sequence[str],
    output: IO[bytes],
    environment: Mapping[str, str],
    folder: Path | None = None,
    *,
    same_session: bool = False,
) -> subprocess.Popen[bytes]:
    """A process, mostly in a session of its own, that is asked to save and leave when the thread that started it ends.

    One in our own session is ended with us by whoever ends the session.
    """
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=folder,
        start_new_session=not same_session,
        preexec_fn=_ask_when_parent_dies(),
    )


def stop_process(process: subprocess.Popen[bytes], now: bool) -> None:
    """Ask a process to save and leave, or end it at once."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):  # it may end by itself in this moment
        if now:
            os.killpg(process.pid, signal.SIGKILL)  # with the simulators it started
        else:
            process.terminate()


def _ask_when_parent_dies() -> Callable[[], None] | None:
    """What a child does before it starts, so that SIGTERM reaches it when this process dies, however it dies.

    Nothing is imported or looked up after the fork. Elsewhere than on Linux children outlive a killed study; the next
    one waits for them.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died in between
            os.kill(os.getpid(), signal.SIGTERM)

    return ask


def usable_cores() -> int:
    """Cores that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int:
    """Bytes that can be had without swapping: what the kernel says, and what a container leaves."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except OSError:  # not Linux
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            found.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # no such container, or no limit: 'max'
            continue
    return max(1, min(found))
