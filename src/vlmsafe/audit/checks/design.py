"""The design: settings, seeds and code, which can be checked before any result is known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from vlmsafe.audit.findings import Finding, about_arm, about_comparison, about_runs, counted, finding, listed
from vlmsafe.audit.kinds import Severity
from vlmsafe.comparison.comparisons import Comparison
from vlmsafe.comparison.judging import PAIRED, one_sided, smallest_p
from vlmsafe.comparison.settings import Difference, differences, infer_about, unnamed
from vlmsafe.runs.layout import PROMPTS
from vlmsafe.runs.records import ArmRecord, RunRecord

_TRAINING = "training records"


def inconsistent_arm(arm: ArmRecord) -> Iterator[Finding]:
    """Runs of an arm should differ in nothing but their seed."""
    standard = arm.first
    odd = [(run, found) for run in arm.runs if (found := _unlike(standard, run))]
    if odd:
        yield finding(
            "inconsistent-arm",
            about_arm(arm, runs=[run for run, _ in odd]),
            [f"{standard.name} against {run.name}: {listed(found, 8)}" for run, found in odd],
            {run.name: [vars(one) for one in found if isinstance(one, Difference)] for run, found in odd},
        )


def _unlike(one: RunRecord, other: RunRecord) -> list[Difference | str]:
    return [*differences(one.settings, other.settings), *_other_prompts(one, other)]


def _other_prompts(one: RunRecord, other: RunRecord) -> list[str]:
    """Prompts with the same name and different text."""
    same_name = one.config.signal.prompts == other.config.signal.prompts
    if same_name and None not in (one.prompts, other.prompts) and one.prompts != other.prompts:
        return [f"{PROMPTS}: the prompts have the same name and another text"]
    return []


def repeated_seeds(arm: ArmRecord) -> Iterator[Finding]:
    # Runs with other settings are reported as inconsistent; the same seed gives another run there.
    standard = arm.first
    alike = [run for run in arm.runs if not _unlike(standard, run)]
    seeds = [run.seed for run in alike]
    repeated = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if repeated:
        yield finding(
            "duplicate-runs",
            about_arm(arm, runs=[run for run in alike if run.seed in repeated]),
            [f"more than one run has the seed {listed(repeated)}"],
            {"seeds": repeated},
            fix="keep one run per seed: repetitions with one seed are not independent",
        )


def duplicate_runs(arms: Sequence[ArmRecord]) -> Iterator[Finding]:
    """Runs with different seeds never have equal records."""
    for one, other, what in _equal_runs(arms):
        if one.seed != other.seed:
            yield finding(
                "duplicate-runs",
                about_runs(one, other),
                [f"their {what} are equal to the last digit, with seeds {one.seed} and {other.seed}"],
                {"runs": [str(one.source.run.path), str(other.source.run.path)]},
                fix="one of them is a copy: train it again",
                severity=None if what == _TRAINING else Severity.WARNING,
            )


def identical_arms(arms: Sequence[ArmRecord]) -> Iterator[Finding]:
    """Runs of two arms with one seed are equal where the setting under test has no effect."""
    for one, other, what in _equal_runs(arms):
        if one.seed == other.seed:
            yield finding(
                "identical-arms",
                about_runs(one, other),
                [f"their {what} are equal to the last digit, though their arms differ"],
                {"runs": [str(one.source.run.path), str(other.source.run.path)]},
            )


def _equal_runs(arms: Sequence[ArmRecord]) -> Iterator[tuple[RunRecord, RunRecord, str]]:
    """Pairs of runs on one environment with equal records, and the first kind of record that is equal.

    Two runs of one arm with one seed are left out: `repeated_seeds` reports them.
    """
    seen: dict[tuple[str, str, str], list[RunRecord]] = {}
    for run in (run for arm in arms for run in arm.runs):
        for what, digest in _digests(run):
            seen.setdefault((run.env, what, digest), []).append(run)
    reported = set()
    for (_, what, _), runs in seen.items():
        for one, other in ((a, b) for i, a in enumerate(runs) for b in runs[i + 1 :]):
            pair = (one.label, other.label)
            if pair not in reported and (one.seed, one.arm) != (other.seed, other.arm):
                yield one, other, what
            reported.add(pair)


def _digests(run: RunRecord) -> Iterator[tuple[str, str]]:
    returns = [row.get("env_return") for row in run.epochs]
    if len({value for value in returns if value is not None}) > 1:
        yield _TRAINING, _digest([(row.get("env_return"), row.get("episode_cost")) for row in run.epochs])
    for name, table in run.evaluations.items():
        # Policies that stand still may well have equal evaluations: nothing happens to any of them.
        if {"env_return", "cost"} <= set(table.columns) and table["cost"].n_unique() > 1:
            yield f"'{name}' evaluations", _digest(table.select("env_return", "cost").rows())


def _digest(rows: Any) -> str:
    return hashlib.sha256(json.dumps(rows, default=str).encode()).hexdigest()


def unmatched_arms(comparison: Comparison) -> Iterator[Finding]:
    """Two arms should differ in what the comparison names, and in nothing else."""
    first, second, claim = comparison.first.first, comparison.second.first, comparison.claim
    found = differences(first.settings, second.settings)
    about = list(claim.about) or infer_about(found)
    extra = [str(difference) for difference in unnamed(found, about)]
    if "prompts" not in about and "signal" not in about:
        extra += _other_prompts(first, second)
    if extra:
        named = f"about {listed(about)}" if about else "between equals"
        stated = "claimed to be" if claim.about else "taken to be"
        # Nobody claimed a comparison of two arms with signals: this is what would be wrong with one.
        supposed = not claim.stated and comparison.first.has_signal and comparison.second.has_signal
        yield finding(
            "unmatched-arms",
            about_comparison(comparison),
            [f"the comparison is {stated} {named}; the arms also differ in", *extra],
            {
                "about": about,
                "inferred": not claim.about,
                "unnamed": [vars(d) for d in unnamed(found, about)],
                "all": [vars(d) for d in found],
            },
            fix=f"train '{second.arm}' with the other arm's settings, or name these settings as part of the comparison",
            severity=Severity.WARNING if supposed else None,
        )


def seed_sets_differ(comparison: Comparison) -> Iterator[Finding]:
    first, second = set(comparison.first.seeds), set(comparison.second.seeds)
    if first == second:
        return
    shared = sorted(first & second)
    yield finding(
        "seed-sets-differ",
        about_comparison(comparison),
        [
            f"'{comparison.claim.first}' has {counted(len(first), 'seed')}: {listed(sorted(first))}",
            f"'{comparison.claim.second}' has {counted(len(second), 'seed')}: {listed(sorted(second))}",
            f"{len(shared)} shared: {listed(shared) or 'none'}",
        ],
        {"first": sorted(first), "second": sorted(second), "shared": shared},
    )


def too_few_seeds(comparison: Comparison) -> Iterator[Finding]:
    claim = comparison.claim
    if claim.test == "none":
        return
    sizes = len(comparison.first.runs), len(comparison.second.runs)
    paired = len(comparison.first.matched_by.keys() & comparison.second.matched_by.keys())
    fewest = paired if claim.test in PAIRED else min(sizes)
    smallest = smallest_p(claim, *sizes, paired)
    if smallest is not None and smallest >= claim.alpha:
        side = "two-sided"
        if one_sided(claim):
            side = f"one-sided ({claim.sides if claim.kind == 'difference' else claim.kind})"
        supposed = "" if claim.stated else " (no test was claimed; this one is assumed)"
        yield finding(
            "too-few-seeds",
            about_comparison(comparison),
            [
                f"{sizes[0]} against {sizes[1]} runs: the smallest p that the {side} {claim.test} test can give "
                f"is {smallest:.3g}, not below {claim.alpha:.3g}{supposed}"
            ],
            {"smallest_p": smallest, "alpha": claim.alpha, "runs": list(sizes), "test": claim.test},
            fix=f"train {_needed(comparison)} seeds per arm, or claim no significance",
        )
    elif smallest is None and fewest < 3:
        yield finding(
            "too-few-seeds",
            about_comparison(comparison),
            [
                f"{sizes[0]} against {sizes[1]} runs, {paired} of them paired: a {claim.test} over fewer than three "
                "rests on a spread that is hardly known"
            ],
            {"runs": list(sizes), "test": claim.test},
            fix="train at least four seeds per arm",
        )


def _needed(comparison: Comparison) -> int:
    sizes = range(2, 50)
    found = (n for n in sizes if (smallest_p(comparison.claim, n, n, n) or 0.0) < comparison.claim.alpha)
    return next(found, 50)


def mixed_worlds(arm: ArmRecord) -> Iterator[Finding]:
    """An arm whose training and evaluations come from more than one version of the environment, or from an old one."""
    now = arm.first.config.spec.version
    worlds = sorted({world for run in arm.runs for world in run.worlds})
    lines = [f"trained in {_worlds_in_words([arm])}"] if len(worlds) > 1 else []
    lines += [
        f"{run.name}: trained in version {listed(run.worlds)}, evaluated under '{protocol}' in version {listed(driven)}"
        for run in arm.runs
        for protocol, table in run.evaluations.items()
        if run.worlds and (driven := evaluated_worlds(table)) and driven != run.worlds
    ]
    if lines:
        yield finding("worlds-differ", about_arm(arm), lines, {"versions": worlds})
    elif worlds and worlds != [now]:
        line = f"all its runs were trained in version {worlds[0]} of {arm.env}, and this is version {now}"
        fix = "do not compare these results with those of the present version"
        yield finding(
            "worlds-differ", about_arm(arm), [line], {"versions": worlds}, fix=fix, severity=Severity.NOTE
        )  # fmt: skip


def evaluated_worlds(table: pl.DataFrame) -> list[int]:
    """The versions of the environment in an evaluation; empty where the table does not say."""
    return sorted(table["env_version"].drop_nulls().unique().to_list()) if "env_version" in table.columns else []


def worlds_differ(comparison: Comparison) -> Iterator[Finding]:
    """Arms that were trained in different versions of the environment."""
    arms = (comparison.first, comparison.second)
    first, second = ({world for run in arm.runs for world in run.worlds} for arm in arms)
    if first != second:
        yield finding(
            "worlds-differ",
            about_comparison(comparison),
            [f"{comparison.env}: {_worlds_in_words(arms)}"],
            {"versions": {"first": sorted(first), "second": sorted(second)}},
        )


def _worlds_in_words(arms: Sequence[ArmRecord]) -> str:
    """Which runs were trained in which version; those of an arm that agree are named by the arm."""
    runs = [run for arm in arms for run in arm.runs]
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(f"version {' and '.join(map(str, run.worlds))}", []).append(run)
    whole = {arm.name for arm in arms if len(arms) > 1 and len({tuple(run.worlds) for run in arm.runs}) == 1}
    return "; ".join(
        f"{version} in {listed(list(dict.fromkeys(run.arm if run.arm in whole else run.label for run in those)))}"
        for version, those in sorted(groups.items())
    )


ARM_CHECKS = (inconsistent_arm, repeated_seeds, mixed_worlds)
ALL_ARMS_CHECKS = (duplicate_runs, identical_arms)
COMPARISON_CHECKS = (unmatched_arms, seed_sets_differ, too_few_seeds, worlds_differ)
