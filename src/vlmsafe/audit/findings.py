"""What an audit returns: findings with their evidence, what they are about and how to fix them.

A finding carries fields (`Subject`, numbers in `data`). The sentence that says where it applies is made from them once,
in `Subject.where`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from vlmsafe.audit.kinds import KINDS, FindingKind, Severity
from vlmsafe.comparison.comparisons import Comparison
from vlmsafe.errors import EXIT_ERRORS, EXIT_WARNINGS
from vlmsafe.runs.records import ArmRecord, RunRecord

SubjectScope = Literal["run", "arm", "comparison", "environment", "all"]


@dataclass(frozen=True)
class Subject:
    """What a finding is about."""

    scope: SubjectScope
    """Single runs, an arm, a comparison of two arms, an environment, or everything that was audited."""
    environment: str = ""
    arms: tuple[str, ...] = ()
    """Of a comparison: first and second."""
    runs: tuple[str, ...] = ()
    """The runs in question, such as 'ppo-lag seed-42'; of a folder that cannot be opened, its path."""
    protocol: str = ""
    """The evaluation or trace in question, or 'training'; empty where the finding is not about one of them."""

    @property
    def where(self) -> str:
        """
        >>> Subject("comparison", "braking", ("ppo-lag", "ppo"), protocol="held-out").where
        "braking: 'ppo-lag' against 'ppo', 'held-out'"
        """
        if self.scope == "all":
            return "all comparisons"
        names = {"run": ", ".join(self.runs), "environment": ""}.get(self.scope, quoted(*self.arms))
        place = ": ".join(part for part in (self.environment, names) if part)
        return f"{place}, '{self.protocol}'" if self.protocol else place


EVERYTHING = Subject("all")


def quoted(*arms: str) -> str:
    """Names of arms as they stand in sentences: quoted, because an arm may be called anything, such as 'with'."""
    return " against ".join(f"'{arm}'" for arm in arms)


def about_runs(*runs: RunRecord) -> Subject:
    """Single runs of one environment."""
    return Subject("run", runs[0].env, _once(run.arm for run in runs), _once(run.label for run in runs))


def about_arm(arm: ArmRecord, protocol: str = "", runs: Iterable[RunRecord] | None = None) -> Subject:
    """An arm, or those of its runs in which something was found."""
    return Subject("arm", arm.env, (arm.name,), _labels(arm.runs if runs is None else runs), protocol)


def about_comparison(comparison: Comparison, protocol: str = "", runs: Iterable[RunRecord] | None = None) -> Subject:
    """Two arms, or those of their runs in which something was found."""
    claim, both = comparison.claim, (*comparison.first.runs, *comparison.second.runs)
    return Subject(
        "comparison", comparison.env, (claim.first, claim.second), _labels(both if runs is None else runs), protocol
    )


def about_environment(env: str, arms: Sequence[ArmRecord], protocol: str) -> Subject:
    """All arms of an environment that have an evaluation."""
    runs = [run for arm in arms for run in arm.runs if protocol in run.evaluations]
    return Subject("environment", env, _once(run.arm for run in runs), _labels(runs), protocol)


def _labels(runs: Iterable[RunRecord]) -> tuple[str, ...]:
    return _once(run.label for run in runs)


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or weaker than it looks. Made by `finding`."""

    kind: FindingKind
    subject: Subject
    severity: Severity
    evidence: tuple[str, ...]
    """Lines for a reader."""
    fix: str
    data: Mapping[str, Any]
    """The evidence as values, for programs."""
    metric: str = ""
    """The outcome in question, such as cost, where it is about one."""

    @property
    def code(self) -> str:
        return self.kind.code

    @property
    def title(self) -> str:
        return self.kind.title

    @property
    def where(self) -> str:
        return self.subject.where

    def to_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": str(self.severity),
            "title": self.title,
            "where": self.where,
            **asdict(self.subject),
            "metric": self.metric,
            "evidence": self.evidence,
            "fix": self.fix,
            "data": self.data,
        }


def finding(
    code: str,
    subject: Subject,
    evidence: Iterable[str],
    data: Mapping[str, Any] | None = None,
    *,
    fix: str = "",
    severity: Severity | None = None,
    metric: str = "",
) -> Finding:
    """A finding of a kind. Fix and severity are the kind's unless they are given."""
    kind = KINDS[code]
    return Finding(kind, subject, severity or kind.severity, tuple(evidence), fix or kind.remedy, data or {}, metric)


@dataclass(frozen=True)
class Unchecked:
    """Questions that could not be asked, of what, and why."""

    codes: tuple[str, ...]
    subjects: tuple[Subject, ...]
    reason: str

    @property
    def where(self) -> str:
        return "; ".join(_once(subject.where for subject in self.subjects))

    def to_dict(self) -> dict[str, Any]:
        subjects = [asdict(subject) for subject in self.subjects]
        return {"codes": self.codes, "where": self.where, "subjects": subjects, "reason": self.reason}


@dataclass(frozen=True)
class Audit:
    """Everything an audit found."""

    findings: tuple[Finding, ...]
    unchecked: tuple[Unchecked, ...]
    comparisons: tuple[str, ...]
    """What was compared with what, in words."""
    arms: tuple[dict[str, Any], ...]
    """The mean results of each arm, from training and from each evaluation."""

    @property
    def runs(self) -> int:
        return sum(len(arm["seeds"]) for arm in self.arms if arm["source"] == "training")

    @property
    def worst(self) -> Severity | None:
        return max((one.severity for one in self.findings), default=None)

    @property
    def exit_code(self) -> int:
        """0 where nothing is worse than a note."""
        return {Severity.ERROR: EXIT_ERRORS, Severity.WARNING: EXIT_WARNINGS}.get(self.worst or Severity.NOTE, 0)

    def codes(self) -> set[str]:
        return {one.code for one in self.findings}

    def to_dict(self) -> dict[str, Any]:
        """For programs; plain values only, and null for numbers that are not finite."""
        document = {
            "runs": self.runs,
            "arms": self.arms,
            "comparisons": self.comparisons,
            "worst": str(self.worst) if self.worst else None,
            "findings": [one.to_dict() for one in self.findings],
            "unchecked": [entry.to_dict() for entry in self.unchecked],
        }
        return {name: _plain(value) for name, value in document.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def listed(names: Sequence[object], most: int = 6) -> str:
    """Names in a sentence, cut where there are many.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    words = [str(name) for name in names]
    if len(words) <= most:
        return ", ".join(words)
    return f"{', '.join(words[:most])} and {len(words) - most} more"


def counted(count: int, noun: str) -> str:
    """
    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
