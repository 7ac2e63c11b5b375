"""Helpers of every write: failures become one line, directories are made, renames become durable."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def sync_directory(directory: Path) -> None:
    """Make renames and removals in a directory durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def require_writable(path: Path) -> None:
    """Refuse at once, rather than after hours of work, if a file cannot be written; makes its directory."""
    make_directory(path.parent)
    if not os.access(path.parent, os.W_OK):
        raise RunError(f"cannot write {path}: permission denied")


def make_directory(path: Path) -> Path:
    """Make a directory unless it exists, and return it."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; choose a directory")
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path
