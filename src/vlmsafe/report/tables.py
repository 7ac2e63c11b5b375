"""The tables of results: what arms, runs and comparisons came to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl

from vlmsafe.audit.claims import Outcome, Window
from vlmsafe.audit.outcomes import source_of, values_of
from vlmsafe.audit.records import Arm
from vlmsafe.audit.settings import ABSENT, effective
from vlmsafe.report import tables_parts
from vlmsafe.report.answer import Result, results
from vlmsafe.report.data import Entry
from vlmsafe.report.material import Material
from vlmsafe.report.measures import (
    LEAST,
    Notes,
    arm_cell,
    count,
    is_rate,
    metric_cell,
    metric_column,
    metrics_of,
    outcome_column,
    over_budget,
    run_cell,
    settings_word,
    share,
    text,
    window_name,
    word_of,
)
from vlmsafe.report.model import Cell, Column, Missing, Table

_INTERVALS = f"Mean ± population deviation over runs; in brackets the 95 % bootstrap interval over runs, from {LEAST} runs."
_EVALUATED: tuple[Outcome, ...] = ("cost", "violation", "catastrophe", "env_return")


def build_table(material: Material, entry: Entry) -> Table | Missing:
    """The table of an entry, or why there is none."""
    return tables_parts.without_constant_env(BUILDERS[entry.kind](material, entry))


def _env_column(envs: Sequence[str]) -> list[Column]:
    """Only where there are several: a column that says the same everywhere says nothing."""
    return [Column("env", "environment")] if len(envs) > 1 else []


def _env_cell(envs: Sequence[str], env: str) -> list[Cell]:
    return [text(env)] if len(envs) > 1 else []


def _where(envs: Sequence[str]) -> str:
    return f" on {envs[0]}" if len(envs) == 1 else ""


# -- comparisons ----------------------------------------------------------------------------------------------------


def comparisons(material: Material, entry: Entry) -> Table | Missing:
    """Each claim with its difference, interval and test."""
    found = [one for one in results(material, material.comparisons(entry)) if one.first and one.second]
    if not found:
        return Missing(entry.kind, "Comparisons", "no two arms have results to compare")
    envs = list(dict.fromkeys(one.comparison.env for one in found))
    columns = [
        *_env_column(envs),
        Column("first", "first arm"),
        Column("second", "against"),
        Column("outcome", "outcome"),
        Column("runs", "runs", 0),
        Column("first_mean", "first", 2),
        Column("second_mean", "second", 2),
        Column("difference", "difference", 2, hint="first minus second, with its interval over runs"),
        Column("p", "p", 3, hint="of the claimed test"),
        Column("smallest_p", "smallest p", 3, hint="that so many runs can give, whatever they show"),
        Column("first_lower", "first lower", 0, hint="matched seeds on which the first arm is lower"),
        Column("says", "the test says"),
        Column("audit", "audit"),
    ]
    rows = [[*_env_cell(envs, one.comparison.env), *_comparison_cells(one)] for one in found]
    tests = list(dict.fromkeys(one.test for one in found))
    caption = f"Rates in %, differences in percentage points; intervals resample runs. Tests: {'; '.join(tests)}."
    if len(found) > 1 and not any(one.correction for one in found):
        caption += f" {len(found)} comparisons, none corrected for the others."
    return Table("comparisons", entry.title or f"Comparisons{_where(envs)}", columns, rows, caption, entry.label)


def _comparison_cells(one: Result) -> list[Cell]:
    claim, scale = one.comparison.claim, one.scale
    means = [float(np.mean(list(values.values()))) * scale for values in (one.first, one.second)]
    difference = Cell(means[0] - means[1])
    if one.interval is not None:
        difference = Cell(scale * one.interval.estimate, low=scale * one.interval.low, high=scale * one.interval.high)
    p = Cell()
    if one.verdict is not None and one.verdict.p is not None:
        p = Cell(one.verdict.p, one.verdict.text.removeprefix("p = "))
    says = {-1: "lower", 0: "not told apart", 1: "higher"}[one.decided]
    if claim.test == "none" or one.verdict is None:
        says = "not tested"
    source = one.source if one.source != "training" else f"training, {window_name(claim.window)}"
    lower, shared = one.first_lower
    found = one.finding
    return [
        text(claim.first),
        text(claim.second),
        text(f"{one.word} ({source})"),
        Cell(float(len(one.first) + len(one.second)), f"{len(one.first)} / {len(one.second)}"),
        Cell(means[0]),
        Cell(means[1]),
        difference,
        p,
        Cell(one.smallest, f"{one.smallest:.3g}") if one.smallest is not None else Cell(),
        share(lower, shared) if shared else Cell(),
        text(says),
        text(f"{found.weight.name.lower()}: {found.code}" if found else "nothing found"),
    ]


def rates(material: Material, entry: Entry) -> Table | Missing:
    """Catastrophe and violation rates of each compared pair: the paper's table across environments."""
    pairs = {(one.env, one.claim.first, one.claim.second): one for one in reversed(material.comparisons(entry))}
    chosen = [(key, one) for key, one in reversed(pairs.items())]
    arms = [(one.first, one.second) for _, one in chosen]
    names = list(dict.fromkeys((first.name, second.name) for first, second in arms))
    single = len(names) == 1
    head = [Column("env", "environment")]
    head += [] if single else [Column("first", "first arm"), Column("second", "against")]
    first_word, second_word = (names[0][0], names[0][1]) if single else ("first", "second")
    columns = [
        *head,
        Column("runs", "runs", 0),
        outcome_column("catastrophe", "_second", f"catastrophe %, {second_word}"),
        outcome_column("catastrophe", "_first", f"catastrophe %, {first_word}"),
        outcome_column("violation", "_second", f"violation %, {second_word}"),
        outcome_column("violation", "_first", f"violation %, {first_word}"),
        Column("difference_pp", "catastrophe Δ, pp", 1, hint=f"{first_word} minus {second_word}, 95 % interval"),
        Column("p", "p, exact", 3, hint="two-sided permutation test of the runs' catastrophe rates"),
        Column("range", "seeds, %", hint="lowest and highest catastrophe rate of a run in either arm"),
    ]
    notes, rows = Notes(), []
    for (env, _, _), one in chosen:
        source = material.source(env, entry) if not one.claim.stated or entry.source else source_of(one)
        values = [list(values_of(arm, "catastrophe", source).values()) for arm in (one.first, one.second)]
        if not all(values):
            continue
        cells = [
            arm_cell(material, arm, outcome, source, "final", notes)
            for outcome in ("catastrophe", "violation")
            for arm in (one.second, one.first)
        ]
        both = [100 * value for side in values for value in side]
        rows.append(
            [
                text(env),
                *([] if single else [text(one.claim.first), text(one.claim.second)]),
                Cell(float(len(both)), f"{len(values[0])} / {len(values[1])}"),
                *cells,
                *tables_parts.difference_cells(values[0], values[1]),
                Cell(min(both), f"{min(both):.0f} to {max(both):.0f}"),
            ]
        )
    if not rows:
        return Missing(entry.kind, "Rates", "no compared arms have evaluations; vlmsafe evaluate RUN makes them")
    title = entry.title or ("Catastrophe and violation rates" + (f": {names[0][0]} and {names[0][1]}" if single else ""))
    return Table("rates", title, columns, rows, _INTERVALS, entry.label, notes=notes.lines())


