"""Verify some runs of a study, chosen at random but from as many arms and environments as possible."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from vlmsafe.audit.findings import counted
from vlmsafe.errors import EXIT_ERRORS, EXIT_WARNINGS, InputError, VlmsafeError
from vlmsafe.runs.layout import row_file
from vlmsafe.studies.study import RunSpec, Study, cells
from vlmsafe.verification.answer import Verification
from vlmsafe.verification.verify import verify


@dataclass(frozen=True)
class VerifiedRun:
    """A run of a study and what its verification found."""

    name: str
    verification: Verification | None
    reason: str = ""
    """Why the run could not be verified, if there is no verification."""

    @property
    def summary(self) -> str:
        """The outcome in one line."""
        return f"cannot be verified: {self.reason}" if self.verification is None else self.verification.summary

    @property
    def exit_code(self) -> int:
        return EXIT_WARNINGS if self.verification is None else self.verification.exit_code

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        found = None if self.verification is None else self.verification.to_dict()
        return {"name": self.name, "reason": self.reason, "verification": found}


@dataclass(frozen=True)
class VerifiedStudy:
    """The result of verifying a sample of a study's runs."""

    folder: Path
    begun: int
    """Runs with at least one finished epoch, from which the sample was taken."""
    planned: int
    runs: tuple[VerifiedRun, ...]

    @property
    def exit_code(self) -> int:
        return max(run.exit_code for run in self.runs)

    @property
    def summary(self) -> str:
        """How many runs are equal, in one line."""
        different, unknown = (sum(run.exit_code == code for run in self.runs) for code in (EXIT_ERRORS, EXIT_WARNINGS))
        equal = len(self.runs) - different - unknown
        parts = [f"{equal} of {counted(len(self.runs), 'run')} {'is' if equal == 1 else 'are'} equal"]
        if different:
            parts.append(f"{different} {'differs' if different == 1 else 'differ'}")
        if unknown:
            parts.append(f"{unknown} could not be verified")
        chosen = f"chosen from {counted(self.begun, 'run')} with finished epochs, of {self.planned} planned"
        return f"{', '.join(parts)}; {chosen}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return {
            "folder": str(self.folder), "begun": self.begun, "planned": self.planned, "exit_code": self.exit_code,
            "runs": [run.to_dict() for run in self.runs],
        }  # fmt: skip


def verify_study(
    study: Study,
    folder: Path,
    *,
    runs: int,
    epochs: int,
    seed: int = 0,
    service: str = "",
    on_run: Callable[[VerifiedRun], None] = lambda run: None,
    on_steps: Callable[[int, int], None] = lambda done, total: None,
) -> VerifiedStudy:
    """Verify `runs` runs of a study; the same `seed` chooses the same runs. `on_run` is told each result."""
    if runs < 1:
        raise InputError(f"runs is {runs}; expected 1 or more")
    if epochs < 0:  # otherwise each run would be said to be one that cannot be verified
        raise InputError(f"epochs is {epochs}; expected 0 or more")
    specs = study.expand(folder, recorded=True)
    begun = [spec for spec in specs if _has_epochs(spec)]
    if not begun:
        raise InputError(f"{folder} has no run with a finished epoch; expected the folder of a study that was started")
    found = []
    for spec in sample(begun, runs, seed):
        try:
            result = VerifiedRun(spec.name, verify(spec.path, epochs=epochs, service=service, on_steps=on_steps))
        except VlmsafeError as error:  # a damaged run must not keep the others from being verified
            result = VerifiedRun(spec.name, None, str(error))
        on_run(result)
        found.append(result)
    return VerifiedStudy(folder, len(begun), len(specs), tuple(found))


def _has_epochs(spec: RunSpec) -> bool:
    rows = row_file(spec.path, "epochs")
    return rows.is_file() and rows.stat().st_size > 0


def sample(specs: Sequence[RunSpec], count: int, seed: int) -> list[RunSpec]:
    """Some runs at random: one of every arm in every environment before a second one of any."""
    rng = random.Random(seed)
    shuffled = [rng.sample(own, len(own)) for own in cells(specs).values()]
    rng.shuffle(shuffled)
    rounds = chain.from_iterable(zip_longest(*shuffled))
    return [spec for spec in rounds if spec is not None][:count]
