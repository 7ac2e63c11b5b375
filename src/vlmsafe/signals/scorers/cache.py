"""A cache on disk of the scores of slow and paid models, shared by runs, bounded in size, for several processes.

`ScoreCache` is one SQLite file: a key of 32 bytes to the similarities of one frame. It holds digests and scores, and no
frames. When it is full, the entries that were not used for longest go. `CachedScorer` puts it before any scorer of
frames.

A key names the frame, the scorer with its model, revision, precision and options, the questions, and a generation: a
model behind a name may be replaced. So the model is asked about a fixed picture once. If its answer differs from the
one that is on record, beyond rounding, scores of the former model are not used.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vlmsafe.errors import InputError, RunError
from vlmsafe.io.disk import make_directory
from vlmsafe.io.files import files_digest
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import (
    SAME_MODEL,
    GateKind,
    InputKind,
    Inputs,
    Precision,
    Rule,
    Scorer,
    Similarities,
    check_frames,
    check_similarities,
)

if TYPE_CHECKING:
    from vlmsafe.signals.scorers.loaders import Loading
    from vlmsafe.signals.scorers.registry import ScorerName

DEFAULT_MB = 256
"""The bound of the cache where none is set: about two million frames."""

_APPLICATION, _VERSION = 0x766C6D73, 1  # "vlms" in the header of the file, and the version of its tables
_BUSY_SECONDS = 60.0  # another process may write for that long
_TOUCH_SECONDS = 3600  # a use is noted only if the last noted one is older: reading need not write
_ROOM = 0.9  # what eviction leaves of the bound, so that it is rare
_AT_ONCE = 500  # keys in one statement
_PROBE = 64  # pixels of the fixed picture
_NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "fuse", "ceph", "glusterfs", "9p")
_TABLES = """
CREATE TABLE scores (key BLOB PRIMARY KEY, similarities BLOB NOT NULL, used INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX by_use ON scores (used);
CREATE TABLE models (identity BLOB NOT NULL, generation INTEGER NOT NULL, probe BLOB NOT NULL,
    PRIMARY KEY (identity, generation)) WITHOUT ROWID;
CREATE TABLE total (bytes INTEGER NOT NULL);
INSERT INTO total VALUES (0)
"""


def default_path() -> Path:
    """Where a user's scores are kept: $XDG_CACHE_HOME/vlmsafe, or ~/.cache/vlmsafe."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return folder / "vlmsafe" / "scores.sqlite"


class ScoreCache:
    """One file of scores. Several threads and processes may use it at a time."""

    def __init__(self, path: Path, megabytes: int = DEFAULT_MB, now: Callable[[], float] = time.time) -> None:
        self.path, self._bound, self._now = path, megabytes << 20, now
        self._lock = threading.Lock()
        self._open: sqlite3.Connection | None = None
        self._reached = False
        make_directory(path.parent)
        if path.is_dir():
            raise InputError(f"{path} is a folder; signal.cache names a file, or is 'auto' or 'off'")
        with self._using():
            pass  # what is wrong with the file shows now
        self._reached = True

    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The entries that there are, by key."""
        now, late = int(self._now()), []
        found: dict[bytes, bytes] = {}
        with self._using():
            for key, value, used in self._rows(keys):
                found[key] = value
                if used < now - _TOUCH_SECONDS:
                    late.append((now, key))
            if late:
                with self._writing():
                    self._file.executemany("UPDATE scores SET used = ? WHERE key = ?", late)
        return found

    def add(self, entries: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Keep new entries, and remove those that were not used for longest where the file would become too large.

        Returns the entries of these keys. Where another process was faster, they are that process's.
        """
        now = int(self._now())
        kept = dict(entries)
        with self._using(), self._writing():
            kept |= {key: value for key, value, _ in self._rows(list(entries))}
            rows = [(key, value, now) for key, value in entries.items()]
            before = self._file.total_changes
            self._file.executemany("INSERT OR IGNORE INTO scores VALUES (?, ?, ?)", rows)
            new = self._file.total_changes - before
            if new:
                self._count(new * _bytes_of(len(rows[0][1])))
                self._evict()
        return kept

    def generation(self, identity: bytes, probe: Similarities, tolerance: float) -> int:
        """The number of the model that answers about the fixed picture like this; a new one for a new model."""
        with self._using(), self._writing():
            rows = self._file.execute(
                "SELECT generation, probe FROM models WHERE identity = ? ORDER BY generation", (identity,)
            ).fetchall()
            for number, then in rows:
                known = np.frombuffer(then, "<f4")
                if known.shape == probe.shape and np.allclose(known, probe, rtol=0.0, atol=tolerance):
                    return int(number)
            self._file.execute("INSERT INTO models VALUES (?, ?, ?)", (identity, len(rows), _packed(probe)))
            return len(rows)

    def __len__(self) -> int:
        with self._using():
            return int(self._file.execute("SELECT count(*) FROM scores").fetchone()[0])

    def close(self) -> None:
        """Release the file; using the cache again opens it again."""
        with self._lock:
            file, self._open = self._open, None
            if file is not None:
                file.close()

    @contextmanager
    def _using(self) -> Iterator[None]:
        """One thread at a time, with the file open, and errors as one line."""
        with self._lock, self._errors():
            if self._open is None:
                self._create()
                self._open = sqlite3.connect(self.path, _BUSY_SECONDS, isolation_level=None, check_same_thread=False)
                try:
                    self._prepare()
                except BaseException:
                    self._open.close()
                    self._open = None
                    raise
            yield

    def _create(self) -> None:
        """Make the file if it is not there, readable for its user only.

        An existing file must not be opened here: closing it again would drop the locks that SQLite has on it.
        """
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        if not os.access(self.path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    @property
    def _file(self) -> sqlite3.Connection:
        assert self._open is not None
        return self._open

    def _rows(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, bytes, int]]:
        for start in range(0, len(keys), _AT_ONCE):
            part = keys[start : start + _AT_ONCE]
            places = ",".join("?" * len(part))
            yield from self._file.execute(
                f"SELECT key, similarities, used FROM scores WHERE key IN ({places})", part
            ).fetchall()

    def _count(self, change: int) -> int:
        """Change the bytes that all entries take together, and return them; counting the rows would read them all."""
        self._file.execute("UPDATE total SET bytes = bytes + ?", (change,))
        return int(self._file.execute("SELECT bytes FROM total").fetchone()[0])

    def _evict(self) -> None:
        surplus = self._count(0) - self._bound
        if surplus <= 0:
            return
        surplus += int((1.0 - _ROOM) * self._bound)
        removed: list[tuple[bytes]] = []
        freed = 0
        for key, length in self._file.execute("SELECT key, length(similarities) FROM scores ORDER BY used, key"):
            if freed >= surplus:
                break
            removed.append((key,))
            freed += _bytes_of(length)
        self._file.executemany("DELETE FROM scores WHERE key = ?", removed)
        self._count(-freed)

    def _prepare(self) -> None:
        self._file.execute("BEGIN")
        empty = self._is_empty()
        self._file.execute("COMMIT")
        # In WAL mode readers and a writer do not wait for each other, but it needs memory that machines cannot share.
        self._set_journal("DELETE" if _on_network(self.path) else "WAL")
        self._file.execute("PRAGMA synchronous = NORMAL")
        if empty:
            with self._writing():
                if self._is_empty():  # no other process has been faster
                    for statement in _TABLES.split(";"):
                        self._file.execute(statement)
                    self._file.execute(f"PRAGMA application_id = {_APPLICATION}")
                    self._file.execute(f"PRAGMA user_version = {_VERSION}")

    def _is_empty(self) -> bool:
        """Whether the file has no tables yet; an InputError if it has those of something else."""
        tables = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        application, version = (
            self._file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if tables and (application, version) != (_APPLICATION, _VERSION):
            raise InputError(
                f"{self.path} is no cache of scores of this version of vlmsafe; name another file with --signal.cache"
            )
        return not tables

    def _set_journal(self, mode: str) -> None:
        """Choose the journal. SQLite does not wait here while another process does the same, so this does."""
        until = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                self._file.execute(f"PRAGMA journal_mode = {mode}")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.02)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction; it begins as a writer, so that two processes cannot wait for each other."""
        self._file.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._file.in_transaction:  # SQLite ends it by itself after some errors
                self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What SQLite or the disk refuses, as one line that says what to do."""
        kind = RunError if self._reached else InputError
        otherwise = "pass --signal.cache with another file or 'off'" + ", and resume the run" * self._reached
        try:
            yield
        except OSError as error:
            raise kind(f"cannot write the cache of scores {self.path}: {error.strerror}; {otherwise}") from None
        except sqlite3.OperationalError as error:  # locked, full, read-only
            raise kind(f"cannot use the cache of scores {self.path}: {error}; {otherwise}") from None
        except sqlite3.DatabaseError as error:
            raise kind(
                f"{self.path} is no cache of scores, or a damaged one ({error}); move it away, with its -wal and -shm, "
                f"or {otherwise}"
            ) from None


class CachedScorer(Scorer):
    """Asks a scorer of frames only about frames that the cache does not know. It has the scorer's attributes.

    Frames that are missing go to the scorer together and in their order, each once.
    """

    looks_at: ClassVar[InputKind] = "frame"
    rules: tuple[Rule, ...]  # type: ignore[misc]
    bounds: tuple[float, float]  # type: ignore[misc]
    gate: GateKind  # type: ignore[misc]

    def __init__(self, scorer: Scorer, cache: ScoreCache, identity: Mapping[str, Any], precision: Precision) -> None:
        """`identity` is all that scores depend on besides the frame, as plain values."""
        assert scorer.looks_at == "frame"
        for name in Scorer.__annotations__:
            setattr(self, name, getattr(scorer, name))
        self.whole = False  # its batches have gaps
        self._scorer, self._cache, self._identity, self._precision = scorer, cache, dict(identity), precision
        self._prefix: bytes | None = None
        self._hits = self._asked = 0

    @property
    def uncached(self) -> Scorer:
        return self._scorer

    def score(self, inputs: Inputs) -> Similarities:
        check_frames(inputs, self.frames)
        prefix = self._key()
        keys = [hashlib.blake2b(prefix + _digest(frame), digest_size=32).digest() for frame in inputs]
        found = self._cache.find(list(dict.fromkeys(keys)))
        first = {key: place for place, key in reversed(list(enumerate(keys))) if key not in found}
        missing = sorted(first.values())
        if missing:
            whole = len(missing) == len(inputs)  # then nothing is copied
            scored = self._checked(inputs if whole else inputs[missing], len(missing))
            new = {keys[place]: _packed(row) for place, row in zip(missing, scored, strict=True)}
            found |= self._cache.add(new)
        self._asked += len(missing)
        self._hits += len(inputs) - len(missing)
        rows = [np.frombuffer(found[key], "<f4") for key in keys]
        return np.array(rows, np.float32).reshape(len(inputs), sum(self.groups))

    def with_prompts(self, prompts: PromptSet) -> Scorer | None:
        other = self._scorer.with_prompts(prompts)
        if other is None:
            return None
        identity = self._identity | {"prompts": prompts.to_dict(), "model": lasting(other)}
        return CachedScorer(other, self._cache, identity, self._precision)

    def with_batch(self, batch: int) -> Scorer:
        return CachedScorer(self._scorer.with_batch(batch), self._cache, self._identity, self._precision)

    def describe(self) -> dict[str, Any]:
        return self._scorer.describe()

    def notes(self, env: str | None = None) -> list[str]:
        return self._scorer.notes(env)

    def bill(self) -> dict[str, float]:
        return {"frames": self._asked, **self._scorer.bill(), "cached": self._hits}

    def close(self) -> None:
        self._scorer.close()
        self._cache.close()

    def _key(self) -> bytes:
        """What all keys of this scorer begin with; the model is asked about the fixed picture for it, once."""
        if self._prefix is None:
            text = json.dumps(self._identity, sort_keys=True, default=str).encode()
            identity = hashlib.blake2b(text, digest_size=32).digest()
            shape = (1, _PROBE, _PROBE, 3 * self.frames)
            probe = self._checked(np.random.default_rng(0).integers(0, 256, shape, np.uint8), 1)[0]
            number = self._cache.generation(identity, probe, SAME_MODEL[self._precision])
            self._prefix = identity + number.to_bytes(4, "little")
        return self._prefix

    def _checked(self, inputs: Inputs, count: int) -> Similarities:
        """The scorer's similarities; wrong ones must not be kept."""
        return check_similarities(self._scorer, self._scorer.score(inputs), count)


def with_cache(scorer: Scorer, name: ScorerName, loading: Loading, cache: str, megabytes: int | None) -> CachedScorer:
    """A scorer of frames with a cache before it: that of the user ('auto'), or a file."""
    described, prompts = name.kind.compares == "descriptions", loading.prompts
    identity = {
        "scorer": str(name.absolute),
        "precision": loading.precision,
        "frames": scorer.frames,
        "prompts": [prompts.positive_description, prompts.negative_description] if described else prompts.to_dict(),
        "model": lasting(scorer),
        "files": files_digest(Path(name.absolute.argument)) if name.kind.path and name.argument else None,
        "source": scorer.source.digest if scorer.source is not None else None,
    }
    path = default_path() if cache == "auto" else Path(cache).expanduser()
    try:
        return CachedScorer(scorer, ScoreCache(path, megabytes or DEFAULT_MB), identity, loading.precision)
    except BaseException:
        scorer.close()
        raise


def lasting(scorer: Scorer) -> dict[str, Any]:
    """What a scorer says about its model, without the place where it runs."""
    return {name: value for name, value in scorer.describe().items() if name not in ("device", "service", "endpoint")}


def _digest(frame: Inputs) -> bytes:
    shape = np.array(frame.shape, "<i8").tobytes()
    return hashlib.blake2b(shape + np.ascontiguousarray(frame).tobytes(), digest_size=32).digest()


def _packed(similarities: Similarities) -> bytes:
    return np.asarray(similarities, "<f4").tobytes()


def _bytes_of(length: int) -> int:
    """What an entry of so many bytes takes in the file, with its key in the table and in the index."""
    return 160 + 2 * length  # pages of a tree are two thirds full


def _on_network(path: Path) -> bool:
    """Whether a file lies on a file system that machines share, as far as the system tells."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return False
    real = path.resolve()
    mounts = [(Path(fields[1]), fields[2]) for line in lines if len(fields := line.split()) > 2]
    inside = [(len(place.parts), kind) for place, kind in mounts if place == real or place in real.parents]
    return max(inside, default=(0, ""))[1].startswith(_NETWORK)
