"""Hashes of the user's own code, so that a run knows which source computed it.

The rule, from the modules that the user names:

1. A named module counts with its package: all Python files, compiled modules and simulator models (`SUFFIXES`) in the
   folder of the package and below it. A module outside of packages counts alone.
2. Every import in these Python files is followed, wherever it stands. So are literal names in `import_module("...")`
   and in texts such as "module:name", which entry points are. The modules found count too, with the `__init__.py`
   files of their packages, and their imports are followed.
3. Python itself, this package and installed packages (`site-packages`) are not followed. A named module that is
   installed counts as its whole top-level package.

Nothing is imported or executed. Data files, weights and modules with computed names are not seen. This file needs
nothing but Python 3.8, because it also runs in the interpreters of other environments.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

SUFFIXES = (".py", ".so", ".pyd", ".xml", ".urdf")
"""Files of a package that count."""
_MOST_FILES = 100  # a package with more files is recorded as one entry
_DIGITS = 16
_STANDARD = tuple(sysconfig.get_path(one) + os.sep for one in ("stdlib", "platstdlib"))
_OWN = "vlmsafe"  # its version and revision are recorded elsewhere
_ENTRY_POINT = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_][\w.]*")
_NAMED = 3  # the most files that a sentence names

if TYPE_CHECKING:  # Python 3.8 cannot evaluate it
    Stamp = tuple[int, ...]  # size, time and number of a file, by which a change is noticed without reading it
_READ: dict[str, tuple[Stamp, str, tuple[str, ...]]] = {}
"""Of each file that this process has read: its stamp, digest and imports. A large package takes seconds to parse."""


@dataclass(frozen=True)
class SourceHash:
    """The source behind some modules: a digest per file, or why there is none."""

    files: Mapping[str, str] = field(default_factory=dict)
    """Digests by place within the project, such as my_envs/crossing.py; `name/` stands for a whole package."""
    unknown: str = ""
    """Why the source is not known in full; empty if it is."""
    revision: str | None = None
    """Git's name of the project's revision, see `git_revision`; None without git."""
    seen: Mapping[str, Stamp] = field(default_factory=dict, compare=False, repr=False)
    """Stamps of the files and folders that were read, by full path; see `unchanged`."""

    @property
    def digest(self) -> str | None:
        """All files in 16 letters; None if the source is not known."""
        if self.unknown:
            return None
        return _digest("\n".join(f"{name} {self.files[name]}" for name in sorted(self.files)).encode())

    def changes(self, now: SourceHash) -> str:
        """In words, the files that differ from `now`; empty if none does."""
        names = [name for name in self.files if now.files.get(name, self.files[name]) != self.files[name]]
        names += [f"{name} (gone)" for name in self.files if name not in now.files]
        names += [f"{name} (new)" for name in now.files if name not in self.files]
        more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
        return ", ".join(names[:_NAMED] + more)

    def to_dict(self) -> dict[str, Any]:
        """As a run records it."""
        if self.unknown:
            return {"unknown": self.unknown, "revision": self.revision}
        return {"digest": self.digest, "revision": self.revision, "files": dict(self.files)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> SourceHash:
        """What `to_dict` wrote; the source is unknown if the record is damaged."""
        files = record.get("files")
        if record.get("unknown") or not isinstance(files, dict) or not files:
            return cls(unknown=str(record.get("unknown") or "its record is incomplete"))
        return cls({str(name): str(digest) for name, digest in files.items()}, revision=record.get("revision"))


def hash_source(modules: Iterable[str], *, revision: bool = False) -> SourceHash:
    """The source of modules by the rule above. `revision` asks git too, which takes a few milliseconds."""
    importlib.invalidate_caches()  # files may be new since Python last looked
    reader = _Reader()
    try:
        for module in modules:
            reader.take(module)
    except _Unknown as error:
        return SourceHash(unknown=str(error))
    own = sorted(reader.own)
    found = git_revision(os.path.dirname(own[0]), own) if revision and own else None
    return SourceHash(reader.files, revision=found, seen=reader.seen)


def unchanged(seen: Mapping[str, Stamp]) -> bool:
    """Whether all files and folders still have the stamps that they had; a quick answer if nothing changed.

    A changed stamp alone does not mean other source: Python may have written its cache into a folder.
    """
    return bool(seen) and all(_stamp(path) == stamp for path, stamp in seen.items())


def unseen_files(files: Iterable[str], source: SourceHash) -> list[str]:
    """The names of those of some loaded files that the rule did not reach; none if it is not known which it read."""
    if not source.seen:
        return []
    seen = {os.path.realpath(path) for path in source.seen}
    return sorted({os.path.basename(path) for path in files if os.path.realpath(path) not in seen})


def loaded_files(since: Container[str]) -> list[str]:
    """The files of the user's modules that this process has loaded, apart from modules with the names in `since`."""
    found = []
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        script = name in ("__main__", "__mp_main__")
        if name in since or script or _is_own(name) or not path or not os.path.isfile(path) or _installed(path):
            continue
        found.append(os.path.abspath(path))
    return sorted(set(found))


