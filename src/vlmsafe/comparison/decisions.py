"""Decisions: which claims are shown, after the correction for several tests. The audit and the report use this alone.

The number of tests is that of the claims as they were stated (`claims.count_tests`). Tests whose runs are not there yet
count too, because otherwise an unfinished study would be judged at a level that is too generous.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vlmsafe.comparison.claims import Correction, Sides
from vlmsafe.comparison.comparisons import Comparison
from vlmsafe.comparison.judging import Verdict, compared, judge, one_sided
from vlmsafe.comparison.looks import ONE_LOOK, Looks, LookState, look_state, seeds_of_looks
from vlmsafe.comparison.outcomes import Values, source_of, values_of
from vlmsafe.runs.records import ArmRecord


@dataclass(frozen=True)
class Tested:
    """What a decision needs to know of a test."""

    alpha: float
    """The level that was claimed."""
    p: float | None
    """None if there are not enough runs for the test."""
    direction: int
    """What the test shows if it is significant: -1 or 1."""
    joint: tuple[str, ...] = ()
    """The joint claim that it is a part of; tests of one joint claim have the same."""


@dataclass(frozen=True)
class Decision:
    """What is decided about a test."""

    decided: int
    """The direction of the test if it is significant after the correction, otherwise 0."""
    level: float
    """p must be below it."""
    joint_p: float | None = None
    """Of a part of a joint claim: the largest p of its parts, which must be below the level."""
    joint_holds: bool = False
    """Of a part of a joint claim: whether all parts are significant."""


def decide(tests: Sequence[Tested], correction: Correction, count: int) -> list[Decision]:
    """Decide tests, of which there are `count` in all, together.

    Bonferroni divides each level by the count. Holm does so for the smallest p, divides by one less for each next p,
    and stops at the first that is not significant. The tests after it are not judged at a more generous level than that
    one, so that no p is below the level of a test that is not significant. A joint claim is one test with the largest p
    of its parts: it holds if all of them are significant at its level, which is the strictest of theirs, and needs no
    correction for their number.
    """
    units: dict[tuple[object, ...], list[int]] = {}
    for place, test in enumerate(tests):
        units.setdefault(test.joint or (place,), []).append(place)
    count = max(count, len(units))
    found: dict[int, Decision] = {}
    most = math.inf  # the level at which Holm stopped
    for order, (unit, p) in enumerate(
        sorted(_with_p(units, tests), key=lambda pair: (pair[1] is None, pair[1] or 0.0))
    ):
        left = {"none": 1, "bonferroni": count, "holm": count - order}[correction]
        level = min(most, min(tests[place].alpha for place in unit) / left)
        holds = p is not None and p < level
        if correction == "holm" and not holds:
            most = level
        for place in unit:
            test = tests[place]
            own = test.direction if holds and test.p is not None else 0
            found[place] = Decision(own, level, p if test.joint else None, bool(test.joint) and holds)
    return [found[place] for place in range(len(tests))]


def _with_p(
    units: dict[tuple[object, ...], list[int]], tests: Sequence[Tested]
) -> list[tuple[list[int], float | None]]:
    """Each unit with its p: the largest of its parts, None if one has none."""
    found: list[tuple[list[int], float | None]] = []
    for unit in units.values():
        ps = [tests[place].p for place in unit]
        known = [p for p in ps if p is not None]
        found.append((unit, max(known) if len(known) == len(ps) else None))
    return found


@dataclass(frozen=True)
class LookPlan:
    """What a study has decided about when its claims are decided."""

    seeds: Mapping[tuple[str, str], Sequence[int]] = field(default_factory=dict)
    """The planned seeds of each cell (environment, arm). Claims about other cells are decided with the runs there."""
    looks: Looks = ONE_LOOK


@dataclass(frozen=True)
class Judged:
    """A comparison with its outcomes, the verdict of its test and the decision about it."""

    comparison: Comparison
    source: str
    first: Values
    """Each run's number, by its seed; for a paired test those of the shared seeds."""
    second: Values
    verdict: Verdict | None
    """None if there are too few runs for the test, or no test."""
    decision: Decision | None
    """None if no test decides the claim."""
    look: LookState | None = None
    """Whether the claim may be decided yet; None if nothing is known of planned seeds."""

    @property
    def at_its_level(self) -> Comparison:
        """The comparison with the level at which it is judged in place of the claimed one."""
        if self.decision is None:
            return self.comparison
        claim = dataclasses.replace(self.comparison.claim, alpha=self.decision.level)
        return dataclasses.replace(self.comparison, claim=claim)


