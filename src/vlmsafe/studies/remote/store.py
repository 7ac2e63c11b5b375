"""A study's folder at a URL: any store that fsspec supports, such as s3://, gs://, abfs:// or file://.

Runs work in a local folder and are copied to the store at each checkpoint, so a run survives the loss of its machine.
For each run the store holds objects, named by their content, and lists of them:

    <url>/<run>/objects/<sha256>
    <url>/<run>/lists/00000012-<owner>.json      which object is which file, and which process owns the run

Nothing in the store is ever changed. A copy first adds the new objects, then a list with the next number. A reader
takes the newest complete list, so a copy that is killed half-way leaves the run as it was before. Objects that only
older lists name are removed later; a reader that misses one starts again with the newest list. If an object is lost or
damaged, the reader takes the list before and says so. The files of the study itself are kept in the same way, next to
the runs. Names that are neither a list nor an object are ignored, and they stay.

A list names its owner, the process that works on the run. A process that finds another owner stops: the study counted
it as lost and restarted the run elsewhere. Stores have no locks, so an owner checks again after it has added its
objects and once more after its list. Of two lists with the same number, that of the newer owner counts.

A local folder records in `.copy-of` what it has from a store. Nothing else in it is ever overwritten or removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import fsspec

from vlmsafe.errors import InputError, RunError, VlmsafeError
from vlmsafe.io.disk import disk_errors, make_directory
from vlmsafe.io.files import write_atomically

_CHUNK = 2**20
_LISTS_KEPT = 2  # lists of which the objects are kept: a reader may still use the last but one
# Locks and the log of a scoring service belong to one machine, and hidden files are being written.
_LIST_NAME = re.compile(r"(\d{8,})-.+\.json")
_OBJECT_NAME = re.compile(r"[0-9a-f]{64}")
_NOT_COPIED = re.compile(r"(^|/)(lock|\..*)$|^logs/scorer\.log$")
_MARK = ".copy-of"  # the URL, and the digests of the files from it
_READS = 3  # attempts to read the lists, because older ones may be removed meanwhile
STUDY_TREE = "study"
_OF_STUDY = ("study.yaml", "claims.yaml", "protocol.json", "protocol.md", "journal.jsonl", "configs", "logs")


def is_url(place: str) -> bool:
    """Whether a place is the URL of a store and not a folder.

    >>> is_url("s3://bucket/runs"), is_url("runs/mine")
    (True, False)
    """
    return "://" in place


def known_scheme(place: str) -> str:
    """The kind of store that a place starts with, such as `s3` in `s3://bucket` or `S3:bucket`; empty for a folder."""
    scheme, colon, _ = place.partition(":")
    return scheme.lower() if colon and scheme.lower() in fsspec.available_protocols() else ""


class Unreachable(RunError):
    """The store does not answer, or answers with an error."""


class Taken(RunError):
    """Another process works on the run."""


class _Damaged(RunError):
    """An object that a list names is missing, or is not what was stored."""


def _print_note(note: str) -> None:
    print(note, file=sys.stderr, flush=True)


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Turn the exceptions of any kind of store into one line."""
    try:
        yield
    except VlmsafeError:
        raise
    except Exception as error:
        raise Unreachable(f"cannot reach {url}: {type(error).__name__}: {' '.join(str(error).split())}") from error


class Store:
    """A study's place at a URL."""

    def __init__(self, url: str, on_note: Callable[[str], None] = _print_note) -> None:
        """`on_note` is told when an older copy is used because the newest one is damaged."""
        scheme, slashes, place = url.rstrip("/").partition("://")
        self.url = scheme.lower() + slashes + place
        try:
            self._fs, self._path = fsspec.core.url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            raise InputError(f"cannot use '{url}' to keep runs: {' '.join(str(error).split())}") from None
        self._fs.use_listings_cache = False  # other machines write too
        self._on_note = on_note
        self._trees: dict[str, Tree] = {}

    def tree(self, name: str) -> Tree:
        """A run's files, by the run's name."""
        if name not in self._trees:
            path = posixpath.join(self._path, name)
            self._trees[name] = Tree(self._fs, path, f"{self.url}/{name}", self._on_note)
        return self._trees[name]

    def fetch_study(self, folder: Path) -> None:
        """Fetch the files of the study itself."""
        self.tree(STUDY_TREE).fetch(folder, _OF_STUDY, merge=True)

    def has_study(self) -> bool:
        """Whether there is a study in the store."""
        return self.tree(STUDY_TREE).newest() is not None

    def store_study(self, folder: Path) -> None:
        self.tree(STUDY_TREE).store(folder, STUDY_TREE, _OF_STUDY, mark=True)


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
        """None if it is incomplete, because a copy was killed while it wrote the list."""
        digest, _, text = data.partition(b"\n")
        if hashlib.sha256(text).hexdigest().encode() != digest:
            return None
        content = json.loads(text)
        return cls(number, content["owner"], content["files"])


