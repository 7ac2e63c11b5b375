"""The run directory: the single record of a training run.

    config.yaml       every setting, with versions and hardware under `recorded`
    prompts.yaml      the prompts of a run that has any, as they were when it began
    epochs.jsonl      one row per epoch; equal runs have equal files
    episodes.jsonl    one row per training episode, the unfinished ones included
    timing.jsonl      seconds per stage of each epoch
    events.jsonl      starts, stops, crashes, fallbacks: what happened to the run
    checkpoints/      see `checkpoint`
    evaluations/      one table per protocol
    traces/           one trace per protocol, where one was made

The row files only grow. A checkpoint remembers their sizes; resuming cuts them back to it, so that no epoch appears
twice. Nothing here is ever unpickled.
"""

from __future__ import annotations

import datetime
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vlmsafe.config.methods import config_from_yaml
from vlmsafe.config.settings import PLACE, TrainConfig
from vlmsafe.config.yaml import flatten, to_dict, to_yaml
from vlmsafe.errors import InputError, RunError
from vlmsafe.io.disk import disk_errors, sync_directory
from vlmsafe.io.files import (
    append_rows,
    cut_to,
    read_rows,
    write_atomically,
)
from vlmsafe.io.locks import is_locked
from vlmsafe.runs.checkpoint import (
    Checkpoint,
    load_checkpoint,
    newest_checkpoint,
    path_of,
    save_checkpoint,
    saved_epochs,
)
from vlmsafe.runs.surroundings import surroundings
from vlmsafe.signals.prompts import PromptSet, load_prompts

Status = Literal["finished", "running", "stopped early", "untrained"]
_ROW_FILES = ("epochs", "episodes", "timing")


