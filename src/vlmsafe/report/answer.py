"""The answer to a study's question: a sentence for each comparison, which claims no more than its test allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vlmsafe.analysis.resampling import LEAST, LEVEL, Interval, bootstrap_mean_difference, bootstrap_paired_difference
from vlmsafe.analysis.statistics import pair_by_seed
from vlmsafe.audit.findings import Audit, Finding, counted
from vlmsafe.audit.kinds import Severity
from vlmsafe.comparison.claims import Claim
from vlmsafe.comparison.comparisons import Comparison
from vlmsafe.comparison.outcomes import (
    PAIRED,
    WORDS,
    Values,
    Verdict,
    compared,
    judge,
    smallest_p,
    source_of,
    values_of,
)
from vlmsafe.report.cells import compared_window
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import minus

RATES = ("violation", "catastrophe")
_TESTS = {
    "permutation": "exact permutation test",
    "sign-flip": "exact sign-flip test over matched seeds",
    "welch": "Welch's t-test",
    "paired-t": "paired t-test",
    "bootstrap": "bootstrap interval over runs",
    "none": "no test",
}
_SIDES = {"less": "one-sided, lower", "greater": "one-sided, higher", "two-sided": "two-sided"}


@dataclass(frozen=True)
class ComparisonResult:
    """The result of one comparison on one environment."""

    comparison: Comparison
    source: str
    first: Mapping[int | str, float]
    """Each run's number, by its seed."""
    second: Mapping[int | str, float]
    verdict: Verdict | None
    """None where there are too few runs for the test."""
    interval: Interval | None
    smallest: float | None
    """The smallest p that this many runs can give."""
    level: float
    """p, or one minus the coverage of the interval, must be below it. It is the claimed level, corrected if claimed."""
    strictest: float
    """The level for the smallest p of all tests; with Holm's correction the first test has to meet it."""
    decided: int
    """-1 where the first arm is lower, 1 where it is higher, 0 where the test does not decide."""
    correction: str
    finding: Finding | None
    """The audit's worst about this comparison."""

    @property
    def scale(self) -> float:
        return 100.0 if self.comparison.claim.outcome in RATES else 1.0

    @property
    def word(self) -> str:
        return WORDS[self.comparison.claim.outcome]

    @property
    def test(self) -> str:
        claim = self.comparison.claim
        if claim.test in ("bootstrap", "none"):
            return _TESTS[claim.test]
        return f"{_TESTS[claim.test]}, {_SIDES[claim.sides]}"

    @property
    def first_lower(self) -> tuple[int, int]:
        """On how many of the matched seeds the first arm is lower."""
        shared = [key for key in self.first if key in self.second]
        return sum(self.first[key] < self.second[key] for key in shared), len(shared)


def results(dataset: Dataset, chosen: Sequence[Comparison] | None = None) -> list[ComparisonResult]:
    """The result of every comparison. If the claims name a correction, it counts all tests."""
    found = [_result(one, dataset.audit) for one in dataset.compared]
    corrected = _corrected(found, dataset.claims.correction if dataset.claims else "none")
    return [one for one in corrected if chosen is None or any(one.comparison is other for other in chosen)]


def _result(comparison: Comparison, audit: Audit) -> ComparisonResult:
    claim, source = comparison.claim, source_of(comparison)
    values = [values_of(arm, claim.outcome, source, claim.window) for arm in (comparison.first, comparison.second)]
    first, second = compared(claim, *values)  # means and intervals are those of what is tested
    verdict = judge(claim, first, second) if claim.test != "none" else None
    paired = len(set(first) & set(second))
    return ComparisonResult(
        comparison,
        source,
        first,
        second,
        verdict,
        _interval(claim, first, second, claim.alpha),
        smallest_p(claim, len(first), len(second), paired) if first and second else None,
        claim.alpha,
        claim.alpha,
        verdict.decided if verdict is not None else 0,
        "",
        _worst_about(comparison, source, audit),
    )


def _interval(claim: Claim, first: Values, second: Values, alpha: float) -> Interval | None:
    """The interval of the difference over runs, at the claim's level if it is the test, else at the usual one."""
    if min(len(first), len(second)) < LEAST:
        return None
    level = 1.0 - alpha if claim.test == "bootstrap" else LEVEL
    if claim.test in PAIRED:
        pairs = pair_by_seed(list(first), list(first.values()), list(second), list(second.values()))
        return bootstrap_paired_difference(pairs, level=level)
    return bootstrap_mean_difference(list(first.values()), list(second.values()), level=level)


