"""The figures of training: curves of every seed, the multiplier and its terms, and scores.

The environment's return and the shaped return never share an axis, because only the shaped one has the bonus in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from vlmsafe.analysis.tables import floats
from vlmsafe.report.charts.make import SEEDS, make_chart
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Axis, Band, Chart, Line, Mark, Missing, Panel, Rule
from vlmsafe.report.request import Entry
from vlmsafe.runs.records import ArmRecord, RunRecord


def curve_marks(arms: Sequence[ArmRecord], column: str, floor: float = -np.inf) -> Iterator[Mark]:
    """Of each arm: its runs faint, the band of one population deviation, and the mean over runs, by steps.

    Runs of an arm are averaged over the epochs that all of them have, so that a run that ended early moves no mean.
    A band ends at `floor`, below which the quantity cannot be.
    """
    for arm in arms:
        series = [found for run in arm.runs if (found := _series(run, column))]
        if not series:
            continue
        several = len(series) > 1
        for name, steps, values in series if several else []:
            yield Line(arm.name, steps, values, name, faint=True)
        shared = min(len(steps) for _, steps, _ in series)
        rows = [[np.nan if value is None else value for value in values[:shared]] for _, _, values in series]
        table = np.array(rows, np.float64)
        known = np.asarray(~np.isnan(table).all(axis=0))
        if not known.any():
            continue
        x = [step for step, own in zip(series[0][1][:shared], known, strict=True) if own]
        mean, spread = np.nanmean(table[:, known], axis=0), np.nanstd(table[:, known], axis=0)
        if several:
            yield Band(arm.name, x, np.maximum(mean - spread, floor).tolist(), (mean + spread).tolist())
        yield Line(arm.name, x, mean.tolist(), "mean" if several else series[0][0])


def _series(run: RunRecord, column: str) -> tuple[str, list[float], list[float | None]] | None:
    values = [row.get(column) for row in run.epochs]
    if all(value is None for value in values):
        return None
    return run.name, [float(row["steps"]) for row in run.epochs], values


def budget_rules(arms: Sequence[ArmRecord], along: Literal["x", "y"] = "x") -> list[Rule]:
    """A line for each budget that some run has."""
    budgets = {run.config.budget for arm in arms for run in arm.runs if run.config.budget is not None}
    return [Rule(budget, f"budget {budget:g}", along) for budget in sorted(budgets)]


def _steps() -> Axis:
    return Axis("environment steps", low=0.0)


def curves(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """Cost, environment return and shaped return over training."""
    panels = []
    envs = dataset.envs(entry)
    for env in envs:
        arms = dataset.arms(env, entry)
        where = f", {env}" if len(envs) > 1 else ""
        rules = budget_rules(arms)
        cost = list(curve_marks(arms, "episode_cost", 0.0))
        if cost:
            panels.append(
                Panel(f"Episode cost J_C{where}", _steps(), Axis("cost per episode", low=0.0), [*rules, *cost])
            )
        own = list(curve_marks(arms, "env_return"))
        if own:
            panels.append(Panel(f"Environment return{where}", _steps(), Axis("return without bonus"), own))
        shaped = list(curve_marks([arm for arm in arms if arm.has_signal], "shaped_return"))
        if shaped:
            panels.append(Panel(f"Shaped return{where}", _steps(), Axis("return with the bonus"), shaped))
    if not panels:
        return Missing(entry.kind, "Training curves", "no run has finished an epoch")
    caption = (
        "Means over the last finished episodes at each epoch. The shaped return holds the signal's bonus: it has an "
        "axis of its own, and does not compare arms."
    )
    return make_chart(dataset, entry, "Training curves", panels, caption, SEEDS)


def multiplier(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """lambda over training, and the two terms that move it, apart."""
    panels = []
    envs = dataset.envs(entry)
    for env in envs:
        arms = [arm for arm in dataset.arms(env, entry) if arm.first.config.multiplier.kind != "none"]
        where = f", {env}" if len(envs) > 1 else ""
        value = list(curve_marks(arms, "multiplier", 0.0))
        if value:
            panels.append(Panel(f"Multiplier λ{where}", _steps(), Axis("λ", low=0.0), value))
        gap = list(curve_marks(arms, "cost_gap"))
        if gap:
            panels.append(Panel(f"Cost term J_C - d{where}", _steps(), Axis("cost"), [Rule(0.0), *gap]))
        signalled = [arm for arm in arms if arm.has_signal and arm.first.config.multiplier.signal_weight > 0]
        term = list(curve_marks(signalled, "signal_term"))
        if term:
            title = f"Signal term η₂ (mean c_vlm - τ){where}"
            panels.append(Panel(title, _steps(), Axis("cost"), [Rule(0.0), *term]))
        own = list(curve_marks([arm for arm in arms if arm.has_signal], "signal_multiplier", 0.0))
        if own:
            panels.append(Panel(f"The signal's own multiplier{where}", _steps(), Axis("λ", low=0.0), own))
    if not panels:
        return Missing(entry.kind, "Multipliers", "no arm has a multiplier")
    caption = "What moves λ is the sum of both terms; they are drawn apart because their sizes differ. Mind the axes."
    return make_chart(dataset, entry, "Multipliers", panels, caption, SEEDS)


def multiplier_replay(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """lambda of every run rebuilt with and without the signal term, and what the term added."""
    panels = []
    envs = dataset.envs(entry)
    for env in envs:
        values: list[Mark] = []
        changes: list[Mark] = []
        for arm in dataset.arms(env, entry):
            for run, table in dataset.replays(arm).items():
                epochs = floats(table, "epoch").tolist()
                values.append(Line(arm.name, epochs, floats(table, "rebuilt").tolist(), run, faint=True))
                without = floats(table, "without_term").tolist()
                values.append(Line(arm.name, epochs, without, f"{run}, without the term", dashed=True))
                changes.append(Line(arm.name, epochs, floats(table, "change").tolist(), run))
        if values:
            where = f", {env}" if len(envs) > 1 else ""
            along = Axis("epoch", whole=True)
            panels.append(Panel(f"Multiplier λ with and without the term{where}", along, Axis("λ", low=0.0), values))
            panels.append(Panel(f"What the term added{where}", along, Axis("change of λ"), [Rule(0.0), *changes]))
    if not panels:
        return Missing(entry.kind, "Multiplier replay", "no arm has a signal term in its multiplier")
    caption = "Each run's multiplier replayed from its own record; costs are held fixed: a direct effect only."
    keys = (("faint", "with the signal term"), ("dashed", "without it"))
    return make_chart(dataset, entry, "Multiplier with and without the signal term", panels, caption, keys)


def scores(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """Scores and kappa over training."""
    panels = []
    envs = dataset.envs(entry)
    titles = {"negative_score": "Mean c_vlm", "positive_score": "Mean r_vlm", "kappa": "Mean κ of scored frames"}
    for env in envs:
        arms = [arm for arm in dataset.arms(env, entry) if arm.has_signal]
        for column, title in titles.items():
            gated = [arm for arm in arms if any(run.config.signal.gate != "off" for run in arm.runs)]
            marks = list(curve_marks(gated if column == "kappa" else arms, column))
            if marks:
                where = f", {env}" if len(envs) > 1 else ""
                panels.append(Panel(f"{title}{where}", _steps(), Axis("score" if column != "kappa" else "κ"), marks))
    if not panels:
        return Missing(entry.kind, "Scores over training", "no arm has a signal")
    return make_chart(dataset, entry, "Scores over training", panels, "Epoch means.", SEEDS)
