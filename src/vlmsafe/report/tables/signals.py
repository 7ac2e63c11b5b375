"""The tables of signals: scores over training, the term in the multiplier, the gate, lead time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from vlmsafe.analysis import lead_time as lead
from vlmsafe.analysis.anticipation import CONTROL, verdict
from vlmsafe.analysis.gate_roc import gate_medians
from vlmsafe.analysis.multiplier_replay import replay, summarise
from vlmsafe.errors import InputError
from vlmsafe.report.cells import MARK, count, text
from vlmsafe.report.dataset import TRACED, Dataset
from vlmsafe.report.elements import (
    Cell,
    Column,
    Missing,
    Table,
)
from vlmsafe.report.request import Entry
from vlmsafe.report.tables import paper
from vlmsafe.runs.records import RunRecord

SHARES = (0.1, 0.24, 0.5, 1.0)
"""Of the training steps, at which scores are shown: 100k, 240k, 500k and 1M of the paper's million."""
SIGNALS = {"kappa": "κ", "negative": "c_vlm", "positive": "r_vlm", "margin": "margin", CONTROL: "step index (control)"}
_TRACE = "no run has a trace that a scorer looked at; vlmsafe trace RUN records one"


def scores(dataset: Dataset, entry: Entry) -> Table | Missing:
    """A score at four moments of training, run by run."""
    rows: list[list[Cell]] = []
    for env in dataset.envs(entry):
        for arm in dataset.arms(env, entry):
            for run in arm.runs:
                known = [row[entry.metric] for row in run.epochs if row.get(entry.metric) is not None]
                if known:
                    beside = paper.scores(env, run.config.signal.scorer, run.seed)
                    beside = beside if entry.metric == "negative_score" else {}
                    cells = [
                        _beside(_at(run, entry.metric, part), beside.get(round(part * 1_000_000))) for part in SHARES
                    ]
                    ends = [Cell(min(known)), Cell(max(known))]
                    rows.append([text(env), text(arm.name), Cell(float(run.seed), str(run.seed)), *cells, *ends])
    if not rows:
        return Missing(entry.kind, "Scores over training", f"no run recorded a {entry.metric.replace('_', ' ')}")
    columns = [
        Column("env", "environment"),
        Column("arm", "arm"),
        Column("seed", "seed", 0),
        *(
            Column(f"at_{round(100 * part)}", f"at {100 * part:.0f} %", 4, hint="of the training steps")
            for part in SHARES
        ),
        Column("lowest", "lowest", 4),
        Column("highest", "highest", 4),
    ]
    title = entry.title or f"Mean {entry.metric.replace('_', ' ')} over training"
    caption = "Epoch means; lowest and highest over all epochs. Named after the scorer in the arm's settings."
    notes = _notes(rows, paper.SCORE_NOTE)
    return Table("scores", title, columns, rows, caption, entry.label, notes=notes, fold=not entry.asked)


def _beside(value: float | None, published: float | None) -> Cell:
    return Cell(value, published=published, mark=MARK if published is not None else "")


def _notes(rows: Sequence[Sequence[Cell]], words: str) -> list[str]:
    """Under what a published value was obtained, where a table has one."""
    return [f"{MARK} {words}."] if any(cell.published is not None for row in rows for cell in row) else []


def _at(run: RunRecord, metric: str, part: float) -> float | None:
    """The epoch's mean nearest to a share of the planned steps, of those that were trained."""
    target = part * run.config.total_steps
    row = min(run.epochs, key=lambda row: abs(row["steps"] - target))
    return row.get(metric) if abs(row["steps"] - target) <= run.config.steps_per_epoch else None


def multiplier(dataset: Dataset, entry: Entry) -> Table | Missing:
    """What the signal term did to the multiplier."""
    rows: list[list[Cell]] = []
    for env in dataset.envs(entry):
        for arm in dataset.arms(env, entry):
            replays = []
            for run in arm.runs:
                try:
                    replays.append(replay(run.epochs, run.config.multiplier))
                except InputError:
                    continue  # no term to remove, or a record that the audit names
            if replays:
                found = summarise(*replays)
                cells = [count(found.runs), count(found.epochs), count(found.sign_reversals), Cell(found.largest_term)]
                cells += [
                    Cell(found.median_gap),
                    Cell(found.largest_change),
                    Cell(found.largest_step),
                    Cell(found.budget_shift),
                ]
                rows.append([text(env), text(arm.name), *cells, text("yes" if found.agrees else "no")])
    if not rows:
        return Missing(entry.kind, "Multiplier replay", "no arm has a signal term in its multiplier")
    columns = [
        Column("env", "environment"),
        Column("arm", "arm"),
        Column("runs", "runs", 0),
        Column("epochs", "epochs", 0),
        Column("sign_reversals", "signs turned", 0, hint="epochs in which the term turned the sign of J_C - d"),
        Column("largest_term", "largest term", 5, hint="eta_2 (mean c_vlm - tau), absolute"),
        Column("median_gap", "median |J_C - d|", 2),
        Column("largest_change", "λ changes by", 5, hint="largest difference that removing the term makes to lambda"),
        Column("largest_step", "largest step of λ", 4),
        Column("budget_shift", "budget shift", 5, hint="eta_2 (tau - mean c_vlm): the term acts as another budget"),
        Column("agrees", "replay agrees", hint="with the recorded lambda, to 1e-6"),
    ]
    caption = (
        "Each run's multiplier replayed from its own record with and without the signal term; costs are held fixed."
    )
    return Table(
        "multiplier", entry.title or "Did the signal move the multiplier?", columns, rows, caption, entry.label
    )