def stale_files(source: SourceHash) -> list[str]:
    """The names of Python files that were changed after Python last compiled them: what was imported may be older."""
    found = []
    for path, stamp in source.seen.items():
        if not path.endswith(".py") or _installed(path):
            continue
        try:
            with open(importlib.util.cache_from_source(path), "rb") as file:
                head = file.read(16)
        except (OSError, NotImplementedError):
            continue  # nothing was compiled, or it was not kept
        size, when = (int.from_bytes(head[place : place + 4], "little") for place in (12, 8))
        now = (stamp[0] & 0xFFFFFFFF, stamp[1] // 10**9 & 0xFFFFFFFF) if stamp else None
        if head[4:8] == bytes(4) and (size, when) != now:
            found.append(os.path.basename(path))
    return found


def git_revision(folder: str, files: Iterable[str] = ()) -> str | None:
    """The revision of the checkout that a folder is in; None if it is in none, or has no commit.

    It ends with `-dirty` if a tracked file is changed, or one of `files` is not tracked.
    """
    described = _git(folder, "describe", "--always", "--dirty", "--abbrev=40")
    if not described or described.endswith("-dirty") or not files:
        return described or None
    tracked = _git(folder, "ls-files", "--error-unmatch", "--", *files)
    return described if tracked is not None else f"{described}-dirty"


def _git(folder: str, *words: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10, cwd=folder, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.decode(errors="replace").strip()


class _Unknown(Exception):
    """Why the source of a module cannot be had."""


class _Reader:
    """Collects the files that count."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.own: list[str] = []
        """Full paths of the files that are not installed."""
        self.seen: dict[str, Stamp] = {}
        self._seen: dict[str, ModuleSpec | None] = {}

    def take(self, module: str) -> None:
        """Add a named module with its package."""
        spec = self._look_up(module)
        if spec is None:
            raise _Unknown(f"the module '{module}' cannot be found")
        if spec.origin is None and spec.submodule_search_locations:
            raise _Unknown(f"the module '{module}' is a folder without __init__.py; name a module in it")
        if spec.origin is None or not os.path.isfile(spec.origin):
            raise _Unknown(f"the module '{module}' has no file of its own")
        if _installed(spec.origin):
            self._take_installed(module.split(".")[0])
            return
        package = module if spec.submodule_search_locations else module.rpartition(".")[0]
        holder = self._look_up(package) if package else None
        if holder is None or holder.origin is None:
            self._follow(module)
            return
        tree = self._walk(package, os.path.dirname(holder.origin))
        if len(tree) > _MOST_FILES:
            self.files[package.replace(".", "/") + "/"] = self._digest_of_all(tree)
            self.own += [path for _, path in tree]
        for place, path in tree:
            if len(tree) <= _MOST_FILES:
                self._add(place, path)
            if path.endswith(".py"):
                stem = place[: -len(".py")].replace("/", ".")
                inside = stem.endswith(".__init__")
                self._follow_imports(path, stem[: -len(".__init__")] if inside else stem, inside)
        self._follow(package)

    def _take_installed(self, top: str) -> None:
        spec = self._look_up(top)
        if spec is None or spec.origin is None:
            raise _Unknown(f"the installed package '{top}' has no __init__.py")
        if spec.submodule_search_locations:
            self.files[f"{top}/"] = self._digest_of_all(self._walk(top, os.path.dirname(spec.origin)))
        else:
            self.files[_place(top, spec)] = self._read(spec.origin)[0]

    def _follow(self, module: str) -> None:
        """Add an imported module and the packages that it is in, if it is a file of the user's."""
        parts = module.split(".")
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[:count])
            spec = self._look_up(name)
            if spec is None or name == _OWN:
                return
            if spec.origin is None or not os.path.isfile(spec.origin):
                continue  # a namespace, or built into Python
            if _installed(spec.origin):
                return
            if self._add(_place(name, spec), spec.origin) and spec.origin.endswith(".py"):
                self._follow_imports(spec.origin, name, bool(spec.submodule_search_locations))

    def _add(self, place: str, path: str) -> bool:
        if place in self.files or any(place.startswith(one) for one in self.files if one.endswith("/")):
            return False
        self.files[place] = self._read(path)[0]
        self.own.append(path)
        folder = os.path.dirname(path)  # a new folder or file in it may hide the module
        self.seen.setdefault(folder, _stamp(folder))
        return True

    def _follow_imports(self, path: str, module: str, is_package: bool) -> None:
        package = module if is_package else module.rpartition(".")[0]
        for name in self._read(path, package)[1]:
            self._follow(name)

    def _walk(self, package: str, folder: str) -> list[tuple[str, str]]:
        found = list(_tree(package, folder))
        folders = {folder, *(os.path.dirname(path) for _, path in found)}
        self.seen.update({where: _stamp(where) for where in folders})
        return found

    def _digest_of_all(self, tree: list[tuple[str, str]]) -> str:
        return _digest("\n".join(f"{place} {self._read(path)[0]}" for place, path in tree).encode())

    def _read(self, path: str, package: str | None = None) -> tuple[str, tuple[str, ...]]:
        """The digest of a file and, for a Python file of a package, the names that it imports."""
        stamp, key = _stamp(path), path if package is None else f"{path} of {package}"
        self.seen.setdefault(path, stamp)
        if key not in _READ or _READ[key][0] != stamp:
            content = _bytes_of(path)
            _READ[key] = stamp, _digest(content), () if package is None else tuple(_imports_of(content, package))
        return _READ[key][1:]

    def _look_up(self, module: str) -> ModuleSpec | None:
        if module not in self._seen:
            self._seen[module] = _find(module)
        return self._seen[module]


def _find(module: str) -> ModuleSpec | None:
    """The spec of a module, without importing its packages."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top) if top else None
    except (ImportError, ValueError, AttributeError):  # such as a script, which has no spec
        return None
    name = top
    for part in rest:
        name = f"{name}.{part}"
        if spec is None or spec.submodule_search_locations is None:
            return None
        folders = list(spec.submodule_search_locations)
        try:
            spec = PathFinder.find_spec(name, folders)
        except KeyError:  # a folder without __init__.py, for which Python wants the package above it to be imported
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [os.path.join(folder, part) for folder in folders]
    return spec


def _imports_of(content: bytes, package: str) -> Iterator[str]:
    """The names that a module may import, absolute; some are no modules but names within one."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return  # it cannot be imported either
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if node.level else []
            parts = parts[: len(parts) - node.level + 1] + (node.module.split(".") if node.module else [])
            base = ".".join(part for part in parts if part)
            if base:
                yield base
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0] if node.args else None
            if called in ("import_module", "__import__") and isinstance(first, ast.Constant):
                name = first.value
                if isinstance(name, str):
                    yield f"{package}{name}" if name.startswith(".") else name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            entry_point = _ENTRY_POINT.fullmatch(node.value)
            if entry_point:
                yield entry_point.group(1)


