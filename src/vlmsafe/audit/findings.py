"""What an audit says: findings with their evidence and what would fix them, and what could not be looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

EXIT_WARNINGS = 3
EXIT_ERRORS = 4


class Severity(IntEnum):
    """How much a finding takes away from a comparison."""

    NOTE = 1
    """Worth knowing; the comparison stands."""
    WARNING = 2
    """The comparison shows less than it seems to."""
    ERROR = 3
    """The comparison does not show what it says."""


CODES: dict[str, tuple[Severity, str]] = {
    # the design
    "unmatched-arms": (Severity.ERROR, "arms differ in more than the comparison names"),
    "inconsistent-arm": (Severity.ERROR, "runs of one arm have different settings"),
    "seed-sets-differ": (Severity.WARNING, "the arms have different seeds"),
    "too-few-seeds": (Severity.WARNING, "too few seeds for the claimed test"),
    "duplicate-runs": (Severity.ERROR, "runs that should differ are the same"),
    "identical-arms": (Severity.WARNING, "what was varied changed nothing"),
    "code-differs": (Severity.WARNING, "the arms were trained with different code"),
    # the runs
    "unreadable-run": (Severity.ERROR, "a run that cannot be read"),
    "incomplete-run": (Severity.ERROR, "a run that ended before its last epoch"),
    "untrained-checkpoint": (Severity.ERROR, "an untrained policy among the results"),
    "config-changed": (Severity.ERROR, "settings that are not those the run was trained with"),
    "not-finite": (Severity.ERROR, "results that are missing or not finite"),
    "record-disagrees": (Severity.ERROR, "a record that contradicts itself"),
    "replay-disagrees": (Severity.ERROR, "a multiplier that does not follow from its own record"),
    # the evaluation
    "missing-evaluation": (Severity.WARNING, "runs without the evaluation that the others have"),
    "evaluations-differ": (Severity.ERROR, "arms evaluated under different conditions"),
    "evaluated-on-training-scenarios": (Severity.ERROR, "evaluation scenarios from the training pool"),
    "repeated-episodes": (Severity.WARNING, "evaluation episodes that are repetitions of each other"),
    "stale-evaluation": (Severity.WARNING, "an evaluation of another checkpoint than the last"),
    "shared-simulator": (Severity.WARNING, "evaluation episodes that depend on each other"),
    # the conclusion
    "shaped-return": (Severity.ERROR, "a return that contains the bonus, compared as if it were the task's"),
    "cost-tracks-distance": (Severity.WARNING, "cost that tracks the distance travelled"),
    "passive-policy": (Severity.WARNING, "low cost by doing nothing"),
    "few-episodes-decide": (Severity.WARNING, "a difference that a few episodes make"),
    "window-dependent": (Severity.WARNING, "a conclusion that depends on the window of epochs"),
    "protocol-dependent": (Severity.WARNING, "a conclusion that depends on the evaluation"),
    "many-tests": (Severity.NOTE, "several tests at a level meant for one"),
    "replication-noise": (Severity.WARNING, "repetitions of one arm that differ as much as the arms do"),
    "baseline-dependent": (Severity.WARNING, "a conclusion that depends on the baseline"),
    # the signal
    "inert-signal-term": (Severity.WARNING, "a signal term too small to move the multiplier"),
    "gate-saturated": (Severity.WARNING, "a gate that is open or closed almost everywhere"),
    "constant-score": (Severity.WARNING, "a score that hardly varies"),
    "no-lead-time": (Severity.WARNING, "a score that does not rise before contact"),
    "frames-show-cost": (Severity.ERROR, "frames that show the cost to the scorer"),
}
"""Every code, with its usual severity and its title."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or weaker than it looks."""

    code: str
    where: str
    """Environment, and the arms or the run it is about."""
    evidence: tuple[str, ...]
    fix: str
    data: dict[str, Any] = field(default_factory=dict)
    """The evidence as numbers, for programs."""
    severity: Severity | None = None
    """None for the code's usual one."""

    @property
    def weight(self) -> Severity:
        return self.severity if self.severity is not None else CODES[self.code][0]

    @property
    def title(self) -> str:
        return CODES[self.code][1]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "severity": self.weight.name.lower(), "title": self.title}


@dataclass(frozen=True)
class Unchecked:
    """A question that was not asked, and why."""

    codes: tuple[str, ...]
    where: str
    reason: str


@dataclass(frozen=True)
class Audit:
    """Everything an audit found."""

    findings: tuple[Finding, ...]
    unchecked: tuple[Unchecked, ...]
    comparisons: tuple[str, ...]
    """What was compared with what, in words."""
    arms: tuple[dict[str, Any], ...]
    """What each arm came to, before anything is said about it."""

    @property
    def runs(self) -> int:
        return sum(len(arm["seeds"]) for arm in self.arms if arm["source"] == "training")

    @property
    def worst(self) -> Severity | None:
        return max((finding.weight for finding in self.findings), default=None)

    @property
    def exit_code(self) -> int:
        """0 where nothing is worse than a note."""
        return {Severity.ERROR: EXIT_ERRORS, Severity.WARNING: EXIT_WARNINGS}.get(self.worst or Severity.NOTE, 0)

    def codes(self) -> set[str]:
        return {finding.code for finding in self.findings}

    def to_dict(self) -> dict[str, Any]:
        """For programs; plain values only, and null for numbers that are not finite."""
        document = {
            "runs": self.runs,
            "arms": list(self.arms),
            "comparisons": list(self.comparisons),
            "worst": self.worst.name.lower() if self.worst else None,
            "findings": [finding.to_dict() for finding in self.findings],
            "unchecked": [asdict(entry) for entry in self.unchecked],
        }
        return {name: _plain(value) for name, value in document.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
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
