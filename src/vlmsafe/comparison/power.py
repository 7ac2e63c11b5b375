"""The power of claims: what the planned runs can show, and what the runs of an undecided comparison could have shown.

`planned_tests` lists the tests that the claims of a study will make. `spread` finds the standard deviations between
runs for one of them, in pilot runs or wherever else runs are known. `power_row` says how large a difference the test
can detect and how many seeds a given difference needs. `detectable_sentence` is for reports. Claims with a margin have
the smallest margin that two arms without a difference can keep in place of the smallest difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from vlmsafe.analysis.power import (
    MOST_RUNS,
    POWER,
    Computed,
    Design,
    PowerTest,
    detectable_difference,
    least_runs,
    runs_needed,
)
from vlmsafe.comparison.claims import RATES, Claim, Claims, Kind, Outcome, count_tests
from vlmsafe.comparison.judging import PAIRED, compared, one_sided
from vlmsafe.comparison.outcomes import WORDS, Values, values_of
from vlmsafe.runs.records import ArmRecord

_LEAST = 2  # runs, for a deviation
_TESTS: dict[PowerTest, str] = {
    "permutation": "permutation test",
    "sign-flip": "sign-flip test",
    "welch": "Welch's t-test",
    "paired-t": "paired t-test",
}
_BASIS = {"simulated": ", simulated", "approximated": ", approximated by a t-test"}
_SHOWS: dict[Kind, str] = {
    "difference": "a difference of {} can be detected",
    "non-inferiority": "an arm that is as good can be shown to be worse by less than {}",
    "equivalence": "arms that do not differ can be shown to differ by less than {}",
}
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


# -- what is tested -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedArm:
    """The runs that are planned for an arm in an environment."""

    seeds: tuple[int, ...]
    protocols: tuple[str, ...] = ()
    """Evaluations that every run will have."""


@dataclass(frozen=True)
class PlannedTest:
    """One test that a claim will make."""

    claim: Claim
    """With its environment."""
    first: PlannedArm
    second: PlannedArm
    source: str
    """'training' or a protocol."""
    level: float
    """The claimed alpha, corrected for the number of tests."""

    @property
    def paired(self) -> bool:
        return self.claim.test in PAIRED

    @property
    def runs(self) -> tuple[int, ...]:
        """The runs of each arm; for a paired test, the number of seeds that both have."""
        if self.paired:
            return (len(set(self.first.seeds) & set(self.second.seeds)),)
        return len(self.first.seeds), len(self.second.seeds)

    @property
    def env(self) -> str:
        assert self.claim.env is not None
        return self.claim.env


def planned_tests(claims: Claims, arms: Mapping[tuple[str, str], PlannedArm]) -> list[PlannedTest]:
    """Every test that the claims state, on each environment with both arms.

    A correction counts tests as `count_tests` does. With Holm's, the level is that of the first test, the strictest.
    """
    found = []
    for claim in claims.comparisons:
        envs = [claim.env] if claim.env else dict.fromkeys(env for env, _ in arms)
        for env in envs:
            if claim.tested and (env, claim.first) in arms and (env, claim.second) in arms:
                first, second = arms[env, claim.first], arms[env, claim.second]
                source = _source(claim, first, second)
                found.append(PlannedTest(replace(claim, env=env), first, second, source, claim.alpha))
    tests = 1 if claims.correction == "none" else count_tests(claims, arms)
    return [replace(one, level=one.level / tests) for one in found]


def _source(claim: Claim, first: PlannedArm, second: PlannedArm) -> str:
    """As `source_of`, for runs that are not made yet."""
    if claim.source != "auto":
        return claim.source
    shared = sorted(set(first.protocols) & set(second.protocols), key=lambda name: (name != "held-out", name))
    return shared[0] if shared and claim.outcome != "shaped_return" else "training"


# -- how much runs differ -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KnownArm:
    """An arm whose runs are known."""

    name: str
    deviation: float
    """The sample standard deviation between its runs."""
    runs: int
    values: Values
    """By seed; empty where only the deviation is known."""


@dataclass(frozen=True)
class Deviation:
    """A standard deviation between runs."""

    value: float
    runs: int
    """How many it comes from."""
    pooled: int = 0
    """Over how many other arms of the environment it is pooled; 0 where it is that of the arm itself."""


@dataclass(frozen=True)
class Spread:
    """How much runs differ, for one test."""

    deviations: tuple[Deviation, ...]
    """Of each arm. Of a paired test with known pairs, one: that of the differences."""
    source: str
    """What the runs are, such as 'pilot runs'."""

    def design(self, planned: PlannedTest) -> Design:
        """The test as `vlmsafe.analysis.power` takes it. Pairs that are not known are taken to be independent."""
        values = tuple(one.value for one in self.deviations)
        if planned.paired:
            values = (math.hypot(*values),)
        return design_of(planned.claim, planned.runs, values, planned.level)


def known_arms(arms: Mapping[tuple[str, str], ArmRecord], planned: PlannedTest) -> list[KnownArm]:
    """The arms of a test's environment that have its outcome in two runs or more."""
    claim, found = planned.claim, []
    for (env, name), arm in arms.items():
        values = values_of(arm, claim.outcome, planned.source, claim.window) if env == planned.env else {}
        if len(values) >= _LEAST:
            found.append(KnownArm(name, _deviation(list(values.values())), len(values), values))
    return found


