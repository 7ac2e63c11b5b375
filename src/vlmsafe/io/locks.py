"""One process per run directory: locks that the kernel drops when their holder dies."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from pathlib import Path

from vlmsafe.errors import RunError
from vlmsafe.io.disk import disk_errors

_LOCK_ATTEMPTS = 10


class DirectoryLock:
    """Keeps a second process out of a run directory. The kernel drops the lock when its holder dies, however.

    On a folder that several machines share it does so as long as the server gives locks to all of them (NFS 4 and
    most cluster file systems do). Then a machine that dies may leave its lock behind for a while or for ever, which
    is what `break_lock` is for. If it was not dead after all, its process notices before it next adds rows or saves a
    checkpoint, and stops.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "lock"
        self._handle: int | None = None

    def __enter__(self) -> DirectoryLock:
        # Whoever lists runs holds the lock for an instant to see whether it is free, so one refusal proves nothing.
        for attempt in range(_LOCK_ATTEMPTS):
            if attempt:
                time.sleep(0.05)
            with disk_errors(self._path):
                handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                continue
            if _is_file(handle, self._path):
                break
            os.close(handle)  # broken in between: this is the lock of a file that is no more
        else:
            pid, _, host = lock_holder(self._path.parent).partition(" ")
            place = f" on {host}" if host and host != socket.gethostname() else ""
            raise RunError(
                f"{self._path.parent} is in use by another process (pid {pid or 'unknown'}{place}); "
                "wait for it, stop it, or choose another --run-dir"
            ) from None
        with disk_errors(self._path):
            os.truncate(handle, 0)
            os.write(handle, process_name(os.getpid()).encode())
        self._handle = handle
        _HELD[self._path.parent.absolute()] = self
        return self

    def __exit__(self, *exc: object) -> None:
        if self._handle is not None:
            del _HELD[self._path.parent.absolute()]
            os.close(self._handle)
            self._handle = None

    def check(self) -> None:
        """Whether the lock is still this process's: somebody who believed it dead may have broken it."""
        if self._handle is not None and not _is_file(self._handle, self._path):
            holder = lock_holder(self._path.parent)
            raise RunError(f"{self._path.parent} was taken over by {in_words(holder)}; this process stops")


_HELD: dict[Path, DirectoryLock] = {}  # by their directories, in this process


def check_held(path: Path) -> None:
    """Refuse to write into a directory, or a folder in it, whose lock this process had and lost."""
    for directory in path.absolute().parents[:2]:
        if directory in _HELD:
            _HELD[directory].check()


def in_words(holder: str) -> str:
    """A process as messages name it.

    >>> in_words("12 node-3"), in_words("")
    ('pid 12 on node-3', 'an unknown process')
    """
    pid, _, host = holder.partition(" ")
    return f"pid {pid} on {host}" if pid else "an unknown process"


def process_name(pid: int) -> str:
    """A process of this machine, as its locks name it to all machines."""
    return f"{pid} {socket.gethostname()}"


def lock_holder(directory: Path) -> str:
    """Who holds, or held last, the lock of a directory; empty where nobody did."""
    try:
        return (directory / "lock").read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""


def break_lock(directory: Path, holder: str) -> bool:
    """Free a directory whose lock is held by a process that is known to be dead, with its machine; whether it was.

    A new file takes the place of the locked one, which nobody can unlock.
    """
    if not is_locked(directory) or lock_holder(directory) != holder:
        return False
    with disk_errors(directory):
        (directory / "lock").unlink(missing_ok=True)
    return True


def is_locked(directory: Path) -> bool:
    """Whether some process is working in a run directory now."""
    try:
        handle = os.open(directory / "lock", os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(handle)


def _is_file(handle: int, path: Path) -> bool:
    """Whether an open file is still the one at a path."""
    try:
        # Opened, because a machine that shares the folder may remember for a while what was there.
        with path.open("rb") as there:
            return os.path.samestat(os.fstat(handle), os.fstat(there.fileno()))
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno != errno.ESTALE:  # removed by another machine
            raise
        return False