def pairs(material: Material, entry: Entry) -> Table | Missing:
    """Compared arms seed by seed."""
    rows: list[list[Cell]] = []
    strong: set[int] = set()
    for one in results(material, material.comparisons(entry)):
        shared = sorted(key for key in one.first if key in one.second)
        if not shared:
            continue
        claim, scale = one.comparison.claim, one.scale
        names = [text(one.comparison.env), text(claim.first), text(claim.second), text(one.word)]
        names.append(text(one.source if one.source != "training" else f"training, {window_name(claim.window)}"))
        for key in shared:
            a, b = scale * one.first[key], scale * one.second[key]
            rows.append([*names, text(key), Cell(a), Cell(b), Cell(a - b, f"{a - b:+.2f}".replace("-", "−"))])
        means = [scale * float(np.mean([side[key] for key in shared])) for side in (one.first, one.second)]
        strong.add(len(rows))
        gap = f"{means[0] - means[1]:+.2f}".replace("-", "−")
        rows.append([*names, text("mean"), Cell(means[0]), Cell(means[1]), Cell(means[0] - means[1], gap)])
    if not rows:
        return Missing(entry.kind, "Matched seeds", "no compared arms share a seed")
    columns = [
        Column("env", "environment"),
        Column("first_arm", "first arm"),
        Column("second_arm", "against"),
        Column("outcome", "outcome"),
        Column("source", "from"),
        Column("seed", "seed"),
        Column("first", "first", 2),
        Column("second", "second", 2),
        Column("difference", "difference", 2),
    ]
    title = entry.title or "Matched seeds"
    caption = "Runs of both arms with the same seed; rates in %."
    return Table("pairs", title, columns, rows, caption, entry.label, frozenset(strong), fold=not entry.asked)


