"""The figures of a report, by kind, as charts: which numbers go on which axes. `svg` and `plots` draw them."""

from __future__ import annotations

from collections.abc import Callable

from vlmsafe.report.charts import outcomes as charts_outcomes
from vlmsafe.report.charts import signals as charts_signals
from vlmsafe.report.charts import training as charts_training
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Chart, Missing
from vlmsafe.report.request import Entry


def build_chart(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """The figure of an entry, or why there is none."""
    return BUILDERS[entry.kind](dataset, entry)


BUILDERS: dict[str, Callable[[Dataset, Entry], Chart | Missing]] = {
    "curves": charts_training.curves,
    "multiplier": charts_training.multiplier,
    "scores": charts_training.scores,
    "dots": charts_outcomes.dots,
    "bars": charts_outcomes.bars,
    "protocols": charts_outcomes.protocols,
    "evaluation-summary": charts_outcomes.evaluation_summary,
    "cost-progress": charts_outcomes.cost_progress,
    "sweep": charts_outcomes.sweep,
    "lead-time": charts_signals.lead_time,
    "gate": charts_signals.gate,
    "gate-roc": charts_signals.gate_roc,
}
