"""Stack the tables of several runs, every row with the names of its arm and run, and check them before use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import polars as pl

from vlmsafe.analysis.auc import Float64, Int64
from vlmsafe.errors import InputError


def stacked(arms: Mapping[str, Mapping[str, pl.DataFrame]]) -> pl.DataFrame:
    """The tables of all runs of all arms, one below the other, with the columns `arm` and `run` in front.

    Run names are the keys of the inner mappings. They need only differ within an arm. A column that a run lacks is null
    in its rows.
    """
    parts = [
        table.select(pl.lit(arm).alias("arm"), pl.lit(run).alias("run"), pl.all())
        for arm, runs in arms.items()
        for run, table in runs.items()
    ]
    if not parts:
        raise InputError("no tables; expected at least one run in one arm")
    return pl.concat(parts, how="diagonal_relaxed")


def require_columns(table: pl.DataFrame, names: Iterable[str], what: str, hint: str) -> None:
    """Raise unless the table has rows and all columns; `hint` says where such a table comes from."""
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise InputError(f"{what}: the table has no column {', '.join(map(repr, missing))}; {hint}")
    if not len(table):
        raise InputError(f"{what}: the table has no rows; {hint}")


def floats(table: pl.DataFrame, name: str) -> Float64:
    """A column as floats, with NaN for null."""
    return table[name].cast(pl.Float64).fill_null(np.nan).to_numpy()


def scorer_column(scorer: str, name: str) -> str:
    """The name of a scorer's column in a trace. It begins with the scorer's name if the trace has several scorers."""
    return f"{scorer}_{name}" if scorer else name


_TRACE_HINT = "expected the traces of runs (vlmsafe trace), stacked with vlmsafe.analysis.tables.stacked"


def require_trace(steps: pl.DataFrame, what: str, scorer: str, signals: Iterable[str]) -> None:
    """Raise unless the steps have the columns of a trace and of the scorer, finite where they are scored."""
    names = [scorer_column(scorer, name) for name in signals]
    base = ("arm", "run", "episode", "step", "cost", "scored")
    present = [name for name in names if name in steps.columns]
    require_columns(steps, base, what, _TRACE_HINT)
    if len(present) < len(names):
        others = sorted(
            name.removesuffix("negative").rstrip("_") or "''" for name in steps.columns if name.endswith("negative")
        )
        raise InputError(
            f"{what}: the trace has no column {', '.join(map(repr, sorted(set(names) - set(present))))}; "
            + (f"the scorers in it are: {', '.join(others)}" if others else "it was recorded without a scorer")
        )
    for column in ("cost", *names):
        known = steps if column == "cost" else steps.filter("scored")
        if not np.isfinite(floats(known, column)).all():
            raise InputError(f"{what}: '{column}' is null or not finite at a step that should have one")
    for keys, own in steps.group_by("arm", "run", maintain_order=True):
        if not own["scored"].any():
            raise InputError(f"{what}: no step of run '{keys[1]}' of '{keys[0]}' was scored, so there is no signal")


def episode_numbers(steps: pl.DataFrame, what: str) -> Int64:
    """The number of each step's episode, from 0 over all runs. Its steps must be 1, 2, 3, ... in order."""
    name = pl.struct("arm", "run", "episode")
    numbers = steps.select(name.rle_id().cast(pl.Int64)).to_series().to_numpy()
    if steps.select(name.n_unique()).item() != numbers[-1] + 1:
        raise InputError(f"{what}: an episode is in several pieces; expected each run's steps in the order of time")
    step = steps["step"].to_numpy()
    begins = np.append(True, np.diff(numbers) != 0)
    expected = np.where(begins, 1, np.append(0, step[:-1]) + 1)
    wrong = np.flatnonzero(step != expected)
    if len(wrong):
        row = steps.row(int(wrong[0]), named=True)
        raise InputError(
            f"{what}: episode {row['episode']} of run '{row['run']}' has step {row['step']} in place of step "
            f"{expected[wrong[0]]}; expected every step of an episode, in the order of time"
        )
    return numbers
