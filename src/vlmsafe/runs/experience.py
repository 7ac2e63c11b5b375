"""The steps of a run that an off-policy learner keeps, one file per epoch under `replay/` in its directory.

A checkpoint holds a digest of them. Each epoch's digest covers the one before it, so that the last covers all.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from vlmsafe.errors import RunError
from vlmsafe.io.disk import disk_errors
from vlmsafe.io.files import write_atomically
from vlmsafe.runs.digest import content_digest

FOLDER = "replay"
Arrays = dict[str, NDArray[Any]]


def _path(run: Path, epoch: int) -> Path:
    return run / FOLDER / f"epoch-{epoch:05d}.safetensors"


def save_experience(run: Path, epoch: int, arrays: Arrays, before: str) -> str:
    """Write the steps of an epoch, and return their digest with all earlier ones, whose digest is `before`."""
    path = _path(run, epoch)
    with disk_errors(path):
        path.parent.mkdir(exist_ok=True)
    write_atomically(path, save(arrays))
    return content_digest(arrays, before)


def load_experience(run: Path, epoch: int, before: str) -> tuple[Arrays, str]:
    """The steps of an epoch, and their digest with all earlier ones."""
    path = _path(run, epoch)
    try:
        arrays = load(path.read_bytes())
    except (OSError, SafetensorError, ValueError) as error:
        raise RunError(
            f"{path} cannot be read ({' '.join(str(error).split())}); a run of this method needs the steps of all its "
            "epochs to continue. Put the file back, or start the run anew"
        ) from None
    return arrays, content_digest(arrays, before)


def check_experience(run: Path, found: str, recorded: str) -> None:
    """Refuse files that are not those of a checkpoint."""
    if found != recorded:
        raise RunError(
            f"the files in {run / FOLDER} are not those that the checkpoint was computed with; put them back, or start "
            "the run anew"
        )


def copy_experience(source: Path, target: Path, epochs: int) -> None:
    """Give a run the steps of another one's first epochs."""
    missing = next((path for epoch in range(1, epochs + 1) if not (path := _path(source, epoch)).exists()), None)
    if missing is not None:
        raise RunError(f"{missing} is missing; a run of this method needs the steps of all epochs before a checkpoint")
    with disk_errors(target):
        (target / FOLDER).mkdir(exist_ok=True)
        for epoch in range(1, epochs + 1):
            shutil.copyfile(_path(source, epoch), _path(target, epoch))
