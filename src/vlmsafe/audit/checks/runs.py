"""Single runs: is each one readable, complete, trained, finite and consistent with itself?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from vlmsafe.analysis.multiplier_replay import AGREEMENT, rebuild
from vlmsafe.audit.findings import Finding, about_runs, finding, listed
from vlmsafe.audit.kinds import Severity
from vlmsafe.config.yaml import flatten, to_dict
from vlmsafe.errors import InputError
from vlmsafe.runs.layout import PROMPTS, is_driver
from vlmsafe.runs.records import RunRecord

_NUMBERS = ("env_return", "shaped_return", "episode_cost", "multiplier", "negative_score", "positive_score", "kappa")
_MOST_LINES = 8


def unreadable_run(run: RunRecord) -> Iterator[Finding]:
    if run.problems:
        yield finding("unreadable-run", about_runs(run), run.problems, {"problems": run.problems})


def incomplete_run(run: RunRecord) -> Iterator[Finding]:
    if is_driver(run.source.run.path):
        return  # it has a checkpoint and no rows
    due, recorded, saved = run.config.epochs, run.epochs_recorded, run.epochs_saved
    if run.running:
        yield finding(
            "incomplete-run",
            about_runs(run),
            [f"it is still running: {recorded} of {due} epochs"],
            _progress(run),
            fix="wait for it",
            severity=Severity.WARNING,
        )
        return
    # Some people delete all checkpoints. The record then says how far a run came, or else its evaluation does.
    reached = recorded if saved is None else min(saved, recorded)
    if saved is None and not recorded:
        tables = [table for table in run.evaluations.values() if "checkpoint_epoch" in table.columns]
        reached = max((int(table["checkpoint_epoch"].drop_nulls().max() or 0) for table in tables), default=0)  # type: ignore[arg-type]
    if reached < due:
        last = f"; its last checkpoint is of epoch {saved}" if saved is not None and saved != recorded else ""
        yield finding(
            "incomplete-run",
            about_runs(run),
            [f"{recorded} of {due} epochs are recorded{last}", *_last_event(run)],
            _progress(run),
            fix=f"continue it with: {run.source.run.resume_command}; or leave its seed out of every arm",
        )


def _progress(run: RunRecord) -> dict[str, int | None]:
    return {"epochs": run.config.epochs, "recorded": run.epochs_recorded, "saved": run.epochs_saved}


def _last_event(run: RunRecord) -> list[str]:
    if not run.events:
        return []
    last = dict(run.events[-1])
    return [f"its last event: {last.pop('event', '?')} at {last.pop('time', '?')}" + (f" ({last})" if last else "")]


def untrained_checkpoint(run: RunRecord) -> Iterator[Finding]:
    if run.epochs_saved == 0 and not run.running:
        yield finding(
            "untrained-checkpoint",
            about_runs(run),
            [
                f"its only checkpoint is its untrained start, though {run.epochs_recorded} of {run.config.epochs} "
                "epochs are recorded"
            ],
            _progress(run),
            fix="train it again: every evaluation of it is one of the initial policy",
        )


def config_changed(run: RunRecord) -> Iterator[Finding]:
    """A checkpoint remembers the settings it was trained with."""
    if run.trained_with is None:
        return
    then = run.config.as_of(len(run.trained_with.get("extended_from", ())))  # when the checkpoint was made
    changed = {
        key: {"trained": run.trained_with[key], "now": value}
        for key, value in flatten(to_dict(then)).items()
        if key != "run_dir" and key in run.trained_with and run.trained_with[key] != value
    }
    lines = [f"{key}: trained with {pair['trained']}, config.yaml says {pair['now']}" for key, pair in changed.items()]
    if run.prompts is not None and run.trained_with.get(PROMPTS) not in (None, run.prompts):
        lines.append(f"{PROMPTS} is not what the checkpoint was trained with")
    if lines:
        yield finding("config-changed", about_runs(run), lines, {"changed": changed})


def not_finite(run: RunRecord) -> Iterator[Finding]:
    bad: list[str] = []
    for row in run.epochs:
        wrong = [name for name in _NUMBERS if not _is_number(row.get(name))]
        if row.get("episodes") and row.get("episode_cost") is None:
            wrong.append("episode_cost")
        if wrong:
            bad.append(f"epoch {row.get('epoch')}: {listed(wrong)}")
    for name, table in run.evaluations.items():
        for column in ("env_return", "cost"):
            if column not in table.columns:
                bad.append(f"'{name}' has no column {column}")
            elif (count := sum(not _is_number(value) or value is None for value in table[column].to_list())) > 0:
                bad.append(f"'{name}': {column} of {count} of {len(table)} episodes")
    if bad:
        rest = [f"and {len(bad) - _MOST_LINES} more"] if len(bad) > _MOST_LINES else []
        yield finding("not-finite", about_runs(run), [*bad[:_MOST_LINES], *rest], {"count": len(bad)})


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))


def record_disagrees(run: RunRecord) -> Iterator[Finding]:
    """Returns and bonus must add up, epochs must be in order, costs must not be negative."""
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
        fix = "the record was edited or written by other code: train again"
        yield finding("record-disagrees", about_runs(run), lines, fix=fix)


def replay_disagrees(run: RunRecord) -> Iterator[Finding]:
    """The multiplier must follow from the recorded costs."""
    if run.config.multiplier.kind == "none" or not run.epochs:
        return
    try:
        values = rebuild(run.epochs, run.config.multiplier)
    except (InputError, KeyError, TypeError):
        return  # rows that cannot be replayed are reported as not finite or out of order
    errors = [abs(value - row["multiplier"]) for value, row in zip(values, run.epochs, strict=True)]
    worst = max(range(len(errors)), key=errors.__getitem__)
    if errors[worst] > AGREEMENT:
        yield finding(
            "replay-disagrees",
            about_runs(run),
            [
                f"epoch {worst + 1} records lambda = {run.epochs[worst]['multiplier']:.6g}, its costs and settings "
                f"give {values[worst]:.6g}",
                f"{sum(error > AGREEMENT for error in errors)} of {len(errors)} epochs disagree",
            ],
            {"largest_error": errors[worst], "epoch": worst + 1},
        )


RUN_CHECKS = (
    unreadable_run, incomplete_run, untrained_checkpoint, config_changed, not_finite, record_disagrees,
    replay_disagrees,
)  # fmt: skip
