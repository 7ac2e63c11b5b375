"""vlmsafe study run: train, evaluate and trace every run of a study, here or on a Ray cluster."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vlmsafe.cli.study.choice import StudyChoice
from vlmsafe.cli.study.tables import Screen, status_table
from vlmsafe.cli.terminal import err, out
from vlmsafe.errors import EXIT_FAILED, InputError

if TYPE_CHECKING:
    from vlmsafe.studies.journal import Event
    from vlmsafe.studies.launch.api import Launcher
    from vlmsafe.studies.scorer.shared import SharedScorer
    from vlmsafe.studies.study import RunSpec, Study


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
    share_scorer: bool = False
    """Start one scoring service for all runs, instead of a model in each run; with ray, one on every GPU."""

    def command(self, verb: str, folder: Path) -> str:
        words = super().command(verb, folder)
        if verb == "run":
            words += "" if self.launcher == "local" else f" --launcher {self.launcher}"
            words += "" if self.address is None else f" --address {shlex.quote(self.address)}"
        return words


def run_verb(command: RunCommand) -> None:
    from vlmsafe.io.interrupts import stop_on_signals
    from vlmsafe.studies.cost.plan import Speeds
    from vlmsafe.studies.execute import execute

    study, folder = command.load()
    specs = study.expand(folder)
    launcher, gpus = make_launcher(command)
    if command.launcher != "local":
        folder = folder.resolve()  # other machines have other working directories
    speeds = Speeds.of(folder.parent)
    out.print(f"{study.title}: {len(specs)} runs in {folder}, on {launcher.describe()}", markup=False, soft_wrap=True)

    def print_event(event: Event) -> None:
        _print_timed(str(event), style="red" if event.what == "failed" else "")

    service = None
    try:
        service = _shared_scorer(command, study, folder, launcher)

        def on_turn() -> None:
            screen.redraw()
            if service is not None:
                service.restart_if_dead()

        with Screen(lambda: status_table(study, specs, folder)) as screen, stop_on_signals() as stop:
            result = execute(
                study, folder, launcher,
                memory=partial(speeds.memory, shared=command.share_scorer), gpus=gpus, restarts=command.restarts,
                store=command.store(), service="" if service is None else service.address,
                stop=stop, on_event=print_event, on_turn=on_turn,
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
    out.print(f"finished: {len(result.done)} runs", markup=False)
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


def _shared_scorer(command: RunCommand, study: Study, folder: Path, launcher: Launcher) -> SharedScorer | None:
    """The scoring service of a study, if it is to have one."""
    if not command.share_scorer:
        return None
    from vlmsafe.studies.launch.ray import RayLauncher
    from vlmsafe.studies.scorer.shared import LocalScorer, service_name

    if not isinstance(launcher, RayLauncher):
        return LocalScorer(study.title, folder / "logs" / "scorer.log")
    from vlmsafe.studies.scorer.ray import RayService

    return RayService(service_name(study.title), anywhere=not launcher.alone)
