"""Comparisons: each claim on each environment, with the arms that it compares.

Where nothing is claimed, arms with a signal are compared with arms without one, otherwise all arms with each other, or
all arms with a given baseline.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmsafe.comparison.claims import Claim, Claims
from vlmsafe.comparison.settings import differences, factors_of
from vlmsafe.errors import InputError, unknown_name
from vlmsafe.runs.records import ArmRecord

_ALL_PAIRS = 4  # up to this many arms, every pair is compared


@dataclass(frozen=True)
class Comparison:
    """A claim on one environment, with its arms."""

    claim: Claim
    first: ArmRecord
    second: ArmRecord

    @property
    def env(self) -> str:
        return self.first.env


def comparisons(
    arms: Mapping[tuple[str, str], ArmRecord], claims: Claims | None, *, baseline: str | None = None
) -> list[Comparison]:
    """The claimed comparisons, or the chosen ones if there are no claims."""
    if claims is not None and (claims.comparisons or claims.contrasts):
        if baseline is not None:
            raise InputError("both claims and a baseline say what is compared; drop --baseline, or the claims")
        return [found for claim in claims.comparisons for found in _resolve(claim, arms)]
    found = []
    for env in dict.fromkeys(env for env, _ in arms):
        own = [arm for (place, _), arm in arms.items() if place == env]
        found += [
            Comparison(Claim(first.name, second.name, env, stated=False), first, second)
            for first, second in _pairs(own, baseline)
        ]
    if baseline is not None and all(name != baseline for _, name in arms):
        raise unknown_name("arm", baseline, dict.fromkeys(name for _, name in arms))
    return found


def planned_cells(
    studies: Mapping[Path, Sequence[Path]], arms: Collection[tuple[str, str]]
) -> Collection[tuple[str, str]]:
    """All cells (environment, arm) that there will be: those of the planned runs of studies, otherwise those present.

    A planned run is in a folder <environment>/<arm>/<seed>, so environments have the names of their folders.
    """
    planned = {(path.parts[-3], path.parts[-2]) for paths in studies.values() for path in paths}
    return planned or set(arms)


def claims_with_runs(claims: Claims, arms: Mapping[tuple[str, str], ArmRecord]) -> tuple[Claims, list[str]]:
    """The claims that have runs of both arms, and a line about each claim that waits for runs of a study.

    A joint claim waits as a whole: its other parts alone would be judged as if they were all of it.
    """
    kept: list[Claim] = []
    missing: list[str] = []
    incomplete: set[str] = set()
    for claim in claims.comparisons:
        envs = [claim.env] if claim.env else list(dict.fromkeys(env for env, _ in arms))
        if any({(env, claim.first), (env, claim.second)} <= set(arms) for env in envs):
            kept.append(claim)
        else:
            where = f" on {claim.env}" if claim.env else ""
            missing.append(f"no runs yet for the comparison {claim}{where}")
            incomplete |= {claim.joint} - {""}
    missing += [f"the joint claim '{name}' waits for runs of all its parts" for name in sorted(incomplete)]
    complete = tuple(claim for claim in kept if claim.joint not in incomplete)
    return dataclasses.replace(claims, comparisons=complete), missing


def _resolve(claim: Claim, arms: Mapping[tuple[str, str], ArmRecord]) -> list[Comparison]:
    names = list(dict.fromkeys(name for _, name in arms))
    for name in (claim.first, claim.second):
        if name not in names:
            raise unknown_name("arm in the claims", name, names)
    envs = [claim.env] if claim.env else list(dict.fromkeys(env for env, _ in arms))
    found = [
        Comparison(dataclasses.replace(claim, env=env), arms[env, claim.first], arms[env, claim.second])
        for env in envs
        if (env, claim.first) in arms and (env, claim.second) in arms
    ]
    if not found:
        where = f"on {claim.env}" if claim.env else "on a shared environment"
        raise InputError(f"the claims compare {claim}, but there are no runs of both {where}")
    return found


def _pairs(arms: Sequence[ArmRecord], baseline: str | None) -> list[tuple[ArmRecord, ArmRecord]]:
    if baseline is not None:
        base = [arm for arm in arms if arm.name == baseline]
        return [(arm, base[0]) for arm in arms if base and arm.name != baseline]
    plain = [arm for arm in arms if not arm.has_signal]
    signalled = [arm for arm in arms if arm.has_signal]
    if plain and signalled:
        pairs = []
        for arm in signalled:
            same = [other for other in plain if _algorithm(other) == _algorithm(arm)]
            pairs += [(arm, other) for other in same or plain]
        return pairs + _neighbours(signalled)
    if len(arms) <= _ALL_PAIRS:
        return [(b, a) for a, b in itertools.combinations(arms, 2)]
    return _neighbours(arms)


def _neighbours(arms: Sequence[ArmRecord]) -> list[tuple[ArmRecord, ArmRecord]]:
    """Each arm with the earlier arm that it differs least from, as in a sweep or a chain of ablations."""
    pairs = []
    for place, arm in enumerate(arms[1:], 1):
        others = [other for other in arms[:place] if _algorithm(other) == _algorithm(arm)]
        if others:
            pairs.append((arm, min(others, key=lambda other: _distance(arm, other))))
    return pairs


def _distance(one: ArmRecord, other: ArmRecord) -> int:
    return factors_of(differences(one.first.settings, other.first.settings))


def _algorithm(arm: ArmRecord) -> str:
    return arm.first.config.learner.algorithm
