"""Claims: were they decided before the runs?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vlmsafe.audit.findings import EVERYTHING, Finding, finding
from vlmsafe.audit.kinds import Severity
from vlmsafe.comparison.changes import claim_defaults, design_changes
from vlmsafe.comparison.claims import Claims
from vlmsafe.comparison.preregistration import ClaimState, FrozenProtocol, Moment, claim_states, dropped_claims
from vlmsafe.runs.records import ArmRecord


def claims_changed(protocol: FrozenProtocol, claims: Claims, arms: Sequence[ArmRecord]) -> Iterator[Finding]:
    """Claims that were added, changed or dropped when results were there, by the study's frozen protocol."""
    runs = [run for arm in arms for run in arm.runs]
    finished = sum(run.epochs_recorded >= run.config.epochs for run in runs)
    planned = sum(len(cell["seeds"]) for cell in protocol.last.content["cells"])
    states = [one for one in claim_states(protocol, claims, Moment(len(runs), finished, planned)) if _tested(one)]
    late = [one for one in states if one.kind in ("added", "changed") and one.at.finished]
    dropped = dropped_claims(protocol, claim_defaults(claims))
    if late or dropped:
        lines = [f"{one.words}: {one.text}" for one in late]
        lines += [f"{words}: dropped {at}" for words, at in dropped]
        yield finding(
            "claims-changed",
            EVERYTHING,
            lines,
            {
                "frozen": protocol.first.time,
                "late": [{"claim": one.words, "kind": one.kind, "finished": one.at.finished} for one in late],
                "dropped": [{"claim": words, "finished": at.finished} for words, at in dropped],
            },
        )
    unknown = [one for one in states if one.kind == "unknown" and one.at.finished]
    notes = [f"{one.words}: {one.text}" for one in unknown]
    for before, after in zip(protocol.versions, protocol.versions[1:], strict=False):
        if after.at.finished and (what := design_changes(before.content, after.content)):
            notes.append(f"changed {after.at}: {'; '.join(what)}")
    if notes:
        yield finding(
            "claims-changed",
            EVERYTHING,
            notes,
            {"frozen": protocol.first.time},
            fix="say in the results what was decided before the runs and what was not",
            severity=Severity.NOTE,
        )


def _tested(state: ClaimState) -> bool:
    """Whether a test decides the claim; every contrast has one."""
    return bool(getattr(state.claim, "tested", True))
