"""Changing a written design: settings, training, tables, claims, each so that nothing else contradicts the change."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from vlmsafe.analysis.statistics import CATASTROPHE
from vlmsafe.comparison.changes import plain_claims
from vlmsafe.comparison.claims import load_claims
from vlmsafe.comparison.preregistration import PROTOCOL_FILE, FrozenProtocol, Moment, ProtocolVersion, protocol_bytes
from vlmsafe.config.yaml import to_yaml
from vlmsafe.runs.run import Run
from vlmsafe.signals.prompts import load_prompts

from .run_directory import rows_from_episodes, save_state, write_rows

Row = dict[str, Any]
HELD_OUT = "held-out"


def run_paths(folder: Path, arm: str | None = None) -> list[Path]:
    """The runs of a design, or of one arm, in the order of their seeds."""
    paths = [path.parent for path in folder.glob("*/*/seed-*/config.yaml")]
    chosen = [path for path in paths if arm in (None, path.parent.name)]
    return sorted(chosen, key=lambda path: (path.parent.name, int(path.name.removeprefix("seed-"))))


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Change the settings in `config.yaml`, by dotted names, and nothing else: as somebody would with an editor."""
    document = yaml.safe_load((path / "config.yaml").read_text())
    for name, value in settings.items():
        *folders, last = name.split(".")
        place = document
        for folder in folders:
            place = place[folder]
        place[last] = value
    (path / "config.yaml").write_text(to_yaml(document))


def set_up_with(path: Path, settings: Mapping[str, Any]) -> None:
    """As if the run had been trained with other settings from the start."""
    write_settings(path, settings)
    prompts = settings.get("signal.prompts")
    if prompts is not None:
        (path / "prompts.yaml").write_text(to_yaml(load_prompts(prompts).to_dict()))
    retrain(path)
    if "budget" in settings:
        edit_table(path, lambda table: judged(table.with_columns(budget=pl.lit(settings["budget"], pl.Float64))))


def retrain(path: Path, change: Callable[[Row], Row] | None = None, epochs: int | None = None) -> None:
    """Change training episodes one by one, or keep those of the first epochs only, and write what follows from them."""
    run = Run.open(path)
    episodes = [dict(row) for row in run.rows("episodes") if epochs is None or row["epoch"] <= epochs]
    if change is not None:
        episodes = [change(row) for row in episodes]
    write_rows(run, "episodes", episodes)
    edit_epochs(path, lambda _: rows_from_episodes(run.config, episodes))


def edit_epochs(path: Path, change: Callable[[list[Row]], list[Row]]) -> None:
    """Change the rows of `epochs.jsonl`, and save the last epoch anew, so that the checkpoint fits them."""
    run = Run.open(path)
    rows = change(run.rows("epochs"))
    write_rows(run, "epochs", rows)
    write_rows(run, "timing", [{"epoch": row["epoch"], "collect": 1.0} for row in rows])
    checkpointed_at(path, rows[-1]["epoch"])


def checkpointed_at(path: Path, epoch: int) -> None:
    """Leave the checkpoint of one epoch only."""
    shutil.rmtree(path / "checkpoints")
    (path / "checkpoints").mkdir()
    save_state(Run.open(path), epoch)


def edit_table(
    path: Path, change: Callable[[pl.DataFrame], pl.DataFrame], protocol: str = HELD_OUT, folder: str = "evaluations"
) -> None:
    """Change a table of a run, where it has it."""
    file = path / folder / f"{protocol}.parquet"
    if file.exists():
        change(pl.read_parquet(file)).write_parquet(file)


def edit_trace(path: Path, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    edit_table(path, change, folder="traces")


def judged(table: pl.DataFrame) -> pl.DataFrame:
    """The verdicts that follow from cost and budget."""
    return table.with_columns(
        violation=pl.col("cost") > pl.col("budget"), catastrophe=pl.col("cost") > CATASTROPHE * pl.col("budget")
    )


def with_costs(change: Callable[[pl.Expr], pl.Expr]) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Other costs, judged anew."""
    return lambda table: judged(table.with_columns(cost=change(pl.col("cost"))))


def edit_claims(folder: Path, change: Callable[[list[Row]], list[Row]]) -> None:
    path = folder / "claims.yaml"
    document = yaml.safe_load(path.read_text())
    path.write_text(to_yaml({"comparisons": change(document["comparisons"])}))


def freeze_claims(folder: Path, *later: tuple[int, Callable[[list[Row]], list[Row]]]) -> None:
    """A protocol of the claims as they are, frozen before the first run, and later claims, each after so many runs."""
    paths = run_paths(folder)
    cells: dict[tuple[str, str], list[int]] = {}
    for path in paths:
        cells.setdefault((path.parent.parent.name, path.parent.name), []).append(Run.open(path).config.seed)
    design: Row = {"method": "", "total_steps": 400_000, "settings": {}, "evaluations": {HELD_OUT: 50}}
    content: Row = {
        "study": "design",
        "question": "Does it help?",
        "cells": [{"environment": env, "arm": arm, "seeds": seeds, **design} for (env, arm), seeds in cells.items()],
        "looks": {"at": [1.0], "spending": "obrien-fleming"},
    }
    versions = []
    for finished, change in ((0, list), *later):
        edit_claims(folder, change)
        claims = plain_claims(load_claims(folder / "claims.yaml"))
        at = Moment(finished, finished, len(paths))
        versions.append(ProtocolVersion("2026-01-01T00:00:00Z", at, {**content, "claims": claims}))
    (folder / PROTOCOL_FILE).write_bytes(protocol_bytes(FrozenProtocol(tuple(versions))))


def copy_run(path: Path, to: Path, seed: int) -> None:
    """The same run in another place and under another seed."""
    shutil.copytree(path, to)
    write_settings(to, {"seed": seed})
    checkpointed_at(to, Run.open(path).epochs_done())
