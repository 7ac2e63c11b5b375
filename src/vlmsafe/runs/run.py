"""A run directory: the single record of a training run. `layout` says which files it has.

The row files only grow. A checkpoint remembers their sizes, and resuming cuts them back to these sizes, so that no
epoch appears twice. Nothing here is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vlmsafe import kernels
from vlmsafe.config.methods import config_from_yaml
from vlmsafe.config.settings import PLACE, TrainConfig
from vlmsafe.config.yaml import flatten, read_yaml, to_dict, to_yaml
from vlmsafe.errors import InputError, RunError
from vlmsafe.io.disk import disk_errors, sync_directory
from vlmsafe.io.files import append_rows, cut_to, read_rows, write_atomically
from vlmsafe.io.locks import is_locked
from vlmsafe.io.source import SourceHash
from vlmsafe.runs.checkpoint import (
    Checkpoint,
    load_checkpoint,
    newest_checkpoint,
    path_of,
    save_checkpoint,
    saved_epochs,
)
from vlmsafe.runs.experience import FOLDER
from vlmsafe.runs.layout import CONFIG, PROMPTS, ROW_FILES, START, evaluation_path, is_run, row_file, trace_path
from vlmsafe.runs.surroundings import source_record, surroundings
from vlmsafe.signals.prompts import PromptSet, load_prompts
from vlmsafe.signals.scorers.bill import total

Row = dict[str, Any]
Status = Literal["finished", "running", "stopped early", "untrained"]
BEFORE_CHOICES = {"kernels": kernels.UNRECORDED}
"""Settings whose present default is not what runs had before the setting existed."""
_NUMBERS = {
    "epochs": (
        "epoch", "episodes", "env_return", "shaped_return", "bonus", "episode_cost", "budget", "multiplier",
        "signal_multiplier", "negative_score", "positive_score", "kappa",
    ),
    "episodes": ("epoch", "scenario", "cost", "return", "kappa"),
}  # fmt: skip
"""Fields of a row file that hold a number or nothing."""


@dataclass(frozen=True)
class Run:
    """A run directory and its configuration.

    >>> import vlmsafe
    >>> run = vlmsafe.train(env="speeding", total_steps=400, steps_per_epoch=200, run_dir="runs/first", quiet=True)
    >>> run = vlmsafe.Run.open("runs/first")
    >>> run.status(), run.rows("epochs")[-1]["epoch"]
    ('finished', 2)
    """

    path: Path
    config: TrainConfig
    moved_to: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of `PLACE` that it was continued with, by dotted name, where they are not those in config.yaml."""

    @classmethod
    def create(
        cls,
        config: TrainConfig,
        prompts: PromptSet | None = None,
        start: Checkpoint | None = None,
        source: Mapping[str, SourceHash] | None = None,
    ) -> Run:
        """Write a new run into its directory. The caller holds its lock, and `config` is resolved.

        `start` is what the run takes over from another one (`vlmsafe.runs.warm_start`), `source` the user's own code
        (`vlmsafe.runs.versions`).
        """
        assert config.run_dir is not None
        path = config.run_dir
        if (path / CONFIG).exists():
            existing = cls.open(path)
            raise InputError(
                f"{path} already holds a run (epoch {existing.epochs_done()} of {existing.config.epochs}); "
                f"continue it with: {existing.resume_command}, or choose another --run-dir"
            )
        run = cls(path, config)
        with disk_errors(path):
            for folder in (run.checkpoints, run.evaluations):
                folder.mkdir(exist_ok=True)
            sync_directory(path)
        if prompts is not None:
            write_atomically(path / PROMPTS, to_yaml(prompts.to_dict()).encode())
        recorded = surroundings() | {"env_version": config.spec.version} | source_record(source or {})
        if start is not None:
            write_atomically(path / START, start.to_bytes())
            recorded["start"] = start.values["origin"] | {"epoch": start.epoch, "digest": start.digest()}
        # The configuration is written last: a directory without one is not a run.
        write_atomically(path / CONFIG, to_yaml(to_dict(config) | {"recorded": recorded}).encode())
        return run

    def discard(self) -> None:
        """Remove a run that could not begin, so that its directory can be used again."""
        with disk_errors(self.path):
            for name in (CONFIG, PROMPTS, START):
                (self.path / name).unlink(missing_ok=True)
            for name in ("events", *ROW_FILES):
                row_file(self.path, name).unlink(missing_ok=True)
            for folder in (self.checkpoints, self.evaluations, self.path / "tensorboard", self.path / FOLDER):
                shutil.rmtree(folder, ignore_errors=True)
            # The caller holds the lock. It goes with the directory, unless the user keeps other files there.
            if [path.name for path in self.path.iterdir()] == ["lock"]:
                shutil.rmtree(self.path, ignore_errors=True)

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """An existing run."""
        path = Path(path)
        if not is_run(path):
            nearby = [str(p.parent) for p in sorted(path.glob(f"**/{CONFIG}"))[:3]] if path.is_dir() else []
            hint = f"; did you mean {' or '.join(nearby)}?" if nearby else ""
            raise InputError(f"{path} is not a run directory: it has no {CONFIG}{hint}")
        config = config_from_yaml(path / CONFIG, before=BEFORE_CHOICES)
        # The directory may have been moved since the file was written, so its present place counts.
        return cls(path, TrainConfig(**{**vars(config), "run_dir": path}).resolved(recorded=True))

    # -- what it holds -----------------------------------------------------------------------------------------

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations"

    @property
    def traces(self) -> Path:
        return self.path / "traces"

    def evaluation_path(self, protocol: str, epoch: int | None = None, env: str | None = None) -> Path:
        """The table of an evaluation under a protocol, in another environment if `env` is one."""
        return evaluation_path(self.path, protocol, epoch, None if env == self.config.env else env)

    def trace_path(self, protocol: str, epoch: int | None = None, indicators: bool | None = None) -> Path:
        """The table of a trace. Its name also says if its frames have indicators and the run's do not, or reversed."""
        variant = ""
        if indicators is not None and indicators != self.config.frame_indicators:
            variant = "-indicators" if indicators else "-no-indicators"
        return trace_path(self.path, protocol, epoch, variant)

    def rows(self, name: str) -> list[Row]:
        """The rows of a row file, such as epochs; a RunError if a value is not of the expected kind."""
        path = row_file(self.path, name)
        rows = read_rows(path)
        for place, row in enumerate(rows, 1) if name in _NUMBERS else ():
            if not isinstance(row.get("epoch"), int):
                raise RunError(f"{path} is damaged: expected a whole number as epoch of row {place}, got none")
            for field in _NUMBERS[name]:
                if not isinstance(row.get(field), int | float | None):
                    raise RunError(
                        f"{path} is damaged: expected a number as {field} of row {place}, got {row[field]!r}"
                    )
        return rows

    def events(self) -> list[Row]:
        """What happened to the run, in order."""
        return read_rows(row_file(self.path, "events"))

    def prompts(self) -> PromptSet | None:
        """The prompts the run began with; later changes of the file they came from do not matter."""
        return load_prompts(self.path / PROMPTS) if self.config.signal.prompts else None

    def start(self) -> Checkpoint | None:
        """What the run took over from another one before it began; None if it began with a new policy."""
        return load_checkpoint(self.path / START) if self.config.init_from is not None else None

    def recorded(self) -> Row:
        """The surroundings in which the run began, see `surroundings`; empty if it recorded none."""
        found = read_yaml(self.path / CONFIG).get("recorded")
        if not isinstance(found, dict):
            return {}
        packages = found.get("packages")
        return {**found, "packages": packages if isinstance(packages, dict) else {}}

    def checkpoint(self, epoch: int | None = None) -> tuple[Checkpoint, list[str]]:
        """The checkpoint of an epoch, by default the newest readable one, and a line about each damaged newer one."""
        if epoch is None:
            return newest_checkpoint(self.checkpoints)
        if epoch not in (saved := saved_epochs(self.checkpoints)):
            raise InputError(f"{self.path} has no checkpoint of epoch {epoch}; it has {', '.join(map(str, saved))}")
        return load_checkpoint(path_of(self.checkpoints, epoch)), []

    def epochs_done(self) -> int:
        """Epochs of the newest readable checkpoint; 0 if there is none."""
        try:
            return newest_checkpoint(self.checkpoints)[0].epoch
        except RunError:
            return 0

    def status(self) -> Status:
        """Whether the run is finished, running, or ended before its last epoch."""
        if is_locked(self.path):
            return "running"
        done = self.epochs_done()
        if done >= self.config.epochs:
            return "finished"
        return "stopped early" if done else "untrained"

    def describe(self) -> str:
        """The status in words, for messages and tables."""
        return f"{self.status()}, epoch {self.epochs_done()} of {self.config.epochs}"

    @property
    def resume_command(self) -> str:
        """What to type to continue the run."""
        moved = "".join(
            f" --{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in self.moved_to.items()
        )
        return f"vlmsafe train --resume {shlex.quote(str(self.path))}{moved}"

    def bill(self) -> dict[str, float]:
        """What scoring has cost in the whole run, from its events; empty if it was free."""
        billed = [event for event in self.events() if event.get("event") == "bill"]
        numbers = [{k: v for k, v in event.items() if k not in ("time", "event", "epoch")} for event in billed]
        return total(numbers)

    # -- what training writes ----------------------------------------------------------------------------------

    def append(self, name: str, rows: list[Mapping[str, Any]]) -> None:
        """Add rows to a row file."""
        append_rows(row_file(self.path, name), rows)

    def event(self, kind: str, **details: Any) -> None:
        """Record something that happened to the run, with the time."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.append("events", [{"time": now, "event": kind, **details}])

    def longer(self, total_steps: int) -> TrainConfig:
        """The configuration of the run with more steps; an InputError if they are fewer, or no whole epochs."""
        if total_steps < self.config.total_steps:
            raise InputError(
                f"total_steps is {total_steps}, but {self.path} has {self.config.total_steps} already; expected more, "
                "because a run can be extended and not shortened"
            )
        if total_steps == self.config.total_steps:
            return self.config
        return self.config.extended(total_steps, self.epochs_done())

    def extend(self, total_steps: int) -> Run:
        """Give the run more steps, which resuming it then trains. The caller holds its lock."""
        config = self.longer(total_steps)
        if config == self.config:
            return self
        # The settings in the file may be older than some settings of this version, and stay as they are.
        lengths = {"total_steps": config.total_steps, "extended_from": to_dict(config)["extended_from"]}
        write_atomically(self.path / CONFIG, to_yaml(read_yaml(self.path / CONFIG) | lengths).encode())
        done = config.extended_from[-1][0]
        self.event("extended", epoch=done, total_steps={"before": self.config.total_steps, "now": total_steps})
        return dataclasses.replace(self, config=config)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint with the settings and the present sizes of the row files."""
        sizes = {name: path.stat().st_size if path.exists() else 0 for name, path in self._row_files().items()}
        values = checkpoint.values | {"row_files": sizes, "config": _settings(self.config), "prompts": self._prompts()}
        complete = Checkpoint(checkpoint.epoch, checkpoint.arrays, values)
        save_checkpoint(self.checkpoints, complete, self.config.checkpoint.keep)

    def restore(self) -> tuple[Checkpoint, list[str]]:
        """Cut the row files back to the newest readable checkpoint. Returns it and the problems of newer ones."""
        checkpoint, problems = newest_checkpoint(self.checkpoints)
        if changed := self.changed_settings(checkpoint):
            raise RunError(
                f"{self.path / CONFIG} was changed after the run began ({'; '.join(changed)}), so it cannot be "
                "continued; undo the change, or start a new run with --config"
            )
        if self.changed_prompts(checkpoint):
            raise RunError(
                f"{self.path / PROMPTS} was changed after the run began, so it cannot be continued; undo the "
                "change, or start a new run with --prompts"
            )
        for name, size in checkpoint.values["row_files"].items():
            cut_to(row_file(self.path, name), size)
        for epoch in saved_epochs(self.checkpoints):
            if epoch > checkpoint.epoch:
                path_of(self.checkpoints, epoch).unlink()
        return checkpoint, problems

    def changed_settings(self, checkpoint: Checkpoint) -> list[str]:
        """In words, the settings that config.yaml and a checkpoint give different values."""
        # A setting that did not exist when the run began had its present default, with few exceptions.
        then = flatten(to_dict(TrainConfig())) | BEFORE_CHOICES | flatten(checkpoint.values["config"])
        past = self.config.as_of(len(then["extended_from"]))  # an extension does not change what was done before it
        now = {key: value for key, value in flatten(_settings(past)).items() if key not in PLACE}
        return [f"{key} was {then.get(key)}, is {now[key]}" for key in now if now[key] != then.get(key)]

    def changed_prompts(self, checkpoint: Checkpoint) -> bool:
        """Whether prompts.yaml is not what a checkpoint remembers."""
        return bool(checkpoint.values["prompts"] != self._prompts())

    def start_over(self) -> None:
        """Empty the row files of a run that has no checkpoint, because no checkpoint covers their rows."""
        for path in self._row_files().values():
            cut_to(path, 0)

    def _row_files(self) -> dict[str, Path]:
        return {name: row_file(self.path, name) for name in ROW_FILES}

    def _prompts(self) -> dict[str, Any] | None:
        prompts = self.prompts()
        return prompts.to_dict() if prompts is not None else None


def _settings(config: TrainConfig) -> dict[str, Any]:
    """A configuration without its directory, which may change."""
    return {key: value for key, value in to_dict(config).items() if key != "run_dir"}


@dataclass(frozen=True)
class UnreadableRun:
    """A run directory that cannot be opened."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def find_runs(folder: Path) -> tuple[list[Run], list[UnreadableRun]]:
    """Every run under a folder, and the ones that cannot be opened.

    Links are followed. Hidden folders and the inside of runs are left out.
    """
    runs: list[Run] = []
    unreadable: list[UnreadableRun] = []
    seen: set[Path] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        path = Path(place)
        if path.resolve() in seen:  # a link led back here
            folders.clear()
            continue
        seen.add(path.resolve())
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if CONFIG in files:
            folders.clear()
            try:
                runs.append(Run.open(path))
            except (InputError, RunError) as error:
                unreadable.append(UnreadableRun(path, str(error)))
    return runs, unreadable
