"""What differs between two versions of a study, in words.

Claims are compared as plain data, so that it does not matter which fields they have. A field that an older version of
the package did not know has its default.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vlmsafe.comparison.claims import Claim

Plain = Mapping[str, Any]

_NOT_CLAIMED = "stated"  # a field about the claim, and not part of what it claims
_IDENTITY = ("list", "name", "first", "second", "env")  # claims that agree in these are forms of one claim
_SHARED = ""  # the defaults of what holds for all claims, among those of the lists


def plain_claims(claims: Any) -> dict[str, Any]:
    """Claims, a dataclass with tuples of dataclasses, as plain values with every field."""
    return dict(_without_stated(_plain(dataclasses.asdict(claims))))


def claim_defaults(claims: Any) -> dict[str, dict[str, Any]]:
    """The defaults of claims' fields, by the list that they stand in; a field that an older version lacks has those."""
    found: dict[str, dict[str, Any]] = {_SHARED: {}}
    for field in dataclasses.fields(claims):
        value = getattr(claims, field.name)
        if isinstance(value, tuple):
            found[field.name] = _defaults(type(value[0])) if value else {}
        elif field.default is not dataclasses.MISSING:
            found[_SHARED][field.name] = _plain(field.default)
    return found


def _defaults(kind: Any) -> dict[str, Any]:
    fields = dataclasses.fields(kind)
    known = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    return dict(_without_stated(_plain(known)))


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _without_stated(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_stated(entry) for key, entry in value.items() if key != _NOT_CLAIMED}
    return [_without_stated(entry) for entry in value] if isinstance(value, list) else value


def _entries(claims: Plain, defaults: Plain) -> list[dict[str, Any]]:
    """Each claim with its own fields, and the name of the list that it stands in."""
    return [
        {**defaults.get(name, {}), **entry, "list": name}
        for name, entries in claims.items()
        if isinstance(entries, list)
        for entry in entries
    ]


def _shared(claims: Plain, defaults: Plain) -> dict[str, Any]:
    """What holds for all claims, such as the correction."""
    own = {name: value for name, value in claims.items() if not isinstance(value, list)}
    return {**defaults.get(_SHARED, {}), **own}


def claim_forms(claims: Plain, defaults: Plain) -> list[dict[str, Any]]:
    """Each claim with all that decides it: another correction is another form of every claim."""
    return [{**entry, **_shared(claims, defaults)} for entry in _entries(claims, defaults)]


_Pair = tuple[dict[str, Any] | None, dict[str, Any] | None]


def paired(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[_Pair]:
    """Equal claims with each other, then changed ones with what they were; None where one has no counterpart."""
    left, pairs = list(old), dict[int, _Pair]()
    for agree in (lambda a, b: a == b, lambda a, b: all(a.get(name) == b.get(name) for name in _IDENTITY)):
        for place, form in enumerate(new):
            if place not in pairs and (match := next((one for one in left if agree(one, form)), None)) is not None:
                left.remove(match)
                pairs[place] = (match, form)
    found = [pairs.get(place, (None, form)) for place, form in enumerate(new)]
    return [*found, *((form, None) for form in left)]


def claim_words(form: Plain) -> str:
    """A claim in a few words.

    >>> claim_words({"first": "oracle", "second": "ppo-lag", "env": "speeding", "outcome": "cost"})
    "'oracle' against 'ppo-lag' on speeding, cost"
    """
    if "first" in form and "second" in form:
        where = f" on {form['env']}" if form.get("env") else ""
        about = f", {form['outcome']}" if form.get("outcome") else ""
        return f"'{form['first']}' against '{form['second']}'{where}{about}"
    if "name" in form:
        return f"'{form['name']}'" + (f", {form['outcome']}" if form.get("outcome") else "")
    return ", ".join(f"{name} {_shown(value)}" for name, value in form.items() if value and name != "list")


def is_tested(form: Plain) -> bool:
    """Whether a test decides a claim."""
    return "test" in form and Claim("", "", test=form["test"]).tested


# -- changes ---------------------------------------------------------------------------------------------------------


def changes(old: Plain, new: Plain, defaults: Plain) -> list[str]:
    """What differs between two contents, in words; empty if nothing that was frozen differs."""
    return [*design_changes(old, new), *_claim_changes(old["claims"], new["claims"], defaults)]


def design_changes(old: Plain, new: Plain) -> list[str]:
    """What differs in the question, the runs and the looks."""
    found = ["another question"] if old["question"] != new["question"] else []
    before, now = ({(cell["environment"], cell["arm"]): cell for cell in one["cells"]} for one in (old, new))
    found += [f"{_cell(key)} added" for key in now if key not in before]
    found += [f"{_cell(key)} removed" for key in before if key not in now]
    shared = [key for key in now if key in before]
    places: dict[str, list[tuple[str, str]]] = {}
    several = len(new["looks"]["at"]) > 1
    for key in shared:
        for what in _cell_changes(before[key], now[key], several):
            places.setdefault(what, []).append(key)
    for what, where in places.items():
        found.append(what if where == shared else f"{what} for {', '.join(map(_cell, where))}")
    if old["looks"] != new["looks"]:
        found.append(f"looks from {_looks(old['looks'])} to {_looks(new['looks'])}")
    return found


def _cell(key: tuple[str, str]) -> str:
    return f"'{key[1]}' on {key[0]}"


def _looks(looks: Plain) -> str:
    return f"{looks['at']} ({looks['spending']})" if len(looks["at"]) > 1 else "one"


def _cell_changes(old: Plain, new: Plain, ordered: bool) -> Iterator[str]:
    """Changes to one arm in one environment; the order of seeds matters only where there are interim looks."""
    if old["method"] != new["method"]:
        yield f"method from {old['method']} to {new['method']}"
    for what, seeds in (
        ("added", [seed for seed in new["seeds"] if seed not in old["seeds"]]),
        ("removed", [seed for seed in old["seeds"] if seed not in new["seeds"]]),
    ):
        if seeds:
            yield f"seeds {', '.join(map(str, seeds))} {what}"
    if ordered and old["seeds"] != new["seeds"] and sorted(old["seeds"]) == sorted(new["seeds"]):
        yield "seeds in another order"
    if old["total_steps"] != new["total_steps"]:
        yield f"steps from {old['total_steps']} to {new['total_steps']}"
    yield from _mapping_changes(old["settings"], new["settings"], "its default")
    for name, line in _differing(old["evaluations"], new["evaluations"], "none"):
        yield f"evaluation '{name}' {line}"


def _mapping_changes(old: Plain, new: Plain, missing: str) -> Iterator[str]:
    for name, line in _differing(old, new, missing):
        yield f"{name} {line}"


def _differing(old: Plain, new: Plain, missing: str) -> Iterator[tuple[str, str]]:
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new or old[name] != new[name]:
            before, now = (_shown(one[name]) if name in one else missing for one in (old, new))
            yield name, f"from {before} to {now}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _claim_changes(old: Plain, new: Plain, defaults: Plain) -> Iterator[str]:
    yield from _mapping_changes(_shared(old, defaults), _shared(new, defaults), "none")
    for before, now in paired(_entries(old, defaults), _entries(new, defaults)):
        if before is None:
            assert now is not None
            yield f"claim added: {claim_words(now)}"
        elif now is None:
            yield f"claim dropped: {claim_words(before)}"
        elif lines := list(_mapping_changes(before, now, "none")):
            yield f"claim {claim_words(before)}: {', '.join(lines)}"
