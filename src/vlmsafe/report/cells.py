"""Cells of tables: the outcome of an arm or a run, with its deviation, interval and published value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from vlmsafe.analysis.intervals import Interval, mean_interval
from vlmsafe.analysis.resampling import LEAST
from vlmsafe.analysis.statistics import Clusters, Float64, seeds_within, summary
from vlmsafe.comparison.claims import RATES, WINDOWS, Outcome, Window
from vlmsafe.comparison.comparisons import Comparison
from vlmsafe.comparison.outcomes import WORDS, rate_clusters, run_outcome, values_of
from vlmsafe.comparison.settings import ABSENT, effective
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Cell, Column
from vlmsafe.runs.records import ArmRecord, RunRecord
from vlmsafe.runs.tables import SUCCESS

INTERVALS = (
    f"Mean ± population deviation over runs; in brackets the 95 % t interval over runs, from {LEAST} runs that differ."
)
MARK = "†"
QUANTITIES: dict[Outcome, str] = {
    "cost": "cost",
    "cost_per_distance": "cost_per_distance",
    "violation": "violation_pct",
    "catastrophe": "catastrophe_pct",
    "env_return": "environment_return",
    "shaped_return": "logged_return",
    "arrived": "arrived_pct",
    "arrived_without_cost": "arrived_without_cost_pct",
}
"""The name of each outcome in `side_by_side`."""
_METRICS = {"path": "path_length", "net_progress": "progress"}
_HEADINGS = {
    "cost": "cost",
    "cost_per_distance": "cost per distance",
    "violation": "violation %",
    "catastrophe": "catastrophe %",
    "env_return": "env. return",
    "shaped_return": "logged return",
    "arrived": "arrived %",
    "arrived_without_cost": "arrived without cost %",
}
_HINTS = {
    "cost": "mean episode cost",
    "cost_per_distance": "cost of all episodes over the distance of all: of a whole route, of 100 m or of 1,000 steps",
    "violation": "share of episodes that cost more than the budget",
    "catastrophe": "share of episodes that cost more than four budgets",
    "env_return": "return of the environment, without any bonus",
    "shaped_return": "return with the signal's bonus in it: not the task's",
    "arrived": "share of episodes that reach their destination",
    "arrived_without_cost": "share of episodes that reach their destination without any cost",
}


def is_rate(outcome: str) -> bool:
    return outcome in RATES


def outcome_column(outcome: Outcome, suffix: str = "", heading: str = "") -> Column:
    """The column of an outcome."""
    return Column(
        f"{QUANTITIES[outcome]}{suffix}",
        heading or _HEADINGS[outcome],
        1 if is_rate(outcome) else 2,
        hint=_HINTS[outcome],
    )


def text(value: object) -> Cell:
    return Cell("" if value is None else str(value), "" if value is None else str(value))


def count(value: int) -> Cell:
    return Cell(float(value), f"{value:,}")


def share(part: int, whole: int) -> Cell:
    """A count out of a total, sorted by the ratio."""
    return Cell(part / whole if whole else None, f"{part}/{whole}")


class Notes:
    """What a table has to say below it, gathered while its cells are made.

    These are the conditions in which published values differ from ours, and rates whose runs have unequally many
    episodes.
    """

    def __init__(self) -> None:
        self._found: dict[str, None] = {}
        self._any = False
        self._uneven: dict[str, list[str]] = {}

    def add(self, row: dict[str, Any]) -> str:
        """Add a row of `side_by_side`; returns the mark that follows its published value."""
        self._any = True
        self._found |= dict.fromkeys(row["differences"] or ())
        return "" if row["comparable"] else MARK

    def add_rate(self, arm: ArmRecord, outcome: Outcome, source: str, episodes: Clusters | None) -> None:
        """Note the pooled rate of an arm if it may differ from the mean over its runs."""
        if episodes is None or episodes.even:
            return
        many = f"{episodes.episodes.min()} to {episodes.episodes.max()} episodes"
        known = self._uneven.setdefault(f"'{arm.name}' on {arm.env} ({source}, {many} per run)", [])
        pooled = f"{WORDS[outcome]} {100 * episodes.pooled:.1f} %"
        if pooled not in known:
            known.append(pooled)

    def lines(self, most: int = 6) -> list[str]:
        uneven = [
            f"Rates are means over runs. Pooled over episodes, as published, {who} has: {', '.join(rates)}."
            for who, rates in self._uneven.items()
        ]
        if not self._any:
            return uneven
        lines = [
            *uneven,
            "Published values stand under ours, with the published deviation over runs where there is one.",
        ]
        # The scorer comes first, so that it is never cut.
        found = sorted(self._found, key=lambda text: not text.startswith("signal.scorer"))
        if found:
            more = f"; and {len(found) - most} more, see the table of published values" if len(found) > most else ""
            lines.append(f"{MARK} obtained under other conditions. Ours: {'; '.join(found[:most])}{more}.")
        return lines


def arm_cell(
    dataset: Dataset, arm: ArmRecord, outcome: Outcome, source: str, window: Window, notes: Notes | None = None
) -> Cell:
    """An arm's outcome over its runs. The cell is empty if no run has it."""
    values = list(values_of(arm, outcome, source, window).values())
    row = _published(dataset, arm, QUANTITIES[outcome], source, window) if notes else None
    if notes is not None and is_rate(outcome):
        notes.add_rate(arm, outcome, source, rate_clusters(arm, outcome, source, window))
    return _cell(values, outcome, arm.first.config.budget, row, notes)


