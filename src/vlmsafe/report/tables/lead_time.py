"""The tables of lead time: does a signal rise before contact?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import polars as pl

from vlmsafe.analysis import lead_time as lead
from vlmsafe.analysis.anticipation import CONTROL, FORMS, verdict
from vlmsafe.report.cells import text
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Cell, Column, Missing, Table
from vlmsafe.report.request import Entry
from vlmsafe.report.tables import paper
from vlmsafe.report.tables.rows import ARM, BY_RUN, ENV, cells, interval, named

SIGNALS = {"kappa": "κ", "negative": "c_vlm", "positive": "r_vlm", "margin": "margin", CONTROL: "step index"}
"""What tables and figures call the signals of a trace."""
NO_CONTACT = "no traced episode has a contact, so there is nothing to rise before"
_FORMS = tuple(form.replace(" ", "_") for form in FORMS)
_HORIZONS = (5, 10, 20, 40)
_LAGS = (-10, -5, -1, 0, 1, 5, 10, 20)
_CRITERION = (
    "Above 0.5 a signal is higher before contact. The criterion, fixed in advance and about c_vlm (the paper's is "
    "about κ): standardised over the steps without contact of each episode, at K = 20 or 40, an AUC of at least 0.60, "
    "its interval above 0.5, and above the step index, with contact in enough episodes that 95 % of the resamples have "
    "some."
)


def lead_time(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Ranges of AUCs before contact, per arm, and whether the criterion is met."""
    rows: list[list[Cell]] = []
    for env, found in dataset.lead_times(entry).items():
        for (arm,), own in found.group_by("arm", maintain_order=True):
            pooled = own.filter(pl.col("run").is_null())
            for row in lead.auc_ranges(own).iter_rows(named=True):
                if row["raw_low"] is None:
                    continue
                ends = [(row[f"{form}_low"], row[f"{form}_high"]) for form in _FORMS]
                ranges = [Cell(high, f"{low:.3f} to {high:.3f}") for low, high in ends]
                word = verdict(pooled, row["signal"]) if row["signal"] != CONTROL else ""
                rows.append([text(env), text(arm), text(SIGNALS[row["signal"]]), *ranges, text(word)])
    if not rows:
        return Missing(entry.kind, "Lead time", dataset.why_no_trace(entry, NO_CONTACT))
    columns = [
        ENV,
        ARM,
        *named("signal"),
        Column("raw", "AUC, raw", 3, hint="lowest to highest over the horizons 1, 3, 5, 10, 20, 40"),
        Column("standardised", "AUC, standardised", 3, hint="within each episode, over its steps without contact"),
        Column("as_published", "AUC, as published", 3, hint="standardised over all steps, contact included"),
        *named("criterion"),
    ]
    caption = f"{_CRITERION}{traced_episodes(dataset, entry)}"
    notes = [line for env in dataset.lead_times(entry) if (line := paper.lead_time_line(env))]
    title = entry.title or "Does the signal rise before contact?"
    return Table(entry.kind, title, columns, rows, caption, entry.label, notes=notes)


def traced_episodes(dataset: Dataset, entry: Entry) -> str:
    """A sentence on how many episodes AUCs are from, where that is not all."""
    most = dataset.most_episodes(entry)
    return f" From at most {most} traced episodes of an arm; vlmsafe diagnose lead-time takes all." if most else ""


def lead_time_aucs(dataset: Dataset, entry: Entry) -> Table | Missing:
    """AUCs of each arm by signal, form and horizon, with the number of steps that contact follows."""
    rows: list[list[Cell]] = []
    for env, found in dataset.lead_times(entry).items():
        pooled = found.filter(pl.col("run").is_null())
        for (arm,), own in pooled.group_by("arm", maintain_order=True):
            for (signal, form), by_horizon in own.group_by("signal", "form", maintain_order=True):
                at = {row["horizon"]: row for row in by_horizon.iter_rows(named=True)}
                head = [text(env), text(arm), text(SIGNALS[str(signal)]), text(form)]
                rows.append([*head, *(interval(at[horizon]) for horizon in _HORIZONS)])
            ahead = {row["horizon"]: row for row in own.filter(signal=CONTROL, form="raw").iter_rows(named=True)}
            counts = _contacts(ahead[horizon] for horizon in _HORIZONS)
            rows.append([text(env), text(arm), text("contact ahead"), text("steps"), *counts])
    if not rows:
        return Missing(entry.kind, "AUC before contact", dataset.why_no_trace(entry))
    columns = [
        ENV,
        ARM,
        *named("signal"),
        Column("form", "form", hint="as it is; standardised without contact; as published, with it"),
        *(Column(f"k_{k}", f"K = {k}", 2, hint=f"contact within the next {k} steps") for k in _HORIZONS),
    ]
    caption = (
        "AUC of steps that a contact follows within K steps, with the 95 % interval over resampled episodes; the runs "
        f"of an arm together. The step index is the control.{traced_episodes(dataset, entry)}"
    )
    return Table(entry.kind, entry.title or "AUC before contact, by horizon", columns, rows, caption, entry.label)


