"""The tables of the multiplier: each run's lambda replayed with and without the signal term."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import polars as pl

from vlmsafe.analysis.multiplier_replay import AGREEMENT, ReplaySummary, summarise
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Cell, Column, Missing, Table
from vlmsafe.report.request import Entry
from vlmsafe.report.tables.rows import ARM, BY_RUN, ENV, RUN, cells, named

_COLUMNS = {
    column.name: column
    for column in (
        ARM,
        RUN,
        *named("runs", "epochs", digits=0),
        Column("error", "rebuilt λ off by", 5, hint="largest difference between the rebuilt and the recorded lambda"),
        Column("sign_reversals", "signs turned", 0, hint="epochs in which the term turned the sign of J_C - d"),
        Column("at_budget", "J_C = d", 0, hint="epochs in which the term alone gives the update its sign"),
        Column("mean_term", "mean term", 5, hint="eta_2 (mean c_vlm - tau), absolute"),
        Column("largest_term", "largest term", 5, hint="eta_2 (mean c_vlm - tau), absolute"),
        Column("smallest_gap", "smallest |J_C - d|", 2),
        Column("mean_gap", "mean |J_C - d|", 2),
        Column("median_gap", "median |J_C - d|", 2),
        Column("largest_gap", "largest |J_C - d|", 2),
        Column("largest_change", "λ changes by", 5, hint="largest difference that removing the term makes to lambda"),
        Column("median_largest_change", "median over runs", 5, hint="of the largest change of lambda in each run"),
        Column("largest_step", "largest step of λ", 4),
        Column("mean_score", "mean c_vlm", 4),
        Column("budget_shift", "budget shift", 5, hint="eta_2 (tau - mean c_vlm): the term acts as another budget"),
        Column("agrees", "replay agrees", hint=f"with the recorded lambda, to {AGREEMENT:g}"),
    )
}
_BY_ARM = (
    "arm", "runs", "epochs", "sign_reversals", "largest_term", "median_gap", "largest_change", "largest_step",
    "budget_shift", "agrees",
)  # fmt: skip
_BY_RUN = (
    "arm", "run", "epochs", "error", "largest_change", "median_largest_change", "largest_step", "sign_reversals",
    "at_budget", "agrees",
)  # fmt: skip
_TERMS = (
    "arm", "run", "mean_term", "largest_term", "smallest_gap", "median_gap", "mean_gap", "largest_gap", "mean_score",
    "budget_shift",
)  # fmt: skip
_CAPTION = "Each run's multiplier replayed from its own record with and without the signal term; costs are held fixed."


def multiplier(dataset: Dataset, entry: Entry) -> Table | Missing:
    """What the signal term did to the multiplier of each arm."""
    return _summaries(dataset, entry, "Did the signal move the multiplier?", _BY_ARM, _CAPTION)


def multiplier_runs(dataset: Dataset, entry: Entry) -> Table | Missing:
    """The same, run by run."""
    return _summaries(dataset, entry, "Multiplier with and without the signal term", _BY_RUN, _CAPTION)


def multiplier_terms(dataset: Dataset, entry: Entry) -> Table | Missing:
    """The sizes of both terms of the update, run by run."""
    caption = "The signal term is added to J_C - d. Where λ comes to rest, the budget shift acts as another budget."
    return _summaries(dataset, entry, "Sizes of both terms", _TERMS, caption)


def multiplier_epochs(dataset: Dataset, entry: Entry) -> Table | Missing:
    """The replay epoch by epoch."""
    columns = [
        *BY_RUN,
        *named("epoch", digits=0),
        Column("cost_gap", "J_C - d", 4),
        Column("signal_term", "signal term", 6),
        Column("negative_score", "mean c_vlm", 4),
        Column("recorded", "λ recorded", 6),
        Column("step", "step of λ", 6),
        Column("rebuilt", "λ rebuilt", 6),
        Column("without_term", "λ without the term", 6),
        Column("change", "change", 6, hint="what the term has added to lambda so far"),
    ]
    rows = [
        cells({"env": env, "arm": arm, "run": run, **row}, columns)
        for env, arm, replays in _replays(dataset, entry)
        for run, table in replays.items()
        for row in table.iter_rows(named=True)
    ]
    if not rows:
        return _missing(entry)
    title = entry.title or "The multiplier epoch by epoch"
    return Table(entry.kind, title, columns, rows, _CAPTION, entry.label, fold=True)


def _summaries(dataset: Dataset, entry: Entry, title: str, names: Sequence[str], caption: str) -> Table | Missing:
    """One row per arm; where `names` has the run, one per run after the arm's, unless an arm has a single run."""
    columns = [ENV, *(_COLUMNS[name] for name in names)]
    rows: list[list[Cell]] = []
    strong: set[int] = set()
    disagreeing: list[str] = []
    for env, arm, replays in _replays(dataset, entry):
        single = {run: summarise(table) for run, table in replays.items()}
        disagreeing += [f"{arm} {run}" for run, summary in single.items() if not summary.agrees]
        found: list[tuple[str | None, ReplaySummary]] = [(None, summarise(*replays.values()))]
        if "run" in names:
            found = [*found, *single.items()] if len(single) > 1 else list(single.items())
            strong |= {len(rows)} if len(single) > 1 else set()
        for run, summary in found:
            values = {"env": env, "arm": arm, "run": run, **asdict(summary), "agrees": summary.agrees}
            rows.append(cells(values, columns))
    if not rows:
        return _missing(entry)
    notes = []
    if disagreeing:
        notes = [
            f"The replay differs from the record by more than {AGREEMENT:g} in {', '.join(disagreeing)}: "
            "these figures cannot be believed."
        ]
    return Table(entry.kind, entry.title or title, columns, rows, caption, entry.label, frozenset(strong), notes)


def _replays(dataset: Dataset, entry: Entry) -> Iterator[tuple[str, str, dict[str, pl.DataFrame]]]:
    for env in dataset.envs(entry):
        for arm in dataset.arms(env, entry):
            replays = dataset.replays(arm)
            if replays:
                yield env, arm.name, replays


def _missing(entry: Entry) -> Missing:
    return Missing(entry.kind, "Multiplier replay", "no arm has a signal term in its multiplier")
