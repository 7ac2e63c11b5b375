"""Claims: which arms are compared, about what, on which outcome and by which test.

A study states its claims in `claims.yaml`; `comparisons` finds the arms that they are about.

A claim is of a difference, or that the first arm is not worse by a margin (non-inferiority), or that both are the same
within a margin (equivalence). Claims with the same `joint` name are one claim, which holds where all of them do.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from vlmsafe.comparison.settings import named_pattern
from vlmsafe.config.yaml import from_dict, read_yaml
from vlmsafe.errors import InputError, unknown_name

Outcome = Literal[
    "cost", "cost_per_distance", "violation", "catastrophe", "env_return", "shaped_return", "arrived",
    "arrived_without_cost",
]  # fmt: skip
Kind = Literal["difference", "non-inferiority", "equivalence"]
Test = Literal["permutation", "sign-flip", "welch", "paired-t", "bootstrap", "none"]
Sides = Literal["less", "greater", "two-sided"]
Window = Literal["final", "last-5", "last-10"]
Correction = Literal["none", "bonferroni", "holm"]

ALPHA = 0.05
CLAIMS_FILE = "claims.yaml"
ENTRIES = ("comparisons", "correction", "contrasts")
"""Of a claims file."""
WINDOWS: dict[Window, int] = {"final": 1, "last-5": 5, "last-10": 10}
BETTER: dict[Outcome, int] = {
    "cost": -1, "cost_per_distance": -1, "violation": -1, "catastrophe": -1, "env_return": 1, "shaped_return": 1,
    "arrived": 1, "arrived_without_cost": 1,
}  # fmt: skip
"""-1 where lower is better, 1 where higher is."""
RATES: tuple[Outcome, ...] = ("violation", "catastrophe", "arrived", "arrived_without_cost")
"""Shares of episodes, from 0 to 1."""
_MARGIN = re.compile(r"(\d+(?:\.\d+)?)\s*(pp|cost|return)")


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
    kind: Kind = "difference"
    """That the arms differ, that the first is not worse by the margin, or that they are the same within it."""
    margin: str = ""
    """With its unit, such as '5 pp' for rates, '2 cost' or '10 return'."""
    joint: str = ""
    """The name of a joint claim, which holds on an environment where all claims of that name do."""
    alpha: float = ALPHA
    stated: bool = True
    """False if nobody claimed it and `comparisons` chose it."""

    def __str__(self) -> str:
        return f"'{self.first}' against '{self.second}'"

    @property
    def tested(self) -> bool:
        """Whether a test decides it. Percentile intervals describe only: with few runs they do not hold their level."""
        return self.test not in ("bootstrap", "none")

    @property
    def margin_value(self) -> float:
        """The margin in the outcome's own unit; 0 for a claim of a difference."""
        if not self.margin:
            return 0.0
        found = _MARGIN.fullmatch(self.margin)
        assert found is not None
        return float(found[1]) / (100.0 if found[2] == "pp" else 1.0)


@dataclass(frozen=True)
class ContrastCell:
    """An arm on an environment."""

    arm: str
    env: str


ContrastTest = Literal["welch", "paired-t", "sign-flip"]


@dataclass(frozen=True)
class ContrastClaim:
    """A sum of arms' outcomes less a sum of others: an interaction is (a - b) - (c - d), so a and d less b and c."""

    name: str
    """What it asks, in a few words."""
    plus: tuple[ContrastCell, ...] = ()
    minus: tuple[ContrastCell, ...] = ()
    divide: float = 1.0
    """What the sum is divided by, such as 3 for a mean over three interactions."""
    outcome: Outcome = "cost"
    source: str = "training"
    """'training' or a protocol."""
    window: Window = "final"
    test: ContrastTest = "welch"
    """'welch' takes the arms as independent; 'paired-t' and 'sign-flip' take the seeds that all of them have."""
    sides: Sides = "two-sided"
    alpha: float = ALPHA

    def __str__(self) -> str:
        return f"'{self.name}'"


