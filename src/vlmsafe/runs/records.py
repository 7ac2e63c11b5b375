"""A run directory as an audit sees it: read as far as it can be read, whatever is missing or damaged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import flatten, read_yaml, to_dict
from vlmsafe.errors import RunError, VlmsafeError
from vlmsafe.runs.arms import ArmRun, by_arm
from vlmsafe.runs.checkpoint import newest_checkpoint, saved_epochs

Row = dict[str, Any]
PROMPTS = "prompts.yaml"


@dataclass(frozen=True)
class RunRecord:
    """One run with its rows and tables; what could not be read is in `problems`."""

    source: ArmRun
    epochs: list[Row]
    episodes: list[Row]
    evaluations: dict[str, pl.DataFrame]
    """By protocol; one that was made of certain epochs only is there with the newest of them."""
    traces: dict[str, pl.DataFrame]
    events: list[Row]
    recorded: Row
    """Versions, revision and hardware."""
    saved: Sequence[int]
    """Epochs that have a checkpoint."""
    trained_with: dict[str, Any] | None
    """The settings in the newest checkpoint, flat, and its prompts; None where there is none."""
    prompts: dict[str, Any] | None
    """As they are now."""
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
        """Epochs of the newest checkpoint; None where no checkpoint was kept at all."""
        return max(self.saved) if self.saved else None

    def over(self, name: str, window: int) -> float | None:
        """The mean of a figure over the last `window` recorded epochs that have it; None where none has."""
        values = [row[name] for row in self.epochs if row.get(name) is not None][-window:]
        numbers = [float(value) for value in values]
        return math.fsum(numbers) / len(numbers) if numbers else None


def read_record(source: ArmRun) -> RunRecord:
    """Everything a run directory holds; damaged files become problems."""
    run, problems = source.run, []

    def attempt(what: Any, fallback: Any) -> Any:
        try:
            return what()
        except (VlmsafeError, OSError, pl.exceptions.PolarsError) as error:
            problems.append(" ".join(str(error).split()))
            return fallback

    def tables(folder: Path) -> dict[str, pl.DataFrame]:
        found: dict[str, pl.DataFrame] = {}
        # The name of a protocol comes after those with an epoch, newest last: without it, the newest stands for it.
        for path in sorted(folder.glob("*.parquet"), key=lambda path: ("-epoch-" not in path.stem, path.stem)):
            name = path.stem.split("-epoch-")[0]
            if path.stem.endswith("-frames") or path.stem.startswith("trace-"):
                continue  # pictures, and traces as earlier versions kept them
            table = attempt(lambda path=path: _typed(pl.read_parquet(path, glob=False), path), None)
            if table is not None and len(table):
                found[name] = table
        return found

    def trained_with() -> dict[str, Any] | None:
        try:
            values = newest_checkpoint(run.checkpoints)[0].values
        except RunError:
            if saved:
                raise
            return None
        return flatten(values["config"]) | {PROMPTS: values.get("prompts")} if "config" in values else None

    def prompts() -> dict[str, Any] | None:
        known = run.prompts()
        return known.to_dict() if known is not None else None

    saved = saved_epochs(run.checkpoints)
    document = attempt(lambda: read_yaml(run.path / "config.yaml"), {})
    return RunRecord(
        source,
        epochs=attempt(lambda: _numeric(run.rows("epochs"), _EPOCH_FIGURES, run.path / "epochs.jsonl"), []),
        episodes=attempt(lambda: _numeric(run.rows("episodes"), _EPISODE_FIGURES, run.path / "episodes.jsonl"), []),
        evaluations=tables(run.evaluations),
        traces=tables(run.path / "traces"),
        events=attempt(run.events, []),
        recorded=_mapping(document.get("recorded")),
        saved=saved,
        trained_with=attempt(trained_with, None),
        prompts=attempt(prompts, None),
        problems=problems,
    )


_EPOCH_FIGURES = (
    "epoch", "episodes", "env_return", "shaped_return", "bonus", "episode_cost", "budget", "multiplier",
    "signal_multiplier", "negative_score", "positive_score", "kappa",
)  # fmt: skip
_EPISODE_FIGURES = ("epoch", "scenario", "cost", "return", "kappa")
_NUMBERS = ("cost", "env_return", "length", "negative", "positive", "margin", "kappa", "hazard", "budget")
_WHOLE = ("episode", "scenario", "step", "checkpoint_epoch")
_FLAGS = ("violation", "catastrophe", "in_training_pool", "deterministic", "scored")


def _numeric(rows: list[Row], names: Sequence[str], path: Path) -> list[Row]:
    """Rows that have an epoch, and numbers or nothing where numbers belong."""
    for place, row in enumerate(rows, 1):
        if not isinstance(row.get("epoch"), int):
            raise RunError(f"{path} is damaged: row {place} has no epoch")
        for name in names:
            if not isinstance(row.get(name), int | float | None):
                raise RunError(f"{path} is damaged: {name} of row {place} is {row[name]!r}, not a number")
    return rows


def _typed(table: pl.DataFrame, path: Path) -> pl.DataFrame:
    """A table whose columns, where it has them, are of the kind that everyone expects."""
    for names, kind, word in ((_NUMBERS, pl.Float64, "numbers"), (_WHOLE, pl.Int64, "whole numbers")):
        for name in names:
            if name in table.columns and not (table[name].dtype.is_numeric() or table[name].dtype == pl.Null):
                raise RunError(f"{path}: {name} is {table[name].dtype}, not {word}")
        table = table.with_columns(pl.col(name).cast(kind) for name in names if name in table.columns)
    for name in _FLAGS:
        if name in table.columns and not (table[name].dtype.is_integer() or table[name].dtype in (pl.Boolean, pl.Null)):
            raise RunError(f"{path}: {name} is {table[name].dtype}, not true or false")
    return table.with_columns(pl.col(name).cast(pl.Boolean) for name in _FLAGS if name in table.columns)


def _mapping(value: Any) -> Row:
    """What was recorded about a run's surroundings, as far as it has the form of it."""
    if not isinstance(value, dict):
        return {}
    packages = value.get("packages")
    return {**value, "packages": packages if isinstance(packages, dict) else {}}


@dataclass(frozen=True)
class ArmRecord:
    """The runs of one arm on one environment."""

    env: str
    name: str
    runs: tuple[RunRecord, ...]

    @property
    def seeds(self) -> list[int]:
        return sorted(run.seed for run in self.runs)

    @property
    def matched_by(self) -> dict[int | str, RunRecord]:
        """The runs by seed; by their names where one seed stands for several."""
        seeds = self.seeds
        return {run.seed if seeds.count(run.seed) == 1 else run.name: run for run in self.runs}

    @property
    def has_signal(self) -> bool:
        return any(run.has_signal for run in self.runs)

    @property
    def first(self) -> RunRecord:
        """The run whose settings stand for the arm: the one most others agree with, the earliest of equals."""
        keys = [tuple(sorted((k, str(v)) for k, v in run.settings.items() if k not in _OWN)) for run in self.runs]
        return max(zip(self.runs, keys, strict=True), key=lambda pair: keys.count(pair[1]))[0]


_OWN = ("seed", "run_dir")


def read_arms(sources: Sequence[ArmRun]) -> dict[tuple[str, str], ArmRecord]:
    """The arms of each environment, with everything their runs hold."""
    return {key: ArmRecord(*key, tuple(read_record(run) for run in runs)) for key, runs in by_arm(sources).items()}
