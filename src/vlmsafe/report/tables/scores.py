"""The tables of scores: over training, and how much they vary within traces."""

from __future__ import annotations

from vlmsafe.report.cells import text
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Cell, Column, Missing, Table
from vlmsafe.report.request import Entry
from vlmsafe.report.tables import paper
from vlmsafe.report.tables.lead_time import SIGNALS
from vlmsafe.report.tables.rows import ARM, ENV, cells, named
from vlmsafe.runs.records import RunRecord

SHARES = (0.1, 0.24, 0.5, 1.0)
"""Of the training steps, at which scores are shown: 100k, 240k, 500k and 1M of the paper's million."""


def scores(dataset: Dataset, entry: Entry) -> Table | Missing:
    """A score at four points of training, run by run."""
    rows: list[list[Cell]] = []
    for env in dataset.envs(entry):
        for arm in dataset.arms(env, entry):
            for run in arm.runs:
                known = [row[entry.metric] for row in run.epochs if row.get(entry.metric) is not None]
                if known:
                    published = paper.scores(env, run.config.signal.scorer, run.seed)
                    published = published if entry.metric == "negative_score" else {}
                    values = [
                        paper.beside(_at(run, entry.metric, part), published.get(round(part * 1_000_000)))
                        for part in SHARES
                    ]
                    ends = [Cell(min(known)), Cell(max(known))]
                    rows.append([text(env), text(arm.name), Cell(float(run.seed), str(run.seed)), *values, *ends])
    if not rows:
        return Missing(entry.kind, "Scores over training", f"no run recorded a {entry.metric.replace('_', ' ')}")
    columns = [
        ENV,
        ARM,
        *named("seed", digits=0),
        *(
            Column(f"at_{round(100 * part)}", f"at {100 * part:.0f} %", 4, hint="of the training steps")
            for part in SHARES
        ),
        *named("lowest", "highest", digits=4),
    ]
    title = entry.title or f"Mean {entry.metric.replace('_', ' ')} over training"
    caption = "Epoch means; lowest and highest over all epochs. Named after the scorer in the arm's settings."
    notes = paper.note(rows, paper.SCORE_NOTE)
    return Table("scores", title, columns, rows, caption, entry.label, notes=notes, fold=not entry.asked)


def _at(run: RunRecord, metric: str, part: float) -> float | None:
    """The epoch's mean nearest to a share of the planned steps, of those that were trained."""
    target = part * run.config.total_steps
    row = min(run.epochs, key=lambda row: abs(row["steps"] - target))
    return row.get(metric) if abs(row["steps"] - target) <= run.config.steps_per_epoch else None


def score_variability(dataset: Dataset, entry: Entry) -> Table | Missing:
    """How much scores vary within and between the episodes of a trace."""
    columns = [
        ENV,
        ARM,
        *named("signal"),
        *named("steps", "episodes", digits=0),
        *named("mean", digits=4),
        Column("std", "deviation", 4),
        Column("coefficient_pct", "% of the mean", 1, hint="deviation over the absolute mean"),
        Column("within_std", "within episodes", 4, hint="deviation from the episode's mean"),
        Column("between_std", "between episodes", 4, hint="deviation of the episodes' means"),
        Column("low", "lowest", 4),
        Column("high", "highest", 4),
    ]
    rows = [
        cells({**row, "env": env, "signal": SIGNALS[row["signal"]]}, columns)
        for env, found in dataset.score_variability(entry).items()
        for row in found.iter_rows(named=True)
    ]
    if not rows:
        return Missing(entry.kind, "How much scores vary", dataset.why_no_trace(entry))
    caption = "Scored steps of the traces. Only what varies within an episode can warn."
    return Table(entry.kind, entry.title or "How much scores vary", columns, rows, caption, entry.label)
