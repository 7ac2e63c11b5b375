"""The figures of a report, as charts: which numbers go on which axes. Drawing them is `svg`'s and `plots`' work.

The environment's return and the shaped return never share an axis: one is the task's, the other holds the bonus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from vlmsafe.analysis.resampling import bootstrap_mean
from vlmsafe.analysis.statistics import CATASTROPHE
from vlmsafe.analysis.tables import floats
from vlmsafe.audit.claims import Outcome
from vlmsafe.audit.outcomes import values_of
from vlmsafe.audit.records import Arm, RunRecord
from vlmsafe.report import charts_signals
from vlmsafe.report.data import Entry
from vlmsafe.report.material import Material
from vlmsafe.report.measures import LEAST, is_rate, mean_of, window_name, word_of
from vlmsafe.report.model import Axis, Band, Bar, Chart, Dots, Line, Mark, Missing, Panel, Rule, Span

PROGRESS = ("route_completion", "net_progress", "path", "distance")
_MOST_EPISODES = 400
"""Episodes drawn per arm; more would be a cloud, and a page too large to send."""


def build_chart(material: Material, entry: Entry) -> Chart | Missing:
    """The figure of an entry, or why there is none."""
    return BUILDERS[entry.kind](material, entry)


def curve_marks(arms: Sequence[Arm], column: str, fallback: str = "") -> Iterator[Mark]:
    """Of each arm: its runs faint, the band of one population deviation, and the mean over runs, by steps.

    Runs of an arm are averaged over the epochs that all of them have, so that a run that ended early moves no mean.
    """
    for arm in arms:
        series = [found for run in arm.runs if (found := _series(run, column, fallback))]
        if not series:
            continue
        several = len(series) > 1
        for name, steps, values in series if several else []:
            yield Line(arm.name, steps, values, name, faint=True)
        shared = min(len(steps) for _, steps, _ in series)
        rows = [[np.nan if value is None else value for value in values[:shared]] for _, _, values in series]
        table = np.array(rows, np.float64)
        known = ~np.isnan(table).all(axis=0)
        if not known.any():
            continue
        x = [step for step, own in zip(series[0][1][:shared], known, strict=True) if own]
        mean, spread = np.nanmean(table[:, known], axis=0), np.nanstd(table[:, known], axis=0)
        if several:
            yield Band(arm.name, x, (mean - spread).tolist(), (mean + spread).tolist())
        yield Line(arm.name, x, mean.tolist(), "mean" if several else series[0][0])


def _series(run: RunRecord, column: str, fallback: str) -> tuple[str, list[float], list[float | None]] | None:
    values = [row[column] if row.get(column) is not None else row.get(fallback) for row in run.epochs]
    if all(value is None for value in values):
        return None
    return run.name, [float(row["steps"]) for row in run.epochs], values


def _steps() -> Axis:
    return Axis("environment steps", low=0.0)


_SEEDS = (("line", "mean over runs"), ("band", "± 1 deviation"), ("faint", "single runs"))


def curves(material: Material, entry: Entry) -> Chart | Missing:
    """Cost, environment return and shaped return over training."""
    panels = []
    envs = material.envs(entry)
    for env in envs:
        arms = material.arms(env, entry)
        where = f", {env}" if len(envs) > 1 else ""
        budgets = sorted({arm.first.config.budget for arm in arms if arm.first.config.budget is not None})
        rules = [Rule(budget, f"budget {budget:g}") for budget in budgets]
        cost = list(curve_marks(arms, "episode_cost"))
        if cost:
            panels.append(Panel(f"Episode cost J_C{where}", _steps(), Axis("cost per episode", low=0.0), [*rules, *cost]))
        own = list(curve_marks(arms, "env_return"))
        if own:
            panels.append(Panel(f"Environment return{where}", _steps(), Axis("return without bonus"), own))
        shaped = list(curve_marks([arm for arm in arms if arm.has_signal], "shaped_return"))
        if shaped:
            panels.append(Panel(f"Shaped return{where}", _steps(), Axis("return with the bonus"), shaped))
    if not panels:
        return Missing(entry.kind, "Training curves", "no run has finished an epoch")
    caption = (
        "Means over the last finished episodes at each epoch. The shaped return holds the signal's bonus: it has an axis "
        "of its own, and does not compare arms."
    )
    return _chart(material, entry, "Training curves", panels, caption, _SEEDS)


def multiplier(material: Material, entry: Entry) -> Chart | Missing:
    """lambda over training, and the two terms that move it, apart."""
    panels = []
    envs = material.envs(entry)
    for env in envs:
        arms = [arm for arm in material.arms(env, entry) if arm.first.config.multiplier.kind != "none"]
        where = f", {env}" if len(envs) > 1 else ""
        value = list(curve_marks(arms, "multiplier"))
        if value:
            panels.append(Panel(f"Multiplier λ{where}", _steps(), Axis("λ", low=0.0), value))
        gap = list(curve_marks(arms, "cost_gap"))
        if gap:
            panels.append(Panel(f"Cost term J_C − d{where}", _steps(), Axis("cost"), [Rule(0.0), *gap]))
        signalled = [arm for arm in arms if arm.has_signal and arm.first.config.multiplier.signal_weight > 0]
        term = list(curve_marks(signalled, "signal_term"))
        if term:
            title = f"Signal term η₂ (mean c_vlm − τ){where}"
            panels.append(Panel(title, _steps(), Axis("cost"), [Rule(0.0), *term]))
        own = list(curve_marks([arm for arm in arms if arm.has_signal], "signal_multiplier"))
        if own:
            panels.append(Panel(f"The signal's own multiplier{where}", _steps(), Axis("λ", low=0.0), own))
    if not panels:
        return Missing(entry.kind, "Multipliers", "no arm has a multiplier")
    caption = "What moves λ is the sum of both terms; they are drawn apart because their sizes differ. Mind the axes."
    return _chart(material, entry, "Multipliers", panels, caption, _SEEDS)


def _named(run: RunRecord) -> str:
    return run.name


def dots(material: Material, entry: Entry) -> Chart | Missing:
    """One dot per run, with each arm's mean and interval."""
    panels = []
    envs = material.envs(entry)
    outcomes: tuple[Outcome, ...] = (entry.outcome,) if entry.outcome else ("cost", "catastrophe", "violation", "env_return")
    for env in envs:
        source = material.source(env, entry)
        for outcome in outcomes:
            arms = [arm for arm in material.arms(env, entry) if values_of(arm, outcome, source, entry.window)]
            if not arms:
                continue
            scale, marks = 100.0 if is_rate(outcome) else 1.0, list[Mark]()
            if outcome == "cost":
                marks += [Rule(b, f"budget {b:g}", "y") for b in sorted({arm.first.config.budget for arm in arms} - {None})]  # type: ignore[type-var]
            for place, arm in enumerate(arms):
                values = {key: scale * value for key, value in values_of(arm, outcome, source, entry.window).items()}
                marks += list(seed_marks(arm.name, place, values))
            names = tuple(arm.name for arm in arms)
            unit = f"{word_of(outcome)}{', %' if is_rate(outcome) else ''}"
            low = 0.0 if outcome != "env_return" else None
            panels.append(Panel(f"{word_of(outcome).capitalize()}, {env}", Axis(unit, low=low), Axis("", names), marks))
    if not panels:
        return Missing(entry.kind, "Run by run", "no run has results yet")
    sources = list(dict.fromkeys(material.source(env, entry) for env in envs))
    where = [source if source != "training" else f"training ({window_name(entry.window)})" for source in sources]
    caption = f"From: {', '.join(where)}. A dot is a run; the bar is the mean with its 95 % bootstrap interval over runs."
    return _chart(material, entry, "Run by run", panels, caption, legend=False)


