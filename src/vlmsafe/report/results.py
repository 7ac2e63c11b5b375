"""The results behind a report's answer: each claim with its outcomes, its interval and what is decided about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vlmsafe.analysis.intervals import Interval
from vlmsafe.analysis.statistics import Pairs, wins
from vlmsafe.audit.findings import Audit, Finding, counted
from vlmsafe.comparison.claims import RATES, Correction
from vlmsafe.comparison.comparisons import Comparison
from vlmsafe.comparison.contrasts import ContrastVerdict, judge_contrast, waits_for
from vlmsafe.comparison.decisions import Decision, Judged, LookPlan, judge_all
from vlmsafe.comparison.judging import Verdict, interval_of, smallest_p
from vlmsafe.comparison.looks import LookState
from vlmsafe.comparison.outcomes import WORDS, Values
from vlmsafe.report.dataset import Dataset

_TESTS = {
    "permutation": "exact permutation test",
    "sign-flip": "exact sign-flip test over matched seeds",
    "welch": "Welch's t-test",
    "paired-t": "paired t-test",
    "bootstrap": "percentile bootstrap interval, as published",
    "none": "no test",
}
_SIDES = {"less": "one-sided, lower", "greater": "one-sided, higher", "two-sided": "two-sided"}
_CORRECTIONS = {"bonferroni": "Bonferroni's", "holm": "Holm's"}


@dataclass(frozen=True, eq=False)
class ComparisonResult:
    """The result of one claim on one environment."""

    judged: Judged
    correction: str
    """The correction for several tests in words; empty if there is none."""
    finding: Finding | None
    """The audit's worst about this comparison."""

    @property
    def comparison(self) -> Comparison:
        return self.judged.comparison

    @property
    def source(self) -> str:
        return self.judged.source

    @property
    def first(self) -> Values:
        return self.judged.first

    @property
    def second(self) -> Values:
        return self.judged.second

    @property
    def verdict(self) -> Verdict | None:
        return self.judged.verdict

    @property
    def decision(self) -> Decision | None:
        return self.judged.decision

    @property
    def look(self) -> LookState | None:
        return self.judged.look

    @property
    def decided(self) -> int:
        """-1 where the first arm is lower, 1 where it is higher or the margin holds, 0 where nothing is decided."""
        return self.decision.decided if self.decision is not None else 0

    @property
    def level(self) -> float:
        """p must be below it: the claimed level, or the corrected one."""
        return self.decision.level if self.decision is not None else self.comparison.claim.alpha

    @cached_property
    def interval(self) -> Interval | None:
        return interval_of(self.comparison.claim, self.first, self.second)

    @property
    def smallest(self) -> float | None:
        """The smallest p that this many runs can give."""
        if not self.first or not self.second:
            return None
        paired = len(set(self.first) & set(self.second))
        return smallest_p(self.comparison.claim, len(self.first), len(self.second), paired)

    @property
    def scale(self) -> float:
        return 100.0 if self.comparison.claim.outcome in RATES else 1.0

    @property
    def word(self) -> str:
        return WORDS[self.comparison.claim.outcome]

    @property
    def test(self) -> str:
        """The claimed test in words."""
        claim = self.comparison.claim
        name = test_name(claim.test)
        if not claim.tested:
            return name
        if claim.kind != "difference":
            return f"{claim.kind} within {claim.margin}, {name}"
        return f"{name}, {_SIDES[claim.sides]}"

    @property
    def first_lower(self) -> tuple[int, int]:
        """On how many of the matched seeds the first arm is lower."""
        shared = [key for key in self.first if key in self.second]
        if not shared:
            return 0, 0
        sides = [[values[key] for key in shared] for values in (self.first, self.second)]
        return wins(Pairs(np.array(sides[0]), np.array(sides[1]))).first_lower, len(shared)


@dataclass(frozen=True, eq=False)
class ContrastResult:
    """The result of a contrast."""

    verdict: ContrastVerdict
    decision: Decision
    correction: str
    waits: str = ""
    """Why there is no verdict yet, in words."""

    @property
    def scale(self) -> float:
        return 100.0 if self.verdict.claim.outcome in RATES else 1.0

    @property
    def test(self) -> str:
        claim = self.verdict.claim
        return f"{test_name(claim.test)}, {_SIDES[claim.sides]}"


def test_name(test: str) -> str:
    """A test in words."""
    return _TESTS[test]


def results(dataset: Dataset, chosen: Sequence[Comparison] | None = None) -> list[ComparisonResult]:
    """The result of every comparison. If the claims name a correction, it counts all claimed tests."""
    found, _ = all_results(dataset)
    return [one for one in found if chosen is None or any(one.comparison is other for other in chosen)]


def contrast_results(dataset: Dataset) -> list[ContrastResult]:
    """The result of every claimed contrast."""
    return all_results(dataset)[1]


def all_results(dataset: Dataset) -> tuple[list[ComparisonResult], list[ContrastResult]]:
    """Comparisons and contrasts, decided together."""
    claims = dataset.claims
    correction: Correction = claims.correction if claims is not None else "none"
    contrasts = [judge_contrast(one, dataset.every_arm) for one in claims.contrasts] if claims is not None else []
    plan = LookPlan(dataset.info.planned_seeds, dataset.info.looks)
    waiting = [waits_for(one, dataset.every_arm, plan) for one in contrasts]
    others = [one.tested_unless(why) for one, why in zip(contrasts, waiting, strict=True)]
    judged, decisions = judge_all(dataset.compared, correction, dataset.tests, others, plan)
    used = correction if len(plan.looks.at) == 1 or correction == "none" else "bonferroni"  # as `judge_all` says
    text = "" if used == "none" else f"with {_CORRECTIONS[used]} correction for {_tests(dataset)}"
    return (
        [ComparisonResult(one, text if one.decision else "", _worst_about(one, dataset.audit)) for one in judged],
        [ContrastResult(*one) for one in zip(contrasts, decisions, [text] * len(contrasts), waiting, strict=True)],
    )


def _tests(dataset: Dataset) -> str:
    return counted(dataset.tests, "test")


def _worst_about(judged: Judged, audit: Audit) -> Finding | None:
    """The audit's worst finding about a comparison or one of its arms; one about the comparison itself comes first.

    Findings about an evaluation that the comparison does not use do not count.
    """
    comparison, source = judged.comparison, judged.source
    pair = (comparison.claim.first, comparison.claim.second)
    about, arms = [], []
    for one in audit.findings:
        subject = one.subject
        if subject.environment != comparison.env or subject.protocol not in ("", source):
            continue
        if subject.scope == "comparison" and subject.arms == pair:
            about.append(one)
        elif subject.scope in ("arm", "run") and subject.arms[0] in pair:  # two equal runs count for the first's arm
            arms.append(one)
    return max([*about, *arms], key=lambda one: one.severity, default=None)
