"""vlmsafe study run: train, evaluate and trace every run of a study, here or on a Ray cluster."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from vlmsafe.cli.study.tables import Screen, status_table
from vlmsafe.cli.terminal import err, out
from vlmsafe.errors import EXIT_FAILED, InputError

if TYPE_CHECKING:
    from vlmsafe.studies.journal import Event
    from vlmsafe.studies.launch.api import Launcher
    from vlmsafe.studies.remote.store import Store
    from vlmsafe.studies.scorer.shared import SharedScorer
    from vlmsafe.studies.study import RunSpec, Study


@dataclass(frozen=True)
class StudyChoice:
    """Which study, at which scale, and where its runs are."""

    study: tyro.conf.Positional[str]
    """The name of a study in the package, a YAML file, or the folder of a study that was started."""
    scale: float = 1.0
    """Shrink steps, seeds and episodes, such as 0.01; at least 2 epochs, 2 seeds and 2 episodes remain."""
    scorer: str | None = None
    """Replace CLIP and Qwen2-VL by this scorer, such as embedded or noise, to try a study without their weights."""
    root: Path = Path("runs")
    """Folder of all studies; this study is in a folder of its name inside."""
    dir: str | None = None
    """Folder of this study, if it has another name or place; or a URL, such as s3://bucket/mine."""

    def load(self) -> tuple[Study, Path]:
        """The study and its folder; for a study at a URL, the folder of the local copy."""
        from vlmsafe.runs.layout import STUDY_FILE
        from vlmsafe.studies.schema import load_study

        study = load_study(self.study)
        if self.scale != 1.0 or self.scorer is not None:
            study = study.varied(self.scale, self.scorer)
        begun = Path(self.study)
        folder = begun if (begun / STUDY_FILE).is_file() else self.root / study.title
        return study, Path(self.dir) if self.dir and self.store() is None else folder

    def update_copy(self, study: Study, folder: Path) -> None:
        """Update the local copy of a study at a URL, unless another process is working in it and does so."""
        from vlmsafe.io.disk import make_directory
        from vlmsafe.io.locks import DirectoryLock, is_locked
        from vlmsafe.studies.remote.study_side import fetch

        store = self.store()
        if store is not None and not is_locked(folder) and store.has_study():
            with DirectoryLock(make_directory(folder)):
                fetch(store, study.expand(folder, recorded=True), folder)

    def store(self) -> Store | None:
        """The store of the study, if --dir is a URL."""
        from vlmsafe.studies.remote.store import Store, is_url, known_scheme

        if not self.dir:
            return None
        if known_scheme(self.dir) == "memory":
            raise InputError(
                "memory:// exists only inside one process, but each command of a study is a process; use file://"
            )
        if is_url(self.dir):
            return Store(self.dir)
        if (scheme := known_scheme(self.dir)) and not Path(self.dir).exists():
            raise InputError(f"'{self.dir}' is not a URL; two slashes must follow: {scheme}://...")
        return None

    def command(self, verb: str, folder: Path) -> str:
        """The command line of another verb for the same study."""
        at = f" --dir {shlex.quote(self.dir or '')}" if self.store() is not None else ""
        return f"vlmsafe study {verb} {shlex.quote(str(folder))}{at}"


@dataclass(frozen=True)
class RunCommand(StudyChoice):
    """Train, evaluate and trace every run of a study. Calling it again continues: finished work is not done again."""

    jobs: int | None = None
    """Commands at a time; by default as many as cores and memory allow."""
    cores: int | None = None
    """Cores to use; by default all."""
    memory: float | None = None
    """GiB of memory to use on this machine; by default nine tenths of what is free."""
    launcher: Literal["local", "ray"] = "local"
    """Where commands run: as processes on this machine, or on the nodes of a Ray cluster."""
    address: str | None = None
    """ray: host:port of the cluster's head, auto for the cluster of this machine, local (default) to start one here."""
    gpus: float | None = None
    """ray: share of a GPU for each run that loads CLIP or Qwen2-VL itself; by default 1 if there are GPUs."""
    patience: float = 60.0
    """ray: seconds after which a node that cannot be reached counts as lost; its runs have ended by then."""
    restarts: int = 10
    """How often a run is restarted from its last checkpoint after its node was lost."""
    accept_changed_code: bool = False
    """Resume interrupted runs although the source of your own environment or scorer has changed; they record it."""
    share_scorer: bool = False
    """Start one scoring service for all runs, instead of a model in each run; with ray, one on every GPU."""

    def command(self, verb: str, folder: Path) -> str:
        words = super().command(verb, folder)
        if verb == "run":
            words += "" if self.launcher == "local" else f" --launcher {self.launcher}"
            words += "" if self.address is None else f" --address {shlex.quote(self.address)}"
        return words


