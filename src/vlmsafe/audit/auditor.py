"""The audit itself: every check on every run, arm and comparison, in the order in which a reader would ask."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from vlmsafe.audit.checks.conclusion import (
    check_distance,
    check_evaluated_return,
    check_passive,
    check_shaped_return,
)
from vlmsafe.audit.checks.design import (
    check_arm,
    check_comparison,
    check_copies,
    check_tests,
)
from vlmsafe.audit.checks.evaluation import check_evaluations, check_matched_evaluation
from vlmsafe.audit.checks.robustness import (
    check_baselines,
    check_few_episodes,
    check_replications,
    check_windows,
)
from vlmsafe.audit.checks.runs import check_run
from vlmsafe.audit.checks.signal import check_signal
from vlmsafe.audit.findings import (
    CODES,
    Audit,
    Finding,
    Unchecked,
)
from vlmsafe.comparison.claims import (
    Claims,
    Comparison,
    claims_with_runs,
    comparisons,
    load_claims,
)
from vlmsafe.comparison.outcomes import summarise_arm
from vlmsafe.errors import InputError
from vlmsafe.runs.arms import open_arms
from vlmsafe.runs.layout import STUDY_FILE
from vlmsafe.runs.records import ArmRecord, read_arms

RESAMPLES = 1_000
CLAIMS = "claims.yaml"


def audit(
    paths: Sequence[Path | str],
    *,
    claims: Path | str | Claims | None = None,
    baseline: str | None = None,
    passive_below: float | None = None,
    resamples: int = RESAMPLES,
) -> Audit:
    """Look at runs, or folders of runs, and say what a comparison of them can and cannot show.

    `claims` says what is compared; without it a `claims.yaml` in one of the folders does, and without that arms are
    compared as a reader would, each with `baseline` where one is named. `passive_below` is the return below which an
    episode without cost counts as passive.
    """
    if passive_below is not None and not math.isfinite(passive_below):
        raise InputError(f"passive_below is {passive_below}; expected a finite return")
    # A shell's runs/* names the claims among the runs.
    files = [Path(path) for path in paths if Path(path).name == CLAIMS and Path(path).is_file()]
    paths = [path for path in paths if Path(path) not in files]
    if claims is None and len(files) == 1:
        claims = files[0]
    sources, unreadable = open_arms(paths)
    if isinstance(claims, Path | str):
        claims = load_claims(Path(claims))
    elif claims is None:
        claims = claims_beside(paths)
    arms = read_arms(sources)
    unfinished: list[str] = []
    if claims is not None and any((Path(path) / STUDY_FILE).is_file() for path in paths):
        claims, unfinished = claims_with_runs(claims, arms)  # a study checks its claims against its own arms
    compared = comparisons(arms, claims, baseline=baseline)
    said = list(_look(arms.values(), compared, claims, passive_below, resamples))
    said += [Unchecked(("unmatched-arms",), "the study", line) for line in unfinished]
    said += [
        Finding("unreadable-run", line.split(":")[0], (line,), "restore it, or leave it out") for line in unreadable
    ]
    # Several claims about one pair of arms would say the same of it several times.
    findings = list(
        {(entry.code, entry.where, entry.evidence): entry for entry in said if isinstance(entry, Finding)}.values()
    )
    order = {code: place for place, code in enumerate(CODES)}
    findings.sort(key=lambda finding: (-finding.weight, order[finding.code]))
    return Audit(
        tuple(findings),
        tuple(_once(entry for entry in said if isinstance(entry, Unchecked))),
        tuple(dict.fromkeys(comparison.where for comparison in compared)),
        tuple(summary for arm in arms.values() for summary in summarise_arm(arm)),
    )


def _look(
    arms: Iterable[ArmRecord],
    compared: Sequence[Comparison],
    claims: Claims | None,
    passive_below: float | None,
    resamples: int,
) -> Iterator[Finding | Unchecked]:
    arms = list(arms)
    for arm in arms:
        for run in arm.runs:
            yield from check_run(run)
        yield from check_arm(arm)
        yield from check_evaluations(arm)
        yield from check_signal(arm, resamples=resamples)
        yield from check_evaluated_return(arm)
    yield from check_copies(arms)
    if len(arms) > 1 and not compared:
        yield Unchecked(("unmatched-arms",), "all arms", "no two of them share an environment, so nothing is compared")
    for comparison in compared:
        yield from check_comparison(comparison)
        yield from check_matched_evaluation(comparison)
        yield from check_shaped_return(comparison)
        yield from check_few_episodes(comparison)
        yield from check_windows(comparison)
    yield from check_tests(claims, compared)
    yield from check_baselines(compared)
    yield from check_replications(compared, arms)
    for env in dict.fromkeys(arm.env for arm in arms):
        own = [arm for arm in arms if arm.env == env]
        yield from check_distance(env, own)
        yield from check_passive(env, own, passive_below)


def claims_beside(paths: Sequence[Path | str]) -> Claims | None:
    """The claims that lie in one of the folders, or above the runs."""
    places = dict.fromkeys(Path(path) / CLAIMS for path in paths)
    found = [place for place in places if place.is_file()]
    if len(found) > 1:
        names = ", ".join(map(str, found))
        raise InputError(f"several claims: {names}; take one folder at a time, or, for the audit, choose with --claims")
    return load_claims(found[0]) if found else None


def _once(entries: Iterable[Unchecked]) -> Iterator[Unchecked]:
    """Each reason once, with all places it holds for."""
    grouped: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for entry in entries:
        grouped.setdefault((entry.codes, entry.reason), []).append(entry.where)
    for (codes, reason), places in grouped.items():
        yield Unchecked(codes, "; ".join(dict.fromkeys(places)), reason)