def _worst_about(comparison: Comparison, source: str, audit: Audit) -> Finding | None:
    """The audit's worst finding about a comparison or one of its arms; one about the comparison itself comes first.

    Findings about an evaluation that the comparison does not use do not count.
    """
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


def _corrected(found: Sequence[ComparisonResult], correction: str) -> list[ComparisonResult]:
    """The results with levels that are corrected for the number of tests.

    Bonferroni divides the claimed level by the number of tests. Holm does so for the smallest p, divides by one less
    for each next p, and stops at the first that is not significant. Intervals have no p and get Bonferroni's level.
    """
    tested = [one for one in found if one.verdict is not None]
    if correction == "none" or not tested:
        return list(found)
    many, still = len(tested), True
    by_p = sorted((one for one in tested if _p(one) is not None), key=lambda one: _p(one) or 0.0)
    name = {"bonferroni": "Bonferroni's", "holm": "Holm's"}[correction]
    text = f"with {name} correction for {counted(many, 'test')}"
    changed: dict[int, ComparisonResult] = {}
    for one in tested:
        claim = one.comparison.claim
        if _p(one) is None:
            level = claim.alpha / many
            interval = _interval(claim, one.first, one.second, level)
            decided = one.decided if interval is not None and interval.excludes_zero else 0
            changed[id(one)] = replace(
                one, interval=interval, level=level, strictest=level, decided=decided, correction=text
            )
    for place, one in enumerate(by_p):
        left = many - place if correction == "holm" else many
        level = one.comparison.claim.alpha / left
        holds = (_p(one) or 0.0) < level
        still = still and holds
        kept = holds if correction == "bonferroni" else still
        changed[id(one)] = replace(
            one,
            level=level,
            strictest=one.comparison.claim.alpha / many,
            decided=one.decided if kept else 0,
            correction=text,
        )
    return [changed.get(id(one), one) for one in found]


def _p(result: ComparisonResult) -> float | None:
    return result.verdict.p if result.verdict is not None else None


# -- in words -------------------------------------------------------------------------------------------------------


def amount(value: float, outcome: str) -> str:
    """A result as it is written in a sentence.

    >>> amount(0.316, "catastrophe"), amount(1234.5, "cost")
    ('31.6 %', '1,234.5')
    """
    text = f"{100 * value:.1f} %" if outcome in RATES else f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return minus(text)


def signed(value: float, outcome: str) -> str:
    """A difference: with its sign, and in percentage points for rates.

    >>> signed(0.122, "catastrophe")
    '+12.2 pp'
    """
    text = f"{100 * value:+.1f} pp" if outcome in RATES else f"{value:+,.1f}" if abs(value) >= 10 else f"{value:+.2f}"
    return minus(text)


def sentence(result: ComparisonResult) -> str:
    """The result of a comparison, and whether its test is significant."""
    claim = result.comparison.claim
    if not result.first or not result.second:
        lacking = claim.first if not result.first else claim.second
        return f"{result.comparison.env}: no {result.word} of '{lacking}' yet ({_from(result)})."
    means = [float(np.mean(list(values.values()))) for values in (result.first, result.second)]
    counts = len(result.first), len(result.second)
    runs = f"{counts[0]} runs each" if counts[0] == counts[1] else f"{counts[0]} and {counts[1]} runs"
    if counts == (1, 1):
        runs = "one run each"
    elif claim.test in PAIRED:
        runs = f"{counted(counts[0], 'matched seed')}"
    text = (
        f"{result.comparison.env}: {result.word} {amount(means[0], claim.outcome)} with '{claim.first}' and "
        f"{amount(means[1], claim.outcome)} with '{claim.second}' ({runs}, {_from(result)})"
    )
    if result.interval is not None:
        ends = (signed(end, claim.outcome).removesuffix(" pp") for end in (result.interval.low, result.interval.high))
        text += (
            f"; difference {signed(result.interval.estimate, claim.outcome)}, "
            f"{100 * result.interval.level:g} % interval {' to '.join(ends)}"
        )
    return f"{text}. {_decision(result)}"


