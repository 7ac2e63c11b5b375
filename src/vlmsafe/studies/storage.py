"""A study's folder at a URL: any store that fsspec knows, such as s3://, gs://, abfs:// or file://.

Runs work in a local folder and are copied to the store at each checkpoint; machines come and go, the store stays. Per
run it holds objects, named by what is in them, and lists of them:

    <url>/<run>/objects/<sha256>
    <url>/<run>/lists/00000012-<owner>.json      which object is which file, and whose run this is now

Nothing there is ever changed. A copy first adds the objects that are new, then a list with the next number; whoever
reads takes the newest list that is whole, so a copy that is killed half-way leaves the run as it was before. Objects
of older lists are removed later. What every machine's study has in common is kept beside the runs in the same way.

A list names its owner, the process that works on the run. One that finds another owner stops: the study believed it
dead and started the run again elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import fsspec

from vlmsafe.errors import InputError, RunError, VlmsafeError
from vlmsafe.training.files import disk_errors, make_directory

_CHUNK = 2**20
_KEPT = 2  # lists of which objects are kept: somebody may just be reading the last but one
_NOT_COPIED = re.compile(r"(^|/)(lock|\..*)$")  # locks are a machine's own, hidden files are being written
STUDY_TREE = "study"
_OF_STUDY = ("study.yaml", "claims.yaml", "journal.jsonl", "configs", "logs")


def is_url(place: str) -> bool:
    """Whether a place is a URL of a store and not a folder.

    >>> is_url("s3://bucket/runs"), is_url("runs/mine")
    (True, False)
    """
    return re.match(r"[a-z][a-z0-9+.-]*://", place) is not None


class Taken(RunError):
    """Another process works on the run."""


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Turn what a store raises, each kind its own, into one line."""
    try:
        yield
    except VlmsafeError:
        raise
    except Exception as error:
        raise RunError(f"cannot reach {url}: {type(error).__name__}: {' '.join(str(error).split())}") from error


