"""The tables of a report, by kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Missing, Table
from vlmsafe.report.request import Entry
from vlmsafe.report.tables import (
    arms as tables_arms,
)
from vlmsafe.report.tables import (
    comparisons as tables_compare,
)
from vlmsafe.report.tables import (
    parts as tables_parts,
)
from vlmsafe.report.tables import (
    signals as tables_signals,
)


def build_table(dataset: Dataset, entry: Entry) -> Table | Missing:
    """The table of an entry, or why there is none."""
    return _without_constant_env(BUILDERS[entry.kind](dataset, entry))


def _without_constant_env(table: Table | Missing) -> Table | Missing:
    """A table on one environment names it in its title and not in every row."""
    if isinstance(table, Missing) or table.columns[0].name != "env" or len({row[0].value for row in table.rows}) > 1:
        return table
    env = str(table.rows[0][0].value)
    title = table.title if env in table.title else f"{table.title} ({env})"
    return replace(table, title=title, columns=table.columns[1:], rows=[row[1:] for row in table.rows])


BUILDERS: dict[str, Callable[[Dataset, Entry], Table | Missing]] = {
    "comparisons": tables_compare.comparisons,
    "rates": tables_compare.rates,
    "pairs": tables_compare.pairs,
    "summary": tables_arms.summary,
    "training": tables_arms.training,
    "by-environment": tables_arms.by_environment,
    "per-seed": tables_arms.per_seed,
    "sweep": tables_arms.sweep,
    "protocols": tables_arms.protocols,
    "published": tables_arms.published,
    "scores": tables_signals.scores,
    "multiplier": tables_signals.multiplier,
    "gate": tables_signals.gate,
    "gate-roc": tables_signals.gate_roc,
    "lead-time": tables_signals.lead_time,
    "returns": tables_parts.returns,
    "passive": tables_parts.passive,
    "compute": tables_parts.compute,
    "divergence": tables_parts.divergence,
    "methods": tables_parts.methods,
    "settings": tables_parts.settings,
}
