"""Running a study: training, evaluating and tracing every run of it.

`execute` can be called any number of times. It does what is missing: it looks at the files of each run, and never
trains a run twice, overwrites it or mixes it with another. It refuses a directory that holds a run with other settings
before anything starts. Each step is one command of the command line in its own process, so a step that fails does not
affect others, and users can repeat it by hand.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vlmsafe.comparison.claims import CLAIMS_FILE
from vlmsafe.comparison.preregistration import FrozenProtocol, read_protocol
from vlmsafe.config.yaml import to_yaml
from vlmsafe.errors import EXIT_INTERRUPTED, Interrupted, RunError, VlmsafeError
from vlmsafe.io.disk import make_directory
from vlmsafe.io.files import write_atomically
from vlmsafe.io.interrupts import StopRequest
from vlmsafe.io.locks import DirectoryLock, break_lock, in_words, is_locked, lock_holder
from vlmsafe.runs.layout import STUDY_FILE, is_run
from vlmsafe.runs.run import Run
from vlmsafe.runs.versions import other_code
from vlmsafe.studies.journal import Event, failures, write_event
from vlmsafe.studies.launch.api import Command, Handle, Launcher, Lost
from vlmsafe.studies.protocol import claims_in_force, claims_text, freeze, others_claims
from vlmsafe.studies.remote.run_side import remote_words
from vlmsafe.studies.remote.store import Store
from vlmsafe.studies.remote.study_side import StoreSync, fetch, keep_new
from vlmsafe.studies.reuse import equal_run, finish_copy, take_over
from vlmsafe.studies.steps import VLMSAFE, Busy, RunStep, check_runs, command_words, config_path, next_step
from vlmsafe.studies.study import RunSpec, Study

RESTARTS = 10
_PAUSE = 0.2  # seconds between two polls of the running commands
_RECHECK = 2.0  # seconds after which runs are looked at again although no command of ours has ended
_SAVING = 300.0  # seconds that commands get to save
_STALE = 120.0  # seconds after which the lock of a process that was lost with its machine may be broken
_LOGS, _COPIES = "logs", ".copies"


@dataclass
class _RunningStep:
    """A step whose command was launched."""

    spec: RunSpec
    step: RunStep
    handle: Handle
    log: Path
    begun_at: int
    """The size of the log before the command started."""
    noted: bool = False
    """Whether the journal says that it began; a command may first wait for a machine."""


@dataclass
class StudyResult:
    """How a study ended: the runs that are complete, and those that failed, with the reason."""

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def execute(
    study: Study,
    folder: Path,
    launcher: Launcher,
    *,
    memory: Callable[[RunSpec], int] = lambda spec: 0,
    gpus: Callable[[RunSpec], float] = lambda spec: 0.0,
    restarts: int = RESTARTS,
    store: Store | None = None,
    service: str = "",
    accept_changed_code: bool = False,
    stop: StopRequest | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    on_turn: Callable[[], None] = lambda: None,
) -> StudyResult:
    """Complete every run of a study. A run that fails does not stop the others.

    `memory` estimates the bytes that a run needs, and `gpus` its share of a GPU. `restarts` is how often a run is
    restarted after its machine was lost. With a `store`, the folder is a local copy of what is kept there. `service` is
    the address of a scoring service that the runs share. `accept_changed_code` resumes runs although the source of the
    user's own environment or scorer has changed. `on_turn` is called several times a second.
    """
    if is_locked(folder):
        who = in_words(lock_holder(folder))
        raise RunError(
            f"another process is running the study in {folder}, or fetching it ({who}); wait for it, or stop it"
        )
    with DirectoryLock(make_directory(folder)):
        needs = (memory, gpus, restarts)
        return _Execution(
            study, folder, launcher, *needs, store, service, accept_changed_code, stop or StopRequest(), on_event
        ).run(on_turn)


class _Execution:
    def __init__(
        self,
        study: Study,
        folder: Path,
        launcher: Launcher,
        memory: Callable[[RunSpec], int],
        gpus: Callable[[RunSpec], float],
        restarts: int,
        store: Store | None,
        service: str,
        accept_changed_code: bool,
        stop: StopRequest,
        on_event: Callable[[Event], None],
    ) -> None:
        self.study, self.folder, self.launcher, self.memory, self.gpus = study, folder, launcher, memory, gpus
        self.restarts, self.store, self.service, self.stop, self.on_event = restarts, store, service, stop, on_event
        self.accept_changed_code = accept_changed_code
        self.specs = study.expand(folder)
        for spec in self.specs:
            finish_copy(spec)
        if store is not None:
            fetch(store, self.specs, folder)
            keep_new(store, self.specs)
        for event in prepare(study, folder, self.specs)[1]:
            on_event(event)
        shutil.rmtree(folder / _COPIES, ignore_errors=True)  # left by a crash during a copy
        self.sync = StoreSync(store, folder, lambda why: on_event(Event("study", "copying", "waits", why)))
        self.pending = list(self.specs)
        self.running: list[_RunningStep] = []
        self.last: dict[str, RunStep] = {}  # the last step of each run, to notice steps that achieve nothing
        self.losses: dict[str, list[tuple[float, Lost]]] = {}  # with the time of each
        self.look_again = 0.0  # the time at which pending runs are looked at again
        self.told: set[tuple[str, str]] = set()  # (run, what) of events that are told only once
        self.failed_before = failures(folder)
        self.result = StudyResult()
        self._tell_other_code()

    def run(self, on_turn: Callable[[], None]) -> StudyResult:
        try:
            while self.pending or self.running:
                self._collect()
                if self.stop.requested:
                    raise Interrupted(
                        f"{self.stop.reason} received: the study in {self.folder} stopped, and its work is saved; "
                        "the same command continues it"
                    )
                self._launch()
                self.sync.store_study()
                on_turn()
                if self.pending or self.running:
                    time.sleep(_PAUSE)
        finally:
            self._stop_all()
        return self.result

    # -- running steps --

    def _collect(self) -> None:
        """Handle the steps that have ended."""
        for work in list(self.running):
            code = work.handle.poll()
            self._note_beginning(work)
            if code is None:
                continue
            self.running.remove(work)
            self.look_again = 0.0
            self.sync.fetch_later(work.spec)
            try:
                self.sync.settled(work.spec)
            except VlmsafeError as error:
                self._fail(work.spec, "fetch", str(error), work.handle.place())
                continue
            if isinstance(code, Lost):
                self._lose(work, code)
            elif code == 0:
                self._note(work.spec, str(work.step), "ended", node=work.handle.place())
                self.last[work.spec.name] = work.step
                self.pending.insert(0, work.spec)  # its evaluations come before the training of another run
            else:
                self._fail(work.spec, str(work.step), _reason(code, work.log, work.begun_at), work.handle.place())

    def _note_beginning(self, work: _RunningStep) -> None:
        if not work.noted and (place := work.handle.place()) is not None:
            work.noted = True
            self._note(work.spec, str(work.step), "began", node=place)

    def _lose(self, work: _RunningStep, lost: Lost) -> None:
        """The machine was lost: restart the run elsewhere from its last checkpoint, unless that happens too often."""
        losses = self.losses.setdefault(work.spec.name, [])
        losses.append((time.monotonic(), lost))
        if len(losses) > self.restarts:
            reason = f"lost {len(losses)} times, the last time because {lost.reason}"
            self._fail(work.spec, str(work.step), reason, work.handle.place())
        else:
            self._note(work.spec, str(work.step), "lost", lost.reason, work.handle.place())
            self.pending.insert(0, work.spec)

    def _stop_all(self) -> None:
        """Let running commands save and exit; an interrupt while waiting kills them."""
        for work in self.running:
            work.handle.stop()
        deadline = time.monotonic() + _SAVING
        try:
            while any(work.handle.poll() is None for work in self.running) and time.monotonic() < deadline:
                time.sleep(_PAUSE)
        finally:
            for work in self.running:
                if work.handle.poll() is None:
                    work.handle.stop(now=True)
            for work in self.running:
                self._note(work.spec, str(work.step), "stopped", node=work.handle.place())
            self.sync.store_at_last()

    # -- next steps --

    def _launch(self) -> None:
        """Start the next steps for which there is room, in the order of the study."""
        if time.monotonic() < self.look_again:
            return  # nothing of ours has ended, so there is no more room than before
        self.look_again = time.monotonic() + _RECHECK
        full: set[bool] = set()  # whether runs with a GPU, or without one, have no more room
        for spec in list(self.pending):
            if (kind := self.gpus(spec) > 0.0) in full:
                continue
            try:
                if not self.sync.settled(spec):
                    continue
                step = next_step(spec)
                if step is None:
                    self.pending.remove(spec)
                    self.result.done.append(spec.name)
                    if spec.name in self.failed_before:
                        self._note(spec, "all", "ended")  # otherwise `status` would still say that it failed
                    continue
                if isinstance(step, Busy):
                    # A study that was killed, or the user, left a process at work: wait until it ends.
                    self._free_lost(spec)
                    self._tell_once(spec, "look", "waits", f"in use by {in_words(lock_holder(spec.path))}")
                    continue
                if step == self.last.get(spec.name):
                    raise RunError(f"'{step}' exited without an error, but its results are missing")
                if step.kind == "train" and self._copied(spec):
                    continue
                if not self._start(spec, step):
                    full.add(kind)
            except VlmsafeError as error:
                self.pending.remove(spec)
                self._fail(spec, "look", str(error))

    def _free_lost(self, spec: RunSpec) -> None:
        """Break the lock of a process that died with its machine, if the server of a shared folder keeps the lock."""
        for when, lost in self.losses.get(spec.name, ()):
            if lost.process and time.monotonic() > when + _STALE and break_lock(spec.path, lost.process):
                self._note(spec, "look", "unlocked", f"its lock was left by {lost.process}, which is lost")

    def _copied(self, spec: RunSpec) -> bool:
        """Whether an equal run of another study was found and copied."""
        if self.study.independent:
            return False
        found = equal_run(spec, self.folder.parent, lambda why: self._tell_once(spec, "train", "not copied", why))
        if found is None:
            return False
        take_over(found, spec, self.folder / _COPIES)
        self.sync.keep_later(spec)
        self._note(spec, "train", "copied", str(found.path))
        return True

    def _start(self, spec: RunSpec, step: RunStep) -> bool:
        """Launch a step; False if there is no room."""
        log = self.folder / _LOGS / f"{spec.name}.log"
        words = command_words(spec, step, self.folder, self.service, self.accept_changed_code)
        if self.store is not None:
            if step.kind == "train" and not self.sync.has_settings(spec):
                return False
            places = {str(spec.path): "@run", str(config_path(spec, self.folder)): "@config"}
            words = remote_words(self.store.url, spec.name, [places.get(word, word) for word in words[len(VLMSAFE) :]])
        begun_at = log.stat().st_size if log.exists() else 0
        needs = (max(1, spec.config.num_envs), self.memory(spec), self.gpus(spec))
        handle = self.launcher.launch(Command(words, log, *needs))
        if handle is None:
            return False
        self.pending.remove(spec)
        work = _RunningStep(spec, step, handle, log, begun_at)
        self.running.append(work)
        self._note_beginning(work)
        return True

    # -- events --

    def _fail(self, spec: RunSpec, step: str, reason: str, node: str | None = None) -> None:
        self.result.failed[spec.name] = f"{step}: {reason}"
        self._note(spec, step, "failed", reason, node)

    def _note(self, spec: RunSpec, step: str, what: str, reason: str = "", node: str | None = None) -> None:
        event = Event(spec.name, step, what, reason, node or "")
        write_event(self.folder, event)
        self.sync.journal_changed()
        self.on_event(event)

    def _tell_once(self, spec: RunSpec, step: str, what: str, reason: str) -> None:
        """Tell of something that holds for a while and is found at each look; the journal leaves it out."""
        if (spec.name, what) not in self.told:
            self.told.add((spec.name, what))
            self.on_event(Event(spec.name, step, what, reason))

    def _tell_other_code(self) -> None:
        """Tell which existing runs of the study other code computed. They are kept."""
        found: dict[str, list[str]] = {}
        for spec in self.specs:
            with contextlib.suppress(VlmsafeError):  # a run that cannot be read is reported as failed later
                if is_run(spec.path) and (why := other_code(Run.open(spec.path), spec.config)):
                    found.setdefault(why, []).append(spec.name)
        for why, names in found.items():
            who = names[0] if len(names) == 1 else f"{len(names)} runs, such as {names[0]}"
            self.on_event(Event(who, "", "kept", f"{why}; to train anew, rename the study or move the runs away"))


def prepare(study: Study, folder: Path, specs: Sequence[RunSpec]) -> tuple[FrozenProtocol, list[Event]]:
    """Write the study, its claims and its protocol into its folder; the protocol, and what there is to tell.

    What is wrong with the runs, the protocol or the claims there is said before anything is written.
    """
    check_runs(specs)
    read_protocol(folder)
    claims_in_force(study, folder)
    kept = write_definition(study, folder)
    protocol, decided = freeze(study, folder)
    if decided is not None and decided.what == "changed":
        write_event(folder, decided)
    events = [Event("study", "", "kept", kept)] if kept is not None else []
    return protocol, events + ([decided] if decided is not None else [])


def write_definition(study: Study, folder: Path) -> str | None:
    """Write the study into its folder, and its comparisons as claims for the audit.

    Claims that somebody else wrote into the folder are kept, and a line is returned that says so.
    """
    path, own, kept = folder / CLAIMS_FILE, claims_text(study.document), others_claims(study, folder)
    write_atomically(folder / STUDY_FILE, to_yaml(study.document).encode())
    if kept:
        return f"{path} is not from the study's own comparisons, so it is kept, and the audit and the report use it"
    if own is not None:
        write_atomically(path, own)
    else:
        path.unlink(missing_ok=True)
    return None


def _reason(code: int, log: Path, begun_at: int) -> str:
    """Why a command failed, from the last error or line that it printed."""
    if code < 0:
        name = signal.Signals(-code).name
        hint = "; the machine may have run out of memory" if -code == signal.SIGKILL else ""
        return f"ended by {name}{hint} (log: {log})"
    printed = log.read_bytes()[begun_at:].decode(errors="replace") if log.exists() else ""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line.removeprefix("error:").strip() for line in lines if re.match(r"error:", line)]
    text = (errors or lines or [f"exit code {code}"])[-1]
    if code == EXIT_INTERRUPTED:
        return f"interrupted from outside: {text}"
    return f"{text} (log: {log})"
