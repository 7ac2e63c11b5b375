"""Running a study: every run trained, evaluated and traced, whatever happened before.

`execute` may be called as often as one likes. It does what is missing, and a run is never trained twice, overwritten
or mixed with another: what it finds in a run's directory decides, and a directory with other settings is refused before
anything starts. Each step is a command of the command line, in a process of its own, so that one that fails takes no
other with it, and so that people can repeat it by hand.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vlmsafe.config.yaml import to_dict, to_yaml
from vlmsafe.errors import (
    EXIT_INTERRUPTED,
    Interrupted,
    RunError,
    VlmsafeError,
)
from vlmsafe.io.disk import make_directory
from vlmsafe.io.files import append_rows, read_rows, write_atomically
from vlmsafe.io.interrupts import StopRequest
from vlmsafe.io.locks import (
    DirectoryLock,
    break_lock,
    in_words,
    is_locked,
    lock_holder,
)
from vlmsafe.runs.layout import STUDY_FILE, is_run
from vlmsafe.runs.run import Run
from vlmsafe.runs.versions import other_code
from vlmsafe.studies.launch.api import Command, Handle, Launcher, Lost
from vlmsafe.studies.progress import (
    Busy,
    Step,
    check_runs,
    next_step,
)
from vlmsafe.studies.remote.run_side import remote_words
from vlmsafe.studies.remote.store import Store
from vlmsafe.studies.remote.study_side import Keeping, fetch, keep_new
from vlmsafe.studies.reuse import equal_run, finish_copy, take_over
from vlmsafe.studies.scorer.shared import shares
from vlmsafe.studies.study import RunSpec, Study

JOURNAL = "journal.jsonl"
RESTARTS = 10
_PAUSE = 0.2  # seconds between two looks at what is running
_RECHECK = 2.0  # seconds after which runs are looked at again although nothing of ours has ended
_SAVING = 300.0  # seconds that commands get to save what they have
_STALE = 120.0  # seconds after which the lock of a process that was lost with its machine is taken to be left behind
VLMSAFE = (sys.executable, "-m", "vlmsafe")
_CONFIGS, _LOGS, _ASIDE = "configs", "logs", ".copies"


@dataclass(frozen=True)
class Event:
    """Something that happened to a run, as it is noted in the journal and told to whoever watches."""

    run: str
    step: str
    what: str
    """began, ended, failed, stopped, copied, lost, unlocked; and, not in the journal, waits, not copied, kept."""
    reason: str = ""
    node: str = ""
    """The machine on which it happened."""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.run, f"{self.step} {self.what}".strip(), self.reason)))


@dataclass
class _Work:
    """What is under way."""

    spec: RunSpec
    step: Step
    handle: Handle
    log: Path
    begun_at: int
    """Where the command's own output begins in its log."""
    noted: bool = False
    """Whether the journal says that it began; a command may wait for a machine first."""


