"""Defects of runs: unreadable, unfinished, changed afterwards, contradictory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from vlmsafe.runs.run import Run

from .clean_design import EPOCHS
from .editing import (
    HELD_OUT,
    Row,
    checkpointed_at,
    edit_epochs,
    edit_table,
    retrain,
    run_paths,
    set_up_with,
    write_settings,
)
from .planting import BASELINE, FIRST, ONE, OTHER_EPOCH, SECOND, Plant, add, each_run, planted, table
from .run_directory import write_rows

# Files that cannot be read.
_FEWER = ["seed-sets-differ", "missing-evaluation", "incomplete-run", "untrained-checkpoint", "not-finite"]


def _spoil(name: str, content: bytes) -> Plant:
    return each_run(BASELINE, lambda path: (path / name).write_bytes(content) and None, ONE)


add("broken-config", "unreadable-run", _spoil("config.yaml", b"env: [metadrive\n"), also=_FEWER)
add(
    "unknown-setting",
    "unreadable-run",
    each_run(BASELINE, lambda p: write_settings(p, {"colour": 1}), ONE),
    also=_FEWER,
)
add("broken-rows", "unreadable-run", _spoil("epochs.jsonl", b'{"epoch": 1,\n{"epoch": 2}\n'), also=_FEWER)
add("broken-table", "unreadable-run", _spoil(f"evaluations/{HELD_OUT}.parquet", b"PAR1 not"), also=_FEWER)
add(
    "broken-checkpoint", "unreadable-run", _spoil(f"checkpoints/epoch-{EPOCHS:05d}.safetensors", b"no"), also=_FEWER
)  # fmt: skip


# Runs that ended early.
def _stopped(epochs: int) -> Callable[[Path], None]:
    def stop(path: Path) -> None:
        retrain(path, epochs=epochs)
        run = Run.open(path)
        write_rows(run, "events", run.events()[:1])
        ended = {"checkpoint_epoch": pl.lit(epochs, pl.Int64), "run_finished": pl.lit(False)}
        edit_table(path, lambda table: table.with_columns(**ended))

    return stop


add("stopped-at-12", "incomplete-run", each_run(BASELINE, _stopped(12), ONE), also=OTHER_EPOCH)
add("stopped-before-the-last", "incomplete-run", each_run(FIRST, _stopped(19), SECOND), also=OTHER_EPOCH)
add("whole-arm-stopped", "incomplete-run", each_run(BASELINE, _stopped(15)), also=[*OTHER_EPOCH, "window-dependent"])
add(
    "checkpoint-older-than-rows", "incomplete-run", each_run(BASELINE, lambda path: checkpointed_at(path, 15), ONE),
    also=["stale-evaluation", "record-disagrees"],
)  # fmt: skip
add(
    "rows-cut-off", "incomplete-run",
    each_run(FIRST, lambda path: write_rows(run := Run.open(path), "epochs", run.rows("epochs")[:12]), ONE),
    also=["record-disagrees", "window-dependent"],
)  # fmt: skip

_START = {"checkpoint_epoch": pl.lit(0, pl.Int64)}
add(
    "evaluated-at-the-start", "untrained-checkpoint",
    each_run(BASELINE, table(lambda own: own.with_columns(**_START)), ONE), also=OTHER_EPOCH,
)  # fmt: skip


@planted("only-the-start-kept", "untrained-checkpoint", also=["incomplete-run", *OTHER_EPOCH])
def _only_the_start(folder: Path) -> None:
    path = run_paths(folder, FIRST)[0]
    checkpointed_at(path, 0)
    edit_table(path, lambda table: table.with_columns(**_START, run_finished=pl.lit(False)))


# Settings and prompts that were changed afterwards.
add("all-configs-edited", "config-changed", each_run(None, lambda path: write_settings(path, {"learner.gamma": 0.995})))
add(
    "one-config-edited", "config-changed",
    each_run(BASELINE, lambda path: write_settings(path, {"multiplier.learning_rate": 0.05}), ONE),
    also=["inconsistent-arm", "replay-disagrees"],
)  # fmt: skip
add(
    "prompts-edited", "config-changed",
    each_run(FIRST, lambda p: (p / "prompts.yaml").write_text("positive: [a safe car]\nnegative: [a wreck]\n") and None,
          ONE),
    also=["inconsistent-arm"],
)  # fmt: skip


# Numbers that are none.
def _at_row(place: int, column: str, value: float | None) -> Callable[[pl.DataFrame], pl.DataFrame]:
    here = pl.int_range(pl.len()) == place
    return lambda table: table.with_columns(
        pl.when(here).then(pl.lit(value, pl.Float64)).otherwise(column).alias(column)
    )


def _epoch_value(place: int, **values: Any) -> Callable[[Path], None]:
    def change(rows: list[Row]) -> list[Row]:
        rows[place] |= values
        return rows

    return lambda path: edit_epochs(path, change)


_NAN = float("nan")
_UNKNOWN = ["record-disagrees", "window-dependent", "replay-disagrees"]
add("nan-return", "not-finite", each_run(BASELINE, table(_at_row(7, "env_return", _NAN)), ONE))
add("null-cost", "not-finite", each_run(FIRST, table(_at_row(3, "cost", None)), ONE), also=["record-disagrees"])
add(
    "infinite-cost", "not-finite", each_run(FIRST, table(_at_row(3, "cost", float("inf"))), ONE),
    also=["record-disagrees", "few-episodes-decide"],
)  # fmt: skip
add("nan-in-training", "not-finite", each_run(FIRST, _epoch_value(-1, episode_cost=_NAN), ONE), also=_UNKNOWN)
add("nan-multiplier", "not-finite", each_run(FIRST, _epoch_value(9, multiplier=_NAN), ONE), also=_UNKNOWN)


# Records that contradict themselves.
add(
    "verdicts-cleared", "record-disagrees",
    each_run(BASELINE, table(lambda table: table.with_columns(violation=pl.lit(False)))),
)  # fmt: skip
add("return-without-bonus", "record-disagrees", each_run(FIRST, _epoch_value(-1, shaped_return=210.0), ONE))
add(
    "an-epoch-twice", "record-disagrees",
    each_run(BASELINE, lambda p: edit_epochs(p, lambda rows: rows[:8] + rows[7:]), ONE), also=["replay-disagrees"],
)  # fmt: skip


# Multipliers that do not follow.
def _shifted(rows: list[Row]) -> list[Row]:
    return [row | {"multiplier": row["multiplier"] + (0.05 if row["epoch"] > 8 else 0.0)} for row in rows]


add("multiplier-shifted", "replay-disagrees", each_run(FIRST, lambda path: edit_epochs(path, _shifted), ONE))
add("multiplier-off-at-the-end", "replay-disagrees", each_run(BASELINE, _epoch_value(-1, multiplier=0.75), ONE))


@planted("multiplier-of-another-rule", "replay-disagrees")
def _other_rule(folder: Path) -> None:
    for path in run_paths(folder, FIRST):
        set_up_with(path, {"multiplier.learning_rate": 0.07})
        write_settings(path, {"multiplier.learning_rate": 0.035})
        checkpointed_at(path, EPOCHS)