def _tree(package: str, folder: str) -> Iterator[tuple[str, str]]:
    """The files of a package that count: place within the project, and full path."""
    root = package.replace(".", "/")
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "__pycache__")) and not os.path.exists(os.path.join(where, name, "pyvenv.cfg"))
        )
        inside = os.path.relpath(where, folder).replace(os.sep, "/")
        for name in sorted(files):
            if name.endswith(SUFFIXES) and not name.startswith("."):
                yield "/".join([root, *([] if inside == "." else [inside]), name]), os.path.join(where, name)


def _is_own(module: str) -> bool:
    return module.split(".")[0] == _OWN


def _place(module: str, spec: ModuleSpec) -> str:
    """The file of a module from the folder that its top-level name is imported from, wherever that folder lies."""
    assert spec.origin is not None
    above = module if spec.submodule_search_locations else module.rpartition(".")[0]
    return "/".join([*above.split("."), os.path.basename(spec.origin)] if above else [os.path.basename(spec.origin)])


def _installed(path: str) -> bool:
    parts = os.path.abspath(path).split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    return os.path.abspath(path).startswith(_STANDARD)


def _bytes_of(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise _Unknown(f"{path} cannot be read: {error.strerror}") from None
    # A checkout on another system may have other line ends.
    return content.replace(b"\r\n", b"\n") if path.endswith(".py") else content


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_size, found.st_mtime_ns, found.st_ino


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]
