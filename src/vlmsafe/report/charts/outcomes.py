"""The figures of outcomes: run by run, by arm, by protocol, over settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vlmsafe.analysis.resampling import LEAST
from vlmsafe.analysis.statistics import relative_reduction
from vlmsafe.comparison.claims import Outcome
from vlmsafe.comparison.outcomes import WORDS, values_of
from vlmsafe.comparison.settings import effective
from vlmsafe.report.cells import is_rate, outcome_interval, varied, window_name
from vlmsafe.report.charts.make import make_chart
from vlmsafe.report.charts.training import budget_rules
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Axis, Bar, Chart, Dots, Mark, Missing, Panel, Rule, Span
from vlmsafe.report.request import Entry
from vlmsafe.runs.records import ArmRecord


def dots(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """One dot per run, with each arm's mean and interval."""
    panels = []
    envs = dataset.envs(entry)
    outcomes: tuple[Outcome, ...] = (entry.outcome,) if entry.outcome else ("cost", "catastrophe", "env_return")
    for env in envs:
        source = dataset.source(env, entry)
        for outcome in outcomes:
            arms = [arm for arm in dataset.arms(env, entry) if values_of(arm, outcome, source, entry.window)]
            if not arms:
                continue
            scale, marks = 100.0 if is_rate(outcome) else 1.0, list[Mark]()
            if outcome == "cost":
                marks += budget_rules(arms, "y")
            for place, arm in enumerate(arms):
                values = {key: scale * value for key, value in values_of(arm, outcome, source, entry.window).items()}
                marks += list(seed_marks(arm.name, place, values, outcome, scale))
            names = tuple(arm.name for arm in arms)
            unit = f"{WORDS[outcome]}{', %' if is_rate(outcome) else ''}"
            low = 0.0 if outcome != "env_return" else None
            panels.append(Panel(f"{WORDS[outcome].capitalize()}, {env}", Axis(unit, low=low), Axis("", names), marks))
    if not panels:
        return Missing(entry.kind, "Run by run", "no run has results yet")
    sources = list(dict.fromkeys(dataset.source(env, entry) for env in envs))
    words = window_name(entry.window, [run for env in envs for arm in dataset.arms(env, entry) for run in arm.runs])
    where = [source if source != "training" else f"training ({words})" for source in sources]
    caption = (
        f"From: {', '.join(where)}. A dot is a run; the thick bar is the mean of an arm, with its 95 % t interval "
        f"over runs from {LEAST} runs."
    )
    return make_chart(dataset, entry, "Run by run", panels, caption, legend=False)


def seed_marks(
    group: str, place: float, values: dict[int | str, float], outcome: Outcome, scale: float
) -> Iterator[Mark]:
    """A dot for each run of an arm, spread a little across, and the mean with its interval; rates are in %."""
    numbers = list(values.values())
    spread = 0.16 if len(numbers) > 1 else 0.0
    across = [place - 0.12 + spread * (2 * i / max(len(numbers) - 1, 1) - 1) for i in range(len(numbers))]
    names = [f"seed {key}" if isinstance(key, int) else str(key) for key in values]
    yield Dots(group, numbers, across, names)
    if len(numbers) == 1:
        return  # it is its own mean
    mean = float(np.mean(numbers))
    low = high = mean
    if len(numbers) >= LEAST:
        interval = outcome_interval(np.array(numbers), outcome, scale)
        low, high = (mean, mean) if interval is None else (interval.low, interval.high)
    yield Span(group, place + 0.25, mean, low, high, "x", f"{group}, mean of {len(numbers)}")


def _below(mean: float, spread: float, outcome: Outcome) -> float:
    """Where an interval of one deviation begins: costs and rates have nothing below zero."""
    return mean - spread if outcome == "env_return" else max(0.0, mean - spread)


