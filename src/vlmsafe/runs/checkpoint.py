"""Checkpoints: each is one safetensors file with a checksum. Nothing is unpickled.

Arrays (networks, optimiser moments, normaliser, episode-cost window) are tensors. Counters and the multiplier are JSON
text in the file's header. A digest over both reveals damage.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from vlmsafe.errors import RunError
from vlmsafe.io.disk import disk_errors
from vlmsafe.io.files import write_atomically
from vlmsafe.learners.networks import Shape
from vlmsafe.runs.digest import content_digest, state_digest

FORMAT = 2
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run between two epochs."""

    epoch: int
    """Finished epochs; 0 is the untrained start."""
    arrays: Arrays
    values: dict[str, Any]
    """Everything else, as plain values."""

    @property
    def trained(self) -> bool:
        return self.epoch > 0

    @property
    def shape(self) -> Shape:
        """The sizes of its networks."""
        sizes = dict(self.values["shape"])
        return Shape(**{**sizes, "hidden": tuple(sizes["hidden"])})

    def to_bytes(self) -> bytes:
        """The content of its file."""
        text = json.dumps({"format": FORMAT, "epoch": self.epoch, "values": self.values}, sort_keys=True)
        return save(self.arrays, metadata={"state": text, "sha256": content_digest(self.arrays, text)})

    def digest(self) -> dict[str, str]:
        """A digest of each part of the state."""
        return state_digest(self.arrays, self.values)


def path_of(folder: Path, epoch: int) -> Path:
    """The file of the checkpoint after `epoch` epochs."""
    return folder / f"epoch-{epoch:05d}.safetensors"


def saved_epochs(folder: Path) -> list[int]:
    """Epochs that have a checkpoint file, oldest first; a file may be damaged."""
    names = (re.fullmatch(r"epoch-(\d{5,})\.safetensors", path.name) for path in folder.glob("epoch-*"))
    return sorted(int(name[1]) for name in names if name)


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write a checkpoint, then remove all but the newest `keep`."""
    path = path_of(folder, checkpoint.epoch)
    write_atomically(path, checkpoint.to_bytes())
    for epoch in saved_epochs(folder)[:-keep]:
        with disk_errors(folder):
            path_of(folder, epoch).unlink(missing_ok=True)
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and check that it is whole."""
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        text = header["state"]
        if header["sha256"] != content_digest(arrays, text):
            raise RunError(f"checkpoint {path} is damaged: its checksum does not match its content")
        state = json.loads(text)
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise RunError(f"checkpoint {path} is damaged: {' '.join(str(error).split())}") from None
    if state["format"] != FORMAT:
        raise RunError(
            f"checkpoint {path} has format {state['format']}, and this version of vlmsafe reads format {FORMAT}; "
            "use the version that wrote it"
        )
    return Checkpoint(state["epoch"], arrays, state["values"])


def newest_checkpoint(folder: Path) -> tuple[Checkpoint, list[str]]:
    """The newest readable checkpoint, and a line about each newer one that is damaged."""
    problems: list[str] = []
    for epoch in reversed(saved_epochs(folder)):
        try:
            return load_checkpoint(path_of(folder, epoch)), problems
        except RunError as error:
            problems.append(str(error))
    raise RunError("; ".join(problems) or f"{folder} holds no checkpoint")
