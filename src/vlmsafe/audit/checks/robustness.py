"""What does a verdict hang on? A few episodes, a window, an evaluation, a baseline, or chance between repetitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from vlmsafe.analysis.tables import floats
from vlmsafe.audit.findings import Finding
from vlmsafe.comparison.claims import (
    WINDOWS,
    Comparison,
    Outcome,
    Window,
)
from vlmsafe.comparison.outcomes import (
    WORDS,
    Verdict,
    against,
    judge,
    shared_protocols,
    source_of,
    values_of,
    verdict,
)
from vlmsafe.comparison.settings import differences
from vlmsafe.runs.records import ArmRecord

NOISE = 0.5
"""Share of a difference between arms that repetitions of one of them may differ by."""
FEW = 0.02
"""Share of the episodes of an arm that should not decide a comparison."""
SIZEABLE = 0.5
"""A difference of costs, as a share of the lower one, that a reader would take seriously without a test."""


def check_few_episodes(comparison: Comparison) -> Iterator[Finding]:
    """Does a difference of costs go away, or turn round, with the costliest few episodes of each arm?"""
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
    yield Finding(
        "few-episodes-decide",
        f"{comparison.where}, '{source}'",
        (
            f"all episodes: cost {against((before.first, before.second))}, {before.text}: {before.word}",
            f"without the costliest {left_out[0]} and {left_out[1]}: {against((after.first, after.second))}, "
            f"{after.text}: {after.word}",
        ),
        "show the episodes, report rates beside means, and evaluate more of them",
        {"before": dataclasses.asdict(before), "after": dataclasses.asdict(after), "left_out": left_out},
    )


def check_windows(comparison: Comparison) -> Iterator[Finding]:
    """Does the verdict change with the epochs that are averaged, or with the evaluation?"""
    outcomes: list[Outcome] = [comparison.claim.outcome]
    if not comparison.claim.stated:
        outcomes.append("env_return")
    runs = (*comparison.first.runs, *comparison.second.runs)
    for outcome in outcomes:
        asked = dataclasses.replace(comparison, claim=dataclasses.replace(comparison.claim, outcome=outcome))
        recorded = min((run.epochs_recorded for run in runs if run.epochs_recorded), default=0)
        fitting: list[Window] = [window for window, size in WINDOWS.items() if size <= recorded]
        by_window = {str(window): verdict(asked, "training", window) for window in fitting}
        yield from _hangs_on(
            "window-dependent", asked, by_window, "say beforehand which epochs count, and show the others"
        )
        by_protocol = {f"'{name}'": verdict(asked, name) for name in shared_protocols(comparison)}
        yield from _hangs_on(
            "protocol-dependent", asked, by_protocol, "say beforehand which evaluation counts, and show the others"
        )


def _hangs_on(code: str, comparison: Comparison, found: Mapping[str, Verdict | None], fix: str) -> Iterator[Finding]:
    known = {name: entry for name, entry in found.items() if entry is not None}
    turned = {entry.leans for entry in known.values()} >= {-1, 1}
    if len({entry.decided for entry in known.values()}) < 2 and not turned:
        return
    claim = comparison.claim
    yield Finding(
        code,
        comparison.where,
        tuple(
            f"{name}: {WORDS[claim.outcome]} {entry.first:.4g} against {entry.second:.4g}, {entry.text}: {entry.word}"
            for name, entry in known.items()
        ),
        fix,
        {name: {**dataclasses.asdict(entry), "verdict": entry.word} for name, entry in known.items()},
    )


def check_baselines(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """One arm against several baselines of one learner: does it win against one and lose against another?"""
    groups: dict[tuple[str, str, Outcome, str, str], list[Comparison]] = {}
    for comparison in comparisons:
        first, second, claim = comparison.first, comparison.second, comparison.claim
        same = first.first.config.learner.algorithm == second.first.config.learner.algorithm
        if same and first.has_signal and not second.has_signal:
            key = (comparison.env, claim.first, claim.outcome, source_of(comparison), claim.window)
            groups.setdefault(key, []).append(comparison)
    for (env, arm, outcome, source, _), own in groups.items():
        means = {comparison.claim.second: pair for comparison in own if (pair := _means(comparison))}
        gaps = {name: first - second for name, (first, second) in means.items()}
        least = 0.1 * max((abs(first) for first, _ in means.values()), default=0.0)
        if any(gap > least for gap in gaps.values()) and any(gap < -least for gap in gaps.values()):
            yield Finding(
                "baseline-dependent",
                f"{env}: {arm}, '{source}'",
                tuple(
                    f"against {name}: {WORDS[outcome]} {against(means[name])}, {'higher' if gap > 0 else 'lower'}"
                    for name, gap in gaps.items()
                ),
                "compare with the baseline that is matched in everything but the signal, and with no other",
                {"differences": gaps},
            )


def _means(comparison: Comparison) -> tuple[float, float] | None:
    claim, source = comparison.claim, source_of(comparison)
    sides = [
        list(values_of(arm, claim.outcome, source, claim.window).values())
        for arm in (comparison.first, comparison.second)
    ]
    return (float(np.mean(sides[0])), float(np.mean(sides[1]))) if all(sides) else None


def check_replications(comparisons: Sequence[Comparison], arms: Sequence[ArmRecord]) -> Iterator[Finding]:
    """Arms with equal settings are one arm trained twice: how far apart are they, beside what is claimed?"""
    for comparison in comparisons:
        claim, means = comparison.claim, _means(comparison)
        if means is None or means[0] == means[1]:
            continue
        for arm in arms:
            if arm.env != comparison.env or arm.name in (claim.first, claim.second) or not _repeats(comparison, arm):
                continue
            values = list(values_of(arm, claim.outcome, source_of(comparison), claim.window).values())
            if not values:
                continue
            effect, noise = abs(means[0] - means[1]), abs(means[0] - float(np.mean(values)))
            if noise >= NOISE * effect:
                yield Finding(
                    "replication-noise",
                    comparison.where,
                    (
                        f"{WORDS[claim.outcome]} {against(means)}: a difference of {effect:.4g}",
                        f"{arm.name} has the settings of {claim.first}, and {np.mean(values):.4g}: {noise:.4g} away",
                    ),
                    "pool the repetitions, and train more seeds: this much is chance",
                    {"difference": effect, "between_repetitions": noise, "repetition": arm.name},
                )


def _repeats(comparison: Comparison, arm: ArmRecord) -> bool:
    one, other = comparison.first.first, arm.first
    return not differences(one.settings, other.settings) and one.prompts == other.prompts
