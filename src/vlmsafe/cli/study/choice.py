"""Which study a command is about, and where its runs are: the options that all `vlmsafe study` commands share."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from vlmsafe.errors import InputError

if TYPE_CHECKING:
    from vlmsafe.studies.remote.store import Store
    from vlmsafe.studies.study import Study


@dataclass(frozen=True)
class StudyChoice:
    """Which study, at which scale, and where its runs are."""

    study: tyro.conf.Positional[str]
    """The name of a study in the package, a YAML file, or the folder of a study that was started."""
    scale: float = 1.0
    """Shrink steps, seeds and episodes, such as 0.01; at least 2 epochs, 2 seeds and 2 episodes remain."""
    scorer: str | None = None
    """Replace CLIP and Qwen2-VL by this scorer, such as embedded or noise, to try a study without their weights."""
    root: Path = Path("runs")
    """Folder of all studies; this study is in a folder of its name inside."""
    dir: str | None = None
    """Folder of this study, if it has another name or place; or a URL, such as s3://bucket/mine."""

    def load(self) -> tuple[Study, Path]:
        """The study and its folder; for a study at a URL, the folder of the local copy."""
        from vlmsafe.runs.layout import STUDY_FILE
        from vlmsafe.studies.schema import load_study

        study = load_study(self.study)
        if self.scale != 1.0 or self.scorer is not None:
            study = study.varied(self.scale, self.scorer)
        begun = Path(self.study)
        folder = begun if (begun / STUDY_FILE).is_file() else self.root / study.title
        return study, Path(self.dir) if self.dir and self.store() is None else folder

    def update_copy(self, study: Study, folder: Path) -> None:
        """Update the local copy of a study at a URL, unless another process is working in it and does so."""
        from vlmsafe.io.disk import make_directory
        from vlmsafe.io.locks import DirectoryLock, is_locked
        from vlmsafe.studies.remote.study_side import fetch

        store = self.store()
        if store is not None and not is_locked(folder) and store.has_study():
            with DirectoryLock(make_directory(folder)):
                fetch(store, study.expand(folder), folder)

    def store(self) -> Store | None:
        """The store of the study, if --dir is a URL."""
        from vlmsafe.studies.remote.store import Store, is_url, known_scheme

        if not self.dir:
            return None
        if known_scheme(self.dir) == "memory":
            raise InputError(
                "memory:// exists only inside one process, but each command of a study is a process; use file://"
            )
        if is_url(self.dir):
            return Store(self.dir)
        if (scheme := known_scheme(self.dir)) and not Path(self.dir).exists():
            raise InputError(f"'{self.dir}' is not a URL; two slashes must follow: {scheme}://...")
        return None

    def command(self, verb: str, folder: Path) -> str:
        """The command line of another verb for the same study."""
        at = f" --dir {shlex.quote(self.dir or '')}" if self.store() is not None else ""
        return f"vlmsafe study {verb} {shlex.quote(str(folder))}{at}"
