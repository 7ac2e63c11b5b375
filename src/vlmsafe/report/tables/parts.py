"""The tables behind the results: what returns, multipliers and signals were made of, what runs cost, what arms are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from vlmsafe.analysis import returns as parts
from vlmsafe.analysis.tables import stacked
from vlmsafe.audit.checks.metrics import passive_threshold
from vlmsafe.comparison.settings import ABSENT, effective
from vlmsafe.errors import VlmsafeError
from vlmsafe.report.cells import (
    MARK,
    by_seed,
    count,
    settings_word,
    text,
)
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import (
    Cell,
    Column,
    Missing,
    Table,
    minus,
)
from vlmsafe.report.request import Entry
from vlmsafe.report.tables import paper
from vlmsafe.runs.records import ArmRecord, RunRecord
from vlmsafe.signals.scorers.registry import kind_of


def returns(dataset: Dataset, entry: Entry) -> Table | Missing:
    """The logged return taken apart."""
    rows: list[list[Cell]] = []
    names = ("logged_return_final", "bonus_final", "environment_return_final", "environment_return_last_5",
             "environment_return_last_10")  # fmt: skip
    for env in dataset.envs(entry):
        for arm in dataset.arms(env, entry):
            known = {
                run.name: run.epochs for run in arm.runs if any(row["env_return"] is not None for row in run.epochs)
            }
            if known:
                means = parts.return_table({arm.name: known}).row(0, named=True)
                rows.append([text(env), text(arm.name), count(len(known)), *(Cell(means[name]) for name in names)])
    if not rows or (not entry.asked and not any(row[4].value for row in rows)):
        return Missing(entry.kind, "Returns", "no run has finished an episode")
    columns = [
        Column("env", "environment"),
        Column("arm", "arm"),
        Column("runs", "runs", 0),
        Column("logged_return_final", "logged, final epoch", 2),
        Column("bonus_final", "of it bonus", 2, hint="what the signal added"),
        Column("environment_return_final", "environment, final epoch", 2),
        Column("environment_return_last_5", "environment, last 5", 2),
        Column("environment_return_last_10", "environment, last 10", 2),
    ]
    caption = "Means over runs. What the learner maximised is the logged return; the task's is the environment's."
    return Table("returns", entry.title or "The logged return taken apart", columns, rows, caption, entry.label)


def passive(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Passive episodes of each arm, and what cost correlates with over all episodes of the environment."""
    rows: list[list[Cell]] = []
    for env in dataset.envs(entry):
        source, arms = dataset.source(env, entry), dataset.arms(env, entry)
        tables = {
            arm.name: {run.name: run.evaluations[source] for run in arm.runs if source in run.evaluations}
            for arm in arms
        }
        tables = {name: own for name, own in tables.items() if own}
        threshold = passive_threshold(env, arms, source, None) if tables else None
        if not tables or threshold is None:
            continue
        episodes = stacked(tables)
        rates = parts.passive_episodes(episodes, threshold).filter(pl.col("run").is_null())
        for row in rates.iter_rows(named=True):
            own = episodes.filter(arm=row["arm"])
            correlations = [
                _correlation(own, names)
                for names in (("path", "distance", "net_progress", "route_completion"), ("env_return",))
            ]
            rows.append(
                [
                    text(env),
                    text(row["arm"]),
                    count(row["episodes"]),
                    Cell(threshold),
                    Cell(100 * row["rate"]),
                    *correlations,
                ]
            )
    if not rows:
        return Missing(entry.kind, "Passive episodes", "no run has an evaluation; vlmsafe evaluate RUN makes one")
    columns = [
        Column("env", "environment"),
        Column("arm", "arm"),
        Column("episodes", "episodes", 0),
        Column(
            "threshold", "passive below", 1, hint="environment return below which an episode without cost is passive"
        ),
        Column("passive_pct", "passive %", 1, percent=True, hint="episodes without cost that return less than that"),
        Column(
            "cost_distance", "cost with distance", 2, hint="Spearman's correlation over episodes, with how far it got"
        ),
        Column(
            "cost_return", "cost with return", 2, hint="Spearman's correlation over episodes, with environment return"
        ),
    ]
    caption = "Low cost can be little driving: passive episodes, and Spearman's correlation of cost over episodes."
    return Table("passive", entry.title or "Is low cost little driving?", columns, rows, caption, entry.label)