def _contacts(rows: Iterable[dict[str, int]]) -> list[Cell]:
    return [
        Cell(float(row["positives"]), f"{row['positives']:,} of {row['positives'] + row['negatives']:,}")
        for row in rows
    ]


def lead_time_runs(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Every AUC of every arm and run."""
    names = [*BY_RUN, *named("signal", "form"), Column("horizon", "K", 0)]
    counts = [
        Column("positives", "steps before contact", 0),
        Column("negatives", "other steps", 0),
        *named("episodes", digits=0),
        Column("left_out", "left out", 0, hint="resamples without a step of either kind"),
        *named("resamples", digits=0),
    ]
    rows = [
        [*cells({**row, "env": env, "signal": SIGNALS[row["signal"]]}, names), interval(row), *cells(row, counts)]
        for env, found in dataset.lead_times(entry, by_run=True).items()
        for row in found.iter_rows(named=True)
    ]
    if not rows:
        return Missing(entry.kind, "AUC before contact, run by run", dataset.why_no_trace(entry))
    columns = [*names, Column("auc", "AUC", 3, hint="interval over resampled episodes"), *counts]
    title = entry.title or "AUC before contact, run by run"
    return Table(entry.kind, title, columns, rows, "Rows of all runs pool an arm.", entry.label, fold=True)


def lead_time_counts(dataset: Dataset, entry: Entry) -> Table | Missing:
    """How many AUCs of signals, raw and as published, over all horizons, are above one half and above the control."""
    columns = [
        ENV,
        Column("of", "AUCs of"),
        Column("total", "AUCs", 0),
        *named("lowest", "highest", digits=3),
        Column("above_half", "above 0.5", 0),
        Column("interval_above_half", "interval above 0.5", 0),
        Column("above_control", "above the step index", 0),
        Column("reversed_above_control", "reversed, above the step index", 0, hint="1 - AUC"),
    ]
    rows = []
    for env, found in dataset.lead_times(entry, by_run=True).items():
        counted = lead.count_aucs(found)
        for of, one in (("arms, runs together", counted.pooled), ("single runs", counted.runs)):
            rows.append(cells({"env": env, "of": of, **asdict(one)}, columns))
    if not rows:
        return Missing(entry.kind, "AUCs counted", dataset.why_no_trace(entry))
    caption = (
        "All signals, raw and as published, at all horizons (K = 1, 3, 5, 10, 20, 40), as the paper counts them. The "
        "step index is not counted."
    )
    return Table(entry.kind, entry.title or "AUCs before contact, counted", columns, rows, caption, entry.label)


def lead_lag(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Correlation of c_vlm with earlier and later cost."""
    rows: list[list[Cell]] = []
    for env, found in dataset.lead_lags(entry).items():
        for (arm,), own in found.group_by("arm", maintain_order=True):
            at = dict(own.select("lag", "spearman").iter_rows())
            known = [value for value in at.values() if value is not None]
            ends = [Cell(min(known)), Cell(max(known))] if known else [Cell(), Cell()]
            rows.append([text(env), text(arm), *(Cell(at[lag]) for lag in _LAGS), *ends])
    if not rows:
        return Missing(entry.kind, "Lead and lag", dataset.why_no_trace(entry))
    columns = [
        ENV,
        ARM,
        *(Column(f"lag_{lag}", f"k = {lag}", 3) for lag in _LAGS),
        Column("lowest", "lowest", 3, hint="over the lags from -10 to 20"),
        Column("highest", "highest", 3, hint="over the lags from -10 to 20"),
    ]
    caption = "Spearman's correlation of c_vlm at step t with the cost at step t + k. A flat profile is no warning."
    return Table(entry.kind, entry.title or "c_vlm against earlier and later cost", columns, rows, caption, entry.label)
