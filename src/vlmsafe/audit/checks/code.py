"""The code that computed the results: versions, revisions and the source of the user's own environment and scorer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from vlmsafe.audit.findings import Finding, about_arm, about_comparison, finding, listed
from vlmsafe.audit.kinds import Severity
from vlmsafe.comparison.comparisons import Comparison
from vlmsafe.errors import VlmsafeError
from vlmsafe.io.source import SourceHash
from vlmsafe.runs.layout import find_table
from vlmsafe.runs.records import ArmRecord, RunRecord
from vlmsafe.runs.tables import SOURCE
from vlmsafe.runs.traces import read_about
from vlmsafe.signals.scorers.registry import kind_of

_ENVIRONMENT, _SCORER = "environment", "scorer"


def code_differs(comparison: Comparison) -> Iterator[Finding]:
    """Packages, revisions and the user's own source, where runs recorded them."""
    arms = (comparison.first, comparison.second)
    versions: dict[str, list[list[str]]] = {}
    for what in ("python", "git_revision"):
        pair = [{run.recorded.get(what) for run in arm.runs} - {None} for arm in arms]
        if all(pair):
            versions[what] = [sorted(map(str, own)) for own in pair]
    first, second = map(_packages, arms)
    versions |= {name: [sorted(first[name]), sorted(second[name])] for name in sorted(first.keys() & second.keys())}
    unequal = {name: pair for name, pair in versions.items() if pair[0] != pair[1]}
    lines = [f"{name}: {listed(pair[0])} against {listed(pair[1])}" for name, pair in unequal.items()]
    changes = [line for part in _parts(*arms) for line in _between(comparison, part)]
    if lines or changes:
        data = {"versions": unequal, **({"source": changes} if changes else {})}
        yield finding("code-differs", about_comparison(comparison), lines + changes, data)


def mixed_source(arm: ArmRecord) -> Iterator[Finding]:
    """An arm whose runs, parts of runs or evaluations come from different source of the user's, or from unknown."""
    changes: list[str] = []
    unknown: list[str] = []
    for part in _parts(arm):
        known = {run.label: own for run in arm.runs if (own := _last(run, part))}
        first, *others = known or [""]
        changes += [
            f"{label} has other source of its {part} than {first}: {found}"
            for label in others
            if (found := known[first].changes(known[label]))
        ]
        for run in arm.runs:
            changes += [
                f"{run.label} was continued with other source of its {part}: {found}"
                for before, after in pairwise(_known(run, part))
                if (found := before.changes(after))
            ]
            why = next((own.unknown for own in _own(run, part) if own.unknown), "it was not recorded")
            if len(_known(run, part)) < len(run.sources):
                unknown.append(f"{run.label}: the source of its {part} is not known: {why}")
    for run in arm.runs:
        trained = _last(run, _ENVIRONMENT)
        for protocol, table in run.evaluations.items():
            if trained is None or SOURCE not in table.columns:
                continue
            digests = set(table[SOURCE])
            if digests - {trained.digest, None}:
                changes.append(
                    f"{run.label} was evaluated under '{protocol}' with other source of its environment than in "
                    "training"
                )
            if None in digests:
                unknown.append(f"{run.label}: the source of its environment under '{protocol}' is not known")
        changes += [
            f"{run.label} was traced under '{protocol}' with other source of its {part} than in training"
            for protocol, part in _traced_otherwise(run)
        ]
    if changes:
        yield finding("code-differs", about_arm(arm), changes, {"source": changes})
    if unknown:
        fix = "make sure yourself that your code was the same in all runs that are compared"
        yield finding("code-differs", about_arm(arm), unknown, {"unknown": unknown}, fix=fix, severity=Severity.NOTE)


def _traced_otherwise(run: RunRecord) -> Iterator[tuple[str, str]]:
    """The protocols of a run's traces that come from other source than the run, each with the part that differs."""
    trained = {part: own.digest for part in (_ENVIRONMENT, _SCORER) if (own := _last(run, part)) is not None}
    for protocol in run.traces if trained else ():
        path = find_table(run.source.run.traces, protocol)
        try:
            about = read_about(path) if path is not None else {}
        except VlmsafeError:
            continue  # a damaged file is named where the trace itself is read
        used = {_ENVIRONMENT: about.get(SOURCE)}
        for entry in about.get("scorers", ()):
            if entry["scorer"] == run.config.signal.scorer and isinstance(entry.get("source"), dict):
                used[_SCORER] = SourceHash.from_dict(entry["source"]).digest
        yield from ((protocol, part) for part, digest in trained.items() if used.get(part) not in (None, digest))


def _parts(*arms: ArmRecord) -> Iterator[str]:
    """The parts of runs that are the user's code, where all arms have the same ones."""
    configs = [arm.first.config for arm in arms]
    if all(config.spec.version is None for config in configs):
        yield _ENVIRONMENT
    scorers = {config.signal.scorer for config in configs}
    if len(scorers) == 1 and kind_of(scorers.pop()).user_code:  # arms may have different scorers on purpose
        yield _SCORER


def _between(comparison: Comparison, part: str) -> Iterator[str]:
    """How the source of a part differs between two arms, by the first runs that differ."""
    for one in comparison.first.runs:
        for other in comparison.second.runs:
            before, after = _last(one, part), _last(other, part)
            if before is not None and after is not None and (found := before.changes(after)):
                yield f"source of the {part}, {one.label} against {other.label}: {found}{_revisions(before, after)}"
                return


def _revisions(before: SourceHash, after: SourceHash) -> str:
    return f" (revision {before.revision or 'none'} against {after.revision or 'none'})"


def _own(run: RunRecord, part: str) -> list[SourceHash]:
    """The source of a part, in the order in which the run was computed with it."""
    return [own for record in run.sources if (own := record.get(part)) is not None]


def _known(run: RunRecord, part: str) -> list[SourceHash]:
    return [own for own in _own(run, part) if not own.unknown]


def _last(run: RunRecord, part: str) -> SourceHash | None:
    """The source that a run was computed with last; None if it is not known."""
    return next(iter(_known(run, part)[-1:]), None)


def _packages(arm: ArmRecord) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for run in arm.runs:
        # A run that was continued may have gone on with other versions than it began with.
        for noted in (run.recorded, *run.events):
            for name, version in (noted.get("packages") or {}).items():
                found.setdefault(name, set()).add(str(version))
        for event in run.events:
            scorer = event.get("scorer")
            if isinstance(scorer, dict) and scorer.get("revision"):
                found.setdefault(f"scorer {scorer.get('name')}", set()).add(str(scorer["revision"]))
    return found


ARM_CHECKS = (mixed_source,)
COMPARISON_CHECKS = (code_differs,)