def spread(planned: PlannedTest, known: Sequence[KnownArm], source: str) -> Spread | None:
    """The deviations for a test: of its own arms where they are known, or else pooled over the others.

    None if no arm is known, or if no known run differs from another.
    """
    by_name = {one.name: one for one in known}
    first, second = by_name.get(planned.claim.first), by_name.get(planned.claim.second)
    found: tuple[Deviation, ...]
    if planned.paired and first and second and len(shared := [key for key in first.values if key in second.values]) > 1:
        differences = [first.values[key] - second.values[key] for key in shared]
        found = (Deviation(_deviation(differences), len(shared)),)
    else:
        own = [Deviation(one.deviation, one.runs) if one else _pooled(known) for one in (first, second)]
        found = tuple(one for one in own if one is not None)
        if len(found) < len(own):
            return None
    return Spread(found, source) if any(one.value > 0.0 for one in found) else None


def _pooled(known: Sequence[KnownArm]) -> Deviation | None:
    degrees = sum(one.runs - 1 for one in known)
    if not degrees:
        return None
    squares = math.fsum((one.runs - 1) * one.deviation**2 for one in known)
    return Deviation(math.sqrt(squares / degrees), sum(one.runs for one in known), len(known))


def _deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1))


# -- what can be detected -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PowerRow:
    """What a planned test can detect."""

    planned: PlannedTest
    spread: Spread | None
    """None if nothing is known about the variance between runs."""
    wanted: float
    detectable: Computed | None
    """The smallest difference with the wanted power, or the smallest margin; None if the variance is not known."""
    distance: float | None
    """The difference that was asked for, or the margin of the claim."""
    needed: Computed | None
    """The seeds per arm that it needs; None if nothing was asked or the variance is not known."""
    least: int | None = None
    """If the planned seeds cannot be significant at all: how many can."""

    def __str__(self) -> str:
        """The row as a sentence."""
        claim = self.planned.claim
        return f"{self.planned.env}, {WORDS[claim.outcome]} of {claim}: {self._detects()}{self._needs()}."

    def _detects(self) -> str:
        claim, seeds = self.planned.claim, seeds_text(self.planned.runs)
        if self.least is not None:
            cannot = f"{seeds} cannot show any difference"
            if claim.kind != "difference":
                cannot = f"{seeds} cannot show {claim.kind} with any margin"
            how = self._how("") if self.needed is not None else f"({self._test('')})"
            return f"{cannot} {how}; at least {self.least} are needed"
        if self.detectable is None or self.detectable.value is None:
            return f"what {seeds} can detect is unknown, because no variance between runs is known"
        shows = _SHOWS[claim.kind].format(amount(self.detectable.value, claim.outcome))
        if claim.outcome in RATES and self.detectable.value > 1.0:
            shows = "no difference that a rate can have can be detected"
            if claim.kind != "difference":
                shows = f"{claim.kind} cannot be shown within any margin that a rate can have"
        how = self._how(_BASIS.get(self.detectable.basis, ""))
        return f"with {seeds}, {shows} with {100 * self.wanted:g} % power {how}"

    def _how(self, basis: str) -> str:
        assert self.spread is not None
        return f"({self._test(basis)}; {_deviations(self.spread, self.planned)})"

    def _test(self, basis: str) -> str:
        claim = self.planned.claim
        sides = "one-sided" if one_sided(claim) else "two-sided"
        return f"{_TESTS[cast(PowerTest, claim.test)]}, {sides}, level {self.planned.level:.3g}{basis}"

    def _needs(self) -> str:
        if self.needed is None or self.distance is None:
            return ""
        what = "a difference" if self.planned.claim.kind == "difference" else "the margin"
        size = f"{100 * self.distance:g} pp" if self.planned.claim.outcome in RATES else f"{self.distance:g}"
        many = f"more than {MOST_RUNS}" if self.needed.value is None else f"{self.needed.value:g}"
        return f"; {what} of {size} needs {many} {'matched seeds' if self.planned.paired else 'seeds per arm'}"


def power_row(
    planned: PlannedTest, known: Spread | None, *, wanted: float = POWER, difference: float | None = None
) -> PowerRow:
    """What a planned test can detect, and how many seeds a difference needs; for a claim with a margin, its margin."""
    claim = planned.claim
    distance = difference if claim.kind == "difference" else claim.margin_value
    if claim.outcome in RATES and distance is not None and distance > 1.0:
        distance = None  # no rates differ that much
    design = design_of(claim, planned.runs, (1.0,) * len(planned.runs), planned.level)
    least = least_runs(design) if design.basis == "impossible" else None
    if known is None:
        return PowerRow(planned, None, wanted, None, distance, None, least)
    design = known.design(planned)
    needed = None if distance is None else runs_needed(design, distance, wanted, claim.kind)
    return PowerRow(planned, known, wanted, detectable_difference(design, wanted, claim.kind), distance, needed, least)