@dataclass(frozen=True)
class Claims:
    """All comparisons of a study."""

    comparisons: tuple[Claim, ...] = ()
    correction: Correction = "none"
    """The correction for several tests."""
    contrasts: tuple[ContrastClaim, ...] = ()
    """Interactions: differences between differences."""


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
    """The claims in a mapping with `comparisons` and perhaps `correction`, `contrasts`; errors name `source`."""
    if "comparisons" not in document:
        raise InputError(f"{source}: expected a list under 'comparisons', each with 'first' and 'second'")
    if unknown := set(document) - set(ENTRIES):
        raise unknown_name(f"entry of {source}", sorted(unknown)[0], ENTRIES)
    for name in ("comparisons", "contrasts"):
        if not isinstance(entries := document.get(name, []), Sequence) or isinstance(entries, str):
            raise InputError(f"{source}: '{name}' is {entries!r}; expected a list")
    correction = document.get("correction", "none")
    if correction not in get_args(Correction):
        raise unknown_name("correction", str(correction), get_args(Correction))
    found = Claims(
        tuple(_claim(entry, f"{source}, comparison {i}") for i, entry in enumerate(document["comparisons"], 1)),
        correction,
        tuple(_contrast(entry, f"{source}, contrast {i}") for i, entry in enumerate(document.get("contrasts", []), 1)),
    )
    _refuse_contradictions(found.comparisons, source)
    return found


_CHOICES: dict[str, tuple[str, ...]] = {
    "outcome": get_args(Outcome), "test": get_args(Test), "sides": get_args(Sides), "window": get_args(Window),
    "kind": get_args(Kind),
}  # fmt: skip


def _claim(entry: Any, source: str) -> Claim:
    if not isinstance(entry, Mapping) or not {"first", "second"} <= set(entry):
        raise InputError(f"{source}: expected 'first' and 'second', the names of two arms; got {entry!r}")
    _check_entries(entry, Claim, _CHOICES, source)
    if isinstance(entry.get("about"), str):
        entry = {**entry, "about": [entry["about"]]}
    if isinstance(entry.get("margin"), int | float):
        entry = {**entry, "margin": f"{entry['margin']}"}
    claim = from_dict(entry, Claim("", ""), source)
    if claim.first == claim.second:
        raise InputError(f"{source}: an arm cannot be compared with itself, '{claim.first}'")
    _check_level(claim, source)
    _check_margin(claim, source)
    named_pattern(claim.about)  # raises an error if a comparison cannot be about this
    return claim


def _check_entries(entry: Mapping[str, Any], kind: type, choices: Mapping[str, Sequence[str]], source: str) -> None:
    known = [field.name for field in dataclasses.fields(kind) if field.name != "stated"]
    for name, value in entry.items():
        if name not in known:
            raise InputError(f"{source}: {unknown_name('entry', str(name), known)}")
        if name in choices and value not in choices[name]:
            raise InputError(f"{source}: {unknown_name(name, str(value), choices[name])}")


def _check_level(claim: Claim | ContrastClaim, source: str) -> None:
    # The interval of a one-sided claim has the level 1 - 2 alpha.
    one_sided = claim.sides != "two-sided" or (isinstance(claim, Claim) and claim.kind != "difference")
    most = 0.5 if one_sided else 1.0
    if not 0.0 < claim.alpha < most:
        sides = " for a one-sided test" if one_sided else ""
        raise InputError(f"{source}: alpha is {claim.alpha}; it must lie between 0 and {most:g}{sides}")


def _check_margin(claim: Claim, source: str) -> None:
    """A margin has a unit that fits the outcome, and belongs to a claim that has a direction of its own."""
    of_cost = claim.outcome in ("cost", "cost_per_distance")
    unit = "pp" if claim.outcome in RATES else "cost" if of_cost else "return"
    if claim.kind == "difference":
        if claim.margin:
            raise InputError(
                f"{source}: a margin of {claim.margin} without a kind; add 'kind: non-inferiority' or 'kind: "
                "equivalence'"
            )
        return
    found = _MARGIN.fullmatch(claim.margin)
    if found is None or found[2] != unit or float(found[1]) == 0.0:
        raise InputError(
            f"{source}: the margin is '{claim.margin}'; a claim of {claim.kind} on {claim.outcome} needs one above 0 "
            f"with its unit, such as '5 {unit}'"
        )
    if unit == "pp" and claim.margin_value >= 1.0:
        raise InputError(f"{source}: the margin is {claim.margin}; no two rates differ by more than 100 pp")
    if claim.sides != "two-sided":
        raise InputError(f"{source}: {claim.kind} has a direction of its own; leave out 'sides: {claim.sides}'")
    if not claim.tested:
        raise InputError(f"{source}: {claim.kind} needs a test, but the claim has 'test: {claim.test}'")


