"""An evaluation under way, on disk: an interrupted one keeps its finished episodes.

    evaluations/held-out.partial-<fingerprint>/
        plan.json           what the episodes were run with, for people
        00007-00007.json    the rows of a finished task, by the numbers of its first and last episode
        lock                held by the process at work

Workers write what they finish themselves, whole or not at all, so that nothing is lost however the evaluation ends. The
fingerprint in the name keeps apart what must not be mixed: another checkpoint, protocol, environment or version has a
folder of its own. The folder goes when the table is written.
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
class KeptTask:
    """An evaluation's task that writes its rows to a file when it is done."""

    task: EpisodeTask
    path: Path

    def run(self, env: Env, tick: Callable[[int], None]) -> list[Row]:
        rows = self.task.run(env, tick)
        write_atomically(self.path, json.dumps(rows).encode())
        return rows


class Partial:
    """The finished episodes of one evaluation. Use it as a context: only one process at a time may."""

    def __init__(self, table: Path, plan: Plan) -> None:
        self._plan = plan
        # In full: a worker's working directory is not ours.
        self.path = table.resolve().with_suffix(f"{_MARK}{plan.fingerprint}")
        self._lock = DirectoryLock(self.path)

    def __enter__(self) -> Partial:
        make_directory(self.path)
        self._lock.__enter__()
        write_atomically(self.path / "plan.json", json.dumps(self._plan.identity, indent=2).encode())
        return self

    def __exit__(self, *exc: object) -> None:
        self._lock.__exit__(*exc)

    def keeping(self, task: EpisodeTask) -> KeptTask:
        """The task, to be kept when it is done."""
        return KeptTask(task, self._file(task))

    def rows(self, task: EpisodeTask) -> list[Row] | None:
        """What a task has found, None where it is not done."""
        path = self._file(task)
        if not path.exists():
            return None
        try:
            rows: list[Row] = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise RunError(f"{path} is damaged ({error}); remove it, and its episodes are run again") from None
        return rows

    def others(self) -> list[Path]:
        """Folders of the same table that were begun with something else."""
        name = self.path.name.rpartition(_MARK)[0]
        return sorted(path for path in self.path.parent.glob(f"{name}{_MARK}*") if path != self.path)

    def remove(self) -> None:
        """All of it, once the table is written."""
        with disk_errors(self.path):
            shutil.rmtree(self.path)

    def _file(self, task: EpisodeTask) -> Path:
        return self.path / f"{task.episodes[0]:05d}-{task.episodes[-1]:05d}.json"
