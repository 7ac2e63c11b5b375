"""The figure of driven routes: where the agents of each arm went in the same episodes, and where it cost them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import polars as pl

from vlmsafe.analysis.tables import floats
from vlmsafe.report.charts.make import make_chart
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Axis, Chart, Dots, Line, Mark, Missing, Panel
from vlmsafe.report.request import Entry

EPISODES = 3
"""Episodes that are drawn, one panel each."""
_POINTS = 150
"""Points of a route. A picture of this size shows no more."""
_NO_ROUTE = "no run has a trace with positions; vlmsafe trace RUN records one"
_KEYS = (("line", "the route"), ("faint-dot", "a step that costs"), ("dot", "the end of the episode"))


def routes(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """The ways driven, seen from above, in the first traced episodes; the first run of each arm."""
    panels = []
    envs = dataset.envs(entry)
    for env in envs:
        tables = {
            arm: next(iter(runs.values()))
            for arm, runs in dataset.trace_tables(env).items()
            if (not entry.arms or arm in entry.arms)
        }
        tables = {arm: table for arm, table in tables.items() if {"x", "y"} <= set(table.columns)}
        episodes = sorted({episode for table in tables.values() for episode in table["episode"].unique()})[:EPISODES]
        for episode in episodes:
            own = {arm: table.filter(episode=episode) for arm, table in tables.items()}
            own = {arm: rows for arm, rows in own.items() if len(rows)}
            scenario = next(iter(own.values()))["scenario"][0]
            title = f"Scenario {scenario}" + (f", {env}" if len(envs) > 1 else "")
            panels.append(Panel(title, Axis("metres"), Axis("metres"), list(_ways(own)), equal=True))
    if not panels:
        return Missing(entry.kind, "Routes", _NO_ROUTE)
    caption = "Seen from above, on one scale along both axes. The same episodes for every arm, its first run."
    return make_chart(dataset, entry, "Routes", panels, caption, _KEYS)


def _ways(traces: Mapping[str, pl.DataFrame]) -> Iterator[Mark]:
    for arm, rows in traces.items():
        kept = _thinned(rows)
        yield Line(arm, floats(kept, "x").tolist(), floats(kept, "y").tolist(), arm)
    for arm, rows in traces.items():
        costly = _thinned(rows.filter(pl.col("cost") > 0))
        if len(costly):
            names = [f"{arm}, step {step}: cost {cost:g}" for step, cost in costly.select("step", "cost").iter_rows()]
            yield Dots(arm, floats(costly, "x").tolist(), floats(costly, "y").tolist(), names, faint=True)
        last = rows[-1]
        ending = f"{arm}, the end after {last['step'].item()} steps, cost {rows['cost'].sum():g}"
        yield Dots(arm, floats(last, "x").tolist(), floats(last, "y").tolist(), [ending])


def _thinned(rows: pl.DataFrame) -> pl.DataFrame:
    """At most `_POINTS` rows, evenly spread over all."""
    return rows[:: max(1, math.ceil(len(rows) / _POINTS))]