@dataclass
class Outcome:
    """How a study ended: which runs have everything, and which failed and why."""

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
    stop: StopRequest | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    on_turn: Callable[[], None] = lambda: None,
) -> Outcome:
    """Bring every run of a study to its end; failures are collected and the rest carried on.

    `memory` estimates the bytes of a run and `gpus` its share of a GPU; `restarts` is how often a run is started again
    whose machine was lost; with a `store` the folder is a copy of what is kept there; `service` is the address of a
    scoring service that the runs share; `on_turn` is called several times a second.
    """
    if is_locked(folder):
        who = in_words(lock_holder(folder))
        raise RunError(
            f"another process is running the study in {folder}, or fetching it ({who}); wait for it, or stop it"
        )
    with DirectoryLock(make_directory(folder)):
        needs = (memory, gpus, restarts)
        return _Execution(study, folder, launcher, *needs, store, service, stop or StopRequest(), on_event).run(on_turn)


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
        stop: StopRequest,
        on_event: Callable[[Event], None],
    ) -> None:
        self.study, self.folder, self.launcher, self.memory, self.gpus = study, folder, launcher, memory, gpus
        self.restarts, self.store, self.service, self.stop, self.on_event = restarts, store, service, stop, on_event
        self.specs = study.expand(folder)
        for spec in self.specs:
            finish_copy(spec)
        if store is not None:
            fetch(store, self.specs, folder)
            keep_new(store, self.specs)
        check_runs(self.specs)
        write_definition(study, folder)
        shutil.rmtree(folder / _ASIDE, ignore_errors=True)  # what a crash left half copied
        self.keeping = Keeping(store, folder, lambda why: on_event(Event("study", "copying", "waits", why)))
        self.pending = list(self.specs)
        self.running: list[_Work] = []
        self.last: dict[str, Step] = {}  # what was done last for a run, to notice steps that achieve nothing
        self.losses: dict[str, list[tuple[float, Lost]]] = {}  # when, by the clock, and what
        self.look_again = 0.0  # when, by the clock
        self.waits: set[str] = set()  # runs of which it was told that they wait
        self.refused: set[str] = set()  # runs of which it was told that no equal one was copied
        self._tell_other_code()
        self.failed_before = failures(folder)
        self.outcome = Outcome()

    def run(self, on_turn: Callable[[], None]) -> Outcome:
        try:
            while self.pending or self.running:
                self._collect()
                if self.stop.requested:
                    raise Interrupted(
                        f"{self.stop.reason} received: the study in {self.folder} stopped, and what was done is saved; "
                        "the same command continues it"
                    )
                self._launch()
                self.keeping.store_study()
                on_turn()
                if self.pending or self.running:
                    time.sleep(_PAUSE)
        finally:
            self._stop_all()
        return self.outcome

    # -- what is running --

    def _collect(self) -> None:
        """Note what has ended since."""
        for work in list(self.running):
            code = work.handle.poll()
            self._note_beginning(work)
            if code is None:
                continue
            self.running.remove(work)
            self.look_again = 0.0
            self.keeping.fetch_later(work.spec)
            try:
                self.keeping.settled(work.spec)
            except VlmsafeError as error:
                self._fail(work.spec, "fetch", str(error), work.handle.place())
                continue
            if isinstance(code, Lost):
                self._lose(work, code)
            elif code == 0:
                self._note(work.spec, str(work.step), "ended", node=work.handle.place())
                self.last[work.spec.name] = work.step
                self.pending.insert(0, work.spec)  # its evaluations before the training of another
            else:
                self._fail(work.spec, str(work.step), _reason(code, work.log, work.begun_at), work.handle.place())

    def _note_beginning(self, work: _Work) -> None:
        if not work.noted and (place := work.handle.place()) is not None:
            work.noted = True
            self._note(work.spec, str(work.step), "began", node=place)

    def _lose(self, work: _Work, lost: Lost) -> None:
        """The machine is gone, and nothing is known against the run: it goes on elsewhere, from its last checkpoint."""
        losses = self.losses.setdefault(work.spec.name, [])
        losses.append((time.monotonic(), lost))
        if len(losses) > self.restarts:
            reason = f"lost {len(losses)} times, the last time because {lost.reason}"
            self._fail(work.spec, str(work.step), reason, work.handle.place())
        else:
            self._note(work.spec, str(work.step), "lost", lost.reason, work.handle.place())
            self.pending.insert(0, work.spec)

    def _stop_all(self) -> None:
        """Let what is running save and leave; whoever interrupts that ends it at once."""
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
            self.keeping.store_at_last()

    # -- what comes next --

    def _launch(self) -> None:
        """Start what there is room for, in the order of the study."""
        if time.monotonic() < self.look_again:
            return  # what there was no room for, or what somebody else was busy with, is so still
        self.look_again = time.monotonic() + _RECHECK
        full: set[bool] = set()  # with a GPU, without one: there may be room for one of them alone
        for spec in list(self.pending):
            if (kind := self.gpus(spec) > 0.0) in full:
                continue
            try:
                if not self.keeping.settled(spec):
                    continue
                step = next_step(spec)
                if step is None:
                    self.pending.remove(spec)
                    self.outcome.done.append(spec.name)
                    if spec.name in self.failed_before:
                        self._note(spec, "all", "ended")  # or `status` would go on to say that it failed
                    continue
                if isinstance(step, Busy):
                    # Left by a study that was killed, or somebody's own: its turn comes when it is free.
                    self._free_lost(spec)
                    self._tell_busy(spec)
                    continue
                if step == self.last.get(spec.name):
                    raise RunError(f"'{step}' ended well, but what it should have made is not there")
                if step.kind == "train" and self._copied(spec):
                    continue
                if not self._start(spec, step):
                    full.add(kind)
            except VlmsafeError as error:
                self.pending.remove(spec)
                self._fail(spec, "look", str(error))

    def _free_lost(self, spec: RunSpec) -> None:
        """Break the lock of a process that died with its machine, where the server of a shared folder keeps it."""
        for when, lost in self.losses.get(spec.name, ()):
            if lost.process and time.monotonic() > when + _STALE and break_lock(spec.path, lost.process):
                self._note(spec, "look", "unlocked", f"its lock was left by {lost.process}, which is lost")

    def _tell_busy(self, spec: RunSpec) -> None:
        if spec.name not in self.waits:
            self.waits.add(spec.name)
            self.on_event(Event(spec.name, "look", "waits", f"in use by {in_words(lock_holder(spec.path))}"))

    def _copied(self, spec: RunSpec) -> bool:
        if self.study.independent:
            return False
        found = equal_run(spec, self.folder.parent, lambda why: self._tell_refused(spec, why))
        if found is None:
            return False
        take_over(found, spec, self.folder / _ASIDE)
        self.keeping.keep_later(spec)
        self._note(spec, "train", "copied", str(found.path))
        return True

    def _tell_refused(self, spec: RunSpec, why: str) -> None:
        if spec.name not in self.refused:  # a run that waits for room is looked up again and again
            self.refused.add(spec.name)
            self.on_event(Event(spec.name, "train", "not copied", why))

    def _tell_other_code(self) -> None:
        """Say once, for all runs of the study that exist, which of them other code computed: they are kept."""
        found: dict[str, list[str]] = {}
        for spec in self.specs:
            with contextlib.suppress(VlmsafeError):  # a run that cannot be read is reported as one that failed
                if is_run(spec.path) and (why := other_code(Run.open(spec.path))):
                    found.setdefault(why, []).append(spec.name)
        for why, names in found.items():
            who = names[0] if len(names) == 1 else f"{len(names)} runs, such as {names[0]}"
            self.on_event(Event(who, "", "kept", why))

    def _start(self, spec: RunSpec, step: Step) -> bool:
        """Launch a step; False where there is no room."""
        log = self.folder / _LOGS / f"{spec.name}.log"
        words = command_words(spec, step, self.folder, self.service)
        if self.store is not None:
            if step.kind == "train" and not self.keeping.has_settings(spec):
                return False
            places = {str(spec.path): "@run", str(config_path(spec, self.folder)): "@config"}
            words = remote_words(self.store.url, spec.name, [places.get(word, word) for word in words[len(VLMSAFE) :]])
        begun_at = log.stat().st_size if log.exists() else 0
        needs = (max(1, spec.config.num_envs), self.memory(spec), self.gpus(spec))
        handle = self.launcher.launch(Command(words, log, *needs))
        if handle is None:
            return False
        self.pending.remove(spec)
        work = _Work(spec, step, handle, log, begun_at)
        self.running.append(work)
        self._note_beginning(work)
        return True

    # -- records --

    def _fail(self, spec: RunSpec, step: str, reason: str, node: str | None = None) -> None:
        self.outcome.failed[spec.name] = f"{step}: {reason}"
        self._note(spec, step, "failed", reason, node)

    def _note(self, spec: RunSpec, step: str, what: str, reason: str = "", node: str | None = None) -> None:
        event = Event(spec.name, step, what, reason, node or "")
        row = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **vars(event)}
        append_rows(self.folder / JOURNAL, [row])
        self.keeping.journal_changed()
        self.on_event(event)


