"""The finished episodes of an unfinished evaluation, kept on disk so that an interruption loses none of them.

    evaluations/held-out.partial-<fingerprint>/
        plan.json           what the episodes were run with, for human readers
        00007-00007.json    the rows of a finished task, named after its first and last episode
        lock                held by the process at work

Each worker writes its own finished tasks, whole or not at all, so nothing is lost if the evaluation is killed. The
fingerprint in the name keeps different checkpoints, protocols, environments and versions apart. The folder is removed
when the table is written.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vlmsafe.envs.api import Env
from vlmsafe.errors import RunError
from vlmsafe.evaluation.plan import EpisodeTask, Plan, Row
from vlmsafe.io.disk import disk_errors, make_directory
from vlmsafe.io.files import write_atomically
from vlmsafe.io.locks import DirectoryLock

_MARK = ".partial-"


@dataclass(frozen=True)
class SavedTask:
    """A task that writes its rows to a file when it is done."""

    task: EpisodeTask
    path: Path

    def run(self, env: Env, tick: Callable[[int], None]) -> list[Row]:
        rows = self.task.run(env, tick)
        write_atomically(self.path, json.dumps(rows).encode())
        return rows


class UnfinishedEvaluation:
    """The finished episodes of one evaluation. It is a context that only one process at a time can enter."""

    def __init__(self, table: Path, plan: Plan) -> None:
        self._plan = plan
        # Absolute, because a worker may have another working directory.
        self.path = table.resolve().with_suffix(f"{_MARK}{plan.fingerprint}")
        self._lock = DirectoryLock(self.path)

    def __enter__(self) -> UnfinishedEvaluation:
        make_directory(self.path)
        self._lock.__enter__()
        write_atomically(self.path / "plan.json", json.dumps(self._plan.identity, indent=2).encode())
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            if self.path.is_dir() and not any(file.name[0].isdigit() for file in self.path.iterdir()):
                self.remove()  # no episode is finished, so there is nothing to continue
        finally:
            self._lock.__exit__(*exc)

    def saving(self, task: EpisodeTask) -> SavedTask:
        """The task, wrapped so that its rows are saved when it is done."""
        return SavedTask(task, self._file(task))

    def rows(self, task: EpisodeTask) -> list[Row] | None:
        """The rows of a finished task; None if it is not finished."""
        path = self._file(task)
        if not path.exists():
            return None
        try:
            rows: list[Row] = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path} is damaged: expected JSON, got: {error}; remove it, and its episodes are run again"
            ) from None
        return rows

    def others(self) -> list[Path]:
        """Folders of the same table that were begun with another checkpoint, setting or version."""
        mark = f"{self.path.name.rpartition(_MARK)[0]}{_MARK}"  # a name may hold characters that a glob would expand
        folders = self.path.parent.iterdir() if self.path.parent.is_dir() else ()
        return sorted(path for path in folders if path.name.startswith(mark) and path != self.path)

    def remove(self) -> None:
        """Remove the folder, once the table is written."""
        with disk_errors(self.path):
            shutil.rmtree(self.path)

    def _file(self, task: EpisodeTask) -> Path:
        return self.path / f"{task.episodes[0]:05d}-{task.episodes[-1]:05d}.json"
