"""The frozen protocol of a study: what was decided, when, and what was changed afterwards.

`vlmsafe study freeze`, or the first `vlmsafe study run`, writes it to `protocol.json` in the study's folder. Later
changes are added as further versions, each with the number of runs that were finished by then. Nothing is removed. This
module reads the file, checks its hashes and says of each claim whether it was decided before the runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vlmsafe.comparison.changes import Plain, claim_defaults, claim_forms, claim_words, is_tested, paired, plain_claims
from vlmsafe.comparison.decisions import LookPlan
from vlmsafe.comparison.looks import Looks
from vlmsafe.errors import InputError

PROTOCOL_FILE = "protocol.json"
PROTOCOL_PAGE = "protocol.md"
_HASH_SHOWN = 12


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
    forms = claim_forms(plain_claims(claims), defaults)
    known = [(one.at, paired(claim_forms(one.content["claims"], defaults), forms)) for one in protocol.versions]
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
    forms = [claim_forms(one.content["claims"], defaults) for one in protocol.versions]
    found: list[tuple[str, Moment]] = []
    for place in range(1, len(forms)):
        at, last = protocol.versions[place].at, _given_up(forms[place - 1], forms[-1])
        if at.finished:
            found += [(claim_words(form), at) for form in _given_up(forms[place - 1], forms[place]) if form in last]
    return found


def _given_up(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The claims with a test that have no counterpart any more, or one without a test."""
    pairs = paired(old, new)
    return [before for before, now in pairs if before is not None and is_tested(before) and not is_tested(now or {})]


def protocol_lines(protocol: FrozenProtocol, states: Sequence[ClaimState]) -> list[str]:
    """A protocol for a report: when it was frozen, what was changed, and when each claim was decided."""
    lines = [f"Protocol frozen {protocol.when}."]
    lines += [f"Changed {one.time}, {one.at}: {'; '.join(one.changes)}." for one in protocol.versions[1:]]
    texts = {state.text for state in states}
    if len(states) > 1 and len(texts) == 1:
        return [*lines, f"All {len(states)} claims: {states[0].text}."]
    return [*lines, *(f"Claim {state.words}: {state.text}." for state in states)]


def planned_looks(protocol: FrozenProtocol) -> LookPlan:
    """The planned seeds and looks of the newest version."""
    content = protocol.last.content
    seeds = {(cell["environment"], cell["arm"]): tuple(cell["seeds"]) for cell in content["cells"]}
    return LookPlan(seeds, Looks(tuple(content["looks"]["at"]), content["looks"]["spending"]))
