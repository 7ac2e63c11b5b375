"""Copying a finished run of another study instead of training the same run again.

Studies of one paper share arms: the runs of its component pairs are also runs of its grid. A run is equal to another
if it has the same configuration, seed included, and the same code computed it: equal versions of this package and of
the environment. A finished equal run is copied with its records and checkpoints. Evaluations and traces are not
copied: each study makes its own, so its results do not depend on which study ran first. The events of a copy say where
it came from.

A crash never leaves half a run. The files are first copied to a folder that is not a run, then that folder is renamed
in one step, and only then does its configuration get its name: a directory without config.yaml is not a run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from vlmsafe import kernels
from vlmsafe.errors import InputError, RunError
from vlmsafe.io.disk import disk_errors, make_directory, sync_directory
from vlmsafe.io.locks import is_locked
from vlmsafe.runs.run import Run
from vlmsafe.runs.versions import kernels_of, other_code
from vlmsafe.studies.steps import differences
from vlmsafe.studies.study import RunSpec, folder_of

_CONFIG, _WAITING = "config.yaml", "config.yaml.copied"
_NOT_COPIED = ("lock", "tensorboard", "evaluations", "traces", "*.partial", "*.partial-*")


def equal_run(spec: RunSpec, root: Path, on_refusal: Callable[[str], None] = lambda why: None) -> Run | None:
    """A finished run of another study under `root` that is equal to `spec`.

    `on_refusal` is told of runs that were refused only because other code computed them, if no run was found.
    """
    refused = []
    for place in _candidates(spec, root):
        try:
            run = Run.open(place)
            if differences(run, spec) or run.status() != "finished":
                continue
            why = other_code(run, spec.config) or _other_kernels(run, spec)
        except (InputError, RunError):
            continue  # the study that a damaged run belongs to reports it
        if why is None:
            return run
        refused.append(f"{place}: {why}")
    if refused:
        more = f" (and {len(refused) - 1} more like it)" if len(refused) > 1 else ""
        on_refusal(f"{refused[0]}{more}")
    return None


def _other_kernels(run: Run, spec: RunSpec) -> str | None:
    """Why a run may have other numbers than the study would get."""
    wanted = spec.config.kernels if kernels.unavailable() is None else "native"
    had = kernels_of(run)
    return None if had == wanted else f"it was computed with {had} kernels, and the study wants {wanted} ones"


def _candidates(spec: RunSpec, root: Path) -> Iterator[Path]:
    own = spec.path.parents[2].resolve()  # equal arms of the same study are each trained
    for path in sorted(root.glob(f"*/{folder_of(spec.env)}/*/seed-{spec.seed}/{_CONFIG}")):
        if path.parents[3].resolve() != own:
            yield path.parent


def take_over(run: Run, spec: RunSpec, copies: Path) -> None:
    """Copy a finished run to where `spec` belongs; `copies` is a folder for the incomplete copy."""
    staged = make_directory(copies) / "-".join(spec.path.parts[-3:])
    with disk_errors(staged):
        shutil.rmtree(staged, ignore_errors=True)
        shutil.copytree(run.path, staged, ignore=shutil.ignore_patterns(_CONFIG, *_NOT_COPIED))
        make_directory(staged / "evaluations")
        shutil.copyfile(run.path / _CONFIG, staged / _WAITING)
        make_directory(spec.path.parent)
        # There is no configuration here, so this is not a run, at most the rest of one that never started.
        shutil.rmtree(spec.path, ignore_errors=True)
        staged.rename(spec.path)
        sync_directory(spec.path.parent)
    finish_copy(spec)
    Run.open(spec.path).event("copied", source=os.fspath(run.path))


def finish_copy(spec: RunSpec) -> None:
    """Complete a copy that a crash interrupted: give it its configuration."""
    if (spec.path / _WAITING).exists() and not (spec.path / _CONFIG).exists() and not is_locked(spec.path):
        with disk_errors(spec.path):
            (spec.path / _WAITING).rename(spec.path / _CONFIG)
            sync_directory(spec.path)
