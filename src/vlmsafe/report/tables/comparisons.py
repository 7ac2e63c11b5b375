"""The tables of comparisons: how much two arms differ, what the test says, and where runs of one seed part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from vlmsafe.analysis.exact_tests import permutation_test
from vlmsafe.analysis.resampling import LEAST, bootstrap_mean_difference
from vlmsafe.comparison.claims import Outcome
from vlmsafe.comparison.comparisons import Comparison
from vlmsafe.comparison.outcomes import WORDS, source_of, values_of
from vlmsafe.report.answer import says
from vlmsafe.report.cells import (
    INTERVALS,
    Notes,
    arm_cell,
    by_seed,
    compared_window,
    count,
    env_cell,
    env_column,
    is_rate,
    on_env,
    outcome_column,
    share,
    text,
)
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Cell, Column, Missing, Table, minus
from vlmsafe.report.pools import pool_note, pooled, pools
from vlmsafe.report.request import Entry
from vlmsafe.report.results import ComparisonResult, results
from vlmsafe.report.tables.rows import ENV, PAIR, named
from vlmsafe.runs.records import ArmRecord


def comparisons(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Each claim with its difference, interval and test."""
    found = [one for one in results(dataset, dataset.comparisons(entry)) if one.first and one.second]
    if not found:
        return Missing(entry.kind, "Comparisons", "no two arms have results to compare")
    envs = list(dict.fromkeys(one.comparison.env for one in found))
    columns = [
        *env_column(envs),
        *PAIR,
        *named("outcome"),
        *named("runs", digits=0),
        Column("first_mean", "first", 2),
        Column("second_mean", "second", 2),
        Column("difference", "difference", 2, hint="first minus second, with its interval over runs"),
        Column("p", "p", 3, hint="of the claimed test"),
        Column("smallest_p", "smallest p", 3, hint="the smallest p that this number of runs can give"),
        Column("first_lower", "first lower", 0, hint="matched seeds on which the first arm is lower"),
        Column("says", "the test says"),
        *named("audit"),
    ]
    rows = [[*env_cell(envs, one.comparison.env), *_comparison_cells(one)] for one in found]
    tests = list(dict.fromkeys(one.test for one in found))
    caption = (
        "Rates in %, differences in percentage points. Each interval belongs to its test; it is a t interval where "
        f"there is no test or the runs are too few. Tests: {'; '.join(tests)}."
    )
    if len(found) > 1 and not any(one.correction for one in found):
        caption += f" {len(found)} comparisons, none corrected for the others."
    return Table("comparisons", entry.title or f"Comparisons{on_env(envs)}", columns, rows, caption, entry.label)


def _comparison_cells(one: ComparisonResult) -> list[Cell]:
    claim, scale = one.comparison.claim, one.scale
    means = [float(np.mean(list(values.values()))) * scale for values in (one.first, one.second)]
    difference = Cell(means[0] - means[1])
    if one.interval is not None:
        difference = Cell(scale * one.interval.estimate, low=scale * one.interval.low, high=scale * one.interval.high)
    p = Cell()
    if one.verdict is not None and one.verdict.p is not None:
        p = Cell(one.verdict.p, one.verdict.text.removeprefix("p = "))
    source = one.source if one.source != "training" else f"training, {compared_window(one.comparison, claim.window)}"
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
        text(says(one)),
        text(f"{found.severity}: {found.code}" if found else "nothing found"),
    ]


