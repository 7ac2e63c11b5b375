"""Outcomes: the number that each run of a comparison contributes, and the verdict of the claimed test."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlmsafe.analysis.exact_tests import (
    permutation_test,
    sampled_permutation_test,
    sign_flip_test,
    smallest_permutation_p,
    smallest_sign_flip_p,
)
from vlmsafe.analysis.resampling import LEAST, bootstrap_mean_difference
from vlmsafe.analysis.statistics import CATASTROPHE, pair_by_seed, paired_t_test, welch_t_test
from vlmsafe.analysis.tables import floats
from vlmsafe.comparison.claims import WINDOWS, Claim, Comparison, Outcome, Window
from vlmsafe.errors import InputError
from vlmsafe.runs.records import ArmRecord, RunRecord

_COUNTABLE = 40  # up to this many runs of both arms, all splits are counted, in less than a second
PAIRED = ("sign-flip", "paired-t")
"""Tests of the differences between runs of equal seed."""
Values = Mapping[int | str, float]

WORDS: dict[Outcome, str] = {
    "cost": "cost",
    "violation": "violation rate",
    "catastrophe": "catastrophe rate",
    "env_return": "environment return",
    "shaped_return": "logged return",
}


def shared_protocols(comparison: Comparison) -> list[str]:
    """The evaluations that every run of both arms has, held-out first."""
    runs = (*comparison.first.runs, *comparison.second.runs)
    names = set.intersection(*(set(run.evaluations) for run in runs))
    return sorted(names, key=lambda name: (name != "held-out", name))


def source_of(comparison: Comparison) -> str:
    """The source of a comparison's numbers: 'training' or a protocol."""
    claim = comparison.claim
    if claim.source != "auto":
        return claim.source
    protocols = shared_protocols(comparison)
    return protocols[0] if protocols and claim.outcome != "shaped_return" else "training"


def run_outcome(run: RunRecord, outcome: Outcome, source: str, window: Window = "final") -> float | None:
    """The outcome of one run; None if it has none or if it is not finite."""
    value = _trained(run, outcome, WINDOWS[window]) if source == "training" else _evaluated(run, outcome, source)
    return value if value is not None and math.isfinite(value) else None


def _trained(run: RunRecord, outcome: Outcome, window: int) -> float | None:
    if outcome == "cost":
        return run.over("episode_cost", window)
    if outcome == "env_return":
        return run.over("env_return", window)
    if outcome == "shaped_return":
        shaped = run.over("shaped_return", window)
        return shaped if shaped is not None else run.over("env_return", window)
    limit = _limit(run, outcome)
    last = max((row["epoch"] for row in run.epochs), default=0)
    costs = [row["cost"] for row in run.episodes if row.get("finished") and row["epoch"] > last - window]
    return float(np.mean([cost > limit for cost in costs])) if costs else None


def _evaluated(run: RunRecord, outcome: Outcome, protocol: str) -> float | None:
    table = run.evaluations.get(protocol)
    if table is None or outcome == "shaped_return":
        return None
    if outcome in table.columns:
        return float(np.mean(floats(table, outcome)))
    if outcome in ("cost", "env_return") or "cost" not in table.columns:
        return None
    return float(np.mean(floats(table, "cost") > _limit(run, outcome)))


def _limit(run: RunRecord, outcome: Outcome) -> float:
    """An episode counts if its cost is above this."""
    assert run.config.budget is not None
    return run.config.budget * (1.0 if outcome == "violation" else CATASTROPHE)


def against(values: Sequence[float]) -> str:
    """Two arms' numbers in words."""
    return f"{values[0]:.4g} against {values[1]:.4g}"


@dataclass(frozen=True)
class Verdict:
    """The result of a test of two arms."""

    first: float
    """Means over runs."""
    second: float
    p: float | None
    """None for an interval."""
    text: str
    decided: int
    """-1 if the first arm is significantly lower, 1 if it is higher, 0 if the test is not significant."""
    leans: int
    """The same by two standard errors, for runs that are too few for the test."""

    @property
    def difference(self) -> float:
        return self.first - self.second

    @property
    def word(self) -> str:
        return {-1: "lower", 0: "undecided", 1: "higher"}[self.decided]