def _from(result: ComparisonResult) -> str:
    if result.source != "training":
        return f"evaluation {result.source}"
    return f"training, {compared_window(result.comparison, result.comparison.claim.window)}"


def _decision(result: ComparisonResult) -> str:
    claim, verdict = result.comparison.claim, result.verdict
    if claim.test == "none":
        return "No test is claimed, so this only describes these runs."
    if verdict is None:
        return f"Not tested: the {_TESTS[claim.test]} needs more runs, or runs with matching seeds."
    how = f"{result.test}{', ' + verdict.text if verdict.p is not None else ''}"
    if result.correction:
        how += f", {result.correction}"
    if result.decided:
        word = "lower" if result.decided < 0 else "higher"
        return f"The difference is significant: '{claim.first}' is {word} ({how})."
    text = f"The difference is not significant ({how})."
    if result.smallest is not None and result.smallest >= result.strictest:
        text += f" This many runs cannot show one: the smallest p that they can give is {result.smallest:.2g}."
    return text


def headline(found: Sequence[ComparisonResult]) -> str:
    """The first claim's result on all its environments, in one line."""
    known = [one for one in found if one.first and one.second]
    if not known:
        return "No comparison has results yet."
    claim = known[0].comparison.claim
    same = [one for one in known if replace(one.comparison.claim, env=claim.env) == claim]
    groups: dict[str, list[str]] = {}
    for one in same:
        groups.setdefault(_short(one), []).append(one.comparison.env)
    parts = [f"{word} on {_and(envs)}" for word, envs in groups.items()]
    disputed = [
        one for one in same if one.decided and one.finding is not None and one.finding.severity is Severity.ERROR
    ]
    doubt = " The audit found errors in significant results." if disputed else ""
    return f"{known[0].word.capitalize()} of '{claim.first}' against '{claim.second}': {'; '.join(parts)}.{doubt}"


def _short(result: ComparisonResult) -> str:
    if result.comparison.claim.test == "none":
        return "not tested"
    if result.verdict is None:
        return "too few runs to test"
    return {-1: "lower", 0: "no significant difference", 1: "higher"}[result.decided]


def _and(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def audit_line(audit: Audit) -> str:
    """How many findings the audit has, and the worst of them."""
    if not audit.findings:
        return "The audit found nothing wrong with these runs."
    counts = [
        counted(number, str(level))
        for level in reversed(Severity)
        if (number := sum(one.severity is level for one in audit.findings))
    ]
    worst = audit.findings[0]
    return f"The audit has {_and(counts)}. Worst: {worst.title} ({worst.where})."


def answering(dataset: Dataset, found: Sequence[ComparisonResult]) -> list[ComparisonResult]:
    """The comparisons that answer the question: none for a study that states none, because nobody asked for them."""
    supposed = bool(dataset.info.definition) and dataset.claims is None
    return [one for one in found if one.first and one.second and not supposed]


def answer_lines(dataset: Dataset, found: Sequence[ComparisonResult], most: int) -> list[str]:
    """The answer as lines of text: the headline, the comparisons behind it, and the audit in one line."""
    known = answering(dataset, found)
    if not known:
        return [*describe_arms(dataset)[:most], audit_line(dataset.audit)]
    return [headline(known), *(sentence(one) for one in known[:most]), audit_line(dataset.audit)]


def describe_arms(dataset: Dataset) -> list[str]:
    """The cost of each arm, for a report without a comparison."""
    lines = []
    for (env, name), arm in dataset.every_arm.items():
        for source in [*arm.protocols, "training"]:
            values = list(values_of(arm, "cost", source).values())
            if values:
                budgets = {run.config.budget for run in arm.runs}
                relation = _relation(float(np.mean(values)), [one for one in budgets if one is not None])
                where = f"evaluation {source}" if source != "training" else "training, final epoch"
                cost = f"cost {amount(float(np.mean(values)), 'cost')} over {counted(len(values), 'run')}"
                lines.append(f"{env}, '{name}': {cost} ({where}), {relation}.")
                break
    return lines


def _relation(cost: float, budgets: Sequence[float]) -> str:
    if len(budgets) != 1:
        return f"with budgets from {min(budgets):g} to {max(budgets):g}"
    return f"{'within' if cost <= budgets[0] else 'over'} the budget of {budgets[0]:g}"
