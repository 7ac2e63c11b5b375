"""How a running study keeps its folder and its store equal.

If the store cannot be reached, the work is done later. No run fails because of that, and nothing else waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from vlmsafe.runs.layout import is_run
from vlmsafe.studies.remote.store import STUDY_TREE, Store, Unreachable
from vlmsafe.studies.study import RunSpec

_AGAIN = 2.0  # seconds between two tries, and between two copies of the journal
_SAY_AGAIN = 600.0  # seconds between two lines that say that the store cannot be reached


def fetch(store: Store, specs: Sequence[RunSpec], folder: Path) -> None:
    """Update a study's folder from its store."""
    store.fetch_study(folder)
    for spec in specs:
        store.tree(spec.name).fetch(spec.path)


def keep_new(store: Store, specs: Sequence[RunSpec]) -> None:
    """Copy runs to the store that only the folder has."""
    for spec in specs:
        newest = store.tree(spec.name).newest()
        if (newest is None or not newest.files) and is_run(spec.path):
            keep(store, spec)


def keep(store: Store, spec: RunSpec) -> None:
    """Copy a run that was made here to the store."""
    tree = store.tree(spec.name)
    tree.claim(STUDY_TREE)
    tree.store(spec.path, STUDY_TREE, mark=True)


class StoreSync:
    """Copies between a study's folder and its store. Without a store it does nothing."""

    def __init__(self, store: Store | None, folder: Path, say: Callable[[str], None]) -> None:
        self._store, self._folder, self._say = store, folder, say
        self._due: dict[str, Callable[[], object]] = {}
        self._handed: set[str] = set()  # the runs whose settings the store has
        self._changed = True
        self._reach_again = self._store_again = self._say_again = 0.0  # times

    def fetch_later(self, spec: RunSpec) -> None:
        """A command worked on a run: fetch the run before it is looked at."""
        if self._store is not None:
            self._due[spec.name] = partial(self._store.tree(spec.name).fetch, spec.path)

    def keep_later(self, spec: RunSpec) -> None:
        """A run was made here: copy it to the store before anything else is done with it."""
        if self._store is not None:
            self._due[spec.name] = partial(keep, self._store, spec)

    def settled(self, spec: RunSpec) -> bool:
        """Copy a run if that is due; whether it is equal here and at the store."""
        if spec.name in self._due and self._reach(self._due[spec.name]):
            del self._due[spec.name]
        return spec.name not in self._due

    def has_settings(self, spec: RunSpec) -> bool:
        """Copy the settings of a run, which are written by now; whether the store has them."""
        if self._store is not None and spec.name not in self._handed:
            self._changed = True
            if self.store_study(now=True):
                self._handed.add(spec.name)
        return self._store is None or spec.name in self._handed

    def journal_changed(self) -> None:
        self._changed = True

    def store_study(self, now: bool = False) -> bool:
        """Copy journal, logs and settings if they changed, but not too often; whether the store has them."""
        if self._store is not None and self._changed and (now or time.monotonic() >= self._store_again):
            self._changed = not self._reach(partial(self._store.store_study, self._folder))
            self._store_again = time.monotonic() + _AGAIN
        return not self._changed

    def store_at_last(self) -> None:
        """The same at the end of the study, without waiting after an earlier failure."""
        self._reach_again = self._say_again = 0.0
        self.store_study(now=True)

    def _reach(self, action: Callable[[], object]) -> bool:
        """Do something at the store; whether it could be reached. A failure is not reported at every try."""
        now = time.monotonic()
        if now < self._reach_again:
            return False
        try:
            action()
        except Unreachable as error:
            if now >= self._say_again:
                self._say(str(error))
                self._say_again = now + _SAY_AGAIN
            self._reach_again = time.monotonic() + _AGAIN
            return False
        return True
