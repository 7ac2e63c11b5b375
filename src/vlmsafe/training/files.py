"""Writing files that a crash cannot leave half-written, and one process per run directory."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vlmsafe.errors import InputError, RunError


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a failed write (a full disk, a lost mount, missing permission) into one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        hint = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            hint = "; free some space, then resume the run"
        raise RunError(f"cannot write {path}: {reason}{hint}") from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, flush it to disk, then put it in place in one step.

    After a crash at any moment the path holds the old content or the new, never a part.
    """
    _check_held(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with disk_errors(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make renames and removals in a directory durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def append_rows(path: Path, rows: list[Mapping[str, Any]]) -> None:
    """Add JSON lines to a file and flush them to disk.

    A write that fails part-way is cut off again, and so is a row that an earlier crash left unfinished: rows are
    always whole.
    """
    _check_held(path)
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
    # Unbuffered: a buffer would try to write its rest once more when the file is closed, after the cut.
    new = not path.exists()
    with disk_errors(path), path.open("ab+", buffering=0) as file:
        file.seek(0)
        before = file.read().rfind(b"\n") + 1
        file.truncate(before)
        try:
            rest = memoryview(text)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            raise
    if new:
        sync_directory(path.parent)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; a last line that a crash cut short is left out."""
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise RunError(f"{path} is damaged: line {number} is not a row of JSON")
        rows.append(row)
    return rows


def cut_to(path: Path, size: int) -> None:
    """Shorten an append-only file to what it held at a checkpoint."""
    have = path.stat().st_size if path.exists() else 0
    if have < size:
        raise RunError(f"{path} is shorter ({have} bytes) than its checkpoint says ({size}); the file was damaged")
    if have > size:
        with disk_errors(path):
            os.truncate(path, size)


def make_directory(path: Path) -> Path:
    """The directory, made if need be."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; choose a directory")
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


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


def _check_held(path: Path) -> None:
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