@dataclass(frozen=True)
class Run:
    """A run directory and its configuration."""

    path: Path
    config: TrainConfig
    moved_to: str | None = None
    """The scoring service it was continued with, where config.yaml names another."""

    @classmethod
    def create(cls, config: TrainConfig, prompts: PromptSet | None = None) -> Run:
        """Write a new run into its directory, whose lock the caller holds; `config` must be resolved."""
        assert config.run_dir is not None
        path = config.run_dir
        if (path / "config.yaml").exists():
            existing = cls.open(path)
            raise InputError(
                f"{path} already holds a run (epoch {existing.epochs_done()} of {existing.config.epochs}); "
                f"continue it with: {existing.resume_command}, or choose another --run-dir"
            )
        with disk_errors(path):
            for folder in ("checkpoints", "evaluations"):
                (path / folder).mkdir(exist_ok=True)
            sync_directory(path)
        run = cls(path, config)
        if prompts is not None:
            write_atomically(path / "prompts.yaml", to_yaml(prompts.to_dict()).encode())
        # The configuration is written last: a directory without one is not a run.
        recorded = surroundings() | {"env_version": config.spec.version}
        write_atomically(path / "config.yaml", to_yaml(to_dict(config) | {"recorded": recorded}).encode())
        return run

    def discard(self) -> None:
        """Take back a run that could not begin, so that its directory can be used again."""
        with disk_errors(self.path):
            for name in ("config.yaml", "prompts.yaml", "events.jsonl", *(f"{file}.jsonl" for file in _ROW_FILES)):
                (self.path / name).unlink(missing_ok=True)
            for folder in (self.checkpoints, self.evaluations):
                folder.rmdir()

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """An existing run."""
        path = Path(path)
        if not (path / "config.yaml").is_file():
            nearby = [str(p.parent) for p in sorted(path.glob("**/config.yaml"))[:3]] if path.is_dir() else []
            hint = f"; did you mean {' or '.join(nearby)}?" if nearby else ""
            raise InputError(f"{path} is not a run directory: it has no config.yaml{hint}")
        # A directory may have been moved since it was written; where it is now is where it is.
        config = config_from_yaml(path / "config.yaml")
        return cls(path, TrainConfig(**{**vars(config), "run_dir": path}).resolved())

    def prompts(self) -> PromptSet | None:
        """The prompts the run began with, whatever became of the file they came from."""
        return load_prompts(self.path / "prompts.yaml") if self.config.signal.prompts else None

    def event(self, kind: str, **details: Any) -> None:
        """Note what happened to the run, with the time."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        append_rows(self.path / "events.jsonl", [{"time": now, "event": kind, **details}])

    def events(self) -> list[dict[str, Any]]:
        return read_rows(self.path / "events.jsonl")

    def append(self, file: str, rows: list[Mapping[str, Any]]) -> None:
        """Add rows to one of the row files."""
        append_rows(self.path / f"{file}.jsonl", rows)

    def rows(self, file: str) -> list[dict[str, Any]]:
        """The rows of one of the row files."""
        return read_rows(self.path / f"{file}.jsonl")

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint that remembers its settings and how far the row files have grown."""
        sizes = {file: self._row_file_size(file) for file in _ROW_FILES}
        values = checkpoint.values | {"row_files": sizes, "config": self._settings(), "prompts": self._prompts()}
        complete = Checkpoint(checkpoint.epoch, checkpoint.arrays, values)
        save_checkpoint(self.checkpoints, complete, self.config.checkpoint.keep)

    def restore(self) -> tuple[Checkpoint, list[str]]:
        """The newest readable checkpoint, with the row files cut back to it, and what was wrong with newer ones."""
        checkpoint, problems = newest_checkpoint(self.checkpoints)
        # A setting that is younger than the run had what is its default now.
        then = flatten(to_dict(TrainConfig())) | flatten(checkpoint.values["config"])
        now = {key: value for key, value in flatten(self._settings()).items() if key not in PLACE}
        changed = [f"{key} was {then.get(key)}, is {now[key]}" for key in now if now[key] != then.get(key)]
        if changed:
            raise RunError(
                f"{self.path / 'config.yaml'} was changed after the run began ({'; '.join(changed)}), so it cannot be "
                "continued; undo the change, or start a new run with --config"
            )
        if checkpoint.values["prompts"] != self._prompts():
            raise RunError(
                f"{self.path / 'prompts.yaml'} was changed after the run began, so it cannot be continued; undo the "
                "change, or start a new run with --prompts"
            )
        for file, size in checkpoint.values["row_files"].items():
            cut_to(self.path / f"{file}.jsonl", size)
        for epoch in saved_epochs(self.checkpoints):
            if epoch > checkpoint.epoch:
                path_of(self.checkpoints, epoch).unlink()
        return checkpoint, problems

    def start_over(self) -> None:
        """Empty the row files of a run that has no checkpoint: whatever they hold belongs to none."""
        for file in _ROW_FILES:
            cut_to(self.path / f"{file}.jsonl", 0)

    def _settings(self) -> dict[str, Any]:
        """The configuration without its place, which may change."""
        return {key: value for key, value in to_dict(self.config).items() if key != "run_dir"}

    def _prompts(self) -> dict[str, Any] | None:
        prompts = self.prompts()
        return prompts.to_dict() if prompts is not None else None

    def checkpoint(self, epoch: int | None = None) -> tuple[Checkpoint, list[str]]:
        """A checkpoint for reading: of an epoch, or the newest readable one with notes on damaged newer ones."""
        if epoch is None:
            return newest_checkpoint(self.checkpoints)
        if epoch not in (saved := saved_epochs(self.checkpoints)):
            raise InputError(f"{self.path} has no checkpoint of epoch {epoch}; it has {', '.join(map(str, saved))}")
        return load_checkpoint(path_of(self.checkpoints, epoch)), []

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations"

    def epochs_done(self) -> int:
        """Epochs of the newest checkpoint that can be read; 0 where there is none."""
        try:
            return newest_checkpoint(self.checkpoints)[0].epoch
        except RunError:
            return 0

    def status(self) -> Status:
        """Whether the run is over, under way, or ended before its last epoch."""
        if is_locked(self.path):
            return "running"
        done = self.epochs_done()
        if done >= self.config.epochs:
            return "finished"
        return "stopped early" if done else "untrained"

    @property
    def resume_command(self) -> str:
        """What to type to continue the run."""
        moved = "" if self.moved_to is None else f" --signal.service {shlex.quote(self.moved_to)}"
        return f"vlmsafe train --resume {shlex.quote(str(self.path))}{moved}"

    def describe(self) -> str:
        """Status in words, for messages and tables."""
        return f"{self.status()}, epoch {self.epochs_done()} of {self.config.epochs}"

    def _row_file_size(self, file: str) -> int:
        path = self.path / f"{file}.jsonl"
        return path.stat().st_size if path.exists() else 0


def find_runs(folder: Path) -> tuple[list[Run], list[str]]:
    """Every run under a folder, and a line about each one that cannot be read.

    Links are followed. Hidden folders are left out, and so is whatever lies inside a run.
    """
    runs: list[Run] = []
    problems: list[str] = []
    seen: set[Path] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        path = Path(place)
        if path.resolve() in seen:  # a link to where we have been
            folders.clear()
            continue
        seen.add(path.resolve())
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "config.yaml" in files:
            folders.clear()
            try:
                runs.append(Run.open(path))
            except (InputError, RunError) as error:
                problems.append(f"{path}: {error}")
    return runs, problems
