"""The next step of a run in a study and its command, and whether a run is the one that the study describes.

Nothing is remembered between two calls of `vlmsafe study run`. The files of a run alone decide what is finished,
interrupted or missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from vlmsafe.config.settings import PLACE
from vlmsafe.config.yaml import flatten, to_dict, to_yaml
from vlmsafe.envs.registry import world_name
from vlmsafe.errors import InputError, RunError, VlmsafeError
from vlmsafe.evaluation.gated_scorers import default_scorers
from vlmsafe.io.disk import make_directory
from vlmsafe.io.files import write_atomically
from vlmsafe.io.locks import is_locked
from vlmsafe.runs.layout import frames_path, is_run
from vlmsafe.runs.run import Run
from vlmsafe.runs.tables import read_table
from vlmsafe.runs.traces import read_about
from vlmsafe.signals.prompts import load_prompts
from vlmsafe.signals.scorers.registry import parse_scorer
from vlmsafe.studies.scorer.shared import shares
from vlmsafe.studies.study import EpisodeRequest, RunSpec

VLMSAFE = (sys.executable, "-m", "vlmsafe")
_CONFIGS = "configs"
_NAMED = 3  # the most differences that an error names
# These settings say where a run is kept, how often it is saved and how it is computed. Runs that differ in nothing else
# are runs of the same experiment. Device and kernels change their last digits, so `reuse` compares the kernels too.
NO_RESULT = PLACE | frozenset(
    ("run_dir", "tensorboard", "checkpoint.every", "checkpoint.keep", "max_worker_restarts", "signal.device", "kernels")
)


@dataclass(frozen=True)
class RunStep:
    """A step of a run."""

    kind: Literal["train", "resume", "evaluate", "trace"]
    request: EpisodeRequest | None = None
    """The evaluation or trace to make."""

    def __str__(self) -> str:
        return self.kind if self.request is None else f"{self.kind} {self.request.protocol}"


@dataclass(frozen=True)
class Busy:
    """Another process is working on the run."""


def next_step(spec: RunSpec) -> RunStep | Busy | None:
    """The next step of a run; None if it is complete."""
    if not is_run(spec.path):
        return Busy() if is_locked(spec.path) else RunStep("train")
    try:
        run = Run.open(spec.path)
    except VlmsafeError as error:
        raise RunError(f"{spec.path} cannot be read: {error}; move it away, and it is made again") from error
    status = run.status()
    if status == "running":
        return Busy()
    if status != "finished":
        return RunStep("resume")
    return next(steps_after_training(run, spec), None)


def steps_after_training(run: Run, spec: RunSpec) -> Iterator[RunStep]:
    """The evaluations and traces that a trained run lacks."""
    for request in spec.evaluations:
        if not _evaluated(run, request):
            yield RunStep("evaluate", request)
    for request in spec.traces:
        if not _traced(run, request):
            yield RunStep("trace", request)


def _evaluated(run: Run, request: EpisodeRequest) -> bool:
    """Whether there is an evaluation of the last checkpoint with at least as many episodes as requested."""
    path = run.evaluation_path(request.protocol)
    if not path.exists():
        return False
    table = read_table(path, ["checkpoint_epoch"])
    return len(table) >= request.count and set(table["checkpoint_epoch"]) == {run.config.epochs}


def _traced(run: Run, request: EpisodeRequest) -> bool:
    """The same for a trace, which must also have the requested scorers, prompts, interval and frames."""
    path = run.trace_path(request.protocol)
    if not path.exists() or (request.frames and not frames_path(path).exists()):
        return False
    about = read_about(path)
    named = request.scorers or default_scorers(run.config, request.prompts)
    wanted = [parse_scorer(name).absolute for name in named]
    recorded = about.get("scorers", ())
    if about.get("every") != request.every or [entry["scorer"] for entry in recorded] != list(map(str, wanted)):
        return False
    if request.prompts is not None:
        prompts = load_prompts(request.prompts).to_dict()
        pairs = zip(wanted, recorded, strict=True)
        if any(entry.get("prompts") != prompts for name, entry in pairs if name.kind.takes_prompts):
            return False
    table = read_table(path, ["checkpoint_epoch", "episode"])
    return table["episode"].n_unique() >= request.count and set(table["checkpoint_epoch"]) == {run.config.epochs}


def config_path(spec: RunSpec, folder: Path) -> Path:
    """The file with the settings of a run, from which it is trained."""
    return folder / _CONFIGS / f"{spec.name}.yaml"


def command_words(
    spec: RunSpec, step: RunStep, folder: Path, service: str = "", accept_changed_code: bool = False
) -> tuple[str, ...]:
    """The command line of a step; for training, the settings of the run are written to a file first.

    The address of a scoring service is not a setting of the run. It is always passed to runs that can share a scorer,
    so that a run that was started with a service can be resumed without one.
    """
    given = spec.config.signal.service
    asking = ("--signal.service", service or given) if shares(spec.config.signal.scorer) else ()
    if step.kind == "train":
        path = config_path(spec, folder)
        make_directory(path.parent)
        write_atomically(path, to_yaml(to_dict(replace(spec.config, run_dir=None))).encode())
        return (*VLMSAFE, "train", "--config", str(path), "--run-dir", str(spec.path), "--quiet", *asking)
    if step.kind == "resume":
        accepting = ("--accept-changed-code",) if accept_changed_code else ()
        return (*VLMSAFE, "train", "--resume", str(spec.path), "--quiet", *asking, *accepting)
    request = step.request
    assert request is not None
    words = [step.kind, str(spec.path), "--protocol", request.protocol, "--episodes", str(request.count)]
    words += ["--processes", str(max(1, spec.config.num_envs))]
    if step.kind == "trace":
        # An existing trace has fewer episodes, or is of another epoch.
        words += ["--every", str(request.every), "--overwrite"]
        words += [word for scorer in request.scorers for word in ("--scorer", scorer)]
        words += ["--frames"] if request.frames else []
        words += ["--prompts", request.prompts] if request.prompts is not None else []
        words += ["--service", service] if service else []
    return (*VLMSAFE, *words)


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
    if world_name(there["env"]) == world_name(wanted["env"]):  # an interpreter is a place; `other_code` sees its code
        there["env"] = wanted["env"]
    found = [
        f"{name} is {there.get(name)} there and {wanted[name]} in the study"
        for name in wanted
        if name not in NO_RESULT and there.get(name) != wanted[name]
    ]
    recorded, prompts = run.prompts(), spec.config.signal.prompts
    if not found and recorded is not None and prompts and not load_prompts(prompts).same_as(recorded):
        found.append(f"its prompts are not those that '{spec.config.signal.prompts}' holds now")
    return found