def gate(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Medians of margin and kappa, run by run."""
    rows: list[list[Cell]] = []
    for env, cells in dataset.gate_cells(entry).items():
        prior = {(row["arm"], row["run"]): row for row in cells.filter(gate="s = 100").iter_rows(named=True)}
        for row in gate_medians(cells).iter_rows(named=True):
            own = prior[row["arm"], row["run"]]
            figures = ("margin_median", "kappa_median_prior", "kappa_median_calibrated")
            seeds = {run.name: run.seed for run in dataset.every_arm[env, row["arm"]].runs}
            beside = paper.gate_medians(env, seeds[row["run"]])
            medians = [_beside(row[name], beside.get(name)) for name in figures]
            shares = [Cell(100 * own["closed"]), Cell(100 * own["open"])]
            rows.append([text(env), text(row["arm"]), text(row["run"]), count(own["frames"]), *medians, *shares])
    if not rows:
        return Missing(entry.kind, "The gate", _TRACE)
    columns = [
        Column("env", "environment"),
        Column("arm", "arm"),
        Column("run", "run"),
        Column("frames", "frames", 0),
        Column("margin_median", "median margin", 4),
        Column("kappa_median_prior", "median κ, s = 100, c = 0", 2),
        Column("kappa_median_calibrated", "median κ, calibrated", 2, hint="on the same frames"),
        Column("closed_pct", "nearly closed %", 1, hint="frames with κ < 0.1, s = 100, c = 0"),
        Column("open_pct", "nearly open %", 1, hint="frames with κ > 0.9, s = 100, c = 0"),
    ]
    caption = (
        "Scored frames of each run's trace. A gate that is open or closed nearly everywhere weighs every frame alike."
    )
    notes = _notes(rows, paper.GATE_NOTE)
    return Table("gate", entry.title or "How open is the gate?", columns, rows, caption, entry.label, notes=notes)


def gate_roc(dataset: Dataset, entry: Entry) -> Table | Missing:
    """AUC of kappa against contact in the same step."""
    rows: list[list[Cell]] = []
    for env, found in dataset.gate_rocs(entry).items():
        for row in found.drop_nulls("auc").iter_rows(named=True):
            below = row["contact_below_centre"]
            rows.append(
                [
                    text(env),
                    text(row["arm"]),
                    text(_judged(row)),
                    count(row["positives"]),
                    Cell(row["auc"], low=row["low"], high=row["high"]),
                    Cell(row["contact_margin"]),
                    Cell(row["free_margin"]),
                    Cell(None if below is None else 100 * below),
                ]
            )
    if not rows:
        why = "no traced frame is in contact" if dataset.gate_rocs(entry) else _TRACE
        return Missing(entry.kind, "Gate and contact", why)
    columns = [
        Column("env", "environment"),
        Column("arm", "arm"),
        Column("score", "score"),
        Column("contacts", "contact frames", 0),
        Column("auc", "AUC", 3, hint="against contact in the same step; interval over episodes"),
        Column("contact_margin", "margin in contact", 4),
        Column("free_margin", "margin without", 4),
        Column("below_centre_pct", "contact below centre %", 1, hint="contact frames that only the fold makes count"),
    ]
    caption = (
        "Where the negated margin does as well as the calibrated gate, it has found an unusual margin, not danger."
    )
    return Table("gate-roc", entry.title or "Does the gate know contact?", columns, rows, caption, entry.label)


def _judged(row: dict[str, Any]) -> str:
    """Which score, under which gate, on which frames."""
    fitted = {None: "", "same frames": ", calibrated on these frames", "other half": ", calibrated on others"}
    half = f", half {row['half']}" if row["half"] else ""
    return row["score"].replace("kappa", "κ") + fitted[row["calibrated_on"]] + half


def lead_time(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Ranges of AUCs before contact, per arm, and whether the criterion is met."""
    rows: list[list[Cell]] = []
    for env, found in dataset.lead_times(entry).items():
        for (arm,), own in found.group_by("arm", maintain_order=True):
            for row in lead.auc_ranges(own).iter_rows(named=True):
                if row["raw_low"] is None:
                    continue
                ranges = [
                    Cell(row[f"{form}_high"], f"{row[f'{form}_low']:.3f} to {row[f'{form}_high']:.3f}")
                    for form in ("raw", "standardised")
                ]
                pooled = own.filter(pl.col("run").is_null())
                word = verdict(pooled, row["signal"]) if row["signal"] != CONTROL else ""
                rows.append(
                    [text(env), text(arm), text(SIGNALS.get(row["signal"], row["signal"])), *ranges, text(word)]
                )
    if not rows:
        traced = bool(dataset.lead_times(entry))
        why = "no traced episode has a contact, so there is nothing to rise before" if traced else _TRACE
        return Missing(entry.kind, "Lead time", why)
    columns = [
        Column("env", "environment"),
        Column("arm", "arm"),
        Column("signal", "signal"),
        Column("raw", "AUC, raw", 3, hint="lowest to highest over the horizons 1, 3, 5, 10, 20, 40"),
        Column("standardised", "AUC, standardised", 3, hint="within each episode"),
        Column("criterion", "criterion"),
    ]
    caption = (
        "Above 0.5 a signal is higher before contact. The criterion, fixed in advance and about c_vlm: standardised, "
        "at K = 20 or 40, an AUC of at least 0.60, its interval above 0.5, and above the step index, with "
        "contact in enough episodes that 95 % of the resamples have some. "
        f"From at most {TRACED} traced episodes of an arm; vlmsafe diagnose lead-time takes all."
    )
    notes = [line for env in dataset.lead_times(entry) if (line := paper.lead_time_line(env))]
    title = entry.title or "Does the signal rise before contact?"
    return Table("lead-time", title, columns, rows, caption, entry.label, notes=notes)