def seed_marks(group: str, place: float, values: dict[int | str, float], along: str = "x") -> Iterator[Mark]:
    """A dot for each run of an arm, spread a little across, and the mean with its interval."""
    numbers = list(values.values())
    spread = 0.16 if len(numbers) > 1 else 0.0
    across = [place - 0.12 + spread * (2 * i / max(len(numbers) - 1, 1) - 1) for i in range(len(numbers))]
    names = [f"seed {key}" if isinstance(key, int) else str(key) for key in values]
    yield Dots(group, numbers, across, names) if along == "x" else Dots(group, across, numbers, names)
    mean = float(np.mean(numbers))
    low = high = mean
    if len(numbers) >= LEAST:
        interval = bootstrap_mean(numbers, resamples=2000)
        low, high = interval.low, interval.high
    yield Span(group, place + 0.25, mean, low, high, "x" if along == "x" else "y", f"{group}, mean of {len(numbers)}")


def bars(material: Material, entry: Entry) -> Chart | Missing:
    """Means per arm with deviation and runs; the arm without a signal as a line."""
    outcome: Outcome = entry.outcome or "catastrophe"
    panels = []
    for env in material.envs(entry):
        source = material.source(env, entry)
        arms = [arm for arm in material.arms(env, entry) if values_of(arm, outcome, source, entry.window)]
        marks: list[Mark] = []
        scale = 100.0 if is_rate(outcome) else 1.0
        for place, arm in enumerate(arms):
            values = np.array(list(values_of(arm, outcome, source, entry.window).values())) * scale
            mean, spread = float(values.mean()), float(values.std())
            marks.append(Bar(arm.name, place, mean, name=f"{arm.name}, mean of {len(values)}"))
            marks.append(Span(arm.name, place, mean, mean - spread, mean + spread, "x", f"{arm.name} ± deviation"))
            if not arm.has_signal:
                marks.append(Rule(mean, arm.name, "y"))
        if marks:
            unit = f"{word_of(outcome)}{', %' if is_rate(outcome) else ''}"
            names = tuple(arm.name for arm in arms)
            panels.append(Panel(f"{env} ({source})", Axis(unit, low=0.0), Axis("", names), marks))
    if not panels:
        return Missing(entry.kind, "Outcome by arm", f"no arm has a {word_of(outcome)}")
    caption = "Means over runs, ± one population deviation. Dashed: arms without a signal."
    return _chart(material, entry, f"{word_of(outcome).capitalize()} by arm", panels, caption, legend=False)


