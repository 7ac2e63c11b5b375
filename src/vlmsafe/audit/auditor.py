"""The audit: reads the runs, calls every check on every run, arm and comparison, and sorts what they found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from vlmsafe.audit.checks import claims as decided
from vlmsafe.audit.checks import code, design, evaluations, metrics, runs, signal, verdicts
from vlmsafe.audit.findings import EVERYTHING, Audit, Finding, Subject, Unchecked, about_comparison, finding, listed
from vlmsafe.audit.kinds import KINDS
from vlmsafe.comparison.claims import CLAIMS_FILE, Claims, count_tests, find_claims, load_claims
from vlmsafe.comparison.comparisons import Comparison, claims_with_runs, comparisons, planned_cells
from vlmsafe.comparison.contrasts import ContrastVerdict, check_cells, judge_contrast, waits_for
from vlmsafe.comparison.decisions import Judged, LookPlan, judge_all
from vlmsafe.comparison.outcomes import summarise_arm
from vlmsafe.comparison.preregistration import planned_looks, read_protocol
from vlmsafe.errors import InputError
from vlmsafe.runs.arms import of_studies, open_arms
from vlmsafe.runs.layout import STUDY_FILE, is_run
from vlmsafe.runs.records import ArmRecord, read_arms

RESAMPLES = 1_000


def audit(
    paths: Sequence[Path | str] | Path | str,
    *,
    claims: Path | str | Claims | None = None,
    baseline: str | None = None,
    passive_below: float | None = None,
    resamples: int = RESAMPLES,
    studies: Mapping[Path, Sequence[Path]] | None = None,
    notes: Sequence[str] = (),
    tests: int | None = None,
) -> Audit:
    """Find out what a comparison of runs can and cannot show.

    `paths` are run directories or folders of runs.

    `claims` says what is compared. Without it a `claims.yaml` in one of the folders does. Without that, arms are
    compared as `comparison.claims.comparisons` chooses, each with `baseline` where one is named. `passive_below` is the
    return below which an episode without cost counts as passive. `studies` has the runs of studies by their folders, as
    in `of_studies`, and `notes` has what to say about studies that could not be read. `tests` is the number of claimed
    tests, if `claims` are only those that have runs.
    """
    if passive_below is not None and not math.isfinite(passive_below):
        raise InputError(f"passive_below is {passive_below}; expected a finite return")
    paths = [paths] if isinstance(paths, Path | str) else paths
    if not paths:
        raise InputError("audit: no runs; expected a folder that holds runs, such as runs/, or run directories")
    # A shell's runs/* names the claims among the runs.
    files = [Path(path) for path in paths if Path(path).name == CLAIMS_FILE and Path(path).is_file()]
    paths = [path for path in paths if Path(path) not in files]
    if claims is None and len(files) == 1:
        claims = files[0]
    sources, unreadable = open_arms(paths)
    sources, left_out = of_studies(sources, studies or {})
    if isinstance(claims, Path | str):
        claims = load_claims(Path(claims))
    elif claims is None:
        claims = find_claims(paths)
    arms = read_arms(sources)
    unfinished: list[str] = []
    if tests is None:
        tests = count_tests(claims, planned_cells(studies or {}, arms)) if claims is not None else 0
    if claims is not None and any((Path(path) / STUDY_FILE).is_file() for path in paths):
        claims, unfinished = claims_with_runs(claims, arms)  # a study checks its claims against its own arms
    if claims is not None and not studies:
        check_cells(claims.contrasts, list(arms))
    compared = comparisons(arms, claims, baseline=baseline)
    protocols = [one for path in paths if (one := read_protocol(Path(path))) is not None]
    judged: list[Judged] = []
    contrasts: list[tuple[ContrastVerdict, float]] = []
    if claims is not None:
        plan = planned_looks(protocols[0]) if len(protocols) == 1 else LookPlan()
        verdicts_of = [judge_contrast(one, arms) for one in claims.contrasts]
        others = [one.tested_unless(waits_for(one, arms, plan)) for one in verdicts_of]
        judged, decisions = judge_all(compared, claims.correction, tests, others, plan)
        contrasts = [(one, decision.level) for one, decision in zip(verdicts_of, decisions, strict=True)]
        compared = [one.at_its_level for one in judged]
    reported = list(_check(list(arms.values()), compared, claims, tests, passive_below, resamples))
    reported += decided.missing_outcomes(judged)
    reported += decided.contrasts_checked(contrasts, arms)
    reported += _absent(studies or {})
    if len(protocols) == 1:  # claims of several studies are those of none
        reported += decided.claims_changed(protocols[0], claims or Claims(), list(arms.values()))
    reported += [Unchecked(("unmatched-arms",), (EVERYTHING,), line) for line in unfinished]
    reported += [Unchecked(("every check",), (EVERYTHING,), line) for line in (*left_out, *notes)]
    reported += [
        finding("unreadable-run", Subject("run", runs=(str(one.path),)), [str(one)], fix="restore it, or leave it out")
        for one in unreadable
    ]
    # Several claims about one pair of arms give the same finding several times.
    found = {(one.code, one.subject, one.evidence): one for one in reported if isinstance(one, Finding)}
    order = {code: place for place, code in enumerate(KINDS)}
    return Audit(
        tuple(sorted(found.values(), key=lambda one: (-one.severity, order[one.code]))),
        tuple(_grouped([one for one in reported if isinstance(one, Unchecked)])),
        tuple(dict.fromkeys(about_comparison(comparison).where for comparison in compared)),
        tuple(summary for arm in arms.values() for summary in summarise_arm(arm)),
    )


def _absent(studies: Mapping[Path, Sequence[Path]]) -> Iterator[Unchecked]:
    """A line about each study of which planned runs are not there."""
    for folder, planned in studies.items():
        absent = [str(path.relative_to(folder)) for path in planned if path.is_relative_to(folder) and not is_run(path)]
        if absent:
            line = f"{len(absent)} of {len(planned)} planned runs in {folder} are not there: {listed(absent, 3)}"
            yield Unchecked(("every check",), (EVERYTHING,), line)


def _check(
    arms: Sequence[ArmRecord],
    compared: Sequence[Comparison],
    claims: Claims | None,
    tests: int,
    passive_below: float | None,
    resamples: int,
) -> Iterator[Finding | Unchecked]:
    """Everything that the checks report, in the order of runs, arms, comparisons and environments."""
    for arm in arms:
        yield from _check_arm(arm, resamples)
    for of_arms in design.ALL_ARMS_CHECKS:
        yield from of_arms(arms)
    if len(arms) > 1 and not compared and not (claims and claims.contrasts):
        yield Unchecked(("unmatched-arms",), (EVERYTHING,), "no two arms share an environment, so nothing is compared")
    for comparison in compared:
        for module in (design, code, evaluations, metrics, verdicts):
            for of_comparison in module.COMPARISON_CHECKS:
                yield from of_comparison(comparison)
    yield from verdicts.many_tests(claims, tests)
    yield from verdicts.baseline_dependent(compared)
    yield from verdicts.replication_noise(compared, arms)
    passive: list[Finding | Unchecked] = []
    for env in dict.fromkeys(arm.env for arm in arms):
        own = [arm for arm in arms if arm.env == env]
        yield from metrics.cost_tracks_distance(env, own)
        passive += metrics.passive_policy(env, own, passive_below)
    yield from passive
    yield from metrics.progress_differs(compared, passive)


def _check_arm(arm: ArmRecord, resamples: int) -> Iterator[Finding | Unchecked]:
    for run in arm.runs:
        for of_run in runs.RUN_CHECKS:
            yield from of_run(run)
    for of_arm in (
        *design.ARM_CHECKS,
        *code.ARM_CHECKS,
        *metrics.ARM_CHECKS,
        *(signal.ARM_CHECKS if arm.has_signal else ()),
    ):
        yield from of_arm(arm)
    for protocol in arm.protocols:
        for of_evaluation in evaluations.EVALUATION_CHECKS:
            yield from of_evaluation(arm, protocol)
    for traced in signal.read_traces(arm, resamples) if arm.has_signal else ():
        if isinstance(traced, Unchecked):
            yield traced
        else:
            for of_trace in signal.TRACE_CHECKS:
                yield from of_trace(traced)


def _grouped(entries: Iterable[Unchecked]) -> Iterator[Unchecked]:
    """Each reason once, with everything that it holds for."""
    grouped: dict[tuple[tuple[str, ...], str], list[Subject]] = {}
    for entry in entries:
        grouped.setdefault((entry.codes, entry.reason), []).extend(entry.subjects)
    for (codes, reason), subjects in grouped.items():
        yield Unchecked(codes, tuple(dict.fromkeys(subjects)), reason)