def run_verb(command: RunCommand) -> None:
    from vlmsafe.audit.findings import counted
    from vlmsafe.io.interrupts import stop_on_signals
    from vlmsafe.studies.cost.plan import Speeds
    from vlmsafe.studies.execute import execute
    from vlmsafe.studies.preflight import require_ready
    from vlmsafe.studies.study import assumptions

    study, folder = command.load()
    specs = study.expand(folder)
    require_ready(study, specs, elsewhere=command.launcher != "local")
    launcher, gpus = make_launcher(command)
    if command.launcher != "local":
        folder = folder.resolve()  # other machines have other working directories
    speeds = Speeds.of(folder.parent)
    head = f"{study.title}: {counted(len(specs), 'run')} in {folder}, on {launcher.describe()}"
    out.print(head, markup=False, soft_wrap=True)

    for note in assumptions(specs):
        out.print(f"note: {note}", markup=False, soft_wrap=True)

    def print_event(event: Event) -> None:
        _print_timed(str(event), style="red" if event.what == "failed" else "")

    service = None
    try:
        service = _shared_scorer(command, study, specs, folder, launcher)

        def on_turn() -> None:
            screen.redraw()
            if service is not None:
                service.restart_if_dead()

        with Screen(lambda: status_table(study, specs, folder)) as screen, stop_on_signals() as stop:
            result = execute(
                study, folder, launcher,
                memory=partial(speeds.memory, shared=command.share_scorer), gpus=gpus, restarts=command.restarts,
                store=command.store(), service="" if service is None else service.address,
                accept_changed_code=command.accept_changed_code, stop=stop, on_event=print_event, on_turn=on_turn,
            )  # fmt: skip
    finally:
        if service is not None:
            service.close()
        launcher.close()
    if result.failed:
        for name, reason in result.failed.items():
            err.print(f"failed: {name}: {reason}", markup=False, soft_wrap=True)
        err.print(
            f"{len(result.failed)} of {len(specs)} runs failed, and the others are done; once the causes are gone, "
            f"continue with: {command.command('run', folder)}",
            markup=False, soft_wrap=True,
        )  # fmt: skip
        raise SystemExit(EXIT_FAILED)
    out.print(f"finished: {counted(len(result.done), 'run')}", markup=False)
    out.print(f"report: {command.command('report', folder)}", markup=False, soft_wrap=True)


def make_launcher(command: RunCommand) -> tuple[Launcher, Callable[[RunSpec], float]]:
    """Where commands run, and the share of a GPU that each run gets."""
    if command.launcher == "local":
        from vlmsafe.studies.launch.local import LocalLauncher

        for name in ("address", "gpus"):
            if getattr(command, name) is not None:
                raise InputError(f"--{name} is for --launcher ray; on this machine a run uses the GPU it finds")
        memory = None if command.memory is None else int(command.memory * 2**30)
        return LocalLauncher(cores=command.cores, memory=memory, jobs=command.jobs), lambda spec: 0.0
    from vlmsafe.studies.cost.plan import gpu_share
    from vlmsafe.studies.launch.ray import RayLauncher

    if command.memory is not None:
        raise InputError("--memory is for --launcher local; a Ray cluster knows the memory of its nodes")
    gpus = command.gpus
    if gpus is not None and not (0.0 <= gpus <= 1.0 or (gpus > 1.0 and gpus.is_integer())):
        raise InputError(f"--gpus is {gpus:g}; expected a share of one GPU from 0 to 1, or a whole number")
    if gpus and command.share_scorer:
        raise InputError(f"--gpus is {gpus:g}, but with --share-scorer the service has the GPUs; leave one of them out")
    launcher = RayLauncher(
        command.address, cores=command.cores, jobs=command.jobs, patience=command.patience, tell=_print_timed
    )
    share = gpus if gpus is not None else float(launcher.has_gpus() and not command.share_scorer)
    return launcher, lambda spec: gpu_share(spec, share)


def _print_timed(line: str, style: str = "") -> None:
    out.print(f"{time.strftime('%H:%M:%S')} {line}", markup=False, soft_wrap=True, style=style)


def _shared_scorer(
    command: RunCommand, study: Study, specs: Sequence[RunSpec], folder: Path, launcher: Launcher
) -> SharedScorer | None:
    """The scoring service of a study, if it is to have one."""
    if not command.share_scorer:
        return None
    from vlmsafe.studies.launch.ray import RayLauncher
    from vlmsafe.studies.scorer.shared import LocalScorer, service_name, shared_kernels

    chosen = shared_kernels(specs)
    if not isinstance(launcher, RayLauncher):
        return LocalScorer(study.title, folder / "logs" / "scorer.log", chosen)
    from vlmsafe.studies.scorer.ray import RayService

    return RayService(service_name(study.title), anywhere=not launcher.alone, chosen=chosen)