def protocols(material: Material, entry: Entry) -> Chart | Missing:
    """One outcome of each arm under each evaluation protocol, environments side by side."""
    outcome: Outcome = entry.outcome or "catastrophe"
    envs = material.envs(entry)
    names = list(dict.fromkeys(name for env in envs for name in material.protocols(env, entry)))
    if len(names) < (1 if entry.asked else 2):
        return Missing(entry.kind, "Protocols", "runs were evaluated by one protocol only")
    scale = 100.0 if is_rate(outcome) else 1.0
    panels = []
    for name in names:
        shown = [env for env in envs if name in material.protocols(env, entry)]
        marks: list[Mark] = []
        for place, env in enumerate(shown):
            arms = [arm for arm in material.arms(env, entry) if values_of(arm, outcome, name)]
            width = 0.8 / max(len(arms), 1)
            for i, arm in enumerate(arms):
                values = np.array(list(values_of(arm, outcome, name).values())) * scale
                at = place - 0.4 + width * (i + 0.5)
                mean, spread = float(values.mean()), float(values.std())
                marks.append(Bar(arm.name, at, mean, width=0.9 * width, name=f"{arm.name}, {env}, mean of {len(values)}"))
                marks.append(Span(arm.name, at, mean, mean - spread, mean + spread, "x", f"{arm.name} ± deviation"))
        if marks:
            unit = f"{word_of(outcome)}{', %' if is_rate(outcome) else ''}"
            panels.append(Panel(f"Protocol {name}", Axis(unit, low=0.0), Axis("", tuple(shown)), marks))
    if not panels:
        return Missing(entry.kind, "Protocols", "no run has been evaluated; vlmsafe evaluate RUN makes one")
    caption = "Means over runs ± one population deviation. Protocols differ in scenarios, traffic and episodes."
    return _chart(material, entry, f"{word_of(outcome).capitalize()} by protocol", panels, caption)