def values_of(arm: ArmRecord, outcome: Outcome, source: str, window: Window = "final") -> dict[int | str, float]:
    """The outcomes of the runs that have one, by seed (see `ArmRecord.matched_by`)."""
    found = {key: run_outcome(run, outcome, source, window) for key, run in arm.matched_by.items()}
    return {key: value for key, value in found.items() if value is not None}


def verdict(comparison: Comparison, source: str, window: Window = "final") -> Verdict | None:
    """The verdict of the claimed test on a comparison; None if an arm has too few runs for it."""
    outcome = comparison.claim.outcome
    first, second = (values_of(arm, outcome, source, window) for arm in (comparison.first, comparison.second))
    return judge(comparison.claim, first, second)


def compared(claim: Claim, first: Values, second: Values) -> tuple[Values, Values]:
    """The outcomes that the claimed test compares: for a paired test, those of the seeds that both arms have."""
    if claim.test not in PAIRED:
        return first, second
    shared = [key for key in first if key in second]
    return {key: first[key] for key in shared}, {key: second[key] for key in shared}


def judge(claim: Claim, first: Values, second: Values) -> Verdict | None:
    """The verdict of the claimed test on the outcomes of two arms; None if they are too few."""
    first, second = compared(claim, first, second)
    if min(len(first), len(second)) < (LEAST if claim.test == "bootstrap" else 2):
        return None
    a, b = np.array(list(first.values())), np.array(list(second.values()))
    try:
        p, text = _tested(claim, first, second)
    except InputError:  # a test that these numbers do not allow: no variation, or seeds that do not pair
        return None
    difference = float(a.mean() - b.mean())
    if p is None:
        interval = bootstrap_mean_difference(a, b, level=1.0 - claim.alpha)
        decided = int(np.sign(difference)) if interval.excludes_zero else 0
        text = f"interval {interval.low:.3g} to {interval.high:.3g}"
    else:
        decided = int(np.sign(difference)) if p < claim.alpha else 0
    error = float(np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)))
    leans = int(np.sign(difference)) if abs(difference) > 2 * error else 0
    return Verdict(float(a.mean()), float(b.mean()), p, text, decided, leans)


def _tested(claim: Claim, first: Values, second: Values) -> tuple[float | None, str]:
    a, b = list(first.values()), list(second.values())
    if claim.test == "none":
        return 1.0, "no test"  # never significant
    if claim.test == "bootstrap":
        return None, ""
    if claim.test == "permutation":
        test = permutation_test if len(a) + len(b) <= _COUNTABLE else sampled_permutation_test
        result = test(a, b, claim.sides)
        return float(result.p), f"p = {result if result.exact else format(float(result.p), '.2g')}"
    if claim.test == "welch":
        p = _one_sided(welch_t_test(a, b), claim.sides)
        return p, f"p = {p:.2g}"
    pairs = pair_by_seed(list(first), a, list(second), b)
    if claim.test == "sign-flip":
        result = sign_flip_test(pairs, claim.sides)
        return float(result.p), f"p = {result}"
    p = _one_sided(paired_t_test(pairs), claim.sides)
    return p, f"p = {p:.2g}"


def _one_sided(result: Any, sides: str) -> float:
    """A two-sided p of a t-test, for the alternative that was claimed."""
    if sides == "two-sided":
        return float(result.p)
    towards = result.statistic < 0 if sides == "less" else result.statistic > 0
    return float(result.p / 2 if towards else 1 - result.p / 2)


def smallest_p(claim: Claim, first: int, second: int, paired: int) -> float | None:
    """The smallest p that this many runs can give; None for tests without such a limit, 1 if no test is possible."""
    if claim.test == "permutation":
        return float(smallest_permutation_p(first, second, claim.sides)) if min(first, second) else 1.0
    if claim.test == "sign-flip":
        return float(smallest_sign_flip_p(paired, claim.sides)) if paired else 1.0
    return None


def summarise_arm(arm: ArmRecord) -> Iterator[dict[str, Any]]:
    """The mean outcomes of an arm over its runs, from training and from each of its evaluations."""
    for source in ("training", *arm.protocols):
        figures: dict[str, float | None] = {}
        for outcome in WORDS:
            values = list(values_of(arm, outcome, source).values())
            figures[outcome] = float(np.mean(values)) if values else None
        yield {
            "env": arm.env,
            "arm": arm.name,
            "source": source,
            "seeds": arm.seeds if source == "training" else [run.seed for run in arm.runs if source in run.evaluations],
            "budget": arm.first.config.budget,
            **figures,
        }
