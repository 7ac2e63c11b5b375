"""Shipped drivers: trained policies in the package, named `driver:<name>` wherever a run can be given.

A driver is a small run directory with a card: `config.yaml`, one checkpoint with the policy and its normaliser, the
card (`card.yaml`) and a picture of a few episodes. It is read where it is installed and never written to. Results go to
a copy of it, `runs/drivers/<name>`, which is made when the first result is about to be written.
`tools/make_drivers.py` makes drivers from runs.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmsafe.config.settings import DRIVER, TrainConfig
from vlmsafe.config.yaml import read_yaml, to_dict, to_yaml
from vlmsafe.errors import InputError, RunError, unknown_name
from vlmsafe.io.disk import disk_errors, make_directory
from vlmsafe.io.files import write_atomically
from vlmsafe.learners.networks import POLICY
from vlmsafe.runs.checkpoint import Checkpoint, path_of, saved_epochs
from vlmsafe.runs.layout import CARD, CONFIG, is_run
from vlmsafe.runs.run import Run

SHIPPED = Path(__file__).parents[1] / "drivers"
COPIES = Path("runs") / "drivers"
"""Where copies of drivers lie, in the folder in which a command is called."""
PICTURE = "episodes.png"
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
_RECORDED = ("started", "python", "packages", "kernels", "git_revision", "env_version")
"""What a driver keeps of the surroundings of its run: what its numbers depend on, and nothing of the machine."""


@dataclass(frozen=True)
class ShippedDriver:
    """A trained policy that comes with the package, with its card."""

    name: str
    path: Path
    card: Mapping[str, Any]
    """World, method, commands, seeds, how it was chosen, held-out results, and a digest of the weights."""

    @property
    def weights(self) -> Path:
        """The file of the policy and its normaliser."""
        return self.path / str(self.card["weights"]["file"])

    @property
    def picture(self) -> Path:
        """A few of its episodes."""
        return self.path / PICTURE

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())

    def run(self) -> Run:
        """The driver as a run: its copy if there is one here, else as it is installed. Checks the weights first."""
        self._check(self.path)
        copy = COPIES / self.name
        return self.unpack(copy) if is_run(copy) else Run.open(self.path)

    def unpack(self, directory: Path | str) -> Run:
        """Copy the driver into a directory of its own, as a run that can be evaluated and traced there."""
        directory = Path(directory)
        if not is_run(directory):
            self._check(self.path)
            parent = make_directory(directory.parent)
            with disk_errors(directory):
                partial = Path(tempfile.mkdtemp(".partial", f".{directory.name}.", parent))
                try:
                    shutil.copytree(self.path, partial, dirs_exist_ok=True)
                    partial.replace(directory)
                except OSError as error:
                    if error.errno not in _OCCUPIED:  # there is something already, perhaps the copy of a faster process
                        raise
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
        if not is_run(directory):
            raise InputError(f"{directory} is not empty; choose another directory for driver:{self.name}")
        if not _same(self.path / CARD, directory / CARD):
            raise InputError(
                f"{directory} holds another run, or another version of driver:{self.name}; move it away, or choose "
                "another directory"
            )
        self._check(directory)
        return Run.open(directory)

    def _check(self, place: Path) -> None:
        """Refuse weights that are not those of the card."""
        file, expected = place / self.weights.relative_to(self.path), str(self.card["weights"]["sha256"])
        found = file_digest(file) if file.is_file() else "no file"
        if found != expected:
            hint = "install vlmsafe again" if place == self.path else f"remove {place}"
            raise RunError(
                f"the weights of driver:{self.name} are damaged: the card has the digest {expected[:12]}, and {file} "
                f"has {found[:12]}; {hint}"
            )


def drivers() -> dict[str, ShippedDriver]:
    """The trained drivers that come with the package, by name. `driver:<name>` can be given in place of a run.

    >>> "braking" in drivers()
    True
    """
    folders = sorted(path.parent for path in SHIPPED.glob(f"*/{CARD}"))
    return {folder.name: ShippedDriver(folder.name, folder, read_yaml(folder / CARD)) for folder in folders}


def shipped_driver(name: str) -> ShippedDriver:
    """The driver of that name."""
    known = drivers()
    if name not in known:
        raise unknown_name("driver", name, known)
    return known[name]


def open_run(place: Run | Path | str) -> Run:
    """A run by its directory, or a shipped driver by `driver:<name>`. A run that is open already stays as it is."""
    if isinstance(place, Run):
        return place
    text = str(place)
    return shipped_driver(text.removeprefix(DRIVER)).run() if text.startswith(DRIVER) else Run.open(place)


def with_own_directory(run: Run) -> Run:
    """The run itself. For a shipped driver, its copy, which is made if there is none: the package is not written to."""
    return shipped_driver(run.path.name).unpack(COPIES / run.path.name) if run.path.parent == SHIPPED else run


def write_driver(folder: Path, run: Run, card: Mapping[str, Any], picture: bytes) -> ShippedDriver:
    """Write a driver with the policy of a run, and complete its card with the weights.

    Critics, optimiser and the place of the run are left out, and so is what the run itself started from: the card names
    the commands.
    """
    if run.config.signal.scorer != "none":
        raise InputError(f"{run.path} has a signal; a driver is trained without one")
    found, _ = run.checkpoint()
    unset: Any = {one.name: one.default for one in dataclasses.fields(TrainConfig) if one.name.startswith("init_")}
    config = dataclasses.replace(run.config, **unset, tensorboard=False)
    settings = {name: value for name, value in to_dict(config).items() if name != "run_dir"}
    recorded = {name: value for name, value in run.recorded().items() if name in _RECORDED}
    arrays = {name: array for name, array in found.arrays.items() if name.startswith("normaliser.")}
    arrays["networks"] = found.arrays["networks"][: POLICY + 1].copy()
    values = {
        "trained": True, "shape": {**found.values["shape"], "critics": 0}, "row_files": {}, "config": settings,
        "prompts": None,
    }  # fmt: skip
    weights = path_of(make_directory(folder / "checkpoints"), found.epoch)
    for epoch in saved_epochs(weights.parent):  # those of an earlier version
        path_of(weights.parent, epoch).unlink()
    write_atomically(weights, Checkpoint(found.epoch, arrays, values).to_bytes())
    write_atomically(folder / CONFIG, to_yaml(settings | {"recorded": recorded}).encode())
    write_atomically(folder / PICTURE, picture)
    about = {"file": str(weights.relative_to(folder)), "sha256": file_digest(weights), "bytes": weights.stat().st_size}
    write_atomically(folder / CARD, to_yaml({**card, "weights": about}).encode())
    return ShippedDriver(folder.name, folder, read_yaml(folder / CARD))


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()
