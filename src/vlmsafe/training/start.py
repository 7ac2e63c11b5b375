"""`train` and `resume`: check that a run can be had, lock its directory, train it, and note how it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmsafe import kernels
from vlmsafe.config.methods import CLONE, check_method, config_from
from vlmsafe.config.settings import PLACE, TrainConfig
from vlmsafe.config.yaml import flatten, from_dict, nested, to_dict
from vlmsafe.envs.vector.pool import WorkerError
from vlmsafe.errors import Divergence, EnvironmentFailure, InputError, Interrupted, RunError, VlmsafeError
from vlmsafe.io.child import call_in_child
from vlmsafe.io.disk import make_directory
from vlmsafe.io.interrupts import StopRequest, stop_on_signals
from vlmsafe.io.locks import DirectoryLock
from vlmsafe.io.source import SourceHash
from vlmsafe.runs.checkpoint import saved_epochs
from vlmsafe.runs.drivers import open_run
from vlmsafe.runs.layout import is_driver, row_file
from vlmsafe.runs.run import Run
from vlmsafe.runs.versions import changed_source, other_world, user_source
from vlmsafe.runs.warm_start import check_start, read_start
from vlmsafe.signals.prompts import load_prompts
from vlmsafe.signals.scorers.api import ScorerFailure
from vlmsafe.training.display import check_display, make_display
from vlmsafe.training.setup import Setup, set_up
from vlmsafe.training.trainer import Trainer


def train(config: TrainConfig | None = None, *, quiet: bool = False, **settings: Any) -> Run:
    """Train a new run to its end and return it.

    Settings are those of `vlmsafe train`, under the names of the command line (`scorer`), dotted
    (`**{"signal.scorer": ...}`) or nested (`signal={"scorer": ...}`); or `config` has them all. Where numpy or torch
    was imported before vlmsafe, a child process computes, so that the run gets its kernels.

    >>> import vlmsafe
    >>> run = vlmsafe.train(
    ...     env="speeding", method="vlm-ppo-lag", scorer="oracle", total_steps=400, steps_per_epoch=200,
    ...     learner={"update_iters": 2}, run_dir="runs/first", quiet=True,
    ... )
    >>> run.status(), run.config.signal.scorer
    ('finished', 'oracle')
    """
    if config is not None and settings:
        raise TypeError("give either a TrainConfig or single settings, not both")
    if config is not None and not isinstance(config, TrainConfig):
        raise InputError(f"train got {config!r}; expected settings by name, such as env={config!r}, or a TrainConfig")
    given = config or config_from(settings)
    chosen = given.resolved()
    check_method(chosen)
    check_display(chosen)
    assert chosen.run_dir is not None
    if not kernels.fit(chosen.kernels):
        return call_in_child(chosen.kernels, train, chosen, quiet=quiet)
    prompts = load_prompts(chosen.signal.prompts) if chosen.signal.prompts else None
    start = read_start(chosen)
    with stop_on_signals() as stop:
        # Before anything is written, so that an environment or a scorer that cannot be had leaves no run.
        setup = set_up(chosen, prompts, stop)
        if start is not None:
            check_start(start, setup.dimensions.observation, setup.dimensions.action, chosen)
        with DirectoryLock(make_directory(chosen.run_dir)):
            run = Run.create(chosen, prompts, start, setup.source)
            return _work_on(run, setup, stop, quiet, new=True, notes=given.assumptions)


def resume(
    path: Run | Path | str,
    *,
    total_steps: int | None = None,
    accept_changed_code: bool = False,
    quiet: bool = False,
    service: str | None = None,
    service_wait: float | None = None,
    place: Mapping[str, Any] | None = None,
) -> Run:
    """Continue a run exactly where its newest checkpoint left it.

    A run of another version of its environment is refused: its epochs would come from two worlds. So is one whose own
    environment or scorer has other source than before, unless `accept_changed_code` is set. `total_steps` extends
    the run. From there on a falling learning rate is that of a run of the new length. The scorer may have moved:
    `service` is the address of a scoring service, and "" means the run's own process. `place` has other settings that
    say where the scorer is and how it is reached, by dotted name, such as {"signal.endpoint.url": ...}.

    >>> import vlmsafe
    >>> run = vlmsafe.train(env="speeding", total_steps=400, steps_per_epoch=200, run_dir="runs/first", quiet=True)
    >>> vlmsafe.resume("runs/first", total_steps=600, quiet=True).epochs_done()
    3
    """
    run = open_trained(path)
    if run.config.method == CLONE.name:
        raise RunError(
            f"{run.path} is a clone of a scripted driver, which cannot be continued; train it on with: vlmsafe train "
            f"--env {run.config.env} --init-from {run.path}"
        )
    if elsewhere := other_world(run):
        raise RunError(
            f"{run.path} cannot be continued: {elsewhere}; start a new run, or continue this one with the code that "
            "began it"
        )
    if total_steps is not None:
        run.longer(total_steps)  # refused before anything is started
    if not kernels.fit(run.config.kernels):
        return call_in_child(
            run.config.kernels, resume, path, total_steps=total_steps, accept_changed_code=accept_changed_code,
            quiet=quiet, service=service, service_wait=service_wait, place=place,
        )  # fmt: skip
    given = {"signal.service": service, "signal.service_wait": service_wait, **(place or {})}
    run = _moved(run, {name: value for name, value in given.items() if value is not None})
    check_display(run.config)
    if not accept_changed_code and not run.config.signal.service:
        _refuse_changed_source(run, user_source(run.config))  # before code is loaded that may no longer work
    with stop_on_signals() as stop:
        setup = set_up(run.config, run.prompts(), stop)
        if not accept_changed_code:
            _refuse_changed_source(run, setup.source)  # the scorer may be a service's
        with DirectoryLock(run.path):
            return _work_on(run if total_steps is None else run.extend(total_steps), setup, stop, quiet)


def _moved(run: Run, given: Mapping[str, Any]) -> Run:
    """The run with other settings of where its scorer is; config.yaml keeps those that it began with."""
    if other := sorted(set(given) - PLACE):
        raise InputError(f"a run continues with its own {other[0]}; only {', '.join(sorted(PLACE))} may change")
    then = flatten(to_dict(run.config))
    changed = {name: value for name, value in given.items() if value != then[name]}
    return Run(run.path, from_dict(nested(given), run.config, "resume").resolved(), changed)


def open_trained(path: Run | Path | str) -> Run:
    """A run that was trained here, and not a shipped driver, of which there is only the policy."""
    run = open_run(path)
    if is_driver(run.path):
        raise RunError(
            f"{path} is a shipped driver, which cannot be continued; train it on with: vlmsafe train "
            f"--env {run.config.env} --init-from {path}"
        )
    return run


def _refuse_changed_source(run: Run, now: Mapping[str, SourceHash]) -> None:
    if changed := changed_source(run, now):
        raise RunError(
            f"{run.path} cannot be continued: {changed}; undo the change, start a new run, or pass "
            "--accept-changed-code to continue with the changed code, which the run records"
        )


def _work_on(
    run: Run, setup: Setup, stop: StopRequest, quiet: bool, *, new: bool = False, notes: Sequence[str] = ()
) -> Run:
    """Train, and record how it ended even where it failed. The caller holds the run's lock."""
    with make_display(run, quiet) as display:
        for note in notes:
            display.note(note)
        trainer = Trainer(run, setup, display, stop, failed_attempts(run))
        try:
            trainer.train()
        except Interrupted as error:
            run.event("interrupted", reason=str(error))
            raise
        except VlmsafeError as error:
            # Calibrating the scorer may show that the request was wrong. A new run whose first epoch fails because of
            # the user's environment or scorer holds nothing, and the same command should work once that is corrected.
            wrong = isinstance(error, InputError) and not saved_epochs(run.checkpoints)
            users = isinstance(error, EnvironmentFailure | ScorerFailure)
            if wrong or (new and trainer.epoch == 0 and users):
                run.discard()
            else:
                _note_failure(run, error, trainer)
            raise
    return run


def failed_attempts(run: Run) -> dict[int, int]:
    """How often each epoch of a run failed in a way that the same draws would repeat, by its number from 1."""
    try:
        events = run.events()
    except RunError:
        return {}  # the journal is damaged, which is no reason not to continue
    return Counter(event["epoch"] for event in events if event.get("event") == "failed" and "attempt" in event)


def _note_failure(run: Run, error: VlmsafeError, trainer: Trainer) -> None:
    details: dict[str, Any] = {"traceback": error.details} if isinstance(error, WorkerError | ScorerFailure) else {}
    if isinstance(error, EnvironmentFailure | Divergence) and trainer.saved_epoch is not None:
        details |= {"epoch": trainer.epoch + 1, "attempt": trainer.attempt}
    try:
        run.event("failed", reason=str(error), **details)
        if isinstance(error, WorkerError) and error.raised:
            error.recorded = True
            error.args = (f"{error}; its traceback is in {row_file(run.path, 'events')}",)
    except RunError:
        # A full disk that made the run fail refuses this note too; the first error is the one to report.
        return