class Store:
    """A study's place at a URL."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            self._fs, self._path = fsspec.core.url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            raise InputError(f"cannot use '{url}' to keep runs: {' '.join(str(error).split())}") from None
        self._fs.use_listings_cache = False  # other machines write too

    def tree(self, name: str) -> Tree:
        """A run's files, by the run's name."""
        return Tree(self._fs, posixpath.join(self._path, name), f"{self.url}/{name}")

    def fetch_study(self, folder: Path) -> None:
        """What the study itself keeps, from whatever machine it was run before."""
        self.tree(STUDY_TREE).fetch(folder, _OF_STUDY)

    def store_study(self, folder: Path) -> None:
        self.tree(STUDY_TREE).store(folder, STUDY_TREE, _OF_STUDY)


@dataclass(frozen=True)
class Listing:
    """Which object is which file."""

    number: int
    owner: str
    files: Mapping[str, str]
    """Path in the run -> sha256."""

    def to_bytes(self) -> bytes:
        text = json.dumps({"owner": self.owner, "files": dict(sorted(self.files.items()))})
        return f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}".encode()

    @classmethod
    def from_bytes(cls, number: int, data: bytes) -> Listing | None:
        """None where it is not whole: a copy was killed while it wrote this."""
        digest, _, text = data.partition(b"\n")
        if hashlib.sha256(text).hexdigest().encode() != digest:
            return None
        content = json.loads(text)
        return cls(number, content["owner"], content["files"])


class Tree:
    """Files of one run in a store."""

    def __init__(self, fs: Any, path: str, url: str) -> None:
        self._fs, self._path, self._url = fs, path, url

    def newest(self) -> Listing | None:
        """The newest list that is whole."""
        return next((listing for _, listing in self._listings()), None)

    def claim(self, owner: str) -> None:
        """Make a process the one that works on the run, and remove what copies that were killed left."""
        with _reaching(self._url):
            before = self.newest()
            listing = Listing(0 if before is None else before.number + 1, owner, {} if before is None else before.files)
            self._write(self._list_path(listing), listing.to_bytes())
            self._tidy(everything=True)

    def fetch(self, folder: Path, only: Iterable[str] = ()) -> bool:
        """Make a local folder what the newest list says, or leave it alone where there is none; whether there was.

        `only` names the files and folders of it that are the store's; by default everything in it is.
        """
        with _reaching(self._url):
            listing = self.newest()
            if listing is None:
                return False
            for name, path in _files(folder, only):
                if name not in listing.files:
                    path.unlink()
            for name, digest in listing.files.items():
                path = folder / name
                if not path.exists() or _digest(path)[0] != digest:
                    self._fetch_file(digest, path)
        return True

    def store(self, folder: Path, owner: str, only: Iterable[str] = ()) -> None:
        """Copy what is new in a local folder; a process at work in it may add to its files meanwhile."""
        with _reaching(self._url):
            before = self.newest()
            if before is not None and before.owner != owner:
                raise Taken(f"{self._url} is worked on by another process now ({before.owner}); this one stops")
            files = self._add_files(folder, only, set() if before is None else set(before.files.values()))
            if before is not None and files == before.files:
                return
            listing = Listing(0 if before is None else before.number + 1, owner, files)
            self._write(self._list_path(listing), listing.to_bytes())
            self._tidy()

    def _add_files(self, folder: Path, only: Iterable[str], known: set[str]) -> dict[str, str]:
        files: dict[str, str] = {}
        for name, path in _files(folder, only):
            try:
                with path.open("rb") as file:
                    digest, size = _digest_of(file)
                    if digest not in known:
                        file.seek(0)
                        self._add(digest, file, size)
            except FileNotFoundError:  # an old checkpoint that was just dropped
                if path.exists():
                    raise
                continue
            files[name] = digest
        return files

    # -- the store --

    def _listings(self) -> Iterator[tuple[str, Listing]]:
        """Lists that are whole, newest first."""
        for path in sorted(self._names("lists"), reverse=True):
            number = int(posixpath.basename(path).partition("-")[0])
            listing = Listing.from_bytes(number, self._fs.cat_file(path))
            if listing is not None:
                yield path, listing

    def _names(self, folder: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            return list(self._fs.ls(posixpath.join(self._path, folder), detail=False))
        except FileNotFoundError:
            return []

    def _list_path(self, listing: Listing) -> str:
        return posixpath.join(self._path, "lists", f"{listing.number:08d}-{listing.owner}.json")

    def _object_path(self, digest: str) -> str:
        return posixpath.join(self._path, "objects", digest)

    def _write(self, path: str, data: bytes) -> None:
        self._fs.makedirs(posixpath.dirname(path), exist_ok=True)
        self._fs.pipe_file(path, data)

    def _add(self, digest: str, file: BinaryIO, size: int) -> None:
        path = self._object_path(digest)
        self._fs.makedirs(posixpath.dirname(path), exist_ok=True)
        with self._fs.open(path, "wb") as target:
            while size and (chunk := file.read(min(size, _CHUNK))):
                target.write(chunk)
                size -= len(chunk)

    def _fetch_file(self, digest: str, path: Path) -> None:
        make_directory(path.parent)
        aside = path.with_name(f".{path.name}.fetched")
        with disk_errors(path):
            with self._fs.open(self._object_path(digest), "rb") as source, aside.open("wb") as target:
                shutil.copyfileobj(source, target, _CHUNK)
            if _digest(aside)[0] != digest:
                aside.unlink()
                raise RunError(f"{self._url} is damaged: {path.name} is not what was stored")
            aside.replace(path)

    def _tidy(self, everything: bool = False) -> None:
        """Remove older lists, and the objects that only they name; `everything` also what no list names."""
        kept: set[str] = set()
        dropped: set[str] = set(map(posixpath.basename, self._names("objects"))) if everything else set()
        for place, (path, listing) in enumerate(list(self._listings())):
            if place < _KEPT:
                kept.update(listing.files.values())
            else:
                dropped.update(listing.files.values())
                self._fs.rm_file(path)
        for digest in dropped - kept:
            if self._fs.exists(self._object_path(digest)):
                self._fs.rm_file(self._object_path(digest))


def _files(folder: Path, only: Iterable[str] = ()) -> list[tuple[str, Path]]:
    """What is copied of a folder: first checkpoints, which say how much of the other files they need."""
    found = []
    for top in [folder / name for name in only] or [folder]:
        for place, folders, names in os.walk(top):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            found += [Path(place, name) for name in names]
        found += [top] if top.is_file() else []
    pairs = [(path.relative_to(folder).as_posix(), path) for path in found]
    pairs = [(name, path) for name, path in pairs if not _NOT_COPIED.search(name)]
    return sorted(pairs, key=lambda pair: (not pair[0].startswith("checkpoints/"), pair[0]))


def _digest(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        return _digest_of(file)


def _digest_of(file: BinaryIO) -> tuple[str, int]:
    """Digest and size of a file as it is now; it may grow meanwhile, but what it has does not change."""
    size = left = os.fstat(file.fileno()).st_size
    digest = hashlib.sha256()
    while left and (chunk := file.read(min(left, _CHUNK))):
        digest.update(chunk)
        left -= len(chunk)
    return digest.hexdigest(), size