def _correlation(episodes: pl.DataFrame, names: Sequence[str]) -> Cell:
    name = next((name for name in names if name in episodes.columns and episodes[name].drop_nulls().len()), None)
    if name is None:
        return Cell()
    row = parts.cost_correlations(episodes, [name]).row(0, named=True)
    return Cell(row["spearman"])


def _reference(arm: ArmRecord, arms: Sequence[ArmRecord], plain: Sequence[ArmRecord]) -> ArmRecord | None:
    """The arm without a signal whose time counts as one: as long, and with as many passes as most that have one."""
    long = [other for other in plain if other.first.config.total_steps == arm.first.config.total_steps]
    passes = [other.first.config.learner.update_iters for other in arms if other.has_signal]
    return max(long or plain, key=lambda other: passes.count(other.first.config.learner.update_iters), default=None)


def compute(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Time per run, and how it compares with the arm that has no signal."""
    rows: list[list[Cell]] = []
    for env in dataset.envs(entry):
        arms = dataset.arms(env, entry)
        spent = {arm.name: [found for run in arm.runs if (found := _seconds(run))] for arm in arms}
        plain = [arm for arm in arms if not arm.has_signal and spent[arm.name]]
        for arm in arms:
            own = spent[arm.name]
            if not own:
                continue
            reference = _reference(arm, arms, plain)
            per_step = float(np.mean([seconds / steps for seconds, _, steps in own]))
            hours = [seconds / 3600 for seconds, _, _ in own]
            factor = None
            if reference is not None and arm is not reference:
                factor = per_step / float(np.mean([seconds / steps for seconds, _, steps in spent[reference.name]]))
            config = arm.first.config
            every = config.signal.every if arm.has_signal else None
            beside = paper.times(env, config.method, config.total_steps, every)
            rows.append(
                [
                    text(env),
                    text(arm.name),
                    count(every) if every else text("none"),
                    count(len(own)),
                    _timed(float(np.mean(hours)), beside.get("hours"), hours),
                    _timed(float(np.mean([collect / 3600 for _, collect, _ in own])), beside.get("rollout_hours")),
                    _timed(1.0 / per_step, beside.get("steps_per_second")),
                    Cell(100 * (factor - 1), minus(f"{100 * (factor - 1):+.0f} %"))
                    if factor is not None
                    else text("reference" if arm is reference else ""),
                ]
            )
    if not rows:
        return Missing(entry.kind, "Compute", "no run has recorded its times")
    columns = [
        Column("env", "environment"),
        Column("arm", "arm"),
        Column("every", "scored every", 0, hint="steps between two scored frames"),
        Column("runs", "runs", 0),
        Column("hours", "hours", 3, hint="mean over runs; in brackets the shortest and the longest"),
        Column("rollout_hours", "rollout hours", 3),
        Column("steps_per_second", "steps/s", 1),
        Column("overhead_pct", "time per step", 0, hint="against the first arm without a signal"),
    ]
    caption = "Wall time of the epochs that were recorded, evaluation excluded; on whatever machine each run was made."
    marked = any(cell.published is not None for row in rows for cell in row)
    notes = [f"{MARK} {paper.TIME_NOTE}."] if marked else []
    return Table("compute", entry.title or "What it costs to train", columns, rows, caption, entry.label, notes=notes)


def _timed(value: float, published: float | None, several: Sequence[float] = ()) -> Cell:
    low, high = (min(several), max(several)) if len(several) > 1 else (None, None)
    return Cell(value, low=low, high=high, published=published, mark=MARK if published is not None else "")


def _seconds(run: RunRecord) -> tuple[float, float, int] | None:
    """Seconds of all stages, seconds of collecting, and steps, of the epochs on record."""
    try:
        rows = run.source.run.rows("timing")
    except VlmsafeError:
        return None  # the audit names files that cannot be read
    total = sum(float(value) for row in rows for name, value in row.items() if name != "epoch")
    collect = sum(float(row.get("collect", 0.0)) for row in rows)
    return (total, collect, len(rows) * run.config.steps_per_epoch) if total > 0 else None


def divergence(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Runs of equal seeds in compared arms: the first epoch in which their records differ."""
    rows: list[list[Cell]] = []
    watched = ("env_return", "episode_cost", "multiplier", "kl")
    pairs = {(one.env, one.claim.first, one.claim.second): one for one in dataset.comparisons(entry)}
    for one in pairs.values():
        first, second = one.first.matched_by, one.second.matched_by
        for key in sorted(set(first) & set(second), key=by_seed):
            a, b = first[key].epochs, second[key].epochs
            together = list(zip(a, b, strict=False))
            if not together:
                continue
            apart = next((x["epoch"] for x, y in together if any(x.get(n) != y.get(n) for n in watched)), None)
            last = [
                (x["episode_cost"], y["episode_cost"])
                for x, y in together
                if None not in (x["episode_cost"], y["episode_cost"])
            ]
            gap = last[-1][0] - last[-1][1] if last else None
            rows.append(
                [
                    text(one.env),
                    text(one.claim.first),
                    text(one.claim.second),
                    text(key),
                    Cell(float(apart), str(apart)) if apart is not None else text("never"),
                    count(len(together)),
                    Cell(gap),
                ]
            )
    if not rows:
        return Missing(entry.kind, "Reruns", "no compared arms have runs of the same seed")
    columns = [
        Column("env", "environment"),
        Column("first", "first arm"),
        Column("second", "against"),
        Column("seed", "seed"),
        Column("epoch", "apart from epoch", 0),
        Column("epochs", "epochs compared", 0),
        Column("difference", "cost difference at the end", 2),
    ]
    caption = "Return, cost, multiplier and divergence of the policy, to the last digit."
    return Table("divergence", entry.title or "Where runs of one seed part", columns, rows, caption, entry.label)


_KINDS = {"none": "none", "adam": "Adam", "gradient": "gradient", "pid": "PID"}


def methods(dataset: Dataset, entry: Entry) -> Table | Missing:
    """What each arm is made of, in words."""
    rows: list[list[Cell]] = []
    seen: dict[str, ArmRecord] = {}
    for env in dataset.envs(entry):
        for arm in dataset.arms(env, entry):
            seen.setdefault(arm.name, arm)
    for name, arm in seen.items():
        config = arm.first.config
        signal, has = config.signal, arm.has_signal
        routes = [
            word
            for word, on in (
                ("reward", signal.reward_weight > 0),
                ("multiplier", config.multiplier.signal_weight > 0 and config.multiplier.kind != "none"),
                ("cost", signal.cost_weight > 0),
                ("own multiplier", signal.multiplier.kind != "none"),
            )
            if has and on
        ]
        rows.append(
            [
                text(name),
                text(config.learner.algorithm),
                text("none" if config.learner.algorithm == "ppo" else "CMDP"),
                text(signal.scorer if has else "none"),
                text(signal.rule if has else ""),
                text(", ".join(routes) or ("none" if has else "")),
                text(_KINDS[config.multiplier.kind]),
                text(
                    settings_word(config.multiplier.signal_weight) if has and config.multiplier.kind != "none" else ""
                ),
                text(signal.gate if has else ""),
                text(("no" if kind_of(signal.scorer).learns else "yes") if has else ""),
            ]
        )
    headings = {
        "arm": "arm", "learner": "learner", "formulation": "safety formulation", "scorer": "scorer", "rule": "scoring",
        "routes": "role of the signal", "multiplier": "multiplier", "term": "η₂", "gate": "gate", "frozen": "frozen",
    }  # fmt: skip
    columns = [Column(name, heading) for name, heading in headings.items()]
    caption = "From the settings of each arm's runs."
    return Table("methods", entry.title or "What the arms are made of", columns, rows, caption, entry.label)


def settings(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Every setting in which arms differ, of those that have an effect."""
    arms = [arm for env in dataset.envs(entry) for arm in dataset.arms(env, entry)]
    found = [effective(arm.first.settings) for arm in arms]
    names = sorted({name for one in found for name in one})
    rows: list[list[Cell]] = []
    for name in names:
        values = [one.get(name, ABSENT) for one in found]
        if len({str(value) for value in values}) > 1:
            rows.append([text(name), *(text(_setting(value)) for value in values)])
    if not rows:
        return Missing(entry.kind, "Settings", "the arms differ in no setting")
    several = len({arm.env for arm in arms}) > 1
    heads = [Column(f"{arm.env}/{arm.name}", f"{arm.name}, {arm.env}" if several else arm.name) for arm in arms]
    caption = "Settings with an effect in which some arms differ; - where an arm has no such part."
    title = entry.title or "In what the arms differ"
    return Table(
        "settings", title, [Column("setting", "setting"), *heads], rows, caption, entry.label, fold=not entry.asked
    )


def _setting(value: Any) -> str:
    return ABSENT if value == ABSENT else settings_word(value)
