"""Claims: were they decided before the runs, and do the runs have what they are about?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vlmsafe.analysis.exact_tests import smallest_sign_flip_p
from vlmsafe.audit.findings import EVERYTHING, Finding, Subject, Unchecked, about_comparison, counted, finding, listed
from vlmsafe.audit.kinds import Severity
from vlmsafe.comparison.changes import claim_defaults, design_changes
from vlmsafe.comparison.claims import Claims
from vlmsafe.comparison.contrasts import ContrastVerdict
from vlmsafe.comparison.decisions import Judged
from vlmsafe.comparison.outcomes import WORDS, values_of
from vlmsafe.comparison.preregistration import (
    ClaimState,
    FrozenProtocol,
    Moment,
    ProtocolVersion,
    claim_states,
    dropped_claims,
)
from vlmsafe.runs.records import ArmRecord

_FEW = 3  # runs per arm, below which a deviation is hardly known


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
    seeds = False
    for before, after in zip(protocol.versions, protocol.versions[1:], strict=False):
        if after.at.finished and (what := design_changes(before.content, after.content)):
            notes.append(f"changed {after.at}: {'; '.join(what)}")
            seeds = seeds or _seeds(before) != _seeds(after)
    if notes:
        yield finding(
            "claims-changed",
            EVERYTHING,
            notes,
            {"frozen": protocol.first.time},
            fix="say in the results what was decided before the runs and what was not",
            # Who adds or drops seeds after results are there can choose the result.
            severity=Severity.WARNING if seeds else Severity.NOTE,
        )


def _tested(state: ClaimState) -> bool:
    """Whether a test decides the claim; every contrast has one."""
    return bool(getattr(state.claim, "tested", True))


def _seeds(version: ProtocolVersion) -> dict[tuple[str, str], set[int]]:
    return {(cell["environment"], cell["arm"]): set(cell["seeds"]) for cell in version.content["cells"]}


def missing_outcomes(judged: Sequence[Judged]) -> Iterator[Finding | Unchecked]:
    """Runs that have an evaluation, or training records, without the outcome that a claim is about."""
    for one in judged:
        claim, comparison = one.comparison.claim, one.comparison
        if not claim.tested:
            continue
        for arm in (comparison.first, comparison.second):
            values = values_of(arm, claim.outcome, one.source, claim.window)
            runs = [run for run in arm.runs if one.source == "training" or one.source in run.evaluations]
            lacking = [run.name for key, run in arm.matched_by.items() if run in runs and key not in values]
            if not lacking:
                continue
            where = "training" if one.source == "training" else f"'{one.source}'"
            line = f"no {WORDS[claim.outcome]} of '{arm.name}' in {where}: {listed(lacking)}"
            if len(lacking) == len(runs):
                yield Unchecked(("every check of the verdict",), (about_comparison(comparison),), line)
            else:
                fix = "evaluate these runs again; the comparison leaves them out"
                yield finding("not-finite", about_comparison(comparison), [line], fix=fix, metric=claim.outcome)


def contrasts_checked(
    contrasts: Sequence[tuple[ContrastVerdict, float]], arms: Mapping[tuple[str, str], ArmRecord]
) -> Iterator[Finding | Unchecked]:
    """Contrasts with too few runs for their test, without results, or on a return that contains the bonus."""
    for verdict, level in contrasts:
        claim = verdict.claim
        cells = (*claim.plus, *claim.minus)
        names = tuple(dict.fromkeys(cell.arm for cell in cells))
        subject = Subject("environment", cells[0].env, names, (), claim.source)
        if verdict.missing:
            what = listed([f"'{cell.arm}' on {cell.env}" for cell in verdict.missing])
            reason = f"no {WORDS[claim.outcome]} for the contrast {claim}: {what}"
            yield Unchecked(("too-few-seeds",), (subject,), reason)
            continue
        runs = min(map(len, verdict.cells.values()))
        smallest = float(smallest_sign_flip_p(runs, claim.sides)) if claim.test == "sign-flip" and runs else None
        if runs < _FEW or (smallest is not None and smallest >= level):
            words = f"the smallest p that they can give is {smallest:.3g}, not below {level:.3g}"
            line = f"the contrast {claim} has {counted(runs, 'run')} per arm: "
            yield finding(
                "too-few-seeds",
                subject,
                [line + (words if smallest is not None else "too few to know how much runs differ")],
                {"runs": runs, "test": claim.test, "alpha": level, "smallest_p": smallest},
            )
        paid = [arms[cell.env, cell.arm] for cell in cells if (cell.env, cell.arm) in arms]
        if claim.outcome == "shaped_return" and any(arm.first.config.signal.reward_weight > 0.0 for arm in paid):
            line = f"the contrast {claim} is on the logged return, which contains the bonus"
            yield finding("shaped-return", subject, [line], metric="shaped_return")