def _published(dataset: Dataset, arm: ArmRecord, quantity: str, source: str, window: Window) -> dict[str, Any] | None:
    """The published value of an arm. That of a pool is the mean of its published runs, if every run has one."""
    if all(run.arm == arm.name for run in arm.runs):
        return dataset.published(arm.env, arm.name, None, source, window, quantity)
    rows = [dataset.published(run.env, run.arm, run.name, source, window, quantity) for run in arm.runs]
    known = [row for row in rows if row is not None]
    if len(known) < len(rows):
        return None
    found = summary([row["published"] for row in known])
    return {
        "published": found.mean,
        "published_std": found.std,
        "published_runs": found.n,
        "comparable": all(row["comparable"] for row in known),
        "differences": list(dict.fromkeys(text for row in known for text in row["differences"])),
    }


def run_cell(
    dataset: Dataset, run: RunRecord, outcome: Outcome, source: str, window: Window, notes: Notes | None = None
) -> Cell:
    """One run's outcome."""
    value = run_outcome(run, outcome, source, window)
    row = dataset.published(run.env, run.arm, run.name, source, window, QUANTITIES[outcome]) if notes else None
    return _cell([] if value is None else [value], outcome, run.config.budget, row, notes)


def metric_cell(dataset: Dataset, runs: Sequence[RunRecord], metric: str, source: str, notes: Notes | None) -> Cell:
    """A task metric of an arm's runs, or of one run."""
    values = [value for run in runs if (value := mean_of(run, source, metric)) is not None]
    name = runs[0].name if len(runs) == 1 else None
    quantity = _METRICS.get(metric, metric)
    row = dataset.published(runs[0].env, runs[0].arm, name, source, "", quantity) if notes else None
    return _cell(values, metric, None, row, notes)


def mean_of(run: RunRecord, protocol: str, column: str) -> float | None:
    """A run's mean over its evaluation episodes."""
    table = run.evaluations.get(protocol)
    if table is None or column not in table.columns:
        return None
    value = table[column].cast(pl.Float64).mean()
    return float(value) if isinstance(value, float) and np.isfinite(value) else None


def metrics_of(runs: Iterable[RunRecord], protocol: str) -> list[str]:
    """The task metrics in the evaluations of these runs, in the environment's order."""
    found: dict[str, None] = {}
    for run in runs:
        table = run.evaluations.get(protocol)
        if table is not None:
            known = [*run.config.spec.metrics, *SUCCESS]
            found |= dict.fromkeys(
                name for name in known if name in table.columns and table[name].null_count() < len(table)
            )
    return list(found)


