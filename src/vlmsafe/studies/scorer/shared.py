"""One scoring service for all runs of a study: which runs use it, and how it is kept alive on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from vlmsafe import kernels
from vlmsafe.errors import InputError, RunError
from vlmsafe.io.disk import disk_errors, make_directory
from vlmsafe.signals.scorers.registry import kind_of
from vlmsafe.signals.service.sockets import user_directory
from vlmsafe.studies.launch.local import start_process, stop_process
from vlmsafe.studies.study import RunSpec

_STARTING, _STOPPING = 60.0, 30.0  # seconds
_PAUSE = 2.0  # seconds between two starts of a service that dies at once
_YOUNG = 60.0  # seconds in which a service may have created its lock file without holding the lock yet


class SharedScorer(Protocol):
    """A service that lives as long as the study."""

    @property
    def address(self) -> str: ...

    def restart_if_dead(self) -> None:
        """Restart the service if it died; called several times a second."""

    def close(self) -> None: ...


def shares(scorer: str) -> bool:
    """Whether runs with a scorer are to ask a study's service: models do; code of the user's own stays with its run."""
    kind = kind_of(scorer)
    return kind.shared and not kind.user_code


def shared_kernels(specs: Iterable[RunSpec]) -> kernels.Kernels:
    """The kernels of the runs that ask a study's service. One process has one kind, so they must agree."""
    found = {spec.config.kernels for spec in specs if shares(spec.config.signal.scorer)}
    if len(found) > 1:
        raise InputError(
            "--share-scorer needs runs with the same kernels, and this study has native and baseline ones; set kernels "
            "for the whole study, or leave --share-scorer out"
        )
    return found.pop() if found else "baseline"


def service_name(title: str) -> str:
    """A unique name that starts with the study's title; short, because it becomes the name of a socket."""
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', title)[:30].strip('-')}-{uuid.uuid4().hex[:8]}"


def socket_name(name: str, number: int) -> str:
    """The file name of a service's socket in the user's directory for sockets."""
    return f"vlmsafe-{name}-{number}"


def remove_left_behind() -> None:
    """Remove sockets and locks of services that were killed; a live service holds the lock of its socket."""
    own = re.compile(r"vlmsafe-.+-[0-9a-f]{8}-[0-9]+\.lock")
    found = [path for path in user_directory().glob("vlmsafe-*.lock") if own.fullmatch(path.name)]
    for path in found:
        with contextlib.suppress(OSError):  # another user's, in use, or just removed by another process
            if time.time() > path.lstat().st_mtime + _YOUNG:
                _remove_unless_held(path)


def _remove_unless_held(lock: Path) -> None:
    """Remove a lock and its socket; OSError if a process holds the lock."""
    handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.with_suffix("").unlink(missing_ok=True)
        lock.unlink()
    finally:
        os.close(handle)


class LocalScorer:
    """`vlmsafe serve` on this machine, restarted if it dies."""

    def __init__(self, title: str, log: Path, chosen: kernels.Kernels = "baseline") -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="study-", dir=user_directory()))
        self._socket, self._log, self._kernels = self._folder / "scorer", log, chosen
        self.address = f"unix:{self._socket}"
        self._start()
        deadline = time.monotonic() + _STARTING
        while not self._socket.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise RunError(f"the scoring service of '{title}' did not start (log: {log})")
            time.sleep(0.05)

    def _start(self) -> None:
        make_directory(self._log.parent)
        words = (sys.executable, "-m", "vlmsafe", "serve", "--socket", str(self._socket))
        with disk_errors(self._log), self._log.open("ab") as log:
            # Busy-waiting threads would take the cores from the runs. Kernels are those of runs, not of this process.
            environment = {"OMP_WAIT_POLICY": "PASSIVE", **kernels.environment(self._kernels)}
            self.process = start_process(words, log, environment)
        self._started = time.monotonic()

    def restart_if_dead(self) -> None:
        if self.process.poll() is not None and time.monotonic() > self._started + _PAUSE:
            self._start()

    def close(self) -> None:
        stop_process(self.process, now=False)
        try:
            self.process.wait(_STOPPING)
        except subprocess.TimeoutExpired:
            stop_process(self.process, now=True)
            self.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