def evaluation_summary(material: Material, entry: Entry) -> Chart | Missing:
    """Four panels over environments: catastrophe rates, cost by run, return against cost, relative change."""
    envs = [env for env in material.envs(entry) if material.source(env, entry) != "training"]
    rate_marks: list[Mark] = []
    cost_marks: list[Mark] = []
    pair_marks: list[Mark] = []
    for place, env in enumerate(envs):
        source, arms = material.source(env, entry), material.arms(env, entry)
        width = 0.8 / max(len(arms), 1)
        for i, arm in enumerate(arms):
            at = place - 0.4 + width * (i + 0.5)
            rates = [100 * value for value in values_of(arm, "catastrophe", source).values()]
            costs = values_of(arm, "cost", source)
            if rates:
                name = f"{arm.name}, {env}, mean of {len(rates)}"
                rate_marks.append(Bar(arm.name, at, float(np.mean(rates)), width=0.9 * width, name=name))
            if costs:
                across = [at + 0.25 * width * (2 * k / max(len(costs) - 1, 1) - 1) for k in range(len(costs))]
                names = [f"{env}, seed {key}" for key in costs]
                cost_marks.append(Dots(arm.name, list(costs.values()), across, names))
                own = values_of(arm, "env_return", source)
                shared = [key for key in costs if key in own]
                both = [own[key] for key in shared], [costs[key] for key in shared]
                pair_marks.append(Dots(arm.name, *both, [f"{env}, seed {key}" for key in shared]))
    if not rate_marks:
        return Missing(entry.kind, "Evaluation", "no run has an evaluation; vlmsafe evaluate RUN makes one")
    names = tuple(envs)
    panels = [
        Panel("Catastrophe rate", Axis("episodes over 4 budgets, %", low=0.0), Axis("", names), rate_marks),
        Panel("Cost by run", Axis("mean episode cost", low=0.0), Axis("", names), cost_marks),
        Panel("Return against cost", Axis("mean environment return"), Axis("mean episode cost", low=0.0), pair_marks),
    ]
    change = _relative_change(material, entry, envs)
    if change:
        axis = Axis("relative reduction of catastrophes, %")
        panels.append(Panel("Relative change", axis, Axis("", names), [Rule(0.0, along="y"), *change]))
    caption = "Runs are dots. Relative change: positive where the first arm of a comparison has fewer catastrophes."
    return _chart(material, entry, "Evaluation at a glance", panels, caption)


def _relative_change(material: Material, entry: Entry, envs: Sequence[str]) -> list[Mark]:
    pairs = {(one.env, one.claim.first): one for one in reversed(material.comparisons(entry)) if one.env in envs}
    names = [name for name in material.arm_names if any(first == name for _, first in pairs)]
    width, marks = 0.8 / max(len(names), 1), list[Mark]()
    for (env, first), one in pairs.items():
        source = material.source(env, entry)
        a, b = (list(values_of(arm, "catastrophe", source).values()) for arm in (one.first, one.second))
        if a and b and np.mean(b) > 0:
            change = 100 * float((np.mean(b) - np.mean(a)) / np.mean(b))
            at = envs.index(env) - 0.4 + width * (names.index(first) + 0.5)
            marks.append(Bar(first, at, change, width=0.9 * width, name=f"{env}, {one.claim}"))
    return marks


def cost_progress(material: Material, entry: Entry) -> Chart | Missing:
    """Cost against how far the agent got: an arm that stands still is not safer."""
    panels = []
    envs = material.envs(entry)
    for env in envs:
        source, arms = material.source(env, entry), material.arms(env, entry)
        if source == "training":
            continue
        runs = [run for arm in arms for run in arm.runs if source in run.evaluations]
        columns = [name for name in PROGRESS if any(mean_of(run, source, name) is not None for run in runs)][:1]
        for column in [*columns, "env_return"]:
            marks = list(_scatter(arms, source, column))
            if marks:
                name = {"env_return": "environment return"}.get(column, column.replace("_", " "))
                budget = next((arm.first.config.budget for arm in arms), None)
                rules = [Rule(budget, f"budget {budget:g}")] if budget is not None else []
                title = f"Cost against {name}" + (f", {env}" if len(envs) > 1 else "")
                panels.append(Panel(title, Axis(name), Axis("episode cost", low=0.0), [*rules, *marks]))
    if not panels:
        return Missing(entry.kind, "Cost against progress", "no run has an evaluation; vlmsafe evaluate RUN makes one")
    most = f" Of more than {_MOST_EPISODES} episodes of an arm, every so many-th is drawn." if panels else ""
    caption = f"Small: evaluation episodes. Large: means of runs. Low cost at the left is little driving.{most}"
    keys = (("faint-dot", "episode"), ("dot", "mean of a run"))
    return _chart(material, entry, "Cost against progress", panels, caption, keys)


