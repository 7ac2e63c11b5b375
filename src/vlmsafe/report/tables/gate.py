"""The tables of the gate: how open it is, and whether it tells frames in contact from others."""

from __future__ import annotations

from typing import Any

from vlmsafe.analysis.gate_roc import gate_medians
from vlmsafe.report.cells import count, text
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Cell, Column, Missing, Table
from vlmsafe.report.request import Entry
from vlmsafe.report.tables import paper
from vlmsafe.report.tables.rows import ARM, BY_RUN, ENV, cells, interval, named

_PRIOR = "s = 100"


def gate(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Medians of margin and kappa, run by run."""
    rows: list[list[Cell]] = []
    for env, found in dataset.gate_cells(entry).items():
        prior = {(row["arm"], row["run"]): row for row in found.filter(gate=_PRIOR).iter_rows(named=True)}
        for row in gate_medians(found).iter_rows(named=True):
            own = prior[row["arm"], row["run"]]
            figures = ("margin_median", "kappa_median_prior", "kappa_median_calibrated")
            published = paper.gate_medians(env, dataset.seed_of(env, row["arm"], row["run"]))
            medians = [paper.beside(row[name], published.get(name)) for name in figures]
            shares = [Cell(100 * own["closed"]), Cell(100 * own["open"])]
            rows.append([text(env), text(row["arm"]), text(row["run"]), count(own["frames"]), *medians, *shares])
    if not rows:
        return Missing(entry.kind, "The gate", dataset.why_no_trace(entry))
    columns = [
        *BY_RUN,
        *named("frames", digits=0),
        Column("margin_median", "median margin", 4),
        Column("kappa_median_prior", "median κ, s = 100, c = 0", 2),
        Column("kappa_median_calibrated", "median κ, calibrated", 2, hint="on the same frames"),
        Column("closed_pct", "nearly closed %", 1, hint="frames with κ < 0.1, s = 100, c = 0"),
        Column("open_pct", "nearly open %", 1, hint="frames with κ > 0.9, s = 100, c = 0"),
    ]
    caption = (
        "Scored frames of each run's trace. A gate that is open or closed nearly everywhere weighs every frame alike."
    )
    notes = paper.note(rows, paper.GATE_NOTE)
    return Table(entry.kind, entry.title or "How open is the gate?", columns, rows, caption, entry.label, notes=notes)


def gate_margins(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Margins from lowest to highest, run by run."""
    columns = [
        *BY_RUN,
        *named("frames", digits=0),
        Column("positive_margins_pct", "above 0 %", 1),
        *(Column(f"margin_{end}", word, 4) for end, word in _ENDS.items()),
    ]
    rows = [
        cells({"env": env, **row}, columns)
        for env, found in dataset.gate_cells(entry).items()
        for row in found.filter(gate=_PRIOR).iter_rows(named=True)
    ]
    if not rows:
        return Missing(entry.kind, "Margins", dataset.why_no_trace(entry))
    caption = "The margin between the two groups of prompts, which every gate is computed from."
    return Table(entry.kind, entry.title or "Margins of scored frames", columns, rows, caption, entry.label)


def gate_cells(dataset: Dataset, entry: Entry) -> Table | Missing:
    """kappa from lowest to highest, for every run and gate."""
    columns = [
        *BY_RUN,
        *named("gate"),
        Column("scale", "s", 3),
        Column("centre", "c", 4),
        *(Column(f"kappa_{end}", word, 2) for end, word in _ENDS.items()),
        Column("closed_pct", "nearly closed %", 1, hint="frames with κ < 0.1"),
        Column("open_pct", "nearly open %", 1, hint="frames with κ > 0.9"),
    ]
    rows = [
        cells({"env": env, **row}, columns)
        for env, found in dataset.gate_cells(entry).items()
        for row in found.iter_rows(named=True)
    ]
    if not rows:
        return Missing(entry.kind, "κ under every gate", dataset.why_no_trace(entry))
    caption = (
        "Scored frames of each run's trace. Half of the frames that a gate was calibrated on have a κ of at most 0.5, "
        "so a low median is no sign that it selects. Recorded: the gate of the trace."
    )
    return Table(entry.kind, entry.title or "κ under every gate", columns, rows, caption, entry.label)


_ENDS = {"low": "lowest", "q25": "25 %", "median": "median", "q75": "75 %", "high": "highest"}


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
                    text(judged(row)),
                    count(row["positives"]),
                    interval(row),
                    Cell(row["contact_margin"]),
                    Cell(row["free_margin"]),
                    Cell(None if below is None else 100 * below),
                    count(row["positives"] + row["negatives"]),
                ]
            )
    if not rows:
        return Missing(entry.kind, "Gate and contact", dataset.why_no_trace(entry, "no traced frame is in contact"))
    columns = [
        ENV,
        ARM,
        *named("score"),
        Column("contacts", "contact frames", 0),
        Column("auc", "AUC", 3, hint="against contact in the same step; interval over episodes"),
        Column("contact_margin", "margin in contact", 4),
        Column("free_margin", "margin without", 4),
        Column("below_centre_pct", "contact below centre %", 1, hint="contact frames that only the fold makes count"),
        *named("frames", digits=0),
    ]
    caption = (
        "Where the negated margin does as well as the calibrated gate, it has found an unusual margin, not danger."
    )
    if any("recorded" in str(row[2].value) for row in rows):
        caption += " A recorded κ below 0.5 says that the run's own gate closes in contact."
    return Table(entry.kind, entry.title or "Does the gate know contact?", columns, rows, caption, entry.label)


def gate_thresholds(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Precision and recall when kappa at or above a threshold flags contact."""
    rows: list[list[Cell]] = []
    levels: list[float] = []
    for env, found in dataset.gate_thresholds(entry).items():
        keys = ("arm", "calibrated_on", "half", "prevalence")
        for key, own in found.group_by(*keys, maintain_order=True):
            of = dict(zip(keys, key, strict=True))
            levels = levels or own["threshold"].to_list()
            head = [text(env), text(of["arm"]), text(judged({"score": "kappa", **of}))]
            share = Cell(100 * of["prevalence"])
            rows += [[*head, text(name), share, *map(Cell, own[name].to_list())] for name in ("precision", "recall")]
            rows.append([*head, text("flagged frames"), share, *map(count, own["flagged"].to_list())])
    if not rows:
        return Missing(entry.kind, "The gate as a detector", dataset.why_no_trace(entry))
    columns = [
        ENV,
        ARM,
        *named("gate", "measure"),
        Column("prevalence_pct", "prevalence %", 1, hint="contact frames: the precision of flagging every frame"),
        *(Column(f"at_{level:g}", f"κ ≥ {level:g}", 3) for level in levels),
    ]
    caption = "A frame is flagged as contact where κ is at or above the threshold, and judged by the same step."
    return Table(entry.kind, entry.title or "The gate as a detector of contact", columns, rows, caption, entry.label)


def judged(row: dict[str, Any]) -> str:
    """Which score, under which gate, on which frames."""
    fitted = {None: "", "same frames": ", calibrated on these frames", "other half": ", calibrated on others"}
    half = f", half {row['half']}" if row["half"] else ""
    return row["score"].replace("kappa", "κ") + fitted[row["calibrated_on"]] + half