def detectable_sentence(
    claim: Claim, first: Values, second: Values, level: float | None = None, wanted: float = POWER
) -> str | None:
    """What the runs of a comparison that is not significant could have detected, with the deviation that they have.

    `level` is the level of the test after the claims' correction; by default the claim's own. None if there is nothing
    to say: no test, too few runs, or runs that do not differ. This is not the power for the observed difference, which
    would only repeat its p.

    >>> claim = Claim("a", "b", test="welch")
    >>> detectable_sentence(claim, dict(enumerate([1.0, 3.0, 5.0])), dict(enumerate([2.0, 4.0, 9.0])))
    'Three seeds per arm can detect a difference of 10.9 with 80 % power.'
    """
    level = claim.alpha if level is None else level
    first, second = compared(claim, first, second)
    if not claim.tested or min(len(first), len(second)) < _LEAST:
        return None
    if claim.test in PAIRED:
        runs: tuple[int, ...] = (len(first),)
        values: tuple[float, ...] = (_deviation([first[key] - second[key] for key in first]),)
    else:
        runs = (len(first), len(second))
        values = (_deviation(list(first.values())), _deviation(list(second.values())))
    if not any(values):
        return None
    found = detectable_difference(design_of(claim, runs, values, level), wanted, claim.kind)
    seeds = seeds_text(runs, in_words=True)
    seeds, with_power = f"{seeds[0].upper()}{seeds[1:]}", f"with {100 * wanted:g} % power"
    if found.value is None:
        what = "any difference" if claim.kind == "difference" else f"{claim.kind} with any margin"
        return f"{seeds} cannot show {what}: p cannot fall below the level of {level:.3g}."
    if claim.outcome in RATES and found.value > 1.0:
        what = "detect any difference" if claim.kind == "difference" else f"show {claim.kind} within any margin"
        return f"{seeds} cannot {what} that a rate can have {with_power}."
    size = amount(found.value, claim.outcome)
    if claim.kind == "difference":
        return f"{seeds} can detect a difference of {size} {with_power}."
    return f"{seeds} can show {claim.kind} within {size} {with_power}, if the arms do not differ."


def design_of(claim: Claim, runs: tuple[int, ...], deviations: tuple[float, ...], level: float) -> Design:
    """The test of a claim as `vlmsafe.analysis.power` takes it. Claims with a margin are tested one side at a time."""
    sides = claim.sides if claim.kind == "difference" else "greater"
    return Design(cast(PowerTest, claim.test), runs, deviations, sides, level)


# -- in words -------------------------------------------------------------------------------------------------------


def amount(value: float, outcome: Outcome) -> str:
    """A difference as it is written in a sentence; of rates, in percentage points.

    >>> amount(0.1424, "catastrophe"), amount(1234.56, "cost"), amount(0.1424, "env_return")
    ('14.2 pp', '1,234.6', '0.142')
    """
    if outcome in RATES:
        return f"{100 * value:.1f} pp"
    return f"{value:,.1f}" if value >= 10.0 else f"{value:.3g}"


def seeds_text(runs: tuple[int, ...], *, in_words: bool = False) -> str:
    """
    >>> seeds_text((5, 5)), seeds_text((5, 3)), seeds_text((4,), in_words=True)
    ('5 seeds per arm', '5 and 3 seeds', 'four matched seeds')
    """
    words = [_NUMBERS[one] if in_words and one < len(_NUMBERS) else str(one) for one in runs]
    noun = "seed" if set(runs) == {1} else "seeds"
    if len(runs) == 1:
        return f"{words[0]} matched {noun}"
    return f"{words[0]} {noun} per arm" if runs[0] == runs[1] else f"{words[0]} and {words[1]} {noun}"


def _deviations(known: Spread, planned: PlannedTest) -> str:
    outcome = planned.claim.outcome
    if planned.paired and len(known.deviations) == 1:
        (own,) = known.deviations
        return f"sd of differences {amount(own.value, outcome)} from {own.runs} pairs of {known.source}"
    first, second = known.deviations
    if first.pooled and second.pooled:
        text = f"sd {amount(first.value, outcome)} from {_of(first, known.source)}"
    elif first.pooled or second.pooled:
        arms = zip((planned.claim.first, planned.claim.second), known.deviations, strict=True)
        parts = (f"sd {amount(one.value, outcome)} of '{arm}' from {_of(one, known.source)}" for arm, one in arms)
        text = ", ".join(parts)
    else:
        sizes = " and ".join(amount(one.value, outcome) for one in known.deviations)
        text = f"sd {sizes} from {first.runs} and {second.runs} {known.source}"
    return f"{text}, pairs taken as independent" if planned.paired else text


def _of(one: Deviation, source: str) -> str:
    if not one.pooled:
        return f"{one.runs} {source}"
    return f"{one.runs} {source} of {'another arm' if one.pooled == 1 else f'{one.pooled} arms, pooled'}"
