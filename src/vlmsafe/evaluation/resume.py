"""The finished episodes of an unfinished evaluation or trace, kept on disk so that an interruption loses none of them.

    evaluations/held-out.partial-<fingerprint>/
        plan.json           what the episodes were run with, for human readers
        00007-00007.json    the rows of a finished task, named after its first and last episode
        lock                held by the process at work

Each worker of an evaluation writes its own finished tasks, whole or not at all, so nothing is lost if the evaluation is
killed. A trace has a folder of the same kind under `traces`, see `vlmsafe.evaluation.trace.unfinished`. The fingerprint
in the name keeps different checkpoints, protocols, environments and versions apart. The folder is removed when the
table is written.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from vlmsafe.envs.api import Env
from vlmsafe.errors import RunError
from vlmsafe.evaluation.plan import EpisodeTask, Plan, Row, fingerprint_of
from vlmsafe.io.disk import disk_errors, make_directory
from vlmsafe.io.files import write_atomically
from vlmsafe.io.locks import DirectoryLock

_MARK = ".partial-"


class UnfinishedTable:
    """The folder next to a table with its finished tasks. It is a context that only one process at a time can enter."""

    def __init__(self, table: Path, identity: Mapping[str, Any], *, repeatable: bool = True) -> None:
        """`identity` is everything that the rows depend on, except their number.

        If it is not `repeatable`, no later process can have the same, and the folder does not outlive this one.
        """
        self._identity, self._repeatable = identity, repeatable
        # Absolute, because a worker may have another working directory.
        self.path = table.resolve().with_suffix(f"{_MARK}{fingerprint_of(identity)}")
        self._lock = DirectoryLock(self.path)

    def __enter__(self) -> Self:
        make_directory(self.path)
        self._lock.__enter__()
        write_atomically(self.path / "plan.json", json.dumps(self._identity, indent=2).encode())
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            begun = self.path.is_dir() and any(file.name[0].isdigit() for file in self.path.iterdir())
            if self.path.is_dir() and not (begun and self._repeatable):
                self.remove()  # there is nothing to continue
        finally:
            self._lock.__exit__(*exc)

    def others(self) -> list[Path]:
        """Folders of the same table that were begun with another checkpoint, setting or version."""
        mark = f"{self.path.name.rpartition(_MARK)[0]}{_MARK}"  # a name may hold characters that a glob would expand
        folders = self.path.parent.iterdir() if self.path.parent.is_dir() else ()
        return sorted(path for path in folders if path.name.startswith(mark) and path != self.path)

    def note_others(self, on_note: Callable[[str], None]) -> None:
        """Mention those folders, which nothing removes."""
        for other in self.others():
            on_note(f"{other} holds episodes of another checkpoint, setting or version; they are left where they are")

    def remove(self) -> None:
        """Remove the folder, once the table is written."""
        with disk_errors(self.path):
            shutil.rmtree(self.path)

    def file(self, task: EpisodeTask, ending: str) -> Path:
        """A file of a finished task."""
        return self.path / f"{task.episodes[0]:05d}-{task.episodes[-1]:05d}{ending}"


class EpisodeCount:
    """Tells how many episodes of a plan are done while its missing tasks run."""

    def __init__(
        self,
        plan: Plan,
        missing: Sequence[EpisodeTask],
        on_episode: Callable[[int], None],
        on_note: Callable[[str], None],
    ) -> None:
        self._missing, self._on_episode = missing, on_episode
        self._done = plan.episodes - sum(len(task.episodes) for task in missing)
        if self._done:
            on_note(f"{self._done} of {plan.episodes} episodes are already done")
        on_episode(self._done)

    def finished(self, place: int) -> None:
        """One of the missing tasks is done, by its place among them."""
        self._done += len(self._missing[place].episodes)
        self._on_episode(self._done)


@dataclass(frozen=True)
class SavedTask:
    """A task that writes its rows to a file when it is done."""

    task: EpisodeTask
    path: Path

    def run(self, env: Env, tick: Callable[[int], None]) -> list[Row]:
        rows = self.task.run(env, tick)
        write_atomically(self.path, json.dumps(rows).encode())
        return rows


class UnfinishedEvaluation(UnfinishedTable):
    """The finished episodes of one evaluation."""

    def __init__(self, table: Path, plan: Plan) -> None:
        super().__init__(table, plan.identity, repeatable=plan.repeatable)

    def saving(self, task: EpisodeTask) -> SavedTask:
        """The task, wrapped so that its rows are saved when it is done."""
        return SavedTask(task, self.file(task, ".json"))

    def rows(self, task: EpisodeTask) -> list[Row] | None:
        """The rows of a finished task; None if it is not finished."""
        path = self.file(task, ".json")
        if not path.exists():
            return None
        try:
            rows: list[Row] = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path} is damaged: expected JSON, got: {error}; remove it, and its episodes are run again"
            ) from None
        return rows