def _refuse_contradictions(claims: Sequence[Claim], source: str) -> None:
    """Refuse claims that cannot both be true, and joint claims that are not joint."""
    towards: dict[tuple[str, ...], list[tuple[str | None, int]]] = {}
    for claim in claims:
        sign = {"less": -1, "greater": 1}.get(claim.sides, 0)
        if not sign or not claim.tested:
            continue
        swapped = claim.first > claim.second
        names = (claim.second, claim.first) if swapped else (claim.first, claim.second)
        sign = -sign if swapped else sign
        others = towards.setdefault((*names, claim.outcome, claim.source, claim.window), [])
        same_env = [other for env, other in others if env is None or claim.env is None or env == claim.env]
        others.append((claim.env, sign))
        if -sign in same_env:
            raise InputError(
                f"{source}: two claims on {claim.outcome} of {claim} contradict each other; one of them says less, the "
                "other greater. Claim one of them, or 'sides: two-sided'"
            )
    for name in dict.fromkeys(claim.joint for claim in claims if claim.joint):
        own = [claim for claim in claims if claim.joint == name]
        if len(own) < 2:
            raise InputError(f"{source}: the joint claim '{name}' has one part; expected two or more, or no 'joint'")
        envs = [claim.env for claim in own]
        alone = [env for env in ([None] if None in envs else envs) if envs.count(env) < 2]
        if alone:
            raise InputError(
                f"{source}: the joint claim '{name}' has one part on {alone[0] or 'every environment'}; a joint claim "
                "holds on one environment at a time, so give all its parts the same 'env', or none of them"
            )
        if len({claim.alpha for claim in own}) > 1:
            raise InputError(f"{source}: the parts of the joint claim '{name}' have different levels; give one alpha")
        if any(not claim.tested for claim in own):
            raise InputError(f"{source}: a part of the joint claim '{name}' has no test; every part needs one")


def _spelled_out(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A contrast on one environment, given once, with the environment in every cell."""
    found = dict(entry)
    env = found.pop("env", None)
    if env is not None:
        for side in ("plus", "minus"):
            if isinstance(found[side], Sequence):
                found[side] = [{"arm": arm, "env": env} if isinstance(arm, str) else arm for arm in found[side]]
    return found


_CONTRAST_CHOICES = {**_CHOICES, "test": get_args(ContrastTest)}


def _contrast(entry: Any, source: str) -> ContrastClaim:
    if not isinstance(entry, Mapping) or not {"name", "plus", "minus"} <= set(entry):
        raise InputError(f"{source}: expected 'name', 'plus' and 'minus', lists of {{arm, env}}; got {entry!r}")
    entry = _spelled_out(entry)
    _check_entries(entry, ContrastClaim, _CONTRAST_CHOICES, source)
    for side in ("plus", "minus"):
        cells = entry[side]
        right = isinstance(cells, Sequence) and not isinstance(cells, str) and len(cells) > 0
        if not right or any(not isinstance(cell, Mapping) or set(cell) != {"arm", "env"} for cell in cells):
            raise InputError(
                f"{source}: '{side}' is {cells!r}; expected a list of {{arm: ..., env: ...}}, or a list of arms "
                "and one 'env' for all of them"
            )
    claim = from_dict(entry, ContrastClaim(""), source)
    if len(claim.plus) != len(claim.minus):
        raise InputError(
            f"{source}: {len(claim.plus)} cells under 'plus' and {len(claim.minus)} under 'minus'; a contrast has as "
            "many of both, so that it is 0 where nothing differs"
        )
    if len({*claim.plus, *claim.minus}) < len(claim.plus) + len(claim.minus):
        raise InputError(f"{source}: an arm on an environment appears twice")
    if not 0.0 < claim.divide < math.inf:
        raise InputError(f"{source}: 'divide' is {claim.divide}; expected a finite number above 0")
    _check_level(claim, source)
    return claim


def count_tests(claims: Claims, planned: Collection[tuple[str, str]]) -> int:
    """How many tests are claimed, whether or not their runs are there yet.

    `planned` are all cells (environment, arm) of the study. A claim about every environment is a test on each that has
    both arms, and the parts of a joint claim are one test.
    """
    envs = list(dict.fromkeys(env for env, _ in planned))
    tests = set()
    for place, claim in enumerate(claims.comparisons):
        if claim.tested:
            own = [env for env in envs if {(env, claim.first), (env, claim.second)} <= set(planned)]
            tests |= {(claim.joint or place, env) for env in ([claim.env] if claim.env else own)}
    return len(tests) + len(claims.contrasts)