def rates(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Catastrophe and violation rates of each compared pair: the paper's table across environments."""
    pools_by_env = {env: pools(dataset, env, entry) for env in dataset.envs(entry)}
    pairs: dict[tuple[str, str, str], tuple[Comparison, ArmRecord, ArmRecord]] = {}
    for one in dataset.comparisons(entry):
        sides = [_in_pool(arm, pools_by_env[one.env]) for arm in (one.first, one.second)]
        if sides[0].name == sides[1].name:  # two arms of one pool are compared as they are
            sides = [one.first, one.second]
        pairs.setdefault((one.env, sides[0].name, sides[1].name), (one, sides[0], sides[1]))
    names = list(dict.fromkeys((first, second) for _, first, second in pairs))
    single = len(names) == 1
    first_word, second_word = (names[0][0], names[0][1]) if single else ("first", "second")
    columns = [
        ENV,
        *(() if single else PAIR),
        Column("source", "from"),
        *named("runs", digits=0),
        outcome_column("catastrophe", "_second", f"catastrophe %, {second_word}"),
        outcome_column("catastrophe", "_first", f"catastrophe %, {first_word}"),
        outcome_column("violation", "_second", f"violation %, {second_word}"),
        outcome_column("violation", "_first", f"violation %, {first_word}"),
        Column(
            "difference_pp",
            "catastrophe Δ, pp, as published",
            1,
            hint=f"{first_word} minus {second_word}, 95 % percentile interval",
        ),
        Column("p", "p, exact", 3, hint="two-sided permutation test of the runs' catastrophe rates"),
        Column("range", "seeds, %", hint="lowest and highest catastrophe rate of a run in either arm"),
    ]
    notes, rows = Notes(), []
    for (env, *_), (one, first, second) in pairs.items():
        source = dataset.source(env, entry) if not one.claim.stated or entry.source else source_of(one)
        values = [list(values_of(arm, "catastrophe", source).values()) for arm in (first, second)]
        if not all(values):
            continue
        cells = [
            arm_cell(dataset, arm, outcome, source, "final", notes)
            for outcome in ("catastrophe", "violation")
            for arm in (second, first)
        ]
        both = [100 * value for side in values for value in side]
        rows.append(
            [
                text(env),
                *([] if single else [text(first.name), text(second.name)]),
                text(source),
                Cell(float(len(both)), f"{len(values[0])} / {len(values[1])}"),
                *cells,
                *_difference_cells(values[0], values[1]),
                Cell(min(both), f"{min(both):.0f} to {max(both):.0f}"),
            ]
        )
    if not rows:
        return Missing(entry.kind, "Rates", "no compared arms have evaluations; vlmsafe evaluate RUN makes them")
    title = entry.title or (
        "Catastrophe and violation rates" + (f": {names[0][0]} and {names[0][1]}" if single else "")
    )
    pooling = [pool_note(name, arms) for found in pools_by_env.values() for name, arms in found.items()]
    caption = (
        f"{INTERVALS} The interval of the difference is a percentile interval over resampled runs, as in the paper. "
        "It is too narrow for few runs and decides nothing; p is that of an exact test."
    )
    return Table("rates", title, columns, rows, caption, entry.label, notes=[*pooling, *notes.lines()])


def _in_pool(arm: ArmRecord, found: Mapping[str, tuple[ArmRecord, ...]]) -> ArmRecord:
    """The pool that an arm belongs to; the arm itself if there is none."""
    return next((pooled(name, arms) for name, arms in found.items() if any(one is arm for one in arms)), arm)


def pairs(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Compared arms seed by seed: by the claims, or by the source and the outcome that the entry names."""
    rows: list[list[Cell]] = []
    strong: set[int] = set()
    for names, first, second in _paired(dataset, entry):
        shared = sorted((key for key in first if key in second), key=by_seed)
        if not shared:
            continue
        differences = [(str(key), first[key], second[key]) for key in shared]
        means = [float(np.mean([side[key] for key in shared])) for side in (first, second)]
        for seed, a, b in [*differences, ("mean", means[0], means[1])]:
            cells = [text(seed), Cell(a), Cell(b), Cell(a - b, minus(f"{a - b:+.2f}"))]
            rows.append([*map(text, names), *cells])
        strong.add(len(rows) - 1)
    if not rows:
        return Missing(entry.kind, "Matched seeds", "no compared arms share a seed")
    columns = [
        ENV,
        *named("first_arm"),
        Column("second_arm", "against"),
        *named("outcome"),
        Column("source", "from"),
        *named("seed"),
        *named("first", "second", "difference", digits=2),
    ]
    title = entry.title or "Matched seeds"
    caption = "Runs of both arms with the same seed; rates in %."
    return Table("pairs", title, columns, rows, caption, entry.label, frozenset(strong), fold=not entry.asked)


_Values = dict[int | str, float]


def _paired(dataset: Dataset, entry: Entry) -> Iterator[tuple[tuple[str, ...], _Values, _Values]]:
    """The names of a row, and both arms' numbers by seed; rates in %."""
    if not entry.source and not entry.outcome:
        for one in results(dataset, dataset.comparisons(entry)):
            claim, scale = one.comparison.claim, one.scale
            source = (
                one.source if one.source != "training" else f"training, {compared_window(one.comparison, claim.window)}"
            )
            sides = [{key: scale * value for key, value in side.items()} for side in (one.first, one.second)]
            yield (one.comparison.env, claim.first, claim.second, one.word, source), sides[0], sides[1]
        return
    seen = {(one.env, one.claim.first, one.claim.second): one for one in dataset.comparisons(entry)}
    for (env, first, second), pair in seen.items():
        source = dataset.source(env, entry)
        usual: tuple[Outcome, ...] = ("shaped_return", "cost") if source == "training" else ("cost", "catastrophe")
        for outcome in (entry.outcome,) if entry.outcome else usual:
            scale = 100.0 if is_rate(outcome) else 1.0
            sides = [
                {key: scale * value for key, value in values_of(arm, outcome, source, entry.window).items()}
                for arm in (pair.first, pair.second)
            ]
            where = source if source != "training" else f"training, {compared_window(pair, entry.window)}"
            yield (env, first, second, WORDS[outcome], where), sides[0], sides[1]


def _difference_cells(first: Sequence[float], second: Sequence[float]) -> list[Cell]:
    """The difference of two arms' rates in percentage points with its interval over runs, and its exact p."""
    a, b = 100 * np.asarray(first), 100 * np.asarray(second)
    if min(len(a), len(b)) < 2:
        return [Cell(float(a.mean() - b.mean())), Cell()]
    test = permutation_test(a, b, "two-sided")
    p = Cell(float(test.p), str(test))
    if min(len(a), len(b)) < LEAST:
        return [Cell(float(a.mean() - b.mean())), p]
    interval = bootstrap_mean_difference(a, b)
    return [Cell(interval.estimate, low=interval.low, high=interval.high), p]


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
        ENV,
        *PAIR,
        *named("seed"),
        Column("epoch", "apart from epoch", 0),
        Column("epochs", "epochs compared", 0),
        Column("difference", "cost difference at the end", 2),
    ]
    caption = "Return, cost, multiplier and divergence of the policy, to the last digit."
    return Table("divergence", entry.title or "Where runs of one seed part", columns, rows, caption, entry.label)
