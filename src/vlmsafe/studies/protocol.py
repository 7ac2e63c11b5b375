"""Freezing a study: its question, arms, seeds, steps, evaluations, looks and claims, before its first run.

`freeze` writes `protocol.json` and a page for people, `protocol.md`, into the study's folder. A study that differs from
what was frozen gets a further version, with what was changed and how many runs were finished by then. Tables, figures,
traces and settings without effect on results are not frozen. `comparison.preregistration` reads the file.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmsafe.comparison.changes import changes, claim_defaults, claim_words, plain_claims
from vlmsafe.comparison.claims import CLAIMS_FILE, ENTRIES, Claims, load_claims
from vlmsafe.comparison.looks import Looks
from vlmsafe.comparison.preregistration import (
    PROTOCOL_FILE,
    PROTOCOL_PAGE,
    FrozenProtocol,
    Moment,
    ProtocolVersion,
    claim_states,
    protocol_bytes,
    protocol_lines,
    read_protocol,
)
from vlmsafe.config.yaml import read_yaml, to_dict, to_yaml
from vlmsafe.envs.registry import world_name
from vlmsafe.errors import InputError, RunError, VlmsafeError
from vlmsafe.io.files import write_atomically
from vlmsafe.runs.layout import STUDY_FILE, is_run
from vlmsafe.runs.run import Run
from vlmsafe.studies.journal import Event
from vlmsafe.studies.schema import load_study
from vlmsafe.studies.steps import NO_RESULT
from vlmsafe.studies.study import RunSpec, Study, cells, folder_of

_SUBJECT = ("first", "second", "env", "outcome", "name")  # fields that a claim's few words have


def freeze(study: Study, folder: Path) -> tuple[FrozenProtocol, Event | None]:
    """Freeze a study in its folder, and tell what is new: nothing, the first version, or a later one."""
    found, event = _compared(study, folder)
    if event is not None:
        write_atomically(folder / PROTOCOL_FILE, protocol_bytes(found))
        write_atomically(folder / PROTOCOL_PAGE, protocol_page(found).encode())
    return found, event


def notice(study: Study, folder: Path) -> tuple[FrozenProtocol | None, str]:
    """The protocol of a study, with what was changed since; None if it was never frozen.

    It is for commands that look at a study and do not run it. They record what was changed in the folder, its study
    and its claims. A study file elsewhere that differs is not the folder's yet: what differs is shown, and recorded
    when the study is run or frozen. The line that comes with it says what was not recorded.
    """
    if read_protocol(folder) is None:
        return None, ""
    place = folder / STUDY_FILE
    there = study if not place.is_file() or read_yaml(place) == study.document else load_study(folder)
    unrecorded = ""
    try:
        found, _ = freeze(there, folder)
    except RunError as error:
        found, _ = _compared(there, folder)
        unrecorded = f"a change of the protocol could not be recorded: {error}"
    if there is not study:
        found, event = _compared(study, folder)
        if event is not None:
            unrecorded = f"the last change is not recorded yet: it is not in {folder}; study run and study freeze do so"
    return found, unrecorded


def shown_protocol(protocol: FrozenProtocol, study: Study, folder: Path) -> list[str]:
    """A protocol in a few lines: when it was frozen, what was changed, and when each claim was decided."""
    now = runs_there(protocol.last.content, folder)
    return protocol_lines(protocol, claim_states(protocol, claims_in_force(study, folder), now))


def _compared(study: Study, folder: Path) -> tuple[FrozenProtocol, Event | None]:
    """The protocol with the study as it is now, and what is new about it."""
    before, claims = read_protocol(folder), claims_in_force(study, folder)
    content = protocol_content(study, folder, claims)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if before is None:
        found = FrozenProtocol((ProtocolVersion(now, runs_there(content, folder), content),))
        return found, Event("study", "protocol", "frozen", f"{found.when} ({folder / PROTOCOL_PAGE})")
    frozen = before.last.content["study"]
    if frozen != study.title:
        raise InputError(
            f"{folder} holds the protocol of the study '{frozen}', and this study is '{study.title}'; give it a folder "
            "of its own, or its former name"
        )
    new = tuple(changes(before.last.content, content, claim_defaults(claims)))
    if not new:
        return before, None
    at = runs_there(before.last.content, folder)
    found = FrozenProtocol((*before.versions, ProtocolVersion(now, at, content, new)))
    what = f"{at}, to version {len(found.versions)}: {'; '.join(new)}"
    return found, Event("study", "protocol", "changed", what)


def protocol_content(study: Study, folder: Path, claims: Claims) -> dict[str, Any]:
    """What is frozen of a study, as plain values."""
    specs = study.expand(folder, recorded=True)
    return {
        "study": study.title,
        "question": study.question,
        "cells": [_cell(study, own) for own in cells(specs).values()],
        "looks": {"at": list(study.looks.at), "spending": study.looks.spending},
        "claims": plain_claims(claims),
    }


def _cell(study: Study, specs: list[RunSpec]) -> dict[str, Any]:
    """One arm in one environment. Only settings that the study names count: defaults are the package's."""
    first = specs[0]
    settings = study.settings_of(first.env, first.arm)
    requests = {request.protocol: request.count for spec in specs for request in spec.evaluations}
    evaluations: dict[str, Any] = {}
    for protocol, episodes in requests.items():
        seeds = [spec.seed for spec in specs if any(request.protocol == protocol for request in spec.evaluations)]
        every = len(seeds) == len(specs)
        evaluations[protocol] = episodes if every else {"episodes": episodes, "seeds": seeds}
    return {
        "environment": world_name(first.env),
        "arm": first.arm,
        "method": first.config.method,
        "seeds": [spec.seed for spec in specs],
        "total_steps": first.config.total_steps,
        "settings": to_dict({name: value for name, value in sorted(settings.items()) if name not in NO_RESULT}),
        "evaluations": evaluations,
    }


