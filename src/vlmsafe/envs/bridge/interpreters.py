"""Which interpreter the part of an environment's name after `@` means.

It is a path, the folder of a virtual environment, a command on the PATH, or the name of an entry in
`interpreters.yaml` of the current folder (or the file that VLMSAFE_INTERPRETERS names):

    formula-one:
      python: /opt/formula-one/bin/python
      path: [/opt/safety-gymnasium]   # folders with modules that are not installed there
      variables: {MUJOCO_GL: egl}     # environment variables

An entry is looked up first. A run names its interpreter as it was given, so an entry under an old path says where that
interpreter is now.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vlmsafe import kernels
from vlmsafe.errors import InputError, yaml_errors

FILE = "interpreters.yaml"
_KEYS = {"python", "path", "variables"}


@dataclass(frozen=True)
class Interpreter:
    """Another Python, and what it needs to find an environment."""

    python: Path
    path: tuple[Path, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """The environment variables of its processes."""
        found = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
        path = [*map(str, self.path), *filter(None, [os.environ.get("PYTHONPATH")])]
        ignored = ["ignore:During parsing environment variable:RuntimeWarning"]  # of the names in `any_numpy`
        found |= {"PYTHONPATH": os.pathsep.join(path)} if path else {}
        if pinned := kernels.any_numpy():
            found |= pinned | {"PYTHONWARNINGS": ",".join([*filter(None, [found.get("PYTHONWARNINGS")]), *ignored])}
        return found | self.variables


def find_interpreter(name: str) -> Interpreter:
    """The interpreter that a name means, checked to be a program."""
    file = Path(os.environ.get("VLMSAFE_INTERPRETERS", FILE))
    entries = _entries(file)
    if name in entries:
        return _entry(name, entries[name], file)
    if "/" not in name and not (Path(name) / "bin" / "python").exists():
        # A name that was an entry may be that of any program; only a python is run.
        found = shutil.which(name) if name.startswith(("python", "pypy")) else None
        if found is None:
            known = f"; {file} has {', '.join(entries)}" if entries else f"; there is no {file} here"
            raise InputError(
                f"'{name}' is neither an interpreter on the PATH nor an entry of {file}{known}. Give the path of a "
                "python, such as gym:<id>@/opt/venv/bin/python"
            )
        return Interpreter(Path(found))
    return Interpreter(_program(name, Path(name).expanduser()))


def _program(name: str, path: Path) -> Path:
    """The python of a path, which may be the folder of a virtual environment. Its links are kept: they lead there."""
    python = path / "bin" / "python" if path.is_dir() else path
    if not (python.is_file() and os.access(python, os.X_OK)):
        raise InputError(
            f"there is no interpreter at '{name}'; expected a python that can be run, such as /opt/venv/bin/python. "
            f'If it has moved, add to {FILE}: "{name}": {{python: NEW PATH}}'
        )
    return Path(os.path.abspath(python))


def _entries(file: Path) -> dict[str, Any]:
    if not file.is_file():
        if "VLMSAFE_INTERPRETERS" in os.environ:
            raise InputError(f"VLMSAFE_INTERPRETERS is '{file}', and there is no such file")
        return {}
    with yaml_errors(str(file)):
        found = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    if not isinstance(found, dict):
        raise InputError(f"{file}: expected names with an entry each, got {type(found).__name__}")
    return {str(name): entry for name, entry in found.items()}


def _entry(name: str, entry: Any, file: Path) -> Interpreter:
    if isinstance(entry, str):
        entry = {"python": entry}
    if not isinstance(entry, dict) or "python" not in entry or set(entry) - _KEYS:
        raise InputError(f"{file}: the entry '{name}' is {entry!r}; expected python: PATH, and perhaps path, variables")
    path, variables = entry.get("path") or [], entry.get("variables") or {}
    if not isinstance(path, list) or not isinstance(variables, dict):
        raise InputError(f"{file}: in the entry '{name}', path is a list of folders and variables are NAME: VALUE")
    beside = file.absolute().parent  # relative paths are those of the file
    folders = tuple(beside / Path(str(folder)).expanduser() for folder in path)
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{file}: the entry '{name}' has the path {folder}, and there is no such folder")
    python = _program(str(entry["python"]), beside / Path(str(entry["python"])).expanduser())
    return Interpreter(python, folders, {str(key): str(value) for key, value in variables.items()})
