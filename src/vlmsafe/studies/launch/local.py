"""A launcher that runs commands as processes of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from vlmsafe.errors import InputError
from vlmsafe.io.child import ask_when_parent_dies
from vlmsafe.io.disk import disk_errors, make_directory
from vlmsafe.io.memory import free_memory
from vlmsafe.studies.launch.api import Command, Handle, Launcher

_SHARE_OF_MEMORY = 0.9  # the rest is for other programs on the machine


class LocalLauncher(Launcher):
    """Runs as many processes at a time as the cores and the memory of this machine allow.

    If nothing is running, any command is taken, even one that is too large for the machine. Commands run in their own
    session, so Ctrl-C reaches only the study, which then asks them to save. If the study is killed, the kernel asks
    them instead.
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
        plural = "" if self.cores == 1 else "s"
        return f"this machine: {self.cores} core{plural}, {self.memory / 2**30:.1f} GiB of memory to use{limit}"


class _Process(Handle):
    def __init__(self, command: Command) -> None:
        make_directory(command.log.parent)
        environment = dict(os.environ)
        # Otherwise libraries start one thread per core of the machine in every process.
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
    """Start a process that is asked to save and exit when the thread that started it ends.

    It gets its own session unless `same_session`: then a signal to this session also reaches it.
    """
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=folder,
        start_new_session=not same_session,
        preexec_fn=ask_when_parent_dies(),
    )


def stop_process(process: subprocess.Popen[bytes], now: bool) -> None:
    """Ask a process to save and exit, or kill it with its children if `now`."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):  # it may just have ended by itself
        if now:
            os.killpg(process.pid, signal.SIGKILL)  # and the simulators it started
        else:
            process.terminate()


def usable_cores() -> int:
    """The number of cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
