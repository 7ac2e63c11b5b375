"""Verdicts: do they depend on a few episodes, the window, the evaluation, the baseline, chance or many tests?"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from vlmsafe.analysis.tables import floats
from vlmsafe.audit.findings import EVERYTHING, Finding, about_arm, about_comparison, finding
from vlmsafe.comparison.claims import WINDOWS, Claims, Outcome, Window
from vlmsafe.comparison.comparisons import Comparison
from vlmsafe.comparison.judging import Verdict, judge, verdict
from vlmsafe.comparison.outcomes import WORDS, against, shared_protocols, source_of, values_of
from vlmsafe.comparison.settings import differences
from vlmsafe.runs.records import ArmRecord

NOISE = 0.5
"""Share of a difference between arms that repetitions of one of them may differ by."""
MANY = 5
"""So many uncorrected tests are reported."""
FEW = 0.02
"""Share of the episodes of an arm that should not decide a comparison."""
SIZEABLE = 0.5
"""A difference of costs, as a share of the lower one, that a reader would take seriously without a test."""


def few_episodes_decide(comparison: Comparison) -> Iterator[Finding]:
    """A difference of costs may vanish or change sign without the costliest few episodes of each arm."""
    source = source_of(comparison)
    if comparison.claim.outcome != "cost" or source == "training":
        return
    before = verdict(comparison, source)
    if before is None:
        return
    sizeable = abs(before.difference) >= SIZEABLE * min(before.first, before.second)
    if not (before.decided or before.leans or sizeable):
        return
    sides, left_out = [], []
    for arm in (comparison.first, comparison.second):
        costs = {
            key: floats(run.evaluations[source], "cost")
            for key, run in arm.matched_by.items()
            if source in run.evaluations and "cost" in run.evaluations[source].columns
        }
        every = np.sort(np.concatenate(list(costs.values())))[::-1]
        count = max(1, round(FEW * len(every)))
        limit = every[min(count, len(every)) - 1]
        kept = {key: values[values < limit] for key, values in costs.items()}
        if any(not len(values) for values in kept.values()) or sum(map(len, kept.values())) < len(every) - 2 * count:
            return  # many episodes cost as much as the costliest: they are not few
        sides.append({key: float(values.mean()) for key, values in kept.items()})
        left_out.append(len(every) - sum(map(len, kept.values())))
    after = judge(comparison.claim, sides[0], sides[1])
    if after is None:
        return
    left = float(after.difference * np.sign(before.difference) / abs(before.difference)) if before.difference else 1.0
    if left > (0.2 if before.decided == after.decided else 0.5):
        return
    yield finding(
        "few-episodes-decide",
        about_comparison(comparison, source),
        [
            f"all episodes: cost {against((before.first, before.second))}, {before.text}: {before.word}",
            f"without the costliest {left_out[0]} and {left_out[1]}: {against((after.first, after.second))}, "
            f"{after.text}: {after.word}",
        ],
        {"before": dataclasses.asdict(before), "after": dataclasses.asdict(after), "left_out": left_out},
        metric="cost",
    )


def window_dependent(comparison: Comparison) -> Iterator[Finding]:
    """The verdict may change with the epochs that are averaged. A claim about an evaluation averages none."""
    if comparison.claim.stated and source_of(comparison) != "training":
        return
    runs = (*comparison.first.runs, *comparison.second.runs)
    recorded = min((run.epochs_recorded for run in runs if run.epochs_recorded), default=0)
    fitting: list[Window] = [window for window, size in WINDOWS.items() if size <= recorded]
    for asked in _by_outcome(comparison):
        verdicts = {str(window): verdict(asked, "training", window) for window in fitting}
        yield from _depends("window-dependent", asked, verdicts)


def protocol_dependent(comparison: Comparison) -> Iterator[Finding]:
    """The verdict may change with the evaluation."""
    for asked in _by_outcome(comparison):
        verdicts = {f"'{name}'": verdict(asked, name) for name in shared_protocols(comparison)}
        yield from _depends("protocol-dependent", asked, verdicts)


def _by_outcome(comparison: Comparison) -> Iterator[Comparison]:
    """The comparison on its outcome, and one that nobody claimed on the return as well."""
    outcomes: list[Outcome] = [comparison.claim.outcome]
    if not comparison.claim.stated:
        outcomes.append("env_return")
    for outcome in outcomes:
        yield dataclasses.replace(comparison, claim=dataclasses.replace(comparison.claim, outcome=outcome))


def _depends(code: str, comparison: Comparison, verdicts: Mapping[str, Verdict | None]) -> Iterator[Finding]:
    known = {name: entry for name, entry in verdicts.items() if entry is not None}
    turned = {entry.leans for entry in known.values()} >= {-1, 1}
    if len({entry.decided for entry in known.values()}) < 2 and not turned:
        return
    outcome = comparison.claim.outcome
    yield finding(
        code,
        about_comparison(comparison),
        [
            f"{name}: {WORDS[outcome]} {against((entry.first, entry.second))}, {entry.text}: {entry.word}"
            for name, entry in known.items()
        ],
        {name: {**dataclasses.asdict(entry), "verdict": entry.word} for name, entry in known.items()},
        metric=outcome,
    )


def many_tests(claims: Claims | None, tests: int) -> Iterator[Finding]:
    """A level is meant for one test. A claim about several environments is a test on each."""
    if claims is None or claims.correction != "none" or tests < MANY:
        return
    alpha = max([claim.alpha for claim in claims.comparisons] + [claim.alpha for claim in claims.contrasts])
    yield finding(
        "many-tests",
        EVERYTHING,
        [f"{tests} tests at {alpha:g} without a correction: chance alone passes {alpha * tests:.2g}"],
        {"tests": tests, "alpha": alpha},
    )


def baseline_dependent(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """An arm may be better than one baseline and worse than another of the same learner."""
    groups: dict[tuple[str, str, Outcome, str, str], list[Comparison]] = {}
    for comparison in comparisons:
        first, second, claim = comparison.first, comparison.second, comparison.claim
        same = first.first.config.learner.algorithm == second.first.config.learner.algorithm
        if same and first.has_signal and not second.has_signal:
            key = (comparison.env, claim.first, claim.outcome, source_of(comparison), claim.window)
            groups.setdefault(key, []).append(comparison)
    for (_, _, outcome, source, _), own in groups.items():
        means = {comparison.claim.second: pair for comparison in own if (pair := _means(comparison))}
        gaps = {name: first - second for name, (first, second) in means.items()}
        least = 0.1 * max((abs(first) for first, _ in means.values()), default=0.0)
        if any(gap > least for gap in gaps.values()) and any(gap < -least for gap in gaps.values()):
            yield finding(
                "baseline-dependent",
                about_arm(own[0].first, source),
                [
                    f"against '{name}': {WORDS[outcome]} {against(means[name])}, {'higher' if gap > 0 else 'lower'}"
                    for name, gap in gaps.items()
                ],
                {"differences": gaps},
                metric=outcome,
            )


def _means(comparison: Comparison) -> tuple[float, float] | None:
    claim, source = comparison.claim, source_of(comparison)
    sides = [
        list(values_of(arm, claim.outcome, source, claim.window).values())
        for arm in (comparison.first, comparison.second)
    ]
    return (float(np.mean(sides[0])), float(np.mean(sides[1]))) if all(sides) else None


def replication_noise(comparisons: Sequence[Comparison], arms: Sequence[ArmRecord]) -> Iterator[Finding]:
    """Arms with equal settings are one arm trained twice. Their distance shows how much is chance."""
    for comparison in comparisons:
        claim, means = comparison.claim, _means(comparison)
        if means is None or means[0] == means[1]:
            continue
        sides = ((comparison.first, means[0]), (comparison.second, means[1]))
        others = [arm for arm in arms if arm.env == comparison.env and arm.name not in (claim.first, claim.second)]
        for arm, (side, mean) in itertools.product(others, sides):
            values = list(values_of(arm, claim.outcome, source_of(comparison), claim.window).values())
            if not values or not _repeats(side, arm):
                continue
            effect, noise = abs(means[0] - means[1]), abs(mean - float(np.mean(values)))
            if noise >= NOISE * effect:
                yield finding(
                    "replication-noise",
                    about_comparison(comparison),
                    [
                        f"{WORDS[claim.outcome]} {against(means)}: a difference of {effect:.4g}",
                        f"'{arm.name}' has the settings of '{side.name}' and {np.mean(values):.4g}: {noise:.4g} away",
                    ],
                    {"difference": effect, "between_repetitions": noise, "repetition": arm.name},
                    metric=claim.outcome,
                )


def _repeats(one: ArmRecord, other: ArmRecord) -> bool:
    return not differences(one.first.settings, other.first.settings) and one.first.prompts == other.first.prompts


COMPARISON_CHECKS = (few_episodes_decide, window_dependent, protocol_dependent)
