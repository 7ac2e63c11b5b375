"""The tables of tails: what the costliest episodes cost, cost per distance, and how probably an arm costs less."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vlmsafe.analysis.statistics import Float64
from vlmsafe.analysis.tables import floats
from vlmsafe.analysis.tails import (
    Distance,
    RunEstimate,
    cost_per_distance,
    cvar,
    distance_of,
    over_runs,
    probability_of_improvement,
    quantile,
)
from vlmsafe.report.cells import count, text
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Cell, Column, Missing, Table
from vlmsafe.report.request import Entry
from vlmsafe.report.tables.rows import ARM, ENV, PAIR, named
from vlmsafe.runs.records import ArmRecord

_NO_EVALUATION = "no run has an evaluation; vlmsafe evaluate RUN makes one"


@dataclass(frozen=True, eq=False)
class _EvaluatedArm:
    """The episodes of an arm's evaluated runs, one vector per run."""

    costs: list[Float64]
    ways: list[Float64]
    """The column of distances; empty if the environment's evaluations share none."""

    @cached_property
    def means(self) -> list[float]:
        return [float(own.mean()) for own in self.costs]

    @cached_property
    def tails(self) -> list[float]:
        """Each run's CVaR."""
        return [cvar(own) for own in self.costs]

    @cached_property
    def ratios(self) -> list[float]:
        """Each run's cost per distance."""
        return [float(own.sum() / way.sum()) for own, way in zip(self.costs, self.ways, strict=False)]


def tails(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Arm by arm: mean, median, 90 % quantile and CVaR of episode cost, and cost per distance."""
    rows: list[list[Cell]] = []
    for env in dataset.envs(entry):
        arms, distance = _evaluated(dataset, env, entry)
        for arm in dataset.arms(env, entry):
            if arm.name in arms:
                rows.append([text(env), text(arm.name), *_arm_cells(arm, arms[arm.name], distance)])
    if not rows:
        return Missing(entry.kind, "Costly episodes", _NO_EVALUATION)
    columns = [
        ENV,
        ARM,
        *named("runs", "episodes", digits=0),
        Column("cost", "mean cost", 2, hint="over all runs; the table of the evaluation has its interval"),
        Column("median", "median", 2, hint="each run's median episode cost, mean over runs"),
        Column("quantile_90", "90 % quantile", 2, hint="the cost that nine in ten episodes of a run stay below"),
        Column("cvar_10", "CVaR 10 %", 2, hint="mean cost of the costliest tenth of a run's episodes"),
        Column("cost_per_distance", "cost per distance", 2, hint="cost of all episodes over the distance of all"),
        Column("unit", "per", hint="what the evaluation records of how far an episode got"),
    ]
    caption = (
        "Medians, quantiles and CVaR are each run's own, averaged over runs. In brackets 95 % t intervals over runs on "
        "the log scale, from 3 runs that differ."
    )
    return Table(entry.kind, entry.title or "Costly episodes", columns, rows, caption, entry.label)


def improvement(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Each compared pair: how probably a run of the first arm costs less than one of the second."""
    rows: list[list[Cell]] = []
    for env in dataset.envs(entry):
        arms, _ = _evaluated(dataset, env, entry)
        pairs = dict.fromkeys(
            (one.claim.first, one.claim.second) for one in dataset.comparisons(entry) if one.env == env
        )
        for pair in pairs:
            sides = [arms[name] for name in pair if name in arms]
            if len(sides) < 2 or min(len(side.costs) for side in sides) < 2:
                continue
            first, second = sides
            known = min(len(first.ratios), len(second.ratios)) >= 2
            runs = Cell(float(len(first.costs) + len(second.costs)), f"{len(first.costs)} / {len(second.costs)}")
            found = [
                _cell(probability_of_improvement(first.means, second.means)),
                _cell(probability_of_improvement(first.tails, second.tails)),
                _cell(probability_of_improvement(first.ratios, second.ratios)) if known else Cell(),
            ]
            rows.append([text(env), *map(text, pair), runs, *found])
    if not rows:
        reason = "no two compared arms have two evaluated runs each; vlmsafe evaluate RUN makes evaluations"
        return Missing(entry.kind, "Probability of improvement", reason)
    columns = [
        ENV,
        *PAIR,
        *named("runs", digits=0),
        Column("mean_cost", "mean cost", 2, hint="how probably a run of the first arm has a lower mean episode cost"),
        Column("cvar_10", "CVaR 10 %", 2, hint="the same for the mean of the costliest tenth of the episodes"),
        Column("cost_per_distance", "cost per distance", 2, hint="the same for each run's cost per distance"),
    ]
    caption = (
        "Share of all pairs of runs in which the first arm's run is lower; ties count half, and 0.5 is no difference. "
        "In brackets 95 % intervals, which are wide with few runs: 3 runs that are all lower give 0.44 to 1."
    )
    title = entry.title or "How probably does the first arm cost less?"
    return Table(entry.kind, title, columns, rows, caption, entry.label)


def _evaluated(dataset: Dataset, env: str, entry: Entry) -> tuple[dict[str, _EvaluatedArm], Distance | None]:
    """The evaluated arms of an environment, without runs whose record of costs is damaged, and their distance."""
    source = dataset.source(env, entry)
    tables = {
        arm.name: [
            table
            for run in arm.runs
            if (table := run.evaluations.get(source)) is not None
            and "cost" in table.columns
            and _is_usable(floats(table, "cost"))
        ]
        for arm in dataset.arms(env, entry)
    }
    distance = distance_of([table for own in tables.values() for table in own])
    return {
        name: _EvaluatedArm(
            [floats(table, "cost") for table in own],
            [floats(table, distance.column) for table in own] if distance else [],
        )
        for name, own in tables.items()
        if own
    }, distance


def _is_usable(costs: Float64) -> bool:
    return bool(len(costs) and np.isfinite(costs).all() and (costs >= 0.0).all())


def _arm_cells(record: ArmRecord, arm: _EvaluatedArm, distance: Distance | None) -> list[Cell]:
    mean, budget = float(np.mean(arm.means)), record.first.config.budget
    per_run = [[quantile(own, 0.5) for own in arm.costs], [quantile(own, 0.9) for own in arm.costs], arm.tails]
    ratio = Cell()
    if distance is not None:
        costs, ways = ([float(own.sum()) for own in values] for values in (arm.costs, arm.ways))
        ratio = _cell(cost_per_distance(costs, ways), distance.size)
    return [
        count(len(arm.costs)),
        count(sum(map(len, arm.costs))),
        Cell(mean, state="" if budget is None else "over" if mean > budget else "within"),
        *(_cell(over_runs(values)) for values in per_run),
        ratio,
        text(distance.unit if distance else ""),
    ]


def _cell(found: RunEstimate, scale: float = 1.0) -> Cell:
    if found.low is None or found.high is None:
        return Cell(scale * found.estimate)
    return Cell(scale * found.estimate, low=scale * found.low, high=scale * found.high)
