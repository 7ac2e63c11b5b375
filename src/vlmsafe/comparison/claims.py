"""Claims: which arms are compared, about what, on which outcome and by which test.

A study states its claims in `claims.yaml`. Without it `comparisons` chooses: arms with a signal against arms without
one, otherwise all arms with each other, or all arms with a given baseline.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from vlmsafe.comparison.settings import differences, factors_of, named_pattern
from vlmsafe.config.yaml import from_dict, read_yaml
from vlmsafe.errors import InputError, unknown_name
from vlmsafe.runs.records import ArmRecord

Outcome = Literal["cost", "violation", "catastrophe", "env_return", "shaped_return"]
Test = Literal["permutation", "sign-flip", "welch", "paired-t", "bootstrap", "none"]
Sides = Literal["less", "greater", "two-sided"]
Window = Literal["final", "last-5", "last-10"]

ALPHA = 0.05
CLAIMS_FILE = "claims.yaml"
WINDOWS: dict[Window, int] = {"final": 1, "last-5": 5, "last-10": 10}
_ALL_PAIRS = 4  # up to this many arms, every pair is compared


@dataclass(frozen=True)
class Claim:
    """A comparison of two arms, first against second."""

    first: str
    second: str
    env: str | None = None
    """None for every environment that has both arms."""
    about: tuple[str, ...] = ()
    """What the arms are meant to differ in; if empty, it is inferred from their settings."""
    outcome: Outcome = "cost"
    source: str = "auto"
    """'training' or a protocol; 'auto' takes an evaluation that all runs have, or else training."""
    window: Window = "final"
    """For training: the epochs that count."""
    test: Test = "permutation"
    sides: Sides = "two-sided"
    """The alternative: first less than second, greater, or different."""
    alpha: float = ALPHA
    stated: bool = True
    """False if nobody claimed it and `comparisons` chose it."""

    def __str__(self) -> str:
        return f"'{self.first}' against '{self.second}'"


@dataclass(frozen=True)
class Claims:
    """All comparisons of a study."""

    comparisons: tuple[Claim, ...] = ()
    correction: Literal["none", "bonferroni", "holm"] = "none"
    """The correction for several tests."""


def load_claims(path: Path) -> Claims:
    """The claims in a YAML file."""
    return claims_of(read_yaml(path), str(path))


def find_claims(folders: Sequence[Path | str]) -> Claims | None:
    """The claims in one of these folders; None if there are none."""
    places = dict.fromkeys(Path(folder) / CLAIMS_FILE for folder in folders)
    found = [place for place in places if place.is_file()]
    if len(found) > 1:
        names = ", ".join(map(str, found))
        raise InputError(f"several claims: {names}; give one folder at a time, or choose with --claims in the audit")
    return load_claims(found[0]) if found else None


def claims_of(document: Mapping[str, Any], source: str) -> Claims:
    """The claims in a mapping with `comparisons` and perhaps `correction`; errors name `source`."""
    if "comparisons" not in document:
        raise InputError(f"{source}: expected a list under 'comparisons', each with 'first' and 'second'")
    unknown = set(document) - {"comparisons", "correction"}
    if unknown:
        raise unknown_name(f"entry of {source}", sorted(unknown)[0], ["comparisons", "correction"])
    entries = document["comparisons"]
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise InputError(f"{source}: 'comparisons' is {entries!r}; expected a list")
    correction = document.get("correction", "none")
    if correction not in ("none", "bonferroni", "holm"):
        raise unknown_name("correction", str(correction), ["none", "bonferroni", "holm"])
    return Claims(tuple(_claim(entry, f"{source}, comparison {i}") for i, entry in enumerate(entries, 1)), correction)


_CHOICES: dict[str, tuple[str, ...]] = {
    "outcome": get_args(Outcome), "test": get_args(Test), "sides": get_args(Sides), "window": get_args(Window),
}  # fmt: skip


def _claim(entry: Any, source: str) -> Claim:
    if not isinstance(entry, Mapping) or not {"first", "second"} <= set(entry):
        raise InputError(f"{source}: expected 'first' and 'second', the names of two arms; got {entry!r}")
    known = [field.name for field in dataclasses.fields(Claim) if field.name != "stated"]
    for name, value in entry.items():
        if name not in known:
            raise InputError(f"{source}: {unknown_name('entry', str(name), known)}")
        if name in _CHOICES and value not in _CHOICES[name]:
            raise InputError(f"{source}: {unknown_name(name, str(value), _CHOICES[name])}")
    if isinstance(entry.get("about"), str):
        entry = {**entry, "about": [entry["about"]]}
    claim = from_dict(entry, Claim("", ""), source)
    if claim.first == claim.second:
        raise InputError(f"{source}: an arm cannot be compared with itself, '{claim.first}'")
    if not 0.0 < claim.alpha < 1.0:
        raise InputError(f"{source}: alpha is {claim.alpha}; it must lie between 0 and 1")
    named_pattern(claim.about)  # raises an error if a comparison cannot be about this
    return claim


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
    if claims is not None and claims.comparisons:
        if baseline is not None:
            raise InputError("both claims and a baseline say what is compared; drop --baseline, or the claims")
        return _corrected([found for claim in claims.comparisons for found in _resolve(claim, arms)], claims.correction)
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


def _corrected(found: list[Comparison], correction: str) -> list[Comparison]:
    """The comparisons at the corrected level; for Holm's correction the strictest level, that of the first test."""
    tests = sum(one.claim.test != "none" for one in found)
    if correction == "none" or not tests:
        return found
    return [
        dataclasses.replace(one, claim=dataclasses.replace(one.claim, alpha=one.claim.alpha / tests)) for one in found
    ]


def claims_with_runs(claims: Claims, arms: Mapping[tuple[str, str], ArmRecord]) -> tuple[Claims, list[str]]:
    """The claims that have runs of both arms, and a line about each claim that waits for runs of a study."""
    kept, missing = [], []
    for claim in claims.comparisons:
        envs = [claim.env] if claim.env else list(dict.fromkeys(env for env, _ in arms))
        if any({(env, claim.first), (env, claim.second)} <= set(arms) for env in envs):
            kept.append(claim)
        else:
            where = f" on {claim.env}" if claim.env else ""
            missing.append(f"no runs yet for the comparison {claim}{where}")
    return dataclasses.replace(claims, comparisons=tuple(kept)), missing


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