def bars(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """Means per arm with deviation and runs; the arm without a signal as a line."""
    outcome: Outcome = entry.outcome or "catastrophe"
    panels = []
    for env in dataset.envs(entry):
        source = dataset.source(env, entry)
        arms = [arm for arm in dataset.arms(env, entry) if values_of(arm, outcome, source, entry.window)]
        marks: list[Mark] = []
        scale = 100.0 if is_rate(outcome) else 1.0
        for place, arm in enumerate(arms):
            values = np.array(list(values_of(arm, outcome, source, entry.window).values())) * scale
            mean, spread = float(values.mean()), float(values.std())
            marks.append(Bar(arm.name, place, mean, name=f"{arm.name}, mean of {len(values)}"))
            low = _below(mean, spread, outcome)
            marks.append(Span(arm.name, place, mean, low, mean + spread, "x", f"{arm.name} ± deviation"))
            if not arm.has_signal:
                marks.append(Rule(mean, arm.name, "y"))
        if marks:
            unit = f"{WORDS[outcome]}{', %' if is_rate(outcome) else ''}"
            names = tuple(arm.name for arm in arms)
            panels.append(Panel(f"{env} ({source})", Axis(unit, low=0.0), Axis("", names), marks))
    if not panels:
        return Missing(entry.kind, "Outcome by arm", f"no arm has a {WORDS[outcome]}")
    caption = "Means over runs, ± one population deviation. Dashed: arms without a signal."
    return make_chart(dataset, entry, f"{WORDS[outcome].capitalize()} by arm", panels, caption, legend=False)


def protocols(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """One outcome of each arm under each evaluation protocol, environments side by side."""
    outcome: Outcome = entry.outcome or "catastrophe"
    envs = dataset.envs(entry)
    names = list(dict.fromkeys(name for env in envs for name in dataset.protocols(env, entry)))
    if len(names) < (1 if entry.asked else 2):
        return Missing(entry.kind, "Protocols", "runs were evaluated by one protocol only")
    scale = 100.0 if is_rate(outcome) else 1.0
    panels = []
    for name in names:
        shown = [env for env in envs if name in dataset.protocols(env, entry)]
        marks: list[Mark] = []
        for place, env in enumerate(shown):
            arms = [arm for arm in dataset.arms(env, entry) if values_of(arm, outcome, name)]
            width = 0.8 / max(len(arms), 1)
            for i, arm in enumerate(arms):
                values = np.array(list(values_of(arm, outcome, name).values())) * scale
                at = place - 0.4 + width * (i + 0.5)
                mean, spread = float(values.mean()), float(values.std())
                marks.append(
                    Bar(arm.name, at, mean, width=0.9 * width, name=f"{arm.name}, {env}, mean of {len(values)}")
                )
                low = _below(mean, spread, outcome)
                marks.append(Span(arm.name, at, mean, low, mean + spread, "x", f"{arm.name} ± deviation"))
        if marks:
            unit = f"{WORDS[outcome]}{', %' if is_rate(outcome) else ''}"
            panels.append(Panel(f"Protocol {name}", Axis(unit, low=0.0), Axis("", tuple(shown)), marks))
    if not panels:
        return Missing(entry.kind, "Protocols", "no run has been evaluated; vlmsafe evaluate RUN makes one")
    caption = "Means over runs ± one population deviation. Protocols differ in scenarios, traffic and episodes."
    return make_chart(dataset, entry, f"{WORDS[outcome].capitalize()} by protocol", panels, caption)


def evaluation_summary(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """Four panels over environments: catastrophe rates, cost by run, return against cost, relative change."""
    envs = [env for env in dataset.envs(entry) if dataset.source(env, entry) != "training"]
    rate_marks: list[Mark] = []
    cost_marks: list[Mark] = []
    pair_marks: list[Mark] = []
    for place, env in enumerate(envs):
        source, arms = dataset.source(env, entry), dataset.arms(env, entry)
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
                cost_marks.append(Dots(arm.name, list(costs.values()), across, [f"{env}, seed {key}" for key in costs]))
                own = values_of(arm, "env_return", source)
                shared = [key for key in costs if key in own]
                both = [own[key] for key in shared], [costs[key] for key in shared]
                pair_marks.append(Dots(arm.name, *both, [f"{env}, seed {key}" for key in shared]))
    if not rate_marks:
        return Missing(entry.kind, "Evaluation", "no run has an evaluation; vlmsafe evaluate RUN makes one")
    names = tuple(envs)
    panels = [
        Panel("Catastrophe rate", Axis("catastrophe rate, %", low=0.0), Axis("", names), rate_marks),
        Panel("Cost by run", Axis("mean episode cost", low=0.0), Axis("", names), cost_marks),
        Panel("Return against cost", Axis("mean environment return"), Axis("mean episode cost", low=0.0), pair_marks),
    ]
    change = _relative_change(dataset, entry, envs)
    if change:
        axis = Axis("relative reduction of catastrophes, %")
        panels.append(Panel("Relative change", axis, Axis("", names), [Rule(0.0, along="y"), *change]))
    caption = "Runs are dots. Relative change: positive where the first arm of a comparison has fewer catastrophes."
    return make_chart(dataset, entry, "Evaluation at a glance", panels, caption)


def _relative_change(dataset: Dataset, entry: Entry, envs: Sequence[str]) -> list[Mark]:
    pairs = {(one.env, one.claim.first): one for one in reversed(dataset.comparisons(entry)) if one.env in envs}
    names = [name for name in dataset.arm_names if any(first == name for _, first in pairs)]
    width, marks = 0.8 / max(len(names), 1), list[Mark]()
    for (env, first), one in pairs.items():
        source = dataset.source(env, entry)
        a, b = (list(values_of(arm, "catastrophe", source).values()) for arm in (one.first, one.second))
        if a and b and np.mean(b) > 0:
            change = 100 * relative_reduction(float(np.mean(b)), float(np.mean(a)))
            at = envs.index(env) - 0.4 + width * (names.index(first) + 0.5)
            marks.append(Bar(first, at, change, width=0.9 * width, name=f"{env}, {one.claim}"))
    return marks


def sweep(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """An outcome over a numeric setting."""
    outcome: Outcome = entry.outcome or "cost"
    panels = []
    for env in dataset.envs(entry):
        arms, source = dataset.arms(env, entry), dataset.source(env, entry)
        candidates = entry.over or tuple(varied(arms))
        numeric = [name for name in candidates if sum(_number(arm, name) is not None for arm in arms) > 1]
        for setting in numeric[:2]:
            marks: list[Mark] = []
            if outcome == "cost" and setting != "budget":
                marks += budget_rules(arms)
            for arm in arms:
                at, values = _number(arm, setting), values_of(arm, outcome, source, entry.window)
                if at is None or not values:
                    continue
                scale = 100.0 if is_rate(outcome) else 1.0
                numbers = [scale * value for value in values.values()]
                names = [f"seed {key}" for key in values]
                marks.append(Dots(arm.name, [at] * len(numbers), numbers, names, faint=True))
                mean, spread = float(np.mean(numbers)), float(np.std(numbers))
                low = _below(mean, spread, outcome)
                marks.append(Span(arm.name, at, mean, low, mean + spread, "y", f"{arm.name}, mean"))
            if marks:
                unit = f"{WORDS[outcome]}{', %' if is_rate(outcome) else ''}"
                panels.append(Panel(f"{setting}, {env}", Axis(setting), Axis(unit, low=0.0), marks))
    if not panels:
        return Missing(entry.kind, "Sweep", "no numeric setting is varied between arms that have results")
    caption = "Single runs, and their mean ± one population deviation."
    return make_chart(dataset, entry, f"{WORDS[outcome].capitalize()} over settings", panels, caption)


def _number(arm: ArmRecord, setting: str) -> float | None:
    """A numeric setting, where it has an effect in this arm."""
    value: Any = effective(arm.first.settings).get(setting)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