def _scatter(arms: Sequence[Arm], source: str, column: str) -> Iterator[Mark]:
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


def sweep(material: Material, entry: Entry) -> Chart | Missing:
    """An outcome over a numeric setting."""
    from vlmsafe.report.tables import varied

    outcome: Outcome = entry.outcome or "cost"
    panels = []
    for env in material.envs(entry):
        arms, source = material.arms(env, entry), material.source(env, entry)
        candidates = entry.over or tuple(varied(arms))
        numeric = [name for name in candidates if sum(_number(arm, name) is not None for arm in arms) > 1]
        for setting in numeric[:2]:
            marks: list[Mark] = []
            if outcome == "cost" and setting != "budget":
                budget = arms[0].first.config.budget
                marks += [Rule(budget, f"budget {budget:g}")] if budget is not None else []
            for arm in arms:
                at, values = _number(arm, setting), values_of(arm, outcome, source, entry.window)
                if at is None or not values:
                    continue
                scale = 100.0 if is_rate(outcome) else 1.0
                numbers = [scale * value for value in values.values()]
                names = [f"seed {key}" for key in values]
                marks.append(Dots(arm.name, [at] * len(numbers), numbers, names, faint=True))
                mean, spread = float(np.mean(numbers)), float(np.std(numbers))
                marks.append(Span(arm.name, at, mean, mean - spread, mean + spread, "y", f"{arm.name}, mean"))
            if marks:
                unit = f"{word_of(outcome)}{', %' if is_rate(outcome) else ''}"
                panels.append(Panel(f"{setting}, {env}", Axis(setting), Axis(unit, low=0.0), marks))
    if not panels:
        return Missing(entry.kind, "Sweep", "no numeric setting is varied between arms that have results")
    caption = "Single runs, and their mean ± one population deviation."
    return _chart(material, entry, f"{word_of(outcome).capitalize()} over settings", panels, caption)


def _number(arm: Arm, setting: str) -> float | None:
    value: Any = arm.first.settings.get(setting)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def scores(material: Material, entry: Entry) -> Chart | Missing:
    """Scores and kappa over training."""
    panels = []
    envs = material.envs(entry)
    titles = {"negative_score": "Mean c_vlm", "positive_score": "Mean r_vlm", "kappa": "Mean κ of scored frames"}
    for env in envs:
        arms = [arm for arm in material.arms(env, entry) if arm.has_signal]
        for column, title in titles.items():
            marks = list(curve_marks(arms, column))
            if marks:
                where = f", {env}" if len(envs) > 1 else ""
                panels.append(Panel(f"{title}{where}", _steps(), Axis("score" if column != "kappa" else "κ"), marks))
    if not panels:
        return Missing(entry.kind, "Scores over training", "no arm has a signal")
    return _chart(material, entry, "Scores over training", panels, "Epoch means.", _SEEDS)


def _chart(
    material: Material,
    entry: Entry,
    title: str,
    panels: Sequence[Panel],
    caption: str,
    keys: Sequence[tuple[str, str]] = (),
    legend: bool = True,
) -> Chart:
    return Chart(entry.kind, entry.title or title, panels, material.arm_names, caption, entry.label, legend, keys)


BUILDERS: dict[str, Callable[[Material, Entry], Chart | Missing]] = {
    "curves": curves,
    "multiplier": multiplier,
    "dots": dots,
    "bars": bars,
    "protocols": protocols,
    "evaluation-summary": evaluation_summary,
    "cost-progress": cost_progress,
    "sweep": sweep,
    "scores": scores,
    **charts_signals.BUILDERS,
}
assert CATASTROPHE == 4.0  # the axis of catastrophe rates says so
