"""How far the runs of a study are, read from their files."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vlmsafe.io.locks import is_locked
from vlmsafe.runs.layout import evaluation_path, is_run, row_file, trace_path
from vlmsafe.studies.study import RunSpec, cells


@dataclass(frozen=True)
class RunProgress:
    """How far a run is. It is cheap to compute, for tables that are redrawn often."""

    status: Literal["waiting", "running", "stopped", "trained"]
    epochs: int
    evaluations: int
    traces: int

    @property
    def begun(self) -> bool:
        return self.status != "waiting"


def run_progress(spec: RunSpec, elsewhere: bool = False) -> RunProgress:
    """How far a run is; `elsewhere` means that another machine is working on it.

    Evaluations and traces are only counted here; `next_step` reads them.
    """
    if not is_run(spec.path):
        return RunProgress("running" if elsewhere or is_locked(spec.path) else "waiting", 0, 0, 0)
    rows = row_file(spec.path, "epochs")
    epochs = rows.read_bytes().count(b"\n") if rows.exists() else 0
    evaluations, traces = (
        sum(path(spec.path, request.protocol).exists() for request in requests)
        for path, requests in ((evaluation_path, spec.evaluations), (trace_path, spec.traces))
    )
    done = epochs >= spec.config.epochs
    if is_locked(spec.path) or (elsewhere and not done):
        return RunProgress("running", epochs, evaluations, traces)
    return RunProgress("trained" if done else "stopped", epochs, evaluations, traces)


@dataclass(frozen=True)
class CellProgress:
    """How far the runs of one arm in one environment are."""

    env: str
    arm: str
    runs: int
    trained: int
    running: int
    stopped: int
    """Started, not finished, and not running."""
    failed: int
    epochs: int
    all_epochs: int
    evaluations: int
    all_evaluations: int
    traces: int
    all_traces: int

    @property
    def done(self) -> bool:
        """Whether every file that the study asks for exists."""
        there = (self.trained, self.evaluations, self.traces)
        return there == (self.runs, self.all_evaluations, self.all_traces)


def study_progress(
    specs: Sequence[RunSpec], failed: Mapping[str, Any], running: Container[str] = ()
) -> Iterator[CellProgress]:
    """The progress of each cell; `failed` and `running` name the runs that failed, and those that run anywhere."""
    for (env, arm), own in cells(specs).items():
        seen = [run_progress(spec, spec.name in running) for spec in own]

        def count(status: str, seen: Sequence[RunProgress] = seen) -> int:
            return sum(one.status == status for one in seen)

        yield CellProgress(
            env, arm, len(own), count("trained"), count("running"), count("stopped"),
            failed=sum(spec.name in failed for spec in own),
            epochs=sum(min(one.epochs, spec.config.epochs) for one, spec in zip(seen, own, strict=True)),
            all_epochs=sum(spec.config.epochs for spec in own),
            evaluations=sum(one.evaluations for one in seen),
            all_evaluations=sum(len(spec.evaluations) for spec in own),
            traces=sum(one.traces for one in seen),
            all_traces=sum(len(spec.traces) for spec in own),
        )  # fmt: skip