def judge_all(
    comparisons: Sequence[Comparison],
    correction: Correction,
    count: int,
    others: Sequence[Tested] = (),
    plan: LookPlan | None = None,
) -> tuple[list[Judged], list[Decision]]:
    """Judge comparisons together with `others`, the contrasts; returns them, and the decisions about the others.

    With a `plan`, a claim has a verdict only at a look: when all planned seeds of its arms are there, or a share of
    them that the study named beforehand. With several looks each claim spends its own part of the level, as Bonferroni
    divides it, because levels that depend on other claims cannot be spent in advance.
    """
    plan = plan or LookPlan()
    divided = count if correction != "none" and len(plan.looks.at) > 1 else 1
    found = [_judged(one, plan, divided) for one in comparisons]
    tested = [place for place, one in enumerate(found) if one.comparison.claim.tested]
    rest = [dataclasses.replace(one, alpha=one.alpha / divided) for one in others]
    tests = [_tested(found[place], divided) for place in tested]
    decisions = decide([*tests, *rest], "none" if divided > 1 else correction, count)
    for place, decision in zip(tested, decisions, strict=False):
        found[place] = dataclasses.replace(found[place], decision=decision)
    return found, decisions[len(tested) :]


def _judged(comparison: Comparison, plan: LookPlan, divided: int) -> Judged:
    claim, source = comparison.claim, source_of(comparison)
    arms = (comparison.first, comparison.second)
    values: list[Values] = [values_of(arm, claim.outcome, source, claim.window) for arm in arms]
    planned = [plan.seeds.get((comparison.env, arm.name)) for arm in arms]
    look = None
    if claim.tested and planned[0] and planned[1]:
        there = [finished(arm, own) for arm, own in zip(arms, values, strict=True)]
        sides: Sides = "less" if one_sided(claim) else "two-sided"
        both = [planned[0], planned[1]]
        look = look_state(both, there, plan.looks, alpha=claim.alpha / divided, sides=sides)
        # A claim that is decided at a look stays decided. The parts of a joint claim are judged at the newest one.
        for seeds in seeds_of_looks(both, plan.looks)[: 0 if claim.joint else look.number]:
            earlier = look_state(both, seeds, plan.looks, alpha=claim.alpha / divided, sides=sides)
            found = _at_look(comparison, source, values, earlier)
            if found.verdict is not None and found.verdict.p is not None and found.verdict.p < (earlier.level or 0.0):
                return found
    return _at_look(comparison, source, values, look)


def _at_look(comparison: Comparison, source: str, values: Sequence[Values], look: LookState | None) -> Judged:
    """The comparison with the seeds of a look, without a verdict if there is none yet."""
    claim = comparison.claim
    if look is not None and look.level is not None:
        values = [_only(own, seeds) for own, seeds in zip(values, look.seeds, strict=True)]
    first, second = compared(claim, values[0], values[1])
    waits = claim.test == "none" or (look is not None and look.level is None)
    return Judged(comparison, source, first, second, None if waits else judge(claim, first, second), None, look)


def finished(arm: ArmRecord, values: Values) -> list[int | str]:
    """The seeds of the runs that have an outcome and were trained to the end."""
    runs = arm.matched_by
    return [key for key in values if runs[key].epochs_recorded >= runs[key].config.epochs]


def _only(values: Values, seeds: Sequence[int]) -> Values:
    return {key: value for key, value in values.items() if key in seeds}


def _tested(one: Judged, divided: int) -> Tested:
    claim, verdict = one.comparison.claim, one.verdict
    joint = (claim.joint, one.comparison.env) if claim.joint else ()
    p, direction = (None, 0) if verdict is None else (verdict.p, verdict.direction)
    level = claim.alpha / divided
    if one.look is not None and one.look.level is not None:
        level = one.look.level
    return Tested(level, p, direction, joint)
