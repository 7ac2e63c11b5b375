"""The answer to a study's question: a sentence for each comparison, which claims no more than its test allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vlmsafe.analysis.intervals import Interval
from vlmsafe.audit.findings import Audit, counted
from vlmsafe.audit.kinds import Severity
from vlmsafe.comparison.claims import RATES
from vlmsafe.comparison.judging import PAIRED
from vlmsafe.comparison.outcomes import WORDS, values_of
from vlmsafe.comparison.power import detectable_sentence
from vlmsafe.report.cells import compared_window
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import minus
from vlmsafe.report.results import ComparisonResult, ContrastResult, contrast_results, test_name


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
        text += f"; difference {_interval(result.interval, claim.outcome)}"
    return f"{text}. {_decision(result)}"


def _interval(interval: Interval, outcome: str) -> str:
    ends = (signed(end, outcome).removesuffix(" pp") for end in (interval.low, interval.high))
    method = {"t": "t interval", "percentile bootstrap": "percentile interval"}.get(interval.method, "interval")
    return f"{signed(interval.estimate, outcome)}, {100 * interval.level:g} % {method} {' to '.join(ends)}"


def _from(result: ComparisonResult) -> str:
    if result.source != "training":
        return f"evaluation {result.source}"
    return f"training, {compared_window(result.comparison, result.comparison.claim.window)}"


def _decision(result: ComparisonResult) -> str:
    claim, verdict = result.comparison.claim, result.verdict
    if claim.test == "none":
        return "No test is claimed, so this only describes these runs."
    if result.look is not None and result.look.level is None:
        return f"{result.look.text[0].upper()}{result.look.text[1:]}."
    if verdict is None:
        return f"Not tested ({test_name(claim.test)}): it needs more runs, runs that differ, or matching seeds."
    if claim.test == "bootstrap":
        return "This interval is shown as published. It is too narrow for few runs, so it decides nothing."
    how = f"{result.test}, {verdict.text}"
    if result.correction:
        how += f", {result.correction}"
    if result.look is not None and result.look.looks > 1:
        how += f", {result.look.text}"
    if claim.joint:
        return f"{_part(result)} ({how})."
    text = f"{_shown(result)} ({how})."
    if result.decided:
        return text
    if result.smallest is not None and result.smallest >= result.level:
        return f"{text} This many runs cannot show it: the smallest p that they can give is {result.smallest:.2g}."
    detectable = detectable_sentence(claim, result.first, result.second, level=result.level)
    return f"{text} {detectable}" if detectable else text


def _shown(result: ComparisonResult) -> str:
    claim = result.comparison.claim
    if claim.kind == "non-inferiority":
        no = "is not worse" if result.decided else "has not been shown to be no worse"
        return f"'{claim.first}' {no} than '{claim.second}' by {claim.margin} or more"
    if claim.kind == "equivalence":
        no = "are the same" if result.decided else "have not been shown to be the same"
        return f"'{claim.first}' and '{claim.second}' {no} within {claim.margin}"
    if result.decided:
        return f"The difference is significant: '{claim.first}' is {'lower' if result.decided < 0 else 'higher'}"
    return "The difference is not significant"


def _part(result: ComparisonResult) -> str:
    """What is decided about a joint claim, of which this is a part."""
    decision, name = result.decision, result.comparison.claim.joint
    assert decision is not None
    if decision.joint_p is None:
        return f"Part of the joint claim '{name}', of which another part is not tested yet"
    state = "holds" if decision.joint_holds else "is not shown"
    return f"Part of the joint claim '{name}', which {state}: the largest p of its parts is {decision.joint_p:.2g}"


def contrast_sentence(result: ContrastResult) -> str:
    """The result of a contrast, and whether its test is significant."""
    verdict, claim = result.verdict, result.verdict.claim
    if verdict.missing:
        cell = verdict.missing[0]
        return f"{claim.name}: no {WORDS[claim.outcome]} of '{cell.arm}' on {cell.env} yet ({claim.source})."
    if result.waits:
        return f"{claim.name}: {result.waits}."
    if verdict.estimate is None or verdict.interval is None or verdict.p is None:
        how = test_name(claim.test)
        return f"{claim.name}: not tested ({how}): it needs more runs, runs that differ, or matching seeds."
    how = f"{result.test}, {verdict.text}" + (f", {result.correction}" if result.correction else "")
    word = "significant" if result.decision.decided else "not significant"
    return (
        f"{claim.name}: the {WORDS[claim.outcome]} differs between the differences by "
        f"{_interval(verdict.interval, claim.outcome)} ({claim.source}). The interaction is {word} ({how})."
    )


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
    if claim.joint:
        return f"'{claim.joint}': {'; '.join(parts)}.{doubt}"
    return f"{known[0].word.capitalize()} of '{claim.first}' against '{claim.second}': {'; '.join(parts)}.{doubt}"


def _short(result: ComparisonResult) -> str:
    waits = result.look is not None and result.look.level is None
    if result.verdict is None and result.comparison.claim.tested and not waits:
        return "too few runs to test"
    return says(result)


def says(result: ComparisonResult) -> str:
    """What is decided, in a few words; for a part of a joint claim, about the whole of it."""
    claim = result.comparison.claim
    if result.look is not None and result.look.level is None:
        return "no verdict yet"
    if not claim.tested or result.verdict is None:
        return "not tested"
    if claim.joint and result.decision is not None:
        return f"joint claim {'holds' if result.decision.joint_holds else 'not shown'}"
    if claim.kind == "difference":
        return {-1: "lower", 0: "no significant difference", 1: "higher"}[result.decided]
    word = f"no worse within {claim.margin}" if claim.kind == "non-inferiority" else f"the same within {claim.margin}"
    return word if result.decided else f"not shown to be {word}"


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
    contrasts = [contrast_sentence(one) for one in contrast_results(dataset)]
    lines = [*(sentence(one) for one in known), *contrasts]
    return [headline(known), *lines[:most], audit_line(dataset.audit)]


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
