"""What learning itself costs: the cost of all training episodes, and the steps until the budget is met."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vlmsafe.analysis.tails import over_runs
from vlmsafe.report.cells import budget_cell, count, env_cell, env_column, on_env, share, text
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Cell, Column, Missing, Table
from vlmsafe.report.request import Entry
from vlmsafe.report.tables.rows import ARM, named
from vlmsafe.runs.records import RunRecord


def learning(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Arm by arm: cost of all training episodes, share of episodes that cost, and when the budget was first met."""
    envs, rows = dataset.envs(entry), []
    for env in envs:
        for arm in dataset.arms(env, entry):
            runs = [run for run in arm.runs if run.epochs]
            if not runs:
                continue
            costs = [np.array([float(row["cost"]) for row in run.episodes]) for run in runs if run.episodes]
            met = [steps for run in runs if (steps := steps_to_budget(run)) is not None]
            rows.append(
                [
                    *env_cell(envs, env),
                    text(arm.name),
                    count(len(runs)),
                    budget_cell(arm),
                    _total([float(own.sum()) for own in costs]),
                    Cell(100.0 * float(np.mean([(own > 0.0).mean() for own in costs]))) if costs else Cell(),
                    share(len(met), len(runs)),
                    count(round(float(np.mean(met)))) if met else Cell(),
                ]
            )
    if not rows:
        return Missing(entry.kind, "Cost while learning", "no run has finished an epoch")
    columns = [
        *env_column(envs),
        ARM,
        *named("runs", "budget", digits=0),
        Column("training_cost", "cost of training", 1, hint="sum over all training episodes of a run, mean over runs"),
        Column("costly_pct", "episodes that cost %", 1, hint="of all training episodes"),
        Column("met", "budget met", 0, hint="runs with an epoch whose episode cost is within the budget, of all"),
        Column("steps_to_budget", "after steps", 0, hint="until the end of the first such epoch, mean over these runs"),
    ]
    caption = (
        "From training episodes, which have noise. In brackets the 95 % t interval over runs on the log scale. An "
        "epoch has few episodes, so the budget may be met by chance."
    )
    return Table(entry.kind, entry.title or f"Cost while learning{on_env(envs)}", columns, rows, caption, entry.label)


def _total(sums: Sequence[float]) -> Cell:
    if not sums:
        return Cell()
    found = over_runs(sums)
    return Cell(found.estimate, low=found.low, high=found.high)


def steps_to_budget(run: RunRecord) -> int | None:
    """Steps until the end of the first epoch whose episode cost is within the budget; None if there is none."""
    budget = run.config.budget
    assert budget is not None
    for row in run.epochs:
        cost = row.get("episode_cost")
        if cost is not None and cost <= budget:
            return int(row["epoch"]) * run.config.steps_per_epoch
    return None
