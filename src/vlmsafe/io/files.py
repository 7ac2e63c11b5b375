"""Files that a crash cannot leave half-written: atomic writes, and files of JSON rows that are always whole."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from vlmsafe.errors import RunError
from vlmsafe.io.disk import disk_errors, sync_directory
from vlmsafe.io.locks import check_held

_BLOCK = 1 << 16  # bytes


def files_digest(place: Path) -> str | None:
    """A digest of the names, sizes and times of a file, or of all files of a folder; None if there is none."""
    files = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
    found = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.is_file()]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest() if found else None


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, flush it to disk, then move it into place in one step.

    After a crash at any moment the path holds the old content or the new content, never a part of it.
    """
    write_together({path: data})


def write_together(files: Mapping[Path, bytes], remove: Iterable[Path] = ()) -> None:
    """Write several files under temporary names, then remove others, then move the new ones into place, in order.

    Nothing is removed or replaced before all of the new content is on disk.
    """
    aside = {path: path.with_name(f".{path.name}.{os.getpid()}.partial") for path in files}
    try:
        for path, data in files.items():
            check_held(path)
            with disk_errors(path), aside[path].open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path in remove:
            with disk_errors(path):
                path.unlink(missing_ok=True)
        for path, temporary in aside.items():
            with disk_errors(path):
                temporary.replace(path)
    except RunError:
        for temporary in aside.values():
            temporary.unlink(missing_ok=True)
        raise
    for directory in {path.parent for path in files}:
        with disk_errors(directory):
            sync_directory(directory)


def append_rows(path: Path, rows: list[Mapping[str, Any]]) -> None:
    """Add JSON lines to a file and flush them to disk.

    Rows are always whole: a write that fails part-way is cut off again, and so is a row that an earlier crash left
    unfinished. Only the end of the file is read, so that the cost does not grow with the file.
    """
    check_held(path)
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
    new = not path.exists()
    # Unbuffered: a buffer would try to write its rest once more when the file is closed, after the cut.
    with disk_errors(path), path.open("ab+", buffering=0) as file:
        before = _end_of_rows(file)
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


def _end_of_rows(file: FileIO) -> int:
    """The size of a file without an unfinished last line. Blocks are read from the end until one has a line break."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - _BLOCK)
        file.seek(start)
        if (line_break := file.read(end - start).rfind(b"\n")) >= 0:
            return start + line_break + 1
        end = start
    return 0


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines, without a last line that a crash cut short."""
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise RunError(f"{path} is damaged: expected a row of JSON in line {number}, got other text")
        rows.append(row)
    return rows


def cut_to(path: Path, size: int) -> None:
    """Shorten a row file to the size it had at a checkpoint."""
    have = path.stat().st_size if path.exists() else 0
    if have < size:
        raise RunError(f"{path} is shorter ({have} bytes) than its checkpoint says ({size}); the file was damaged")
    if have > size:
        with disk_errors(path):
            os.truncate(path, size)
