"""A chart from its panels, with the report's groups and the title and label that were asked for."""

from __future__ import annotations

from collections.abc import Sequence

from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Band, Chart, Panel
from vlmsafe.report.request import Entry

SEEDS = (("line", "mean over runs"), ("band", "± 1 deviation"), ("faint", "single runs"))
"""What the lines of a curve mean, for its legend."""


def make_chart(
    dataset: Dataset,
    entry: Entry,
    title: str,
    panels: Sequence[Panel],
    caption: str,
    keys: Sequence[tuple[str, str]] = (),
    legend: bool = True,
) -> Chart:
    marks = [mark for panel in panels for mark in panel.marks]
    several = any(
        isinstance(mark, Band) for mark in marks
    )  # else there are no means, bands and single runs to tell apart
    shown = tuple(keys) if several or keys is not SEEDS else ()
    return Chart(entry.kind, entry.title or title, panels, dataset.arm_names, caption, entry.label, legend, shown)
