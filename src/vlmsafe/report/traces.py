"""Which traces a report is made from: of which protocol, which scorer, and how many episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from vlmsafe.errors import InputError

TraceTables = dict[str, dict[str, pl.DataFrame]]
"""By arm, then by run, as `vlmsafe.analysis.tables.stacked` takes them."""

_SIGNALS = ("positive", "negative", "margin")
_GATE = ("kappa", "gate_scale", "gate_centre")


def scorers_in(columns: Sequence[str]) -> list[str]:
    """The names of the scorers in a trace; the only one may have no name.

    >>> scorers_in(["cost", "negative"]), scorers_in(["clip_negative", "oracle_negative"])
    ([''], ['clip', 'oracle'])
    """
    return [
        name.removesuffix("negative").removesuffix("_")
        for name in columns
        if name == "negative" or name.endswith("_negative")
    ]


def chosen_scorer(columns: Sequence[str], wanted: str | None) -> str:
    """The scorer that was asked for, else the only one; an `InputError` says what there is to choose from."""
    present = scorers_in(columns)
    names = ", ".join(name or "one without a name" for name in present) or "none"
    if wanted is not None:
        if wanted not in present:
            raise InputError(f"the trace has no scorer '{wanted}'; it has: {names}")
        return wanted
    if len(present) > 1 and "" not in present:
        raise InputError(f"the trace has several scorers; choose one with --scorer: {names}")
    return "" if "" in present or not present else present[0]


def of_scorer(table: pl.DataFrame, wanted: str | None) -> pl.DataFrame | None:
    """A trace with the columns of one scorer under their plain names: the one wanted, else the first there is.

    None where the scorer, or one of its signals, is not in the trace.
    """
    present = scorers_in(table.columns)
    if "scored" not in table.columns or not present or (wanted is not None and wanted not in present):
        return None
    name = present[0] if wanted is None else wanted
    prefix = f"{name}_" if name else ""
    if any(f"{prefix}{signal}" not in table.columns for signal in _SIGNALS):
        return None
    own = [signal for signal in (*_SIGNALS, *_GATE) if f"{prefix}{signal}" in table.columns]
    return table.select(
        "episode", "step", "cost", "scored", *(pl.col(f"{prefix}{signal}").alias(signal) for signal in own)
    )


def count_onsets(steps: pl.DataFrame, *over: str) -> int:
    """The number of onsets: contacts (steps that cost) that follow a step of the same episode without cost."""
    contact = pl.col("cost") > 0.0
    return int(steps.select((contact & ~contact.shift(1, fill_value=False).over(*over, "episode")).sum()).item())


def first_episodes(runs: Mapping[str, pl.DataFrame], most: int) -> dict[str, pl.DataFrame]:
    """At most so many episodes of an arm: the first of each run, as many of every one."""
    each = max(1, most // len(runs))
    return {
        name: table.filter(pl.col("episode").is_in(table["episode"].unique().sort().head(each).implode()))
        for name, table in runs.items()
    }