def metric_column(metric: str) -> Column:
    heading = metric.replace("_", " ")
    return Column(metric, f"{heading} %", 1) if metric in SUCCESS else Column(metric, heading, 2)


def over_budget(arm: ArmRecord, source: str, window: Window) -> Cell:
    """How many of the runs cost more than the budget."""
    costs = [(run_outcome(run, "cost", source, window), run.config.budget) for run in arm.runs]
    known = [(cost, budget) for cost, budget in costs if cost is not None and budget is not None]
    if not known:
        return Cell()
    return share(seeds_within(*zip(*known, strict=True)).over, len(known))


def budget_cell(arm: ArmRecord) -> Cell:
    """The budget of an arm's runs; the lowest and the highest if they differ."""
    budgets = sorted({run.config.budget for run in arm.runs if run.config.budget is not None})
    if len(budgets) > 1:
        return Cell(budgets[0], f"{budgets[0]:g} to {budgets[-1]:g}")
    return Cell(budgets[0], f"{budgets[0]:g}") if budgets else Cell()


def settings_word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(settings_word, value))
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def by_seed(key: int | str) -> tuple[bool, int, str]:
    """Sort key: seeds by number, then runs by name."""
    return (True, 0, key) if isinstance(key, str) else (False, key, "")


def window_name(window: Window, runs: Iterable[RunRecord]) -> str:
    """A window in words. Runs that have fewer epochs than it asks for are taken whole."""
    if window == "final":
        return "final epoch"
    most = max((run.epochs_recorded for run in runs), default=WINDOWS[window])
    if most > WINDOWS[window]:
        return f"last {WINDOWS[window]} epochs"
    return "the only epoch" if most == 1 else f"all {most} epochs"


def compared_window(comparison: Comparison, window: Window) -> str:
    """A window in words, for the runs of both arms."""
    return window_name(window, [*comparison.first.runs, *comparison.second.runs])


def _cell(
    values: Sequence[float], outcome: str, budget: float | None, row: dict[str, Any] | None, notes: Notes | None
) -> Cell:
    if not values:
        return Cell()
    scale = 100.0 if is_rate(outcome) else 1.0
    scaled = scale * np.asarray(values)
    ends: dict[str, Any] = {}
    if len(values) > 1:
        ends["std"] = float(scaled.std())
    if len(values) >= LEAST:
        interval = outcome_interval(scaled, outcome, scale)
        ends |= {"low": interval.low, "high": interval.high} if interval is not None else {}
    # A value under another budget is not comparable, and a single run has no deviation.
    if row is not None and notes is not None and not any(text.startswith("budget ") for text in row["differences"]):
        std = row["published_std"] if (row["published_runs"] or 2) > 1 else None
        ends |= {"published": row["published"], "published_std": std, "mark": notes.add(row)}
    mean = float(scaled.mean())
    if outcome == "cost" and budget is not None:
        ends["state"] = "over" if mean > budget else "within"
    return Cell(mean, **ends)


def outcome_interval(values: Float64, outcome: str, scale: float = 1.0) -> Interval | None:
    """The t interval of an outcome's mean over runs, within what the outcome can be; None if it has no width."""
    least = 0.0 if is_rate(outcome) or outcome == "cost" else -math.inf
    return mean_interval(values, least=least, most=scale if is_rate(outcome) else math.inf)


def varied(arms: Sequence[ArmRecord]) -> list[str]:
    """The settings that have an effect and differ between the arms."""
    found = [effective(arm.first.settings) for arm in arms]
    names = sorted({name for settings in found for name in settings})
    return [name for name in names if len({str(settings.get(name, ABSENT)) for settings in found}) > 1]


def env_column(envs: Sequence[str]) -> list[Column]:
    """A column for the environment, if there are several."""
    return [Column("env", "environment")] if len(envs) > 1 else []


def env_cell(envs: Sequence[str], env: str) -> list[Cell]:
    return [text(env)] if len(envs) > 1 else []


def on_env(envs: Sequence[str]) -> str:
    return f" on {envs[0]}" if len(envs) == 1 else ""
