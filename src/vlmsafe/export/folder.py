"""The folder of an export: recognised by a file of its own, and filled so that no run in it is ever half-written."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from vlmsafe.errors import InputError
from vlmsafe.io.disk import disk_errors, make_directory
from vlmsafe.io.files import write_atomically

MARK = "vlmsafe-export.json"
"""The file that says that a folder is an export, and in which format."""
_PARTIAL = ".partial"
_UNSAFE = re.compile(r"[^\w.\- /]")


def check_folder(folder: Path, form: str, exported: Iterable[Path]) -> None:
    """Refuse a folder that holds other things than an export in this format, or lies among the exported runs."""
    option = f"--{form} {folder}"
    for place in exported:
        if folder.resolve().is_relative_to(place.resolve()):
            raise InputError(f"export: {option} lies in {place}, which is exported; choose a folder outside of it")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"export: {option} is a file; expected a folder, new or empty")
    found = _format_of(folder)
    if found == form or not folder.is_dir():
        return
    if found:
        raise InputError(f"export: {option} holds an export for {found} already; choose another folder")
    others = sorted(path.name for path in folder.iterdir())
    if others:
        raise InputError(
            f"export: {option} holds other things ({others[0]}), and nothing is overwritten; choose a new or an empty "
            "folder, or that of an earlier export"
        )


def _format_of(folder: Path) -> str:
    """The format of the export in a folder; empty if there is none."""
    try:
        mark = json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    found = mark.get("format") if isinstance(mark, dict) else None
    return found if isinstance(found, str) else ""


def begin_folder(folder: Path, form: str) -> None:
    """Make the folder and mark it. What an export that was killed left there is removed."""
    make_directory(folder)
    write_atomically(folder / MARK, (json.dumps({"format": form, "layout": 1}) + "\n").encode())
    with disk_errors(folder):
        shutil.rmtree(folder / _PARTIAL, ignore_errors=True)


def put_directory(folder: Path, final: Path, fill: Callable[[Path], Path]) -> None:
    """Fill a directory aside, then move what `fill` returns to its place, where it replaces an earlier one."""
    aside = make_directory(folder / _PARTIAL)
    made = fill(make_directory(aside / "new"))
    with disk_errors(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists():
            final.rename(aside / "old")
        made.rename(final)
        shutil.rmtree(aside)


def safe_names(names: Sequence[str]) -> dict[str, str]:
    """For each name one that every tool accepts and that is a path within a folder; no two become the same.

    >>> safe_names(["held-out/cost", "speed (m/s)", "../up", "a:b", "a;b"])
    {'held-out/cost': 'held-out/cost', 'speed (m/s)': 'speed _m/s_', '../up': 'up', 'a:b': 'a_b', 'a;b': 'a_b_2'}
    """
    found: dict[str, str] = {}
    for name in names:
        parts = [part for part in _UNSAFE.sub("_", name).split("/") if part.strip(". ")]
        base = "/".join(parts) or "_"
        number = 1
        while (safe := base if number == 1 else f"{base}_{number}") in found.values():
            number += 1
        found[name] = safe
    return found
