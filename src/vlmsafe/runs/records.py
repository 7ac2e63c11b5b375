"""A run directory read as far as it can be read, with a list of what is missing or damaged: for audits and reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import flatten, to_dict
from vlmsafe.errors import VlmsafeError
from vlmsafe.io.source import SourceHash
from vlmsafe.runs.arms import ArmRun, by_arm
from vlmsafe.runs.checkpoint import newest_checkpoint, saved_epochs
from vlmsafe.runs.layout import PROMPTS, protocol_of, tables_in
from vlmsafe.runs.run import Row
from vlmsafe.runs.tables import read_table
from vlmsafe.runs.versions import recorded_source, world_of

T = TypeVar("T")


@dataclass(frozen=True)
class RunRecord:
    """One run with its rows and tables. `problems` lists what could not be read."""

    source: ArmRun
    epochs: list[Row]
    episodes: list[Row]
    evaluations: dict[str, pl.DataFrame]
    """By protocol. If there are only tables of chosen epochs, the newest of them."""
    traces: dict[str, pl.DataFrame]
    """By protocol."""
    events: list[Row]
    recorded: Row
    """Versions, revision and hardware, see `surroundings`."""
    saved: Sequence[int]
    """Epochs that have a checkpoint."""
    trained_with: dict[str, Any] | None
    """The settings in the newest checkpoint under dotted names, and its prompts; None if there is no checkpoint."""
    prompts: dict[str, Any] | None
    """As they are in the directory now."""
    problems: list[str] = field(default_factory=list)

    @property
    def config(self) -> TrainConfig:
        return self.source.run.config

    @property
    def env(self) -> str:
        return self.source.env

    @property
    def arm(self) -> str:
        return self.source.arm

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def label(self) -> str:
        return f"{self.arm} {self.name}"

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All settings under dotted names."""
        return flatten(to_dict(self.config))

    @cached_property
    def worlds(self) -> list[int]:
        """The versions of the environment that the run was trained in; empty if the environment has none."""
        if self.config.spec.version is None:
            return []
        later = [event["env_version"] for event in self.events if isinstance(event.get("env_version"), int)]
        return sorted({world_of(self.recorded), *later})

    @cached_property
    def sources(self) -> list[dict[str, SourceHash]]:
        """The user's own source that the run began with, and with which it was resumed each time."""
        resumed = [event for event in self.events if event.get("event") == "resumed"]
        return [recorded_source(record) for record in (self.recorded, *resumed)]

    @property
    def has_signal(self) -> bool:
        return self.config.signal.scorer != "none"

    @property
    def running(self) -> bool:
        return self.source.run.status() == "running"

    @property
    def epochs_recorded(self) -> int:
        return len(self.epochs)

    @property
    def epochs_saved(self) -> int | None:
        """Epochs of the newest checkpoint; None if there is no checkpoint."""
        return max(self.saved) if self.saved else None

    def over(self, name: str, window: int) -> float | None:
        """The mean of a figure over the last `window` recorded epochs that have it; None if none has."""
        values = [row[name] for row in self.epochs if row.get(name) is not None][-window:]
        numbers = [float(value) for value in values]
        return math.fsum(numbers) / len(numbers) if numbers else None


def read_record(source: ArmRun) -> RunRecord:
    """Everything a run directory holds. A file that cannot be read becomes a problem of the record, not an error."""
    run = source.run
    problems: list[str] = []

    def attempt(read: Callable[[], T], fallback: T) -> T:
        try:
            return read()
        except (VlmsafeError, OSError) as error:
            problems.append(" ".join(str(error).split()))
            return fallback

    def tables(folder: Path) -> dict[str, pl.DataFrame]:
        found: dict[str, pl.DataFrame] = {}
        # A table without an epoch in its name comes last and wins; without one, the table of the newest epoch does.
        for path in sorted(tables_in(folder).values(), key=lambda path: (protocol_of(path) == path.stem, path.stem)):
            table = attempt(partial(read_table, path), pl.DataFrame())
            if len(table):
                found[protocol_of(path)] = table
        return found

    def trained_with() -> dict[str, Any] | None:
        if not saved:
            return None
        values = newest_checkpoint(run.checkpoints)[0].values
        return flatten(values["config"]) | {PROMPTS: values.get("prompts")} if "config" in values else None

    def prompts() -> dict[str, Any] | None:
        known = run.prompts()
        return known.to_dict() if known is not None else None

    saved = saved_epochs(run.checkpoints)
    return RunRecord(
        source,
        recorded=attempt(run.recorded, {}),
        epochs=attempt(partial(run.rows, "epochs"), []),
        episodes=attempt(partial(run.rows, "episodes"), []),
        evaluations=tables(run.evaluations),
        traces=tables(run.traces),
        events=attempt(run.events, []),
        saved=saved,
        trained_with=attempt(trained_with, None),
        prompts=attempt(prompts, None),
        problems=problems,
    )


@dataclass(frozen=True)
class ArmRecord:
    """The runs of one arm in one environment."""

    env: str
    name: str
    runs: tuple[RunRecord, ...]

    @property
    def seeds(self) -> list[int]:
        return sorted(run.seed for run in self.runs)

    @property
    def matched_by(self) -> dict[int | str, RunRecord]:
        """The runs by seed; by name where several runs have the same seed, with the arm where it is another."""
        seeds = self.seeds
        return {
            run.seed if seeds.count(run.seed) == 1 else run.name if run.arm == self.name else run.label: run
            for run in self.runs
        }

    @property
    def protocols(self) -> list[str]:
        """The evaluations that some of the runs have."""
        return sorted({name for run in self.runs for name in run.evaluations})

    @property
    def has_signal(self) -> bool:
        return any(run.has_signal for run in self.runs)

    @property
    def first(self) -> RunRecord:
        """The run with the settings that most runs of the arm have; the earliest of several."""
        keys = [tuple(sorted((k, str(v)) for k, v in run.settings.items() if k not in _OWN)) for run in self.runs]
        return max(zip(self.runs, keys, strict=True), key=lambda pair: keys.count(pair[1]))[0]


_OWN = ("seed", "run_dir")


def read_arms(sources: Sequence[ArmRun]) -> dict[tuple[str, str], ArmRecord]:
    """The arms of each environment, with everything that their runs hold."""
    return {key: ArmRecord(*key, tuple(read_record(run) for run in runs)) for key, runs in by_arm(sources).items()}