def write_definition(study: Study, folder: Path) -> None:
    """The study as it was run, for whoever finds the folder, and its comparisons for the audit."""
    write_atomically(folder / STUDY_FILE, to_yaml(study.document).encode())
    claims = {key: study.document[key] for key in ("comparisons", "correction") if key in study.document}
    if "comparisons" in claims:
        write_atomically(folder / "claims.yaml", to_yaml(claims).encode())
    else:
        (folder / "claims.yaml").unlink(missing_ok=True)


def config_path(spec: RunSpec, folder: Path) -> Path:
    """The file through which a run gets its settings."""
    return folder / _CONFIGS / f"{spec.name}.yaml"


def command_words(spec: RunSpec, step: Step, folder: Path, service: str = "") -> tuple[str, ...]:
    """A step as a command. A run's settings go through a file, which also shows them to people.

    Where the scorer is, is no setting of the run; a run that had a service before and has none now is told so.
    """
    given = spec.config.signal.service
    asking = ("--signal.service", service or given) if shares(spec.config.signal.scorer) else ()
    if step.kind == "train":
        path = config_path(spec, folder)
        make_directory(path.parent)
        write_atomically(path, to_yaml(to_dict(replace(spec.config, run_dir=None))).encode())
        return (*VLMSAFE, "train", "--config", str(path), "--run-dir", str(spec.path), "--quiet", *asking)
    if step.kind == "resume":
        return (*VLMSAFE, "train", "--resume", str(spec.path), "--quiet", *asking)
    look = step.look
    assert look is not None
    words = [step.kind, str(spec.path), "--protocol", look.protocol, "--episodes", str(look.count)]
    words += ["--processes", str(max(1, spec.config.num_envs))]
    if step.kind == "trace":
        words += ["--every", str(look.every), "--overwrite"]  # an earlier one is of fewer episodes or another epoch
        words += [word for scorer in look.scorers for word in ("--scorer", scorer)]
        words += ["--frames"] if look.frames else []
        words += ["--service", service] if service else []
    return (*VLMSAFE, *words)