# -- arms -----------------------------------------------------------------------------------------------------------


def summary(material: Material, entry: Entry) -> Table | Missing:
    """Arm by arm from an evaluation."""
    envs = [env for env in material.envs(entry) if material.source(env, entry) != "training"]
    everyone = [run for env in envs for arm in material.arms(env, entry) for run in arm.runs]
    protocols = {env: material.source(env, entry) for env in envs}
    metrics = list(dict.fromkeys(name for run in everyone for name in metrics_of([run], protocols[run.env])))
    notes, rows = Notes(), []
    for env in envs:
        for arm in material.arms(env, entry):
            evaluated = [run for run in arm.runs if protocols[env] in run.evaluations]
            if not evaluated:
                continue
            episodes = sum(len(run.evaluations[protocols[env]]) for run in evaluated)
            cells = [arm_cell(material, arm, outcome, protocols[env], "final", notes) for outcome in _EVALUATED]
            extra = [metric_cell(material, evaluated, name, protocols[env], notes) for name in metrics]
            head = [*_env_cell(envs, env), text(arm.name), count(len(evaluated)), count(episodes)]
            rows.append([*head, *cells, over_budget(arm, protocols[env], "final"), *extra])
    if not rows:
        named = f" '{entry.source}'" if entry.source else ""
        return Missing(entry.kind, "Evaluation", f"no run has an evaluation{named}; vlmsafe evaluate RUN makes one")
    columns = [
        *_env_column(envs),
        Column("arm", "arm"),
        Column("runs", "runs", 0),
        Column("episodes", "episodes", 0),
        *map(outcome_column, _EVALUATED),
        Column("over_budget", "over budget", 0, hint="runs whose mean cost is above the budget"),
        *map(metric_column, metrics),
    ]
    used = list(dict.fromkeys(protocols.values()))
    title = entry.title or f"Evaluation ({', '.join(used)}){_where(envs)}"
    return Table("summary", title, columns, rows, _INTERVALS, entry.label, notes=notes.lines())


def training(material: Material, entry: Entry) -> Table | Missing:
    """Arm by arm from the training record."""
    last: Window = entry.window if entry.window != "final" else "last-10"
    envs, notes, rows = material.envs(entry), Notes(), []
    for env in envs:
        for arm in material.arms(env, entry):
            if not any(run.epochs for run in arm.runs):
                continue
            done = sum(run.epochs_recorded >= run.config.epochs for run in arm.runs)
            rows.append(
                [
                    *_env_cell(envs, env),
                    text(arm.name),
                    Cell(float(len(arm.runs)), f"{done}/{len(arm.runs)}"),
                    Cell(arm.first.config.budget),
                    arm_cell(material, arm, "cost", "training", "final", notes),
                    arm_cell(material, arm, "cost", "training", last, notes),
                    over_budget(arm, "training", last),
                    arm_cell(material, arm, "env_return", "training", last, notes),
                    arm_cell(material, arm, "shaped_return", "training", last, notes),
                ]
            )
    if not rows:
        return Missing(entry.kind, "Training", "no run has finished an epoch")
    words = window_name(last)
    columns = [
        *_env_column(envs),
        Column("arm", "arm"),
        Column("finished", "finished", 0, hint="runs that reached their last epoch, of all"),
        Column("budget", "budget", 0),
        outcome_column("cost", "_final", "cost, final epoch"),
        outcome_column("cost", f"_{last}", f"cost, {words}"),
        Column("over_budget", "over budget", 0, hint=f"runs whose cost over the {words} is above the budget"),
        outcome_column("env_return", "", f"env. return, {words}"),
        outcome_column("shaped_return", "", f"logged return, {words}"),
    ]
    title = entry.title or f"Training{_where(envs)}"
    caption = f"{_INTERVALS} The logged return has the signal's bonus in it and does not compare arms."
    return Table("training", title, columns, rows, caption, entry.label, notes=notes.lines())


