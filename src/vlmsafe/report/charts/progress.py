"""The figures of what cost and return go along with: progress, distance, and the bonus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vlmsafe.analysis.returns import cost_correlations
from vlmsafe.analysis.tables import floats
from vlmsafe.report.cells import mean_of, window_name
from vlmsafe.report.charts.make import make_chart
from vlmsafe.report.charts.training import budget_rules
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Axis, Chart, Dots, Mark, Missing, Panel, Span
from vlmsafe.report.request import Entry
from vlmsafe.report.tables.returns import against_name, return_tables
from vlmsafe.runs.records import ArmRecord

PROGRESS = ("route_completion", "net_progress", "path", "distance")
_MOST_EPISODES = 400
"""Episodes drawn per arm; more would be a cloud, and a page too large to send."""
_EPISODES = (("faint-dot", "episode"), ("dot", "mean of a run"))
_NO_EVALUATION = "no run has an evaluation; vlmsafe evaluate RUN makes one"


def cost_progress(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """Cost against how far the agent got: an arm that stands still is not safer."""
    panels = []
    envs = dataset.envs(entry)
    for env in envs:
        source, arms = dataset.source(env, entry), dataset.arms(env, entry)
        if source == "training":
            continue
        runs = [run for arm in arms for run in arm.runs if source in run.evaluations]
        columns = [name for name in PROGRESS if any(mean_of(run, source, name) is not None for run in runs)][:1]
        for column in [*columns, "env_return"]:
            marks = list(_scatter(arms, source, column))
            if marks:
                name = against_name(column)
                title = f"Cost against {name}" + (f", {env}" if len(envs) > 1 else "")
                panels.append(Panel(title, Axis(name), Axis("episode cost", low=0.0), [*budget_rules(arms), *marks]))
    if not panels:
        return Missing(entry.kind, "Cost against progress", _NO_EVALUATION)
    caption = (
        "Small: evaluation episodes, thinned out where an arm has many. Large: means of runs. Low cost at the left "
        "comes from doing little."
    )
    return make_chart(dataset, entry, "Cost against progress", panels, caption, _EPISODES)


def _scatter(arms: Sequence[ArmRecord], source: str, column: str) -> Iterator[Mark]:
    large: list[Mark] = []
    for arm in arms:
        x: list[float] = []
        y: list[float] = []
        names: list[str] = []
        means: list[tuple[float, float, str]] = []
        for run in arm.runs:
            table = run.evaluations.get(source)
            if table is None or column not in table.columns:
                continue
            a, b = floats(table, column), floats(table, "cost")
            known = np.isfinite(a) & np.isfinite(b)
            x += a[known].tolist()
            y += b[known].tolist()
            names += [f"{run.name}, episode {i}" for i in np.flatnonzero(known)]
            if known.any():
                means.append((float(a[known].mean()), float(b[known].mean()), run.name))
        if means:
            every = max(1, -(-len(x) // _MOST_EPISODES))
            yield Dots(arm.name, x[::every], y[::every], names[::every], faint=True)
            large.append(Dots(arm.name, [m[0] for m in means], [m[1] for m in means], [m[2] for m in means]))
    yield from large


def cost_against(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """Cost against everything that it is correlated with."""
    panels = []
    envs = dataset.envs(entry)
    for env in envs:
        episodes = dataset.episodes(env, entry)
        if episodes is None:
            continue
        source, arms = dataset.source(env, entry), dataset.arms(env, entry)
        for row in cost_correlations(episodes).filter(level="episodes").iter_rows(named=True):
            marks = list(_scatter(arms, source, row["against"]))
            if marks:
                title = f"Cost against {against_name(row['against'])}" + (f", {env}" if len(envs) > 1 else "")
                if row["pearson"] is not None:
                    title += f": Pearson {row['pearson']:.2f}, Spearman {row['spearman']:.2f}"
                panels.append(Panel(title, Axis(against_name(row["against"])), Axis("episode cost", low=0.0), marks))
    if not panels:
        return Missing(entry.kind, "Cost against", _NO_EVALUATION)
    caption = "Correlations are over episodes. Where cost rises with progress, doing little looks safe."
    return make_chart(dataset, entry, "What cost goes along with", panels, caption, _EPISODES)


def returns(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """What each run logged and what its environment paid: the distance between them is the bonus."""
    panels = []
    tables = list(return_tables(dataset, entry))
    for env in dict.fromkeys(env for env, _, _ in tables):
        names: list[str] = []
        marks: list[Mark] = []
        for arm, found in ((arm, found) for own, arm, found in tables if own == env):
            for row in found.drop_nulls("run").iter_rows(named=True):
                place = float(len(names))
                names.append(f"{arm.name} {row['run']}")
                own, logged = row["environment_return_final"], row["logged_return_final"]
                marks.append(Span(arm.name, place, own, min(own, logged), max(own, logged), "x", names[-1]))
                marks.append(Dots(arm.name, [logged], [place], [f"{names[-1]}, logged"]))
                last = f"{names[-1]}, {window_name('last-10', arm.runs)}"
                marks.append(Dots(arm.name, [row["environment_return_last_10"]], [place], [last], faint=True))
        title = f"Return at the final epoch, {env}"
        panels.append(Panel(title, Axis("episode return"), Axis("", tuple(names)), marks))
    if not panels:
        return Missing(entry.kind, "Returns", "no run has finished an episode")
    caption = (
        "A line leads from the environment's return at the final epoch to the logged return, a dot, which has the "
        "signal's bonus in it. Small: the environment's return over the last 10 epochs, or all if there are fewer."
    )
    return make_chart(dataset, entry, "The logged return taken apart", panels, caption, legend=False)
