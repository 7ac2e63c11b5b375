"""How far the runs of a study are, read from their directories alone, and what is to be done next.

Nothing is remembered between two calls of `vlmsafe study run`: what is finished, interrupted or missing follows from
the files, which survive everything.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vlmsafe.config.settings import PLACE
from vlmsafe.config.yaml import flatten, to_dict
from vlmsafe.errors import InputError, RunError, VlmsafeError
from vlmsafe.io.locks import is_locked
from vlmsafe.runs.layout import evaluation_path, frames_path, is_run, row_file, trace_path
from vlmsafe.runs.run import Run
from vlmsafe.runs.tables import read_table
from vlmsafe.runs.traces import read_about
from vlmsafe.signals.prompts import load_prompts
from vlmsafe.signals.scorers.registry import DEFAULT_SCORER, NO_SCORER, parse_scorer
from vlmsafe.studies.study import Look, RunSpec

Kind = Literal["train", "resume", "evaluate", "trace"]
_NAMED = 3  # differences that an error names
# Where a run is, how often it is saved, on what and how fast it is computed: a run may have these otherwise.
ASIDE = PLACE | frozenset(
    ("run_dir", "tensorboard", "checkpoint.every", "checkpoint.keep", "max_worker_restarts", "signal.device")
)


@dataclass(frozen=True)
class Step:
    """The next thing to do for a run."""

    kind: Kind
    look: Look | None = None

    def __str__(self) -> str:
        return self.kind if self.look is None else f"{self.kind} {self.look.protocol}"


@dataclass(frozen=True)
class Busy:
    """Some other process is working on the run."""


def next_step(spec: RunSpec) -> Step | Busy | None:
    """What is to be done for a run now; None where everything is there."""
    if not is_run(spec.path):
        return Busy() if is_locked(spec.path) else Step("train")
    try:
        run = Run.open(spec.path)
    except VlmsafeError as error:
        raise RunError(f"{spec.path} cannot be read: {error}; move it away, and it is made again") from error
    status = run.status()
    if status == "running":
        return Busy()
    if status != "finished":
        return Step("resume")
    for look in spec.evaluations:
        if not evaluated(run, look):
            return Step("evaluate", look)
    for look in spec.traces:
        if not traced(run, look):
            return Step("trace", look)
    return None


def evaluated(run: Run, look: Look) -> bool:
    """Whether the last checkpoint was evaluated on as many episodes as asked for, or more."""
    path = run.evaluation_path(look.protocol)
    if not path.exists():
        return False
    table = read_table(path, ["checkpoint_epoch"])
    return len(table) >= look.count and set(table["checkpoint_epoch"]) == {run.config.epochs}


def traced(run: Run, look: Look) -> bool:
    """The same of a trace, which also has to be by the scorers asked for, as often, and with frames where wanted."""
    path = run.trace_path(look.protocol)
    if not path.exists() or (look.frames and not frames_path(path).exists()):
        return False
    about = read_about(path)
    own = DEFAULT_SCORER if run.config.signal.scorer == NO_SCORER else run.config.signal.scorer
    wanted = [str(parse_scorer(name).absolute) for name in look.scorers or (own,)]
    if about.get("every") != look.every or [entry["scorer"] for entry in about.get("scorers", ())] != wanted:
        return False
    table = read_table(path, ["checkpoint_epoch", "episode"])
    return table["episode"].n_unique() >= look.count and set(table["checkpoint_epoch"]) == {run.config.epochs}


def check_runs(specs: Sequence[RunSpec]) -> None:
    """Refuse to go on where a directory holds another run than the study means: nothing is overwritten or mixed."""
    for path, what in other_settings(specs):
        raise InputError(
            f"{path} holds another run than the study means: {what}. Move it away, or choose another --root"
        )


def other_settings(specs: Sequence[RunSpec]) -> Iterator[tuple[Path, str]]:
    """Directories that hold another run than the study means, and in what it differs."""
    for spec in specs:
        if not is_run(spec.path):
            continue
        try:
            found = differences(Run.open(spec.path), spec)
        except VlmsafeError:
            continue  # it cannot be read: reported as a run that failed, while the others are carried on
        if found:
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            yield spec.path, f"{'; '.join(found[:_NAMED])}{more}"


def differences(run: Run, spec: RunSpec) -> list[str]:
    """In what a run on disk differs from what the study means, as `name: there ..., study ...`."""
    there, wanted = flatten(to_dict(run.config)), flatten(to_dict(spec.config))
    found = [
        f"{name} is {there.get(name)} there and {wanted[name]} in the study"
        for name in wanted
        if name not in ASIDE and there.get(name) != wanted[name]
    ]
    if not found and spec.config.signal.prompts and run.prompts() != load_prompts(spec.config.signal.prompts):
        found.append(f"its prompts are not those that '{spec.config.signal.prompts}' holds now")
    return found


@dataclass(frozen=True)
class Glance:
    """How far a run is, found quickly: for tables that are drawn again and again."""

    status: Literal["waiting", "running", "stopped", "trained"]
    epochs: int
    evaluations: int
    traces: int

    @property
    def begun(self) -> bool:
        return self.status != "waiting"


def glance(spec: RunSpec, elsewhere: bool = False) -> Glance:
    """Files are counted here, not read; `next_step` looks into them. `elsewhere` says that it is worked on there."""
    if not is_run(spec.path):
        return Glance("running" if elsewhere or is_locked(spec.path) else "waiting", 0, 0, 0)
    rows = row_file(spec.path, "epochs")
    epochs = rows.read_bytes().count(b"\n") if rows.exists() else 0
    evaluations, traces = (
        sum(path(spec.path, look.protocol).exists() for look in looks)
        for path, looks in ((evaluation_path, spec.evaluations), (trace_path, spec.traces))
    )
    done = epochs >= spec.config.epochs
    if is_locked(spec.path) or (elsewhere and not done):
        return Glance("running", epochs, evaluations, traces)
    return Glance("trained" if done else "stopped", epochs, evaluations, traces)


@dataclass(frozen=True)
class CellState:
    """The runs of one arm in one environment."""

    env: str
    arm: str
    runs: int
    trained: int
    running: int
    stopped: int
    """Begun, not finished, and not under way."""
    failed: int
    epochs: int
    all_epochs: int
    evaluations: int
    all_evaluations: int
    traces: int
    all_traces: int

    @property
    def done(self) -> bool:
        """Whether every file that the study wants is there."""
        there = (self.trained, self.evaluations, self.traces)
        return there == (self.runs, self.all_evaluations, self.all_traces)


def cell_states(
    specs: Sequence[RunSpec], failed: Mapping[str, Any], running: Container[str] = ()
) -> Iterator[CellState]:
    """The study at a glance, arm by arm; names of runs that failed, and of those known to run, wherever that is."""
    cells: dict[tuple[str, str], list[RunSpec]] = {}
    for spec in specs:
        cells.setdefault((spec.env, spec.arm), []).append(spec)
    for (env, arm), own in cells.items():
        seen = [glance(spec, spec.name in running) for spec in own]

        def count(status: str, seen: Sequence[Glance] = seen) -> int:
            return sum(one.status == status for one in seen)

        yield CellState(
            env, arm, len(own), count("trained"), count("running"), count("stopped"),
            failed=sum(spec.name in failed for spec in own),
            epochs=sum(min(one.epochs, spec.config.epochs) for one, spec in zip(seen, own, strict=True)),
            all_epochs=sum(spec.config.epochs for spec in own),
            evaluations=sum(one.evaluations for one in seen),
            all_evaluations=sum(len(spec.evaluations) for spec in own),
            traces=sum(one.traces for one in seen),
            all_traces=sum(len(spec.traces) for spec in own),
        )  # fmt: skip
