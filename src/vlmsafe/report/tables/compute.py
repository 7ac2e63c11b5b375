"""The table of what it costs to train: time per run, speed, and what the signal adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vlmsafe.errors import VlmsafeError
from vlmsafe.report.cells import count, text
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Cell, Column, Missing, Table, minus
from vlmsafe.report.request import Entry
from vlmsafe.report.tables import paper
from vlmsafe.runs.records import ArmRecord, RunRecord


def _reference(arm: ArmRecord, arms: Sequence[ArmRecord], plain: Sequence[ArmRecord]) -> ArmRecord | None:
    """The arm without a signal whose time counts as one: as long, and with as many passes as most that have one."""
    long = [other for other in plain if other.first.config.total_steps == arm.first.config.total_steps]
    passes = [other.first.config.learner.update_iters for other in arms if other.has_signal]
    return max(long or plain, key=lambda other: passes.count(other.first.config.learner.update_iters), default=None)


def compute(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Time per run, and how it compares with the arm that has no signal."""
    rows: list[list[Cell]] = []
    for env in dataset.envs(entry):
        arms = dataset.arms(env, entry)
        spent = {arm.name: [found for run in arm.runs if (found := _seconds(run))] for arm in arms}
        plain = [arm for arm in arms if not arm.has_signal and spent[arm.name]]
        for arm in arms:
            own = spent[arm.name]
            if not own:
                continue
            reference = _reference(arm, arms, plain)
            per_step = float(np.mean([seconds / steps for seconds, _, steps in own]))
            hours = [seconds / 3600 for seconds, _, _ in own]
            factor = None
            if reference is not None and arm is not reference:
                factor = per_step / float(np.mean([seconds / steps for seconds, _, steps in spent[reference.name]]))
            config = arm.first.config
            every = config.signal.every if arm.has_signal else None
            beside = paper.times(env, config.method, config.total_steps, every)
            rows.append(
                [
                    text(env),
                    text(arm.name),
                    count(every) if every else text("none"),
                    count(len(own)),
                    _timed(float(np.mean(hours)), beside.get("hours"), hours),
                    _timed(float(np.mean([collect / 3600 for _, collect, _ in own])), beside.get("rollout_hours")),
                    _timed(1.0 / per_step, beside.get("steps_per_second")),
                    Cell(100 * (factor - 1), minus(f"{100 * (factor - 1):+.0f} %"))
                    if factor is not None
                    else text("reference" if arm is reference else ""),
                ]
            )
    if not rows:
        return Missing(entry.kind, "Compute", "no run has recorded its times")
    columns = [
        Column("env", "environment"),
        Column("arm", "arm"),
        Column("every", "scored every", 0, hint="steps between two scored frames"),
        Column("runs", "runs", 0),
        Column("hours", "hours", 3, hint="mean over runs; in brackets the shortest and the longest"),
        Column("rollout_hours", "rollout hours", 3),
        Column("steps_per_second", "steps/s", 1),
        Column("overhead_pct", "time per step", 0, hint="against the first arm without a signal"),
    ]
    caption = "Wall time of the epochs that were recorded, evaluation excluded. Runs may come from different machines."
    notes = paper.note(rows, paper.TIME_NOTE)
    return Table("compute", entry.title or "What it costs to train", columns, rows, caption, entry.label, notes=notes)


def _timed(value: float, published: float | None, several: Sequence[float] = ()) -> Cell:
    low, high = (min(several), max(several)) if len(several) > 1 else (None, None)
    return replace(paper.beside(value, published), low=low, high=high)


def _seconds(run: RunRecord) -> tuple[float, float, int] | None:
    """Seconds of all stages, seconds of collecting, and steps, of the epochs on record."""
    try:
        rows = run.source.run.rows("timing")
    except VlmsafeError:
        return None  # the audit names files that cannot be read
    total = sum(float(value) for row in rows for name, value in row.items() if name != "epoch")
    collect = sum(float(row.get("collect", 0.0)) for row in rows)
    return (total, collect, len(rows) * run.config.steps_per_epoch) if total > 0 else None
