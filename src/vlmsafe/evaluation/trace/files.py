"""Traces on disk, and in a few figures.

traces/held-out.parquet           one row per step
traces/held-out.json              who looked on, with which prompts, through which gate
traces/held-out-frames.parquet    episode, step, picture: the frames of scored steps, where they were asked for
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from vlmsafe.analysis.auc import auc
from vlmsafe.errors import InputError
from vlmsafe.evaluation.evaluate import table_name, write_table
from vlmsafe.evaluation.protocols import Protocol
from vlmsafe.io.disk import disk_errors
from vlmsafe.io.files import write_atomically
from vlmsafe.runs.run import Run


def trace_path(run: Run, chosen: Protocol, epoch: int | None = None, indicators: bool | None = None) -> Path:
    """`traces/<protocol>.parquet`; the name also has what was asked for: an epoch, frames unlike the run's own."""
    kind = ""
    if indicators is not None and indicators != run.config.frame_indicators:
        kind = "-indicators" if indicators else "-no-indicators"
    return run.path / "traces" / f"{table_name(chosen, epoch, kind)}.parquet"


def frames_path(path: Path) -> Path:
    """Where the pictures of a trace are, if there are any."""
    return path.with_name(f"{path.stem}-frames.parquet")


def about_path(path: Path) -> Path:
    """Where the scorers and prompts of a trace are named."""
    return path.with_suffix(".json")


def read_about(path: Path) -> dict[str, Any]:
    """What is said of a trace: scorers, prompts, how often it was scored; empty where a trace came without it."""
    about = about_path(path)
    if not about.is_file():
        return {}
    try:
        said: dict[str, Any] = json.loads(about.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{about} cannot be read: {' '.join(str(error).split())}") from None
    return said


def write_trace(path: Path, table: pl.DataFrame, about: dict[str, Any], frames: pl.DataFrame | None) -> None:
    """All files of a trace in place of those of an earlier one, the table last."""
    with disk_errors(path):
        path.unlink(missing_ok=True)  # until the new one is there, its other files would not fit it
        frames_path(path).unlink(missing_ok=True)
    if frames is not None:
        write_table(frames_path(path), frames)
    write_atomically(about_path(path), json.dumps(about, indent=2).encode())
    write_table(path, table)


def trace_summary(table: pl.DataFrame) -> list[dict[str, Any]]:
    """What a trace shows at a glance, one entry per scorer, or one without scores where there is none.

    `contacts` are steps with cost, `onsets` those of them that follow a step without. `auc_c_vlm` and `auc_kappa` say
    how well the score tells scored steps with cost from the others; they are None where there is nothing to tell apart.
    """
    contact = pl.col("cost") > 0.0
    before = contact.shift(1, fill_value=False).over("episode")
    common = {
        "episodes": table["episode"].n_unique(),
        "steps": len(table),
        "contacts": table.select(contact.sum()).item(),
        "onsets": table.select((contact & ~before).sum()).item(),
        "scored": int(table["scored"].sum()),
    }
    seen = table.filter("scored")
    hit = seen.select(contact).to_series().to_numpy()
    found = []
    for kappa in [name for name in table.columns if name == "kappa" or name.endswith("_kappa")]:
        prefix = kappa.removesuffix("kappa")
        negative = f"{prefix}negative"
        figures = {
            "kappa": seen[kappa].mean(),
            "c_vlm": seen[negative].mean(),
            "auc_kappa": auc(seen[kappa].to_numpy(), hit) if len(seen) else None,
            "auc_c_vlm": auc(seen[negative].to_numpy(), hit) if len(seen) else None,
        }
        found.append({"scorer": prefix.rstrip("_"), **common, **figures})
    return found or [{"scorer": "", **common}]
