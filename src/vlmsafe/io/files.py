"""Files that a crash cannot leave half-written: atomic writes, and rows of JSON that are always whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmsafe.errors import RunError
from vlmsafe.io.disk import disk_errors, sync_directory
from vlmsafe.io.locks import check_held


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, flush it to disk, then put it in place in one step.

    After a crash at any moment the path holds the old content or the new, never a part.
    """
    check_held(path)
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


def append_rows(path: Path, rows: list[Mapping[str, Any]]) -> None:
    """Add JSON lines to a file and flush them to disk.

    A write that fails part-way is cut off again, and so is a row that an earlier crash left unfinished: rows are
    always whole.
    """
    check_held(path)
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