def runs_there(content: Mapping[str, Any], folder: Path) -> Moment:
    """How many of the planned runs exist, and how many of them are trained to the end."""
    places = [
        folder / folder_of(cell["environment"]) / cell["arm"] / f"seed-{seed}"
        for cell in content["cells"]
        for seed in cell["seeds"]
    ]
    begun = [place for place in places if is_run(place)]
    return Moment(len(begun), sum(map(_finished, begun)), len(places))


def _finished(place: Path) -> bool:
    try:
        run = Run.open(place)
        return run.epochs_done() >= run.config.epochs
    except VlmsafeError:
        return True  # its numbers may have been seen before it was damaged


# -- claims ----------------------------------------------------------------------------------------------------------


def claims_in_force(study: Study, folder: Path) -> Claims:
    """The claims of a study: those that somebody wrote into its folder, or else its own."""
    return load_claims(folder / CLAIMS_FILE) if others_claims(study, folder) else study.claims


def others_claims(study: Study, folder: Path) -> bool:
    """Whether the folder has claims that are not from the study's own comparisons, neither of today nor as last run."""
    path, place = folder / CLAIMS_FILE, folder / STUDY_FILE
    if not path.is_file():
        return False
    before = claims_text(read_yaml(place)) if place.is_file() else None
    return path.read_bytes() not in (claims_text(study.document), before)


def claims_text(document: Mapping[str, Any]) -> bytes | None:
    """The claims in a study's document as a file; None if it has none."""
    claims = {key: document[key] for key in ENTRIES if key in document}
    if not {"comparisons", "contrasts"} & set(claims):
        return None
    return to_yaml({"comparisons": [], **claims}).encode()


# -- the page --------------------------------------------------------------------------------------------------------


def protocol_page(protocol: FrozenProtocol) -> str:
    """The protocol on one page, in Markdown."""
    last, content = protocol.last, protocol.last.content
    looks = Looks(tuple(content["looks"]["at"]), content["looks"]["spending"])
    lines = [
        f"# Protocol of the study '{content['study']}'",
        "",
        f"Question: {content['question']}",
        "",
        f"Frozen {protocol.when}.",
        "",
        f"- Hash of what follows: `{last.digest}` (SHA-256 of `content` in `{PROTOCOL_FILE}` as canonical JSON)",
        f"- Version {len(protocol.versions)}, of {last.time}",
        "",
        "## Runs",
        "",
        "| environment | arm | method | settings | seeds | steps | evaluations |",
        "|---|---|---|---|---|---|---|",
        *(_row(cell) for cell in content["cells"]),
        "",
        "Settings that are not named have the defaults of the method and of the package.",
        "",
        "## Claims",
        "",
        *(_claims_lines(content["claims"]) or ["None: the study describes its runs."]),
        "",
        "## Stopping",
        "",
        f"There is {looks}." if len(looks.at) == 1 else f"There are {looks}.",
        "No claim is decided at another time.",
        "",
        "## Changes",
        "",
        *(
            [
                f"- Version {number}, {one.time}, {one.at}: {'; '.join(one.changes)}."
                for number, one in enumerate(protocol.versions[1:], 2)
            ]
            or ["None."]
        ),
    ]
    return "\n".join(lines) + "\n"


def _row(cell: Mapping[str, Any]) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in cell["settings"].items()) or "-"
    evaluations = ", ".join(f"{name} ({_episodes(asked)})" for name, asked in cell["evaluations"].items()) or "-"
    seeds = ", ".join(map(str, cell["seeds"]))
    values = (
        cell["environment"], cell["arm"], cell["method"], settings, seeds, f"{cell['total_steps']:,}", evaluations,
    )  # fmt: skip
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"


def _episodes(asked: Any) -> str:
    if isinstance(asked, int):
        return f"{asked} episodes"
    return f"{asked['episodes']} episodes of the seeds {', '.join(map(str, asked['seeds']))}"


def _claims_lines(claims: Mapping[str, Any]) -> list[str]:
    """Each claim with all its fields, and what holds for all of them."""
    lines: list[str] = []
    for name, entries in claims.items():
        if isinstance(entries, list):
            for entry in entries:
                rest = {
                    key: value for key, value in entry.items() if key not in _SUBJECT and value not in (None, "", [])
                }
                fields = "; ".join(f"{key} {_field(value)}" for key, value in rest.items())
                lines.append(f"{len(lines) + 1}. {claim_words(entry)}: {fields} (`{name}`)")
    shared = [f"{key} {value}" for key, value in claims.items() if not isinstance(value, list)]
    return [*lines, "", f"For all claims: {'; '.join(shared)}."] if lines and shared else lines


def _field(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_field, value))
    return " on ".join(map(str, value.values())) if isinstance(value, dict) else str(value)