def by_environment(material: Material, entry: Entry) -> Table | Missing:
    """Arms in rows, environments in columns."""
    outcome, envs, notes, rows = entry.outcome or "cost", material.envs(entry), Notes(), []
    for name in material.arm_names:
        if entry.arms and name not in entry.arms:
            continue
        cells = []
        for env in envs:
            arm = material.every_arm.get((env, name))
            source = material.source(env, entry)
            cells.append(arm_cell(material, arm, outcome, source, entry.window, notes) if arm else Cell())
        if any(cell.value is not None for cell in cells):
            rows.append([text(name), *cells])
    if not rows:
        return Missing(entry.kind, "By environment", f"no arm has a {word_of(outcome)}")
    digits = 1 if is_rate(outcome) else 2
    columns = [Column("arm", "arm"), *(Column(env, env, digits, percent=is_rate(outcome)) for env in envs)]
    title = entry.title or f"{word_of(outcome).capitalize()} by environment"
    return Table("by-environment", title, columns, rows, _INTERVALS, entry.label, notes=notes.lines())


def per_seed(material: Material, entry: Entry) -> Table | Missing:
    """One row per run, and each arm's mean."""
    envs, notes, rows, strong = material.envs(entry), Notes(), [], set()
    sources = {env: material.source(env, entry) for env in envs}
    trained = all(source == "training" for source in sources.values())
    everyone = [run for env in envs for arm in material.arms(env, entry) for run in arm.runs]
    metrics = [] if trained else list(dict.fromkeys(name for run in everyone for name in metrics_of([run], sources[run.env])))
    windows: tuple[Window, ...] = ("final", "last-10") if trained else ("final",)
    outcomes: tuple[Outcome, ...] = ("cost", "env_return", "shaped_return") if trained else _EVALUATED
    shown = [(outcome, window) for outcome in outcomes for window in windows]
    for env in envs:
        source = sources[env]
        for arm in material.arms(env, entry):
            own = [run for run in arm.runs if source == "training" or source in run.evaluations]
            for run in sorted(own, key=lambda run: (run.seed, run.name)):
                cells = [run_cell(material, run, outcome, source, window, notes) for outcome, window in shown]
                extra = [metric_cell(material, [run], name, source, notes) for name in metrics]
                name = str(run.seed) if run.name == f"seed-{run.seed}" else run.name
                rows.append([*_env_cell(envs, env), text(arm.name), Cell(float(run.seed), name), *cells, *extra])
            if len(own) > 1:
                strong.add(len(rows))
                cells = [arm_cell(material, arm, outcome, source, window, notes) for outcome, window in shown]
                extra = [metric_cell(material, own, name, source, notes) for name in metrics]
                rows.append([*_env_cell(envs, env), text(arm.name), Cell(float("inf"), "mean"), *cells, *extra])
    if not rows:
        return Missing(entry.kind, "Run by run", "no run has results yet")
    suffix = {"final": "final epoch", "last-10": "last 10"}
    columns = [
        *_env_column(envs),
        Column("arm", "arm"),
        Column("seed", "seed", 0),
        *(
            outcome_column(o, f"_{w}", f"{outcome_column(o).heading}, {suffix[w]}") if trained else outcome_column(o)
            for o, w in shown
        ),
        *map(metric_column, metrics),
    ]
    used = ", ".join(dict.fromkeys(sources.values()))
    title = entry.title or f"Run by run ({used}){_where(envs)}"
    return Table(
        "per-seed", title, columns, rows, _INTERVALS, entry.label, frozenset(strong), notes.lines(), not entry.asked
    )


def sweep(material: Material, entry: Entry) -> Table | Missing:
    """An outcome over the settings that are varied."""
    outcome, envs = entry.outcome or "cost", material.envs(entry)
    arms = [arm for env in envs for arm in material.arms(env, entry)]
    over = list(entry.over) or varied(arms)
    if not over:
        return Missing(entry.kind, "Sweep", "the arms do not differ in any setting")
    rows = []
    for arm in sorted(arms, key=lambda arm: [_order(arm.first.settings.get(name)) for name in over]):
        source = material.source(arm.env, entry)
        cell = arm_cell(material, arm, outcome, source, entry.window)
        if cell.value is None:
            continue
        settings = effective(arm.first.settings)
        values = [_setting_cell(settings.get(name, ABSENT)) for name in over]
        runs = len(values_of(arm, outcome, source, entry.window))
        budget = over_budget(arm, source, entry.window)
        rows.append([*_env_cell(envs, arm.env), text(arm.name), *values, count(runs), cell, budget])
    if not rows:
        return Missing(entry.kind, "Sweep", f"no arm has a {word_of(outcome)}")
    columns = [
        *_env_column(envs),
        Column("arm", "arm"),
        *(Column(name, name, 3) for name in over),
        Column("runs", "runs", 0),
        outcome_column(outcome),
        Column("over_budget", "over budget", 0),
    ]
    title = entry.title or f"{word_of(outcome).capitalize()} over {' and '.join(over)}{_where(envs)}"
    return Table("sweep", title, columns, rows, _INTERVALS, entry.label)


