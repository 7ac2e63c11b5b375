"""Locks on directories: one process at a time works in a run directory. The kernel drops the lock of a dead process."""

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
    """Keeps a second process out of a run directory. The kernel drops the lock when its holder dies.

    The lock also works on a folder that several machines share, if the file server passes locks on (NFS 4 and most
    cluster file systems do). There, a machine that dies may leave its lock behind for a while or for ever; `break_lock`
    removes it. If the machine was not dead after all, its process notices before it next adds rows or saves a
    checkpoint, and stops.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "lock"
        self._handle: int | None = None

    def __enter__(self) -> DirectoryLock:
        # A process that lists runs takes the lock for an instant to test it, so one refusal proves nothing.
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
            os.close(handle)  # the lock was broken in between, and this file was removed
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
        """Raise if this process lost the lock: another one may have believed it dead and broken the lock."""
        if self._handle is not None and not _is_file(self._handle, self._path):
            holder = lock_holder(self._path.parent)
            raise RunError(f"{self._path.parent} was taken over by {in_words(holder)}; this process stops")


_HELD: dict[Path, DirectoryLock] = {}  # the locks of this process, by directory


def check_held(path: Path) -> None:
    """Refuse to write into a directory, or a folder in it, if this process had its lock and lost it."""
    for directory in path.absolute().parents[:2]:
        if directory in _HELD:
            _HELD[directory].check()


def in_words(holder: str) -> str:
    """The holder of a lock, as messages name it.

    >>> in_words("12 node-3"), in_words("")
    ('pid 12 on node-3', 'an unknown process')
    """
    pid, _, host = holder.partition(" ")
    return f"pid {pid} on {host}" if pid else "an unknown process"


def process_name(pid: int) -> str:
    """A process of this machine, as locks name it to all machines."""
    return f"{pid} {socket.gethostname()}"


def lock_holder(directory: Path) -> str:
    """The present or last holder of a directory's lock; empty if there was none."""
    try:
        return (directory / "lock").read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""


def break_lock(directory: Path, holder: str) -> bool:
    """Free a directory if its lock is held by this process of a dead machine. Returns whether it was.

    Nothing can unlock the locked file, so it is removed, and the next holder makes a new one.
    """
    if not is_locked(directory) or lock_holder(directory) != holder:
        return False
    with disk_errors(directory):
        (directory / "lock").unlink(missing_ok=True)
    return True


def is_locked(directory: Path) -> bool:
    """Whether a process is working in a run directory now."""
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
        # It is opened because on a shared folder the answer of `stat` may be out of date.
        with path.open("rb") as there:
            return os.path.samestat(os.fstat(handle), os.fstat(there.fileno()))
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno != errno.ESTALE:  # removed by another machine
            raise
        return False
