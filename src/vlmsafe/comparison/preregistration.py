"""The frozen protocol of a study: what was decided, when, and what was changed afterwards.

`vlmsafe study freeze`, or the first `vlmsafe study run`, writes it to `protocol.json` in the study's folder. Later
changes are added as further versions, each with the number of runs that were finished by then. Nothing is removed. This
module reads the file, checks its hashes and says of each claim whether it was decided before the runs. Claims are
compared as plain data, so that it does not matter which fields they have.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vlmsafe.comparison.claims import Claim
from vlmsafe.errors import InputError

PROTOCOL_FILE = "protocol.json"
PROTOCOL_PAGE = "protocol.md"
_NOT_CLAIMED = "stated"  # whether somebody claims it is no part of a claim
_IDENTITY = ("list", "name", "first", "second", "env")  # claims that agree in these are forms of one claim
_SHARED = ""  # the defaults of what holds for all claims, among those of the lists
_HASH_SHOWN = 12

Plain = Mapping[str, Any]


@dataclass(frozen=True)
class Moment:
    """How far a study was when something was decided."""

    begun: int
    """Planned runs that existed, finished or not."""
    finished: int
    """Planned runs that were trained to the end."""
    planned: int
    """All runs that were planned before it."""

    def __str__(self) -> str:
        if not self.begun:
            return "before the first run"
        begun = f", with {self.begun} begun" if not self.finished else ""
        return f"after {self.finished} of {self.planned} runs{begun}"


@dataclass(frozen=True)
class ProtocolVersion:
    """What was decided at one time."""

    time: str
    """In UTC, such as 2026-05-01T12:00:00Z."""
    at: Moment
    """How far the study was."""
    content: Plain
    """Question, cells (environment x arm), looks and claims, as plain values."""
    changes: tuple[str, ...] = ()
    """What differs from the version before, in words."""

    @property
    def digest(self) -> str:
        """SHA-256 of the content as canonical JSON."""
        return digest_of(self.content)


@dataclass(frozen=True)
class FrozenProtocol:
    """All versions of a study's protocol, oldest first."""

    versions: tuple[ProtocolVersion, ...]

    @property
    def first(self) -> ProtocolVersion:
        return self.versions[0]

    @property
    def last(self) -> ProtocolVersion:
        return self.versions[-1]

    @property
    def when(self) -> str:
        """When it was frozen, with the beginning of its hash."""
        at = self.first.at
        late = f"not before the first run: {at.begun} of {at.planned} runs were there"
        moment = late if at.begun else "before the first run"
        return f"{self.first.time}, hash {self.first.digest[:_HASH_SHOWN]}…, {moment}"


# -- the file --------------------------------------------------------------------------------------------------------


def digest_of(value: Any) -> str:
    """SHA-256 of plain values as canonical JSON: sorted keys, no spaces.

    >>> digest_of({"b": 1, "a": [2.0]}) == digest_of({"a": [2.0], "b": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def protocol_bytes(protocol: FrozenProtocol) -> bytes:
    """A protocol as a file. `hash` is that of a version's content, `seal` that of all versions with their times."""
    rows = [
        {
            "version": number,
            "time": one.time,
            **dataclasses.asdict(one.at),
            "changes": list(one.changes),
            "hash": one.digest,
            "content": one.content,
        }
        for number, one in enumerate(protocol.versions, 1)
    ]
    return (json.dumps({"versions": rows, "seal": digest_of(rows)}, indent=1, ensure_ascii=False) + "\n").encode()


def read_protocol(folder: Path) -> FrozenProtocol | None:
    """The protocol of the study in a folder; None if it has none. A file that was edited is an error."""
    path = folder / PROTOCOL_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _edited(path, "it is not a text in UTF-8") from None
    try:
        document = json.loads(text)
        rows = document["versions"]
        versions = tuple(
            ProtocolVersion(
                row["time"],
                Moment(row["begun"], row["finished"], row["planned"]),
                row["content"],
                tuple(row["changes"]),
            )
            for row in rows
        )
        sealed = document["seal"] == digest_of(rows) and all(
            row["hash"] == one.digest for row, one in zip(rows, versions, strict=True)
        )
    except (ValueError, KeyError, TypeError):
        raise _edited(path, "it is not a protocol that vlmsafe wrote") from None
    if not sealed or not versions:
        raise _edited(path, "its hash does not match its content")
    return FrozenProtocol(versions)


def _edited(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} was changed by hand: {why}; restore the file, or move it away, and the study is frozen anew with the "
        "runs that are there by then"
    )