def _reason(code: int, log: Path, begun_at: int) -> str:
    """Why a command failed, from the last thing it said."""
    if code < 0:
        name = signal.Signals(-code).name
        hint = "; the machine may have run out of memory" if -code == signal.SIGKILL else ""
        return f"ended by {name}{hint} (log: {log})"
    said = log.read_bytes()[begun_at:].decode(errors="replace") if log.exists() else ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("error:").strip() for line in lines if re.match(r"error:", line)]
    text = (errors or lines or [f"exit code {code}"])[-1]
    if code == EXIT_INTERRUPTED:
        return f"interrupted from outside: {text}"
    return f"{text} (log: {log})"


def last_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """The last thing that happened to each run, from a study's journal."""
    return {row["run"]: row for row in read_rows(folder / JOURNAL)}


def under_way(folder: Path, elsewhere: bool = False) -> dict[str, dict[str, Any]]:
    """What is running in a study now, by run: rows of its journal with step, node and time.

    Of a study that is run `elsewhere` nothing is known but its journal.
    """
    if not elsewhere and not is_locked(folder):
        return {}
    return {run: row for run, row in last_rows(folder).items() if row["what"] == "began"}


def failures(folder: Path) -> dict[str, str]:
    """Runs of a study whose last step failed, and why."""
    rows = last_rows(folder)
    return {run: f"{row['step']}: {row['reason']}" for run, row in rows.items() if row["what"] == "failed"}
