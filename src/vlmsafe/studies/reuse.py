"""Taking a finished run of another study in place of training the same one again.

Studies of one paper share arms: the runs of its component pairs are runs of its grid. A run is decided by its
configuration, seed included, so an equal one that is finished is copied, with its records and checkpoints. Evaluations
and traces stay behind: each study asks for its own, and what it finds may not depend on which study came first. A copy
is a run like any other, and says in its events where it comes from.

A crash leaves no half run: files are gathered aside under a name that is no run's, the folder is put in place in one
step, and only then does its configuration, without which a directory is no run, get its name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from vlmsafe.errors import InputError, RunError
from vlmsafe.io.disk import disk_errors, make_directory, sync_directory
from vlmsafe.io.locks import is_locked
from vlmsafe.runs.run import Run
from vlmsafe.studies.progress import differences
from vlmsafe.studies.study import RunSpec, folder_of

_CONFIG, _WAITING = "config.yaml", "config.yaml.copied"
_LEFT_BEHIND = ("lock", "tensorboard", "evaluations", "traces", "*.partial", "*.partial-*")


def equal_run(spec: RunSpec, root: Path) -> Run | None:
    """A finished run of another study under `root` that is the same run."""
    for place in _candidates(spec, root):
        try:
            run = Run.open(place)
            if not differences(run, spec) and run.status() == "finished":
                return run
        except (InputError, RunError):
            continue  # a damaged run of another study is that study's matter, and not taken
    return None


def _candidates(spec: RunSpec, root: Path) -> Iterator[Path]:
    own = spec.path.parents[2].resolve()  # arms of one study that are equal are trained each by itself
    for path in sorted(root.glob(f"*/{folder_of(spec.env)}/*/seed-{spec.seed}/{_CONFIG}")):
        if path.parents[3].resolve() != own:
            yield path.parent


def take_over(run: Run, spec: RunSpec, aside: Path) -> None:
    """Put a copy of a run in the place of one that does not exist yet; `aside` is a folder for the time between."""
    staged = make_directory(aside) / "-".join(spec.path.parts[-3:])
    with disk_errors(staged):
        shutil.rmtree(staged, ignore_errors=True)
        shutil.copytree(run.path, staged, ignore=shutil.ignore_patterns(_CONFIG, *_LEFT_BEHIND))
        make_directory(staged / "evaluations")
        shutil.copyfile(run.path / _CONFIG, staged / _WAITING)
        make_directory(spec.path.parent)
        # Without a configuration it is no run: at most what one left that ended before it began.
        shutil.rmtree(spec.path, ignore_errors=True)
        staged.rename(spec.path)
        sync_directory(spec.path.parent)
    finish_copy(spec)
    Run.open(spec.path).event("copied", source=os.fspath(run.path))


def finish_copy(spec: RunSpec) -> None:
    """Give a copy its configuration, where a crash came in between."""
    if (spec.path / _WAITING).exists() and not (spec.path / _CONFIG).exists() and not is_locked(spec.path):
        with disk_errors(spec.path):
            (spec.path / _WAITING).rename(spec.path / _CONFIG)
            sync_directory(spec.path)