# -- claims as plain data --------------------------------------------------------------------------------------------


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


def _forms(claims: Plain, defaults: Plain) -> list[dict[str, Any]]:
    """Each claim with all that decides it: another correction is another form of every claim."""
    return [{**entry, **_shared(claims, defaults)} for entry in _entries(claims, defaults)]


_Pair = tuple[dict[str, Any] | None, dict[str, Any] | None]


def _paired(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[_Pair]:
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
    for before, now in _paired(_entries(old, defaults), _entries(new, defaults)):
        if before is None:
            assert now is not None
            yield f"claim added: {claim_words(now)}"
        elif now is None:
            yield f"claim dropped: {claim_words(before)}"
        elif lines := list(_mapping_changes(before, now, "none")):
            yield f"claim {claim_words(before)}: {', '.join(lines)}"


# -- when claims were decided ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClaimState:
    """When a claim was decided."""

    claim: Any
    """The claim itself."""
    words: str
    """The claim in a few words."""
    text: str
    """Such as 'decided before the first run' or 'added after 12 of 40 runs'."""
    kind: Literal["before", "unknown", "added", "changed"]
    """`unknown`: runs were there when the study was first frozen, so nobody can tell."""
    at: Moment
    """When it got its present form."""


def claim_states(protocol: FrozenProtocol, claims: Any, now: Moment) -> list[ClaimState]:
    """When each of the claims was decided; `now` is for claims that no version of the protocol has.

    `claims` has the claims of today, which may be part of the protocol's or others.
    """
    defaults = claim_defaults(claims)
    entries = [
        entry
        for field in dataclasses.fields(claims)
        if isinstance(value := getattr(claims, field.name), tuple)
        for entry in value
    ]
    forms = _forms(plain_claims(claims), defaults)
    known = [(one.at, _paired(_forms(one.content["claims"], defaults), forms)) for one in protocol.versions]
    found = []
    for place, (entry, form) in enumerate(zip(entries, forms, strict=True)):
        counterparts = [(at, pairs[place][0]) for at, pairs in known]
        origin = next((at for at, old in counterparts if old is not None), now)
        since = next((at for at, old in counterparts if old == form), now)
        kind, text = _state(origin, since, protocol.first.at)
        found.append(ClaimState(entry, claim_words(form), text, kind, since))
    return found


def _state(
    origin: Moment, since: Moment, first: Moment
) -> tuple[Literal["before", "unknown", "added", "changed"], str]:
    """In kind and in words, from when a claim was first there and since when it has its present form."""
    if not since.begun:
        return "before", "decided before the first run"
    late = f"not decided before: {first.begun} of {first.planned} runs were there"
    if origin is since:
        return ("unknown", late) if since is first else ("added", f"added {since}")
    if not origin.begun:
        return "changed", f"decided before, changed {since}"
    return "changed", f"{late if origin is first else f'added {origin}'}, changed {since}"


def dropped_claims(protocol: FrozenProtocol, defaults: Plain) -> list[tuple[str, Moment]]:
    """The tests that were given up after runs were finished, in the words of their claims, each with the moment."""
    forms = [_forms(one.content["claims"], defaults) for one in protocol.versions]
    found: list[tuple[str, Moment]] = []
    for place in range(1, len(forms)):
        at, last = protocol.versions[place].at, _given_up(forms[place - 1], forms[-1])
        if at.finished:
            found += [(claim_words(form), at) for form in _given_up(forms[place - 1], forms[place]) if form in last]
    return found


def _given_up(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The claims with a test that have no counterpart any more, or one without a test."""
    pairs = _paired(old, new)
    return [before for before, now in pairs if before is not None and _tested(before) and not _tested(now or {})]


def _tested(form: Plain) -> bool:
    return "test" in form and Claim("", "", test=form["test"]).tested


def protocol_lines(protocol: FrozenProtocol, states: Sequence[ClaimState]) -> list[str]:
    """A protocol for a report: when it was frozen, what was changed, and when each claim was decided."""
    lines = [f"Protocol frozen {protocol.when}."]
    lines += [f"Changed {one.time}, {one.at}: {'; '.join(one.changes)}." for one in protocol.versions[1:]]
    texts = {state.text for state in states}
    if len(states) > 1 and len(texts) == 1:
        return [*lines, f"All {len(states)} claims: {states[0].text}."]
    return [*lines, *(f"Claim {state.words}: {state.text}." for state in states)]
