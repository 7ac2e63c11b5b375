"""Is each run what it seems to be: read, complete, trained, finite, and consistent with itself?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from vlmsafe.analysis.multiplier_replay import AGREEMENT, rebuild
from vlmsafe.audit.findings import Finding, Severity, listed
from vlmsafe.errors import InputError
from vlmsafe.runs.layout import PROMPTS
from vlmsafe.runs.records import RunRecord

_NOT_SETTINGS = ("run_dir",)


def check_run(run: RunRecord) -> Iterator[Finding]:
    """Everything about one run."""
    where = f"{run.env}: {run.label}"
    if run.problems:
        yield Finding("unreadable-run", where, tuple(run.problems), "restore the file, or train the run again")
    yield from _complete(run, where)
    yield from _settings(run, where)
    yield from _finite(run, where)
    yield from _consistent(run, where)
    yield from _replayed(run, where)


def _complete(run: RunRecord, where: str) -> Iterator[Finding]:
    due, recorded, saved = run.config.epochs, run.epochs_recorded, run.epochs_saved
    data = {"epochs": due, "recorded": recorded, "saved": saved}
    resume = f"continue it with: {run.source.run.resume_command}; or leave its seed out of every arm"
    if run.running:
        yield Finding(
            "incomplete-run", where, (f"it is still running: {recorded} of {due} epochs",), "wait for it", data,
            Severity.WARNING,
        )  # fmt: skip
        return
    if saved == 0:
        yield Finding(
            "untrained-checkpoint",
            where,
            (f"its only checkpoint is its untrained start, though {recorded} of {due} epochs are recorded",),
            "train it again: whatever is evaluated from it is the initial policy",
            data,
        )
    # Without any checkpoint, which some people delete, the record says how far a run came, or its evaluation does.
    reached = recorded if saved is None else min(saved, recorded)
    if saved is None and not recorded:
        tables = [table for table in run.evaluations.values() if "checkpoint_epoch" in table.columns]
        reached = max((int(table["checkpoint_epoch"].drop_nulls().max() or 0) for table in tables), default=0)  # type: ignore[arg-type]
    if reached < due:
        last = f"; its last checkpoint is of epoch {saved}" if saved is not None and saved != recorded else ""
        yield Finding(
            "incomplete-run",
            where,
            (f"{recorded} of {due} epochs are recorded{last}", *_why(run)),
            resume,
            data,
        )


def _why(run: RunRecord) -> list[str]:
    """The last thing that was noted about the run."""
    if not run.events:
        return []
    last = dict(run.events[-1])
    return [f"its last event: {last.pop('event', '?')} at {last.pop('time', '?')}" + (f" ({last})" if last else "")]


def _settings(run: RunRecord, where: str) -> Iterator[Finding]:
    """A checkpoint remembers the settings it was trained with."""
    if run.trained_with is None:
        return
    now = {key: value for key, value in run.settings.items() if key not in _NOT_SETTINGS}
    changed = [
        f"{key}: trained with {run.trained_with[key]}, config.yaml says {value}"
        for key, value in now.items()
        if key in run.trained_with and run.trained_with[key] != value
    ]
    if run.prompts is not None and run.trained_with.get(PROMPTS) not in (None, run.prompts):
        changed.append(f"{PROMPTS} is not what the checkpoint was trained with")
    if changed:
        yield Finding("config-changed", where, tuple(changed), "undo the change; it is not what was trained")


_FIGURES = ("env_return", "shaped_return", "episode_cost", "multiplier", "negative_score", "positive_score", "kappa")


def _finite(run: RunRecord, where: str) -> Iterator[Finding]:
    bad: list[str] = []
    for row in run.epochs:
        wrong = [name for name in _FIGURES if not _number(row.get(name))]
        if row.get("episodes") and row.get("episode_cost") is None:
            wrong.append("episode_cost")
        if wrong:
            bad.append(f"epoch {row.get('epoch')}: {listed(wrong)}")
    for name, table in run.evaluations.items():
        for column in ("env_return", "cost"):
            if column not in table.columns:
                bad.append(f"'{name}' has no column {column}")
            elif (count := sum(not _number(value) or value is None for value in table[column].to_list())) > 0:
                bad.append(f"'{name}': {column} of {count} of {len(table)} episodes")
    if bad:
        yield Finding(
            "not-finite",
            where,
            tuple(bad[:8]) + ((f"and {len(bad) - 8} more",) if len(bad) > 8 else ()),
            "find out where the numbers went wrong; a mean over what is left is not the arm's",
        )


def _number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))


def _consistent(run: RunRecord, where: str) -> Iterator[Finding]:
    """Figures that hang together must: returns and bonus, epochs in order, costs that are not negative."""
    lines = []
    numbers = [row.get("epoch") for row in run.epochs]
    if numbers != list(range(1, len(numbers) + 1)):
        lines.append(f"epochs are not 1, 2, 3, ... in order: {listed(numbers, 10)}")
    for row in run.epochs:
        parts = [row.get(name) for name in ("env_return", "bonus", "shaped_return")]
        if all(isinstance(part, int | float) and math.isfinite(part) for part in parts):
            own, bonus, shaped = map(float, parts)  # type: ignore[arg-type]
            if abs(own + bonus - shaped) > 1e-6 * max(1.0, abs(shaped), abs(bonus)):
                lines.append(
                    f"epoch {row.get('epoch')}: environment return {own:.6g} and bonus {bonus:.6g} do not add up to "
                    f"the logged return {shaped:.6g}"
                )
                break
    for row in run.epochs:
        if isinstance(row.get("budget"), int | float) and row["budget"] != run.config.budget:
            lines.append(
                f"epoch {row.get('epoch')} was priced with the budget {row['budget']:g}, "
                f"config.yaml says {run.config.budget:g}"
            )
            break
    if any((row.get("episode_cost") or 0.0) < 0.0 for row in run.epochs):
        lines.append("an episode cost is negative")
    if lines:
        yield Finding(
            "record-disagrees", where, tuple(lines), "the record was edited or written by other code: train again"
        )


def _replayed(run: RunRecord, where: str) -> Iterator[Finding]:
    """Does the multiplier follow from the costs that were recorded?"""
    if run.config.multiplier.kind == "none" or not run.epochs:
        return
    try:
        values = rebuild(run.epochs, run.config.multiplier)
    except (InputError, KeyError, TypeError):
        return  # rows that cannot be replayed are told as not finite or out of order
    errors = [abs(value - row["multiplier"]) for value, row in zip(values, run.epochs, strict=True)]
    worst = max(range(len(errors)), key=errors.__getitem__)
    if errors[worst] > AGREEMENT:
        yield Finding(
            "replay-disagrees",
            where,
            (
                f"epoch {worst + 1} records lambda = {run.epochs[worst]['multiplier']:.6g}, its costs and settings "
                f"give {values[worst]:.6g}",
                f"{sum(error > AGREEMENT for error in errors)} of {len(errors)} epochs disagree",
            ),
            "the settings or the record are not those of the run: train it again",
            {"largest_error": errors[worst], "epoch": worst + 1},
        )
