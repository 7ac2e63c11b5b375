"""Patterns: a name with a star stands for all arms that are called like it.

In a comparison the star stands for the same text on both sides: `first: "*-oracle", second: "*-constant"` compares
bonus-oracle with bonus-constant, term-oracle with term-constant, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from vlmsafe.errors import InputError, unknown_name

_STAR = "*"


def chosen_arms(names: Sequence[str], arms: Sequence[str]) -> tuple[str, ...]:
    """The arms that are named, once each; a pattern names all that are called like it.

    >>> chosen_arms(["plain", "bonus-*"], ["plain", "bonus-a", "bonus-b", "term-a"])
    ('plain', 'bonus-a', 'bonus-b')
    """
    found: dict[str, None] = {}
    for name in names:
        if _STAR in name:
            found |= dict.fromkeys(name.replace(_STAR, star) for star in _stars(name, arms))
        elif name not in arms:
            raise unknown_name("arm of the study", name, arms)
        else:
            found[name] = None
    return tuple(found)


def compared_arms(comparison: Mapping[str, Any], arms: Sequence[str]) -> list[dict[str, Any]]:
    """A comparison as the study file gives it, once for each pair of arms that its patterns name.

    An arm that would be compared with itself is left out, so that `first: "bonus-*", second: bonus-a` is possible. The
    star stands for the same text in the name of a joint claim.

    >>> entry = {"first": "*-oracle", "second": "*-noise", "outcome": "cost"}
    >>> for one in compared_arms(entry, ["bonus-oracle", "bonus-noise", "term-oracle", "term-noise"]):
    ...     print(one)
    {'first': 'bonus-oracle', 'second': 'bonus-noise', 'outcome': 'cost'}
    {'first': 'term-oracle', 'second': 'term-noise', 'outcome': 'cost'}
    """
    sides = [comparison[side] for side in ("first", "second") if isinstance(comparison.get(side), str)]
    starred = [name for name in sides if _STAR in name]
    if not starred:
        chosen_arms(sides, arms)
        return [dict(comparison)]
    found = []
    for star in _stars(starred[0], arms):
        one = deepcopy(dict(comparison))  # lists that comparisons share would be anchors in the study's file
        for key in ("first", "second", "joint"):
            if isinstance(one.get(key), str):
                one[key] = one[key].replace(_STAR, star)
        lacking = next((one[side] for side in ("first", "second") if one.get(side) not in arms), None)
        if lacking is not None:
            raise InputError(
                f"{one.get('first')} and {one.get('second')} would be compared, but the study has no arm '{lacking}'"
            )
        if one["first"] != one["second"]:
            found.append(one)
    return found


def _stars(pattern: str, arms: Sequence[str]) -> list[str]:
    """What the star stands for in each arm that is called like the pattern."""
    if pattern.count(_STAR) > 1:
        raise InputError(f"'{pattern}' has {pattern.count(_STAR)} stars; expected one")
    before, after = pattern.split(_STAR)
    found = [
        name[len(before) : len(name) - len(after)]
        for name in arms
        if name.startswith(before) and name.endswith(after) and len(name) > len(before) + len(after)
    ]
    if not found:
        raise InputError(f"no arm is called like '{pattern}'; the study has: {', '.join(arms)}")
    return found
