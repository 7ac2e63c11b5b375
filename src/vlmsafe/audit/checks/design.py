"""Is it a fair comparison? Settings, seeds, code: what can be seen before looking at any result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from vlmsafe.audit.findings import (
    Finding,
    Severity,
    counted,
    listed,
)
from vlmsafe.comparison.claims import Claims, Comparison
from vlmsafe.comparison.outcomes import smallest_p
from vlmsafe.comparison.settings import differences, infer_about, unnamed
from vlmsafe.runs.layout import PROMPTS
from vlmsafe.runs.records import ArmRecord, RunRecord


def check_arm(arm: ArmRecord) -> Iterator[Finding]:
    """One arm by itself: are its runs repetitions of one thing, each with its own seed?"""
    standard = arm.first
    odd = {}
    for run in arm.runs:
        if found := [*differences(standard.settings, run.settings), *_prompts(standard, run)]:
            odd[run.name] = found
    if odd:
        yield Finding(
            "inconsistent-arm",
            f"{arm.env}: {arm.name}",
            tuple(f"{standard.name} against {name}: {listed(found, 8)}" for name, found in odd.items()),
            "train the odd runs again with the settings of the others, or make them an arm of their own",
            {name: [vars(d) for d in found if not isinstance(d, str)] for name, found in odd.items()},
        )
    # With other settings a seed gives another run, and that was told.
    plain = [run.seed for run in arm.runs if run.name not in odd]
    repeated = sorted({seed for seed in plain if plain.count(seed) > 1})
    if repeated:
        yield Finding(
            "duplicate-runs",
            f"{arm.env}: {arm.name}",
            (f"more than one run has the seed {listed(repeated)}",),
            "keep one run per seed: repetitions with one seed are not independent",
            {"seeds": repeated},
        )


def _prompts(a: RunRecord, b: RunRecord) -> list[str]:
    """Prompts of one name whose text is not the same."""
    same_name = a.config.signal.prompts == b.config.signal.prompts
    if same_name and None not in (a.prompts, b.prompts) and a.prompts != b.prompts:
        return [f"{PROMPTS}: the prompts have the same name and another text"]
    return []


_TRAINING = "training records"


def check_copies(arms: Sequence[ArmRecord]) -> Iterator[Finding]:
    """Runs with equal records. Equal seeds may give equal runs where a setting has no effect; others never do."""
    seen: dict[tuple[str, str], list[RunRecord]] = {}
    for arm in arms:
        for run in arm.runs:
            for kind, digest in _digests(run):
                seen.setdefault((f"{run.env} {kind}", digest), []).append(run)
    told = set()
    for (kind, _), runs in seen.items():
        for one, other in ((a, b) for i, a in enumerate(runs) for b in runs[i + 1 :]):
            pair = (one.label, other.label)
            if pair in told:
                continue
            told.add(pair)
            same_seed = one.seed == other.seed
            if same_seed and one.arm == other.arm:
                continue  # told as a seed that stands for several runs
            yield Finding(
                "identical-arms" if same_seed else "duplicate-runs",
                f"{one.env}: {one.label}, {other.label}",
                (f"their {kind.removeprefix(one.env).strip()} are equal to the last digit, "
                 + ("though their arms differ" if same_seed else f"with seeds {one.seed} and {other.seed}"),),
                "find out whether the setting under test reaches the learner; on an environment without cost some "
                "methods are the same" if same_seed else "one of them is a copy: train it again",
                {"runs": [str(one.source.run.path), str(other.source.run.path)]},
                None if kind.endswith(_TRAINING) else Severity.WARNING,
            )  # fmt: skip


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


def check_comparison(comparison: Comparison) -> Iterator[Finding]:
    """Two arms: do they differ in what the comparison names, and in nothing else?"""
    yield from _unmatched(comparison)
    yield from _seeds(comparison)
    yield from _power(comparison)
    yield from _code(comparison)


def _unmatched(comparison: Comparison) -> Iterator[Finding]:
    first, second, claim = comparison.first.first, comparison.second.first, comparison.claim
    found = differences(first.settings, second.settings)
    about = list(claim.about) or infer_about(found)
    extra = [str(difference) for difference in unnamed(found, about)]
    if "prompts" not in about and "signal" not in about:
        extra += _prompts(first, second)
    if extra:
        named = f"about {listed(about)}" if about else "between equals"
        whose = "claimed to be" if claim.about else "taken to be"
        yield Finding(
            "unmatched-arms",
            comparison.where,
            (f"the comparison is {whose} {named}; the arms also differ in", *extra),
            f"train {second.arm} with the other arm's settings, or name these settings as part of the comparison",
            {
                "about": about,
                "inferred": not claim.about,
                "unnamed": [vars(d) for d in unnamed(found, about)],
                "all": [vars(d) for d in found],
            },
            # Nobody said that two arms with signals are to be compared: it is what would be wrong if they were.
            Severity.WARNING
            if not claim.stated and comparison.first.has_signal and comparison.second.has_signal
            else None,
        )


def _seeds(comparison: Comparison) -> Iterator[Finding]:
    first, second = set(comparison.first.seeds), set(comparison.second.seeds)
    if first == second:
        return
    shared = sorted(first & second)
    yield Finding(
        "seed-sets-differ",
        comparison.where,
        (
            f"{comparison.claim.first} has {counted(len(first), 'seed')}: {listed(sorted(first))}",
            f"{comparison.claim.second} has {counted(len(second), 'seed')}: {listed(sorted(second))}",
            f"{len(shared)} shared: {listed(shared) or 'none'}",
        ),
        "train the missing seeds, or compare the shared ones only",
        {"first": sorted(first), "second": sorted(second), "shared": shared},
    )


def _power(comparison: Comparison) -> Iterator[Finding]:
    claim = comparison.claim
    if claim.test == "none":
        return
    sizes = len(comparison.first.runs), len(comparison.second.runs)
    paired = len(comparison.first.matched_by.keys() & comparison.second.matched_by.keys())
    fewest = paired if claim.test in ("paired-t", "sign-flip") else min(sizes)
    side = "two-sided" if claim.sides == "two-sided" else f"one-sided ({claim.sides})"
    smallest = smallest_p(claim, *sizes, paired)
    if smallest is not None and smallest >= claim.alpha:
        yield Finding(
            "too-few-seeds",
            comparison.where,
            (
                f"{sizes[0]} against {sizes[1]} runs: the smallest p that the {side} {claim.test} test can give "
                f"is {smallest:.3g}, not below {claim.alpha:g}, whatever the runs show"
                + ("" if claim.stated else " (no test was claimed; this one is supposed)"),
            ),
            f"train {_needed(comparison)} seeds per arm, or claim no significance",
            {"smallest_p": smallest, "alpha": claim.alpha, "runs": list(sizes), "test": claim.test},
        )
    elif smallest is None and fewest < 3:
        yield Finding(
            "too-few-seeds",
            comparison.where,
            (
                f"{sizes[0]} against {sizes[1]} runs, {paired} of them paired: a {claim.test} over fewer than three "
                "rests on a spread that is hardly known",
            ),
            "train at least four seeds per arm",
            {"runs": list(sizes), "test": claim.test},
        )


def _needed(comparison: Comparison) -> int:
    sizes = range(2, 50)
    found = (n for n in sizes if (smallest_p(comparison.claim, n, n, n) or 0.0) < comparison.claim.alpha)
    return next(found, 50)


def check_tests(claims: Claims | None, compared: Sequence[Comparison]) -> Iterator[Finding]:
    """How often was a level used that is meant for one test? A claim about several environments is a test on each."""
    tested = [one.claim for one in compared if one.claim.test != "none"]
    if claims is None or claims.correction != "none" or len(tested) < 5:
        return
    alpha = max(claim.alpha for claim in tested)
    yield Finding(
        "many-tests",
        "all claims",
        (f"{len(tested)} tests at {alpha:g} without a correction: chance alone passes {alpha * len(tested):.2g}",),
        "correct for it (correction: holm in the claims), or say which test was decided on beforehand",
        {"tests": len(tested), "alpha": alpha},
    )


def _code(comparison: Comparison) -> Iterator[Finding]:
    """Packages and revision, where runs recorded them."""
    lines = []
    for what in ("python", "git_revision"):
        pair = [{run.recorded.get(what) for run in arm.runs} - {None} for arm in (comparison.first, comparison.second)]
        if all(pair) and pair[0] != pair[1]:
            lines.append(f"{what}: {listed(sorted(map(str, pair[0])))} against {listed(sorted(map(str, pair[1])))}")
    sets = [_packages(arm) for arm in (comparison.first, comparison.second)]
    for name in sorted(sets[0].keys() & sets[1].keys()):
        if sets[0][name] != sets[1][name]:
            lines.append(f"{name}: {listed(sorted(sets[0][name]))} against {listed(sorted(sets[1][name]))}")
    if lines:
        yield Finding(
            "code-differs",
            comparison.where,
            tuple(lines),
            "train both arms with one version of everything",
        )


def _packages(arm: ArmRecord) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for run in arm.runs:
        # A run that was continued may have gone on with other versions than it began with.
        for noted in (run.recorded, *run.events):
            for name, version in (noted.get("packages") or {}).items():
                found.setdefault(name, set()).add(str(version))
            if noted.get("env_version") is not None:
                found.setdefault(f"environment {run.env}", set()).add(f"version {noted['env_version']}")
        for event in run.events:
            scorer = event.get("scorer")
            if isinstance(scorer, dict) and scorer.get("revision"):
                found.setdefault(f"scorer {scorer.get('name')}", set()).add(str(scorer["revision"]))
    return found
