"""Looks: whether a claim may be decided yet, and at which level.

A study plans its seeds. Without `looks` its claims are decided once, when all planned seeds are there. A report that is
written earlier shows numbers and no verdict, because tests that are repeated until one is significant are wrong too
often. A study that wants to decide earlier says when, as shares of its planned seeds:

    looks: {at: [0.5, 1.0], spending: obrien-fleming}

Each look then has a level of its own, from `analysis.sequential`. It counts the first planned seeds up to its share and
no others, so it gives the same answer however many runs are there by the time somebody reads the report.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from vlmsafe.analysis.sequential import SPENDING, Spending, check_shares, levels
from vlmsafe.comparison.claims import Sides
from vlmsafe.errors import InputError, unknown_name

_ENTRIES = ("at", "spending")


@dataclass(frozen=True)
class Looks:
    """When the claims of a study are decided."""

    at: tuple[float, ...] = (1.0,)
    """Shares of the planned seeds. They rise and end at 1."""
    spending: Spending = "obrien-fleming"
    """How the level is divided among the looks."""

    def __str__(self) -> str:
        if self.at == (1.0,):
            return "one look, when all planned seeds are there"
        shares = ", ".join(f"{share:g}" for share in self.at)
        return f"{len(self.at)} looks, at the shares {shares} of the planned seeds, with {self.spending} spending"


ONE_LOOK = Looks()


def looks_of(entry: Any) -> Looks:
    """The looks in the entry of a study file; an `InputError` says what is wrong with it."""
    if not isinstance(entry, Mapping):
        raise InputError(f"'looks' is {entry!r}; expected a mapping such as {{at: [0.5, 1.0]}}")
    unknown = [key for key in entry if key not in _ENTRIES]
    if unknown:
        raise unknown_name("entry of 'looks'", str(unknown[0]), _ENTRIES)
    at, spending = entry.get("at", [1.0]), entry.get("spending", ONE_LOOK.spending)
    numbers = isinstance(at, Sequence) and all(type(share) in (int, float) for share in at)
    if not numbers or isinstance(at, str):
        raise InputError(f"'at' of 'looks' is {at!r}; expected a list of shares such as [0.5, 1.0]")
    if spending not in get_args(Spending):
        raise unknown_name("spending function", str(spending), SPENDING)
    check_shares(at)
    return Looks(tuple(float(share) for share in at), spending)


@dataclass(frozen=True)
class LookState:
    """Whether a claim may be decided with the runs that are there."""

    text: str
    """In words, for a report: 'final', 'no verdict yet: ...' or 'interim look 1 of 2 at level 0.0031'."""
    level: float | None
    """The level of the test; None if there is no verdict yet."""
    seeds: tuple[tuple[int, ...], ...] = ()
    """For each arm, the seeds that the verdict may use."""
    number: int = 0
    """The look, from 1; 0 if there is none yet."""
    looks: int = 1
    """How many looks there are in all."""

    @property
    def final(self) -> bool:
        return self.number == self.looks


def look_state(
    planned: Sequence[Sequence[int]],
    present: Sequence[Collection[int | str]],
    looks: Looks = ONE_LOOK,
    *,
    alpha: float,
    sides: Sides = "two-sided",
) -> LookState:
    """Whether a claim may be decided, from the planned seeds of its arms and those that have a result.

    `planned` and `present` have one entry for each arm of the claim. The order of the planned seeds is that of the
    study. `alpha` is the level of the whole claim, corrected for other claims if that is to be done. Seeds that nobody
    planned count in no look. An arm without planned seeds is an error: its claim is not one of the study's.

    >>> look_state([range(10)] * 2, [range(3), range(4)], alpha=0.05).text
    'no verdict yet: 3 of 10 planned seeds'
    >>> look_state([range(10)] * 2, [range(6), range(6)], Looks((0.5, 1.0)), alpha=0.05).text
    'interim look 1 of 2 at level 0.0031'
    >>> look_state([range(10)] * 2, [range(10), range(10)], alpha=0.05).text
    'final'
    """
    if len(planned) != len(present) or not all(planned):
        raise InputError(f"look: expected planned seeds for each of {len(present)} arms; got {len(planned)} lists")
    shares = seeds_of_looks(planned, looks)
    state = LookState(_waiting(planned, present, shares), None, looks=len(shares))
    for number, seeds in enumerate(shares, 1):
        if not all(set(wanted) <= set(there) for wanted, there in zip(seeds, present, strict=True)):
            break
        level = alpha
        if len(shares) > 1:
            information = [_information(counted, planned) for counted in shares]
            two_sided = sides == "two-sided"
            found = levels(information, alpha, two_sided=two_sided, spending=looks.spending)
            level = float(found[number - 1])
        state = LookState(_reached(number, len(shares), level), level, seeds, number, len(shares))
    return state


def seeds_of_looks(planned: Sequence[Sequence[int]], looks: Looks) -> list[tuple[tuple[int, ...], ...]]:
    """The seeds of each arm that each look counts. Looks that few seeds make equal are one look."""
    found = [tuple(tuple(seeds[: _counted(share, len(seeds))]) for seeds in planned) for share in looks.at]
    return list(dict.fromkeys(found))


def _counted(share: float, seeds: int) -> int:
    """A share of the seeds, rounded up; 0.7 * 10 is a little more than 7 in floating point, and means 7."""
    return max(1, math.ceil(share * seeds - 1e-9))


def _information(counted: Sequence[Sequence[int]], planned: Sequence[Sequence[int]]) -> float:
    """The share of the information: the variance of a difference of means with all seeds, over that with these."""
    with_all, with_these = (sum(1.0 / len(seeds) for seeds in arms) for arms in (planned, counted))
    return with_all / with_these


def _waiting(
    planned: Sequence[Sequence[int]],
    present: Sequence[Collection[int | str]],
    shares: Sequence[Sequence[Sequence[int]]],
) -> str:
    """No verdict: the arm that lacks most decides how far the claim is."""
    there = [len(set(seeds) & set(own)) for seeds, own in zip(planned, present, strict=True)]
    least = min(range(len(planned)), key=lambda arm: there[arm] / len(planned[arm]))
    next_look = "" if len(shares) == 1 else f"; the first look is at {len(shares[0][least])}"
    return f"no verdict yet: {there[least]} of {len(planned[least])} planned seeds{next_look}"


def _reached(number: int, looks: int, level: float) -> str:
    if looks == 1:
        return "final"
    return f"{'final' if number == looks else 'interim'} look {number} of {looks} at level {level:.2g}"
