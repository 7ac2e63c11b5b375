"""How far the runs of a study are, and whether they are the runs that the study describes, read from their files."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vlmsafe.config.settings import PLACE
from vlmsafe.config.yaml import flatten, to_dict
from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.io.locks import is_locked
from vlmsafe.runs.layout import evaluation_path, is_run, row_file, trace_path
from vlmsafe.runs.run import Run
from vlmsafe.signals.prompts import load_prompts
from vlmsafe.studies.study import RunSpec, cells

_NAMED = 3  # the most differences that an error names
# These settings say where a run is kept, how often it is saved and on what device it is computed. Runs that differ in
# nothing else are equal.
NO_RESULT = PLACE | frozenset(
    ("run_dir", "tensorboard", "checkpoint.every", "checkpoint.keep", "max_worker_restarts", "signal.device")
)


def check_runs(specs: Sequence[RunSpec]) -> None:
    """Raise an error if a directory holds another run than the study describes, so that nothing is overwritten."""
    for path, what in other_settings(specs):
        raise InputError(
            f"{path} holds another run than the study describes: {what}. Move it away, or choose another --root"
        )


def other_settings(specs: Sequence[RunSpec]) -> Iterator[tuple[Path, str]]:
    """The directories that hold another run than the study describes, with the differences."""
    for spec in specs:
        if not is_run(spec.path):
            continue
        try:
            found = differences(Run.open(spec.path), spec)
        except VlmsafeError:
            continue  # a run that cannot be read is reported as failed later, and the others go on
        if found:
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            yield spec.path, f"{'; '.join(found[:_NAMED])}{more}"


def differences(run: Run, spec: RunSpec) -> list[str]:
    """The settings in which a run on disk differs from the study's, one text each."""
    there, wanted = flatten(to_dict(run.config)), flatten(to_dict(spec.config))
    found = [
        f"{name} is {there.get(name)} there and {wanted[name]} in the study"
        for name in wanted
        if name not in NO_RESULT and there.get(name) != wanted[name]
    ]
    if not found and spec.config.signal.prompts and run.prompts() != load_prompts(spec.config.signal.prompts):
        found.append(f"its prompts are not those that '{spec.config.signal.prompts}' holds now")
    return found


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