def varied(arms: Sequence[Arm]) -> list[str]:
    """The settings in which the arms differ, of those that have an effect."""
    found = [effective(arm.first.settings) for arm in arms]
    names = sorted({name for settings in found for name in settings})
    return [name for name in names if len({str(settings.get(name, ABSENT)) for settings in found}) > 1]


def _order(value: object) -> tuple[int, float, str]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (0, float(value), "") if number else (1, 0.0, str(value))  # type: ignore[arg-type]


def _setting_cell(value: object) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(float(value), f"{value:g}")
    return text(settings_word(value))


def protocols(material: Material, entry: Entry) -> Table | Missing:
    """One outcome of each arm by evaluation protocol."""
    outcome: Outcome = entry.outcome or "catastrophe"
    envs, notes, rows = material.envs(entry), Notes(), []
    names = list(dict.fromkeys(name for env in envs for name in material.protocols(env, entry)))
    if len(names) < (1 if entry.asked else 2):
        return Missing(entry.kind, "Protocols", "runs were evaluated by one protocol only")
    for env in envs:
        for arm in material.arms(env, entry):
            cells = [arm_cell(material, arm, outcome, name, "final", notes) for name in names]
            if any(cell.value is not None for cell in cells):
                rows.append([*_env_cell(envs, env), text(arm.name), *cells])
    if not rows:
        return Missing(entry.kind, "Protocols", "no run has been evaluated; vlmsafe evaluate RUN makes one")
    digits = 1 if is_rate(outcome) else 2
    columns = [*_env_column(envs), Column("arm", "arm"), *(Column(name, name, digits) for name in names)]
    title = entry.title or f"{word_of(outcome).capitalize()}{' %' if is_rate(outcome) else ''} by protocol{_where(envs)}"
    return Table("protocols", title, columns, rows, _INTERVALS, entry.label, notes=notes.lines())


def published(material: Material, entry: Entry) -> Table | Missing:
    """Every result that the paper has too."""
    envs = material.envs(entry)
    known = material.beside.filter(pl.col("published").is_not_null(), pl.col("run").is_null(), pl.col("env").is_in(envs))
    rows = []
    for row in known.iter_rows(named=True):
        if entry.arms and row["arm"] not in entry.arms:
            continue
        source = row["source"] if row["source"] != "training" else f"training, {row['window']}"
        rows.append(
            [
                *_env_cell(envs, row["env"]),
                text(row["arm"]),
                text(row["paper_arm"]),
                text(source),
                text(row["quantity"].replace("_", " ")),
                Cell(row["ours"], std=row["ours_std"] if row["ours_runs"] > 1 else None),
                Cell(row["published"], std=row["published_std"]),
                Cell(row["difference"], f"{row['difference']:+.2f}".replace("-", "−")),
                text(row["label"]),
                text("; ".join(row["differences"]) or "nothing found"),
            ]
        )
    if not rows:
        return Missing(entry.kind, "Published values", "the paper has no values for these arms and environments")
    columns = [
        *_env_column(envs),
        Column("arm", "arm"),
        Column("paper_arm", "in the paper"),
        Column("source", "from"),
        Column("quantity", "quantity"),
        Column("ours", "ours", 2),
        Column("published", "published", 2),
        Column("difference", "difference", 2),
        Column("label", "where"),
        Column("differences", "done otherwise than in the paper"),
    ]
    caption = "Mean ± population deviation over runs. Nothing found does not mean the same experiment: seeds differ."
    title = entry.title or "Beside the published values"
    return Table("published", title, columns, rows, caption, entry.label, fold=not entry.asked)


BUILDERS: dict[str, Callable[[Material, Entry], Table | Missing]] = {
    "comparisons": comparisons,
    "rates": rates,
    "summary": summary,
    "training": training,
    "by-environment": by_environment,
    "per-seed": per_seed,
    "pairs": pairs,
    "sweep": sweep,
    "protocols": protocols,
    "published": published,
    **tables_parts.BUILDERS,
}