class Tree:
    """Files of one run in a store."""

    def __init__(self, fs: Any, path: str, url: str, on_note: Callable[[str], None] = _print_note) -> None:
        self._fs, self._path, self._url, self._on_note = fs, path, url, on_note
        self._damaged: set[str] = set()  # objects that were read and are not what was stored; the next copy renews them

    def newest(self, but: Collection[Listing] = ()) -> Listing | None:
        """The newest complete list that is not in `but`."""
        with _reaching(self._url):
            for _ in range(_READS):
                found = next((listing for _, listing in self._listings() if listing not in but), None)
                if found is not None or not self._names("lists", _LIST_NAME):
                    return found
        return None

    def claim(self, owner: str) -> None:
        """Make a process the owner of the run.

        Rests of killed copies are not removed here, because the previous owner may be copying at this moment.
        """
        with _reaching(self._url):
            while True:
                before = self.newest()
                files = {} if before is None else before.files
                listing = Listing(0 if before is None else before.number + 1, owner, files)
                self._write(self._list_path(listing), listing.to_bytes())
                now = self.newest()
                if now is None or now.owner == owner:
                    return
                if now.number > listing.number:
                    raise self._taken(now)
                # The previous owner has just written a list with the same number: claim again with the next one.

    def fetch(self, folder: Path, only: Iterable[str] = (), *, merge: bool = False) -> bool:
        """Make a local folder equal to the newest list; whether there is a list. Without one the folder stays as it is.

        `only` names the files and folders to fetch; by default all of them. A folder with files that are not from this
        store is refused. With `merge` it is refused only if none of its files is from here; otherwise a file that was
        changed locally but not in the store stays.
        """
        with _reaching(self._url):
            tried: list[Listing] = []
            damaged: _Damaged | None = None
            while (listing := self.newest(tried)) is not None:
                try:
                    made = self._make(folder, listing, tuple(only), merge)
                except _Damaged as error:
                    # Either it was removed and there is a newer list, or it is lost and an older list is complete.
                    tried.append(listing)
                    damaged = error
                    continue
                if damaged is not None and listing.number < tried[-1].number:
                    self._on_note(f"{damaged}; the copy before it is used")
                return made
            if damaged is not None:
                raise damaged
        return False

    def _make(self, folder: Path, listing: Listing, only: Collection[str], merge: bool) -> bool:
        wanted = {
            name: digest
            for name, digest in listing.files.items()
            if not only or any(name == top or name.startswith(f"{top}/") for top in only)
        }
        marked = self._known(folder)
        known = marked or set()
        local = {name: _digest(path)[0] for name, path in _files(folder, only)}
        changed = {name for name, digest in local.items() if digest not in known and digest != wanted.get(name)}
        refused = changed and not (merge and marked is not None)
        if not wanted and (refused or not local):
            return False  # the run was claimed, but nothing was copied yet
        if refused:
            raise InputError(
                f"{folder} is not a copy of {self._url} ({min(changed)} is not from there), and nothing is "
                "overwritten; choose another --root, or move the folder away"
            )
        self._mark(folder, known | set(wanted.values()))  # a fetch that is killed leaves files of both
        for name in local.keys() - wanted.keys() - changed:
            (folder / name).unlink()
        for name, digest in wanted.items():
            if local.get(name) != digest and not (name in changed and digest in known):
                self._fetch_file(digest, folder / name)
        self._mark(folder, set(wanted.values()))
        return True

    def store(self, folder: Path, owner: str, only: Iterable[str] = (), *, mark: bool = False) -> None:
        """Copy the new files of a local folder to the store; a process may append to them meanwhile.

        With `mark` the folder counts as a copy from now on, so newer files may be fetched into it.
        """
        with _reaching(self._url):
            before = self._owned(owner)
            if mark and self._known(folder) is None:
                self._mark(folder, set())
            there = set(map(posixpath.basename, self._names("objects", _OBJECT_NAME)))
            # An object that no list names may be incomplete, so it is copied again.
            listed = set({} if before is None else before.files.values())
            files = self._add_files(folder, only, (there & listed) - self._damaged)
            before = self._owned(owner)  # copying takes a while
            if before is None or files != before.files:
                listing = Listing(0 if before is None else before.number + 1, owner, files)
                self._write(self._list_path(listing), listing.to_bytes())
                lists = list(self._listings())
                for _, other in lists:
                    if other.owner != owner and other.number >= listing.number:
                        self._remove(self._list_path(listing))
                        raise self._taken(other)
                self._tidy(lists, there)
            if mark:
                self._mark(folder, set(files.values()))

    def _owned(self, owner: str) -> Listing | None:
        """The newest list, None if there is none; an error if another process owns it."""
        listing = self.newest()
        if listing is not None and listing.owner != owner:
            raise self._taken(listing)
        return listing

    def _taken(self, listing: Listing) -> Taken:
        return Taken(f"{self._url} is worked on by another process now ({listing.owner}); this one stops")

    # -- the local folder --

    def _known(self, folder: Path) -> set[str] | None:
        """Digests of the files that a folder has from here; None if it was never copied from or to here."""
        try:
            url, *digests = (folder / _MARK).read_text().splitlines()
        except FileNotFoundError:
            return None
        return set(digests) if url == self._url else None

    def _mark(self, folder: Path, digests: set[str]) -> None:
        if self._known(folder) != digests:
            write_atomically(make_directory(folder) / _MARK, "\n".join([self._url, *sorted(digests)]).encode())

    def _add_files(self, folder: Path, only: Iterable[str], known: set[str]) -> dict[str, str]:
        files: dict[str, str] = {}
        for name, path in _files(folder, only):
            try:
                with path.open("rb") as file:
                    digest, size = _digest_of(file)
                    if digest not in known:
                        file.seek(0)
                        self._add(digest, file, size)
                        self._damaged.discard(digest)
            except FileNotFoundError:  # an old checkpoint that was just removed
                if path.exists():
                    raise
                continue
            files[name] = digest
        return files

    # -- the store --

    def _listings(self) -> Iterator[tuple[str, Listing]]:
        """Complete lists, newest first."""
        for path in sorted(self._names("lists", _LIST_NAME), reverse=True):
            number = int(posixpath.basename(path).partition("-")[0])
            try:
                listing = Listing.from_bytes(number, self._fs.cat_file(path))
            except FileNotFoundError:  # it was just removed, so there are newer ones
                continue
            if listing is not None:
                yield path, listing

    def _names(self, folder: str, form: re.Pattern[str]) -> list[str]:
        """The paths in a folder whose names have a form. Other files may lie there, such as .DS_Store."""
        self._fs.invalidate_cache()
        try:
            paths = self._fs.ls(posixpath.join(self._path, folder), detail=False)
        except FileNotFoundError:
            return []
        return [path for path in paths if form.fullmatch(posixpath.basename(path))]

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
        aside = path.with_name(f".{path.name}.{os.getpid()}.fetched")
        try:
            with disk_errors(path), aside.open("wb") as target:
                for chunk in self._chunks(digest):
                    target.write(chunk)
            if _digest(aside)[0] != digest:
                self._damaged.add(digest)
                raise _Damaged(f"{self._url} is damaged: {path.name} is not what was stored")
            with disk_errors(path):
                aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    def _chunks(self, digest: str) -> Iterator[bytes]:
        """An object piece by piece. Errors here are errors of the store, not of the disk."""
        with _reaching(self._url):
            try:
                with self._fs.open(self._object_path(digest), "rb") as source:
                    while chunk := source.read(_CHUNK):
                        yield chunk
            except FileNotFoundError as error:
                raise _Damaged(f"{self._url} is damaged: the object {digest} is missing, which it lists") from error

    def _tidy(self, lists: list[tuple[str, Listing]], there: set[str]) -> None:
        """Remove old lists, and those of the objects in `there` that no newer list names."""
        for path, _ in lists[_LISTS_KEPT:]:
            self._remove(path)
        for digest in there.difference(*(listing.files.values() for _, listing in lists[:_LISTS_KEPT])):
            self._remove(self._object_path(digest))

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # other processes remove it too
            self._fs.rm_file(path)


def _files(folder: Path, only: Iterable[str] = ()) -> list[tuple[str, Path]]:
    """The files of a folder to copy. Checkpoints come first, because they say how much of the other files they need."""
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
    """Digest and size of a file as it is now. It may grow meanwhile, but its content so far does not change."""
    size = left = os.fstat(file.fileno()).st_size
    digest = hashlib.sha256()
    while left and (chunk := file.read(min(left, _CHUNK))):
        digest.update(chunk)
        left -= len(chunk)
    return digest.hexdigest(), size
