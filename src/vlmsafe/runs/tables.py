"""Parquet tables of a run: read with one set of errors, written whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path

import polars as pl

from vlmsafe.errors import RunError
from vlmsafe.io.files import write_atomically
from vlmsafe.runs.layout import how_to_replace

SUCCESS = ("arrived", "arrived_without_cost")
"""The columns of an evaluation's table that count success: the task was completed, and it was at no cost."""
SOURCE = "env_source"
"""The column of an evaluation's table with the digest of the source of an environment of the user's."""
_KINDS: tuple[tuple[tuple[str, ...], type[pl.DataType], str], ...] = (
    (("cost", "env_return", "negative", "positive", "margin", "kappa", "hazard", "budget"), pl.Float64, "numbers"),
    (("episode", "scenario", "step", "length", "checkpoint_epoch"), pl.Int64, "whole numbers"),
    (
        ("violation", "catastrophe", "in_training_pool", "deterministic", "scored", *SUCCESS),
        pl.Boolean,
        "true or false",
    ),
)
"""Well-known columns, their type, and what a message calls it."""


def read_table(path: Path, columns: list[str] | None = None) -> pl.DataFrame:
    """A table of an evaluation or a trace, or only some of its columns; a RunError if it cannot be used.

    Well-known columns come with the type that every reader expects: numbers, whole numbers, true or false.
    """
    try:
        return _typed(pl.read_parquet(path, columns=columns, glob=False), path)
    except (OSError, pl.exceptions.PolarsError) as error:
        wanted = f" with the columns {', '.join(columns)}" if columns else ""
        reason = " ".join(str(error).split())
        raise _unusable(path, f"expected a Parquet table{wanted}, got: {reason}") from error


def read_part(path: Path) -> pl.DataFrame:
    """A part of a table that is not finished, as it was written; a RunError if it cannot be used."""
    try:
        return pl.read_parquet(path, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = " ".join(str(error).split())
        raise RunError(
            f"{path} is damaged: expected a Parquet table, got: {reason}; remove {path.parent}, and its episodes are "
            "run again"
        ) from None


def _unusable(path: Path, problem: str) -> RunError:
    return RunError(f"{path} is damaged: {problem}; {how_to_replace(path)}")


def _typed(table: pl.DataFrame, path: Path) -> pl.DataFrame:
    """The table with its well-known columns cast to their types; those that are absent stay absent."""
    casts = []
    for names, kind, words in _KINDS:
        for name in (name for name in names if name in table.columns):
            column = table[name]
            given = column.dtype
            fits = given.is_integer() or given == pl.Boolean if kind == pl.Boolean else given.is_numeric()
            if not fits and given != pl.Null:
                raise _unusable(path, f"expected {words} in the column '{name}', got {given}")
            if kind == pl.Int64 and given.is_float() and not (column % 1 == 0).all():
                raise _unusable(path, f"expected {words} in the column '{name}', got others")
            casts.append(pl.col(name).cast(kind))
    return with_success(table.with_columns(casts))


def with_success(table: pl.DataFrame) -> pl.DataFrame:
    """The table with its second column of success, which tables of earlier versions do not have."""
    arrived, without_cost = SUCCESS
    if without_cost in table.columns or not {arrived, "cost"} <= set(table.columns):
        return table
    return table.with_columns((pl.col(arrived) & (pl.col("cost") == 0.0)).alias(without_cost))


def write_table(path: Path, table: pl.DataFrame) -> None:
    """Write a table as Parquet, whole or not at all."""
    write_atomically(path, table_bytes(table))


def table_bytes(table: pl.DataFrame) -> bytes:
    """A table as the content of a Parquet file."""
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()
