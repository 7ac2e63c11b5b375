"""The tables of arms and runs: their outcomes in evaluations and in training, with the published values."""

from __future__ import annotations

import polars as pl

from vlmsafe.comparison.claims import Outcome, Window
from vlmsafe.comparison.outcomes import WORDS, values_of
from vlmsafe.comparison.settings import ABSENT, effective
from vlmsafe.report.cells import (
    INTERVALS,
    Notes,
    arm_cell,
    budget_cell,
    count,
    env_cell,
    env_column,
    is_rate,
    metric_cell,
    metric_column,
    metrics_of,
    on_env,
    outcome_column,
    over_budget,
    run_cell,
    settings_word,
    text,
    varied,
    window_name,
)
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Cell, Column, Missing, Table, minus
from vlmsafe.report.pools import pool_note, pooled, pools
from vlmsafe.report.request import Entry
from vlmsafe.report.tables.rows import ARM, named

_EVALUATED: tuple[Outcome, ...] = ("cost", "violation", "catastrophe", "env_return")


def summary(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Arm by arm from an evaluation."""
    envs = [env for env in dataset.envs(entry) if dataset.source(env, entry) != "training"]
    everyone = [run for env in envs for arm in dataset.arms(env, entry) for run in arm.runs]
    protocols = {env: dataset.source(env, entry) for env in envs}
    metrics = list(dict.fromkeys(name for run in everyone for name in metrics_of([run], protocols[run.env])))
    notes, rows = Notes(), []
    for env in envs:
        for arm in dataset.arms(env, entry):
            evaluated = [run for run in arm.runs if protocols[env] in run.evaluations]
            if not evaluated:
                continue
            episodes = sum(len(run.evaluations[protocols[env]]) for run in evaluated)
            cells = [arm_cell(dataset, arm, outcome, protocols[env], "final", notes) for outcome in _EVALUATED]
            extra = [metric_cell(dataset, evaluated, name, protocols[env], notes) for name in metrics]
            head = [*env_cell(envs, env), text(arm.name), count(len(evaluated)), count(episodes), budget_cell(arm)]
            rows.append([*head, *cells, over_budget(arm, protocols[env], "final"), *extra])
    if not rows:
        source = f" '{entry.source}'" if entry.source else ""
        return Missing(entry.kind, "Evaluation", f"no run has an evaluation{source}; vlmsafe evaluate RUN makes one")
    columns = [
        *env_column(envs),
        ARM,
        *named("runs", "episodes", "budget", digits=0),
        *map(outcome_column, _EVALUATED),
        Column("over_budget", "over budget", 0, hint="runs whose mean cost is above the budget"),
        *map(metric_column, metrics),
    ]
    used = list(dict.fromkeys(protocols.values()))
    title = entry.title or f"Evaluation ({', '.join(used)}){on_env(envs)}"
    return Table("summary", title, columns, rows, INTERVALS, entry.label, notes=notes.lines())


def training(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Arm by arm from the training record."""
    last: Window = entry.window if entry.window != "final" else "last-10"
    envs, notes, rows = dataset.envs(entry), Notes(), []
    for env in envs:
        for arm in dataset.arms(env, entry):
            if not any(run.epochs for run in arm.runs):
                continue
            done = sum(run.epochs_recorded >= run.config.epochs for run in arm.runs)
            rows.append(
                [
                    *env_cell(envs, env),
                    text(arm.name),
                    Cell(float(len(arm.runs)), f"{done}/{len(arm.runs)}"),
                    budget_cell(arm),
                    arm_cell(dataset, arm, "cost", "training", "final", notes),
                    arm_cell(dataset, arm, "cost", "training", last, notes),
                    over_budget(arm, "training", last),
                    arm_cell(dataset, arm, "env_return", "training", last, notes),
                    arm_cell(dataset, arm, "shaped_return", "training", last, notes),
                ]
            )
    if not rows:
        return Missing(entry.kind, "Training", "no run has finished an epoch")
    words = window_name(last, [run for env in envs for arm in dataset.arms(env, entry) for run in arm.runs])
    columns = [
        *env_column(envs),
        ARM,
        Column("finished", "finished", 0, hint="runs that reached their last epoch, of all"),
        *named("budget", digits=0),
        outcome_column("cost", "_final", "cost, final epoch"),
        outcome_column("cost", f"_{last}", f"cost, {words}"),
        Column("over_budget", "over budget", 0, hint=f"runs whose cost ({words}) is above the budget"),
        outcome_column("env_return", "", f"env. return, {words}"),
        outcome_column("shaped_return", "", f"logged return, {words}"),
    ]
    title = entry.title or f"Training{on_env(envs)}"
    caption = f"{INTERVALS} The logged return has the signal's bonus in it and does not compare arms."
    return Table("training", title, columns, rows, caption, entry.label, notes=notes.lines())


def by_environment(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Arms in rows, environments in columns."""
    outcome, envs, notes, rows = entry.outcome or "cost", dataset.envs(entry), Notes(), []
    lines: list[str] = []
    for name in dataset.arm_names:
        if entry.arms and name not in entry.arms:
            continue
        cells = []
        for env in envs:
            arm = dataset.every_arm.get((env, name))
            source, window = dataset.source(env, entry), entry.windows.get((name, env), entry.window)
            cells.append(arm_cell(dataset, arm, outcome, source, window, notes) if arm else Cell())
            if arm and source == "training" and window != entry.window:
                lines.append(f"'{name}' on {env}: {window_name(window, arm.runs)}.")
        if any(cell.value is not None for cell in cells):
            rows.append([text(name), *cells])
    if not rows:
        return Missing(entry.kind, "By environment", f"no arm has a {WORDS[outcome]}")
    digits = 1 if is_rate(outcome) else 2
    columns = [ARM, *(Column(env, env, digits) for env in envs)]
    title = entry.title or f"{WORDS[outcome].capitalize()} by environment"
    caption = INTERVALS
    if any(dataset.source(env, entry) == "training" for env in envs):
        others = "other cells" if lines else "cells"
        caption += f" From training, {others}: {window_name(entry.window, dataset.runs)}."
    return Table("by-environment", title, columns, rows, caption, entry.label, notes=[*lines, *notes.lines()])


def per_seed(dataset: Dataset, entry: Entry) -> Table | Missing:
    """One row per run, and each arm's mean."""
    envs, notes, rows, strong = dataset.envs(entry), Notes(), [], set()
    pooling: list[str] = []
    sources = {env: dataset.source(env, entry) for env in envs}
    trained = all(source == "training" for source in sources.values())
    everyone = [run for env in envs for arm in dataset.arms(env, entry) for run in arm.runs]
    metrics = (
        [] if trained else list(dict.fromkeys(name for run in everyone for name in metrics_of([run], sources[run.env])))
    )
    windows: tuple[Window, ...] = ("final", "last-10") if trained else ("final",)
    outcomes: tuple[Outcome, ...] = ("cost", "env_return", "shaped_return") if trained else _EVALUATED
    shown = [(outcome, window) for outcome in outcomes for window in windows]
    for env in envs:
        source = sources[env]
        for arm in dataset.arms(env, entry):
            own = [run for run in arm.runs if source == "training" or source in run.evaluations]
            for run in sorted(own, key=lambda run: (run.seed, run.name)):
                cells = [run_cell(dataset, run, outcome, source, window, notes) for outcome, window in shown]
                extra = [metric_cell(dataset, [run], name, source, notes) for name in metrics]
                name = str(run.seed) if run.name == f"seed-{run.seed}" else run.name
                rows.append([*env_cell(envs, env), text(arm.name), Cell(float(run.seed), name), *cells, *extra])
            if len(own) > 1:
                strong.add(len(rows))
                cells = [arm_cell(dataset, arm, outcome, source, window, notes) for outcome, window in shown]
                extra = [metric_cell(dataset, own, name, source, notes) for name in metrics]
                rows.append([*env_cell(envs, env), text(arm.name), Cell(float("inf"), "mean"), *cells, *extra])
        for name, arms in pools(dataset, env, entry).items():
            pool = pooled(name, arms)
            own = [run for run in pool.runs if source == "training" or source in run.evaluations]
            if not own:
                continue
            strong.add(len(rows))
            cells = [arm_cell(dataset, pool, outcome, source, window, notes) for outcome, window in shown]
            extra = [metric_cell(dataset, own, metric, source, None) for metric in metrics]
            rows.append([*env_cell(envs, env), text(name), Cell(float("inf"), "mean"), *cells, *extra])
            pooling.append(pool_note(name, arms))
    if not rows:
        return Missing(entry.kind, "Run by run", "no run has results yet")
    suffix = {window: window_name(window, everyone) for window in windows}
    columns = [
        *env_column(envs),
        ARM,
        *named("seed", digits=0),
        *(
            outcome_column(o, f"_{w}", f"{outcome_column(o).heading}, {suffix[w]}") if trained else outcome_column(o)
            for o, w in shown
        ),
        *map(metric_column, metrics),
    ]
    used = ", ".join(dict.fromkeys(sources.values()))
    title = entry.title or f"Run by run ({used}){on_env(envs)}"
    return Table(
        "per-seed",
        title,
        columns,
        rows,
        INTERVALS,
        entry.label,
        frozenset(strong),
        [*pooling, *notes.lines()],
        not entry.asked,
    )


def sweep(dataset: Dataset, entry: Entry) -> Table | Missing:
    """An outcome over the settings that are varied."""
    outcome, envs = entry.outcome or "cost", dataset.envs(entry)
    arms = [arm for env in envs for arm in dataset.arms(env, entry)]
    over = list(entry.over) or varied(arms)
    if not over:
        return Missing(entry.kind, "Sweep", "the arms do not differ in any setting")
    rows = []
    for arm in sorted(arms, key=lambda arm: [_order(arm.first.settings.get(name)) for name in over]):
        source = dataset.source(arm.env, entry)
        cell = arm_cell(dataset, arm, outcome, source, entry.window)
        if cell.value is None:
            continue
        settings = effective(arm.first.settings)
        if not any(name in settings for name in over):
            continue
        values = [_setting_cell(settings.get(name, ABSENT)) for name in over]
        runs = len(values_of(arm, outcome, source, entry.window))
        budget = over_budget(arm, source, entry.window)
        rows.append([*env_cell(envs, arm.env), text(arm.name), *values, count(runs), cell, budget])
    if not rows:
        return Missing(entry.kind, "Sweep", f"no arm has a {WORDS[outcome]}")
    columns = [
        *env_column(envs),
        ARM,
        *(Column(name, name, 3) for name in over),
        *named("runs", digits=0),
        outcome_column(outcome),
        *named("over_budget", digits=0),
    ]
    title = entry.title or f"{WORDS[outcome].capitalize()} over {' and '.join(over)}{on_env(envs)}"
    return Table("sweep", title, columns, rows, INTERVALS, entry.label)


def _order(value: object) -> tuple[int, float, str]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (0, float(value), "") if number else (1, 0.0, str(value))  # type: ignore[arg-type]


def _setting_cell(value: object) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(float(value), f"{value:g}")
    return text(settings_word(value))


def protocols(dataset: Dataset, entry: Entry) -> Table | Missing:
    """One outcome of each arm by evaluation protocol."""
    outcome: Outcome = entry.outcome or "catastrophe"
    envs, notes, rows = dataset.envs(entry), Notes(), []
    names = list(dict.fromkeys(name for env in envs for name in dataset.protocols(env, entry)))
    if len(names) < (1 if entry.asked else 2):
        return Missing(entry.kind, "Protocols", "runs were evaluated by one protocol only")
    for env in envs:
        for arm in dataset.arms(env, entry):
            cells = [arm_cell(dataset, arm, outcome, name, "final", notes) for name in names]
            if any(cell.value is not None for cell in cells):
                rows.append([*env_cell(envs, env), text(arm.name), *cells])
    if not rows:
        return Missing(entry.kind, "Protocols", "no run has been evaluated; vlmsafe evaluate RUN makes one")
    digits = 1 if is_rate(outcome) else 2
    columns = [*env_column(envs), ARM, *(Column(name, name, digits) for name in names)]
    title = entry.title or f"{WORDS[outcome].capitalize()}{' %' if is_rate(outcome) else ''} by protocol{on_env(envs)}"
    return Table("protocols", title, columns, rows, INTERVALS, entry.label, notes=notes.lines())


def published(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Every result that the paper has too."""
    envs = dataset.envs(entry)
    known = dataset.beside.filter(pl.col("published").is_not_null(), pl.col("run").is_null(), pl.col("env").is_in(envs))
    rows = []
    for row in known.iter_rows(named=True):
        if entry.arms and row["arm"] not in entry.arms:
            continue
        source = row["source"] if row["source"] != "training" else f"training, {row['window']}"
        rows.append(
            [
                *env_cell(envs, row["env"]),
                text(row["arm"]),
                text(row["paper_arm"]),
                text(source),
                text(row["quantity"].replace("_", " ")),
                Cell(row["ours"], std=row["ours_std"] if row["ours_runs"] > 1 else None),
                Cell(row["published"], std=row["published_std"]),
                Cell(row["difference"], minus(f"{row['difference']:+.2f}")),
                text(row["label"]),
                text("; ".join(row["differences"]) or "nothing found"),
            ]
        )
    if not rows:
        return Missing(entry.kind, "Published values", "the paper has no values for these arms and environments")
    columns = [
        *env_column(envs),
        ARM,
        Column("paper_arm", "in the paper"),
        Column("source", "from"),
        *named("quantity"),
        *named("ours", "published", "difference", digits=2),
        Column("label", "where"),
        Column("differences", "done otherwise than in the paper"),
    ]
    caption = "Mean ± population deviation over runs. Even where no difference was found, the seeds differ."
    title = entry.title or "Our values and the published ones"
    return Table("published", title, columns, rows, caption, entry.label, fold=not entry.asked)
