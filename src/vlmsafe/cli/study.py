"""vlmsafe study: list, show, plan, run, status, report."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro
from rich import box
from rich.table import Table

from vlmsafe.cli.study_tables import (
    REDRAW,
    Screen,
    runs_table,
    status_table,
)
from vlmsafe.cli.terminal import (
    NoOptions,
    err,
    listing,
    out,
    parse,
)
from vlmsafe.errors import EXIT_FAILED, InputError, unknown_name

if TYPE_CHECKING:
    from vlmsafe.studies.execute import Event
    from vlmsafe.studies.launch.api import Launcher
    from vlmsafe.studies.remote.store import Store
    from vlmsafe.studies.scorer.shared import SharedScorer
    from vlmsafe.studies.study import RunSpec, Study


_FETCH = 30.0  # seconds between two looks at a study that is kept at a URL


@dataclass(frozen=True)
class Chosen:
    """Which study, how large, and where its runs are."""

    study: tyro.conf.Positional[str]
    """A shipped study's name, a YAML file, or the folder of a study that was begun."""
    scale: float = 1.0
    """Shrink steps, seeds and episodes, such as 0.01; at least 2 epochs, 2 seeds and 2 episodes remain."""
    scorer: str | None = None
    """Stand-in for every CLIP and Qwen2-VL, such as embedded or noise, to try a study without their weights."""
    root: Path = Path("runs")
    """Folder of all studies; this one's is in it, under its name."""
    dir: str | None = None
    """The study's own folder, where it has another name or place; or a URL, such as s3://bucket/mine."""

    def load(self) -> tuple[Study, Path]:
        """The study, and where its runs are; of one at a URL, the local copy, as it is."""
        from vlmsafe.runs.layout import STUDY_FILE
        from vlmsafe.studies.schema import load_study

        study = load_study(self.study)
        if self.scale != 1.0 or self.scorer is not None:
            study = study.varied(self.scale, self.scorer)
        begun = Path(self.study)
        folder = begun if (begun / STUDY_FILE).is_file() else self.root / study.title
        return study, Path(self.dir) if self.dir and self.store() is None else folder

    def bring(self, study: Study, folder: Path) -> None:
        """Bring the local copy of a study at a URL up to date, unless somebody works in it, who does so."""
        from vlmsafe.io.disk import make_directory
        from vlmsafe.io.locks import DirectoryLock, is_locked
        from vlmsafe.studies.remote.study_side import fetch

        store = self.store()
        if store is not None and not is_locked(folder) and store.has_study():
            with DirectoryLock(make_directory(folder)):
                fetch(store, study.expand(folder), folder)

    def store(self) -> Store | None:
        """Where the study is kept, if that is a URL."""
        from vlmsafe.studies.remote.store import Store, is_url, known_scheme

        if not self.dir:
            return None
        if known_scheme(self.dir) == "memory":
            raise InputError(
                "memory:// is a store of one process, and every command of a study is its own; use a file://"
            )
        if is_url(self.dir):
            return Store(self.dir)
        if (scheme := known_scheme(self.dir)) and not Path(self.dir).exists():
            raise InputError(f"'{self.dir}' is no URL; two slashes follow its name: {scheme}://...")
        return None

    def command(self, verb: str, folder: Path) -> str:
        """What to type for another verb on the same study."""
        at = f" --dir {shlex.quote(self.dir or '')}" if self.store() is not None else ""
        return f"vlmsafe study {verb} {shlex.quote(str(folder))}{at}"


@dataclass(frozen=True)
class PlanCommand(Chosen):
    """Print runs, steps, estimated hours and memory of a study, before anything starts."""

    study: tyro.conf.Positional[str] = ""
    """A shipped study's name, a YAML file, or the folder of a study that was begun."""
    all: bool = False
    """Instead: GPU-hours of all the paper's runs, with a GPU in every run and with one scoring service for all."""
    cores: int | None = None
    """Cores to plan with; by default all."""


@dataclass(frozen=True)
class RunCommand(Chosen):
    """Train, evaluate and trace every run of a study. Calling it again continues: what is there is not done again."""

    jobs: int | None = None
    """Commands at a time; by default as many as cores and memory allow."""
    cores: int | None = None
    """Cores to use; by default all."""
    memory: float | None = None
    """GiB of memory to use on this machine; by default nine tenths of what is free."""
    launcher: Literal["local", "ray"] = "local"
    """Where commands run: processes on this machine, or the nodes of a Ray cluster."""
    address: str | None = None
    """ray: host:port of the cluster's head, auto for the cluster of this machine, local (default) to start one here."""
    gpus: float | None = None
    """ray: share of a GPU for each run that scores with CLIP or Qwen2-VL itself; by default 1 if there are GPUs."""
    patience: float = 60.0
    """ray: seconds out of reach after which a node counts as lost; by then its runs have ended themselves."""
    restarts: int = 10
    """How often a run is started again, from its last checkpoint, whose node was lost."""
    share_scorer: bool = False
    """Start one scoring service for all runs, instead of a model in each; with ray, one on every GPU."""

    def command(self, verb: str, folder: Path) -> str:
        words = super().command(verb, folder)
        if verb == "run":
            words += "" if self.launcher == "local" else f" --launcher {self.launcher}"
            words += "" if self.address is None else f" --address {shlex.quote(self.address)}"
        return words


@dataclass(frozen=True)
class StatusCommand(Chosen):
    """Show how far a study is; on a terminal the table is kept up to date until Ctrl-C."""

    once: bool = False
    """Print the table once."""
    runs: bool = False
    """One row per run: how far it is, on which node it runs and since when, or when and how it ended."""


@dataclass(frozen=True)
class ShowCommand(Chosen):
    """Print what a study is: its question, its arms and what tells them apart, its environments and evaluations."""


@dataclass(frozen=True)
class ReportCommand(Chosen):
    """Write the report of a study, finished or not: one HTML file, with its tables and figures beside it."""

    out: Path | None = None
    """HTML file; by default report.html in the study's folder."""


def study_verb(argv: list[str]) -> None:
    verbs: dict[str, tuple[Any, Callable[[Any], None]]] = {
        "list": (NoOptions, _list),
        "show": (ShowCommand, _show),
        "plan": (PlanCommand, _plan),
        "run": (RunCommand, _run),
        "status": (StatusCommand, _status),
        "report": (ReportCommand, _report),
    }
    if not argv or argv[0] in ("-h", "--help"):
        out.print("usage: vlmsafe study VERB STUDY [OPTIONS]\n")
        for name, (kind, _) in verbs.items():
            text = "List the studies in the package." if name == "list" else kind.__doc__.split("\n")[0]
            out.print(f"  {name:<8} {text}", soft_wrap=True)
        return
    if argv[0] not in verbs:
        raise unknown_name("study command", argv[0], verbs)
    kind, function = verbs[argv[0]]
    function(parse(kind, argv[1:], f"study {argv[0]}"))


def _list(command: NoOptions) -> None:
    from vlmsafe.studies.schema import load_study, shipped_studies

    table = listing("study", "question", "runs", "steps", "makes")
    for name in shipped_studies():
        study = load_study(name)
        specs = study.expand(Path("runs"))
        steps = sum(spec.config.total_steps for spec in specs)
        table.add_row(name, study.question, str(len(specs)), _millions(steps), ", ".join(study.paper) or "-")
    out.print(table)


def _show(command: ShowCommand) -> None:
    from vlmsafe.config.yaml import to_yaml

    study, folder = command.load()
    specs = study.expand(folder)
    out.print(study.question, style="bold")
    out.print(f"{len(specs)} runs of {len(study.arms)} arms in {folder}\n", markup=False)
    table = _wide("environment", "arm", "method", "seeds", "steps", "evaluations", "traces")
    for own in _cells(specs).values():
        first = own[0]
        table.add_row(
            first.env, first.arm, first.config.method, ", ".join(str(spec.seed) for spec in own),
            _millions(first.config.total_steps), _looks(first.evaluations), _looks(first.traces),
        )  # fmt: skip
    out.print(table)
    out.print(to_yaml(study.document), markup=False, soft_wrap=True)


def _plan(command: PlanCommand) -> None:
    from vlmsafe.studies.cost.plan import plan
    from vlmsafe.studies.launch.local import LocalLauncher

    if bool(command.study) == command.all:
        raise InputError("name a study, or say --all for the GPU-hours of all the paper's runs")
    if command.all:
        _plan_gpus()
        return
    study, folder = command.load()
    launcher = LocalLauncher(cores=command.cores)
    found = plan(study.expand(folder), folder.parent, launcher.cores, launcher.memory)
    table = _wide("environment", "arm", "runs", "done", "steps", "hours/run", "core-h left", "memory", "speed from")
    for row in found.rows:
        table.add_row(
            row.env, row.arm, str(row.runs), str(row.done), _millions(row.steps), _hours(row.run_hours),
            _hours(row.core_hours_left), f"{row.memory / 2**30:.1f} GiB", row.source,
        )  # fmt: skip
    out.print(table)
    out.print(f"{found.runs} runs, {found.done} of them done; {_millions(found.steps)} steps of training")
    out.print(
        f"left: about {_hours(found.core_hours)} core-hours, {_hours(found.hours)} hours on {launcher.describe()}"
    )
    for note in found.notes:
        out.print(f"note: {note}", markup=False, soft_wrap=True)


def _plan_gpus() -> None:
    from vlmsafe.studies.cost.gpu import gpu_plan, notes
    from vlmsafe.studies.schema import load_study, shipped_studies

    studies = [study for study in map(load_study, shipped_studies()) if study.paper]
    rows = gpu_plan(sorted(studies, key=lambda study: -len(study.paper)))  # the main ones first
    rows = [row for row in rows if row.runs]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("study", no_wrap=True)
    for heading in ("runs", "M frames", "core-h", "GPU per run", "..., batched", "shared, float32", "shared, bfloat16"):
        table.add_column(heading, justify="right")
    for row in rows:
        figures = (row.core_hours, row.per_run, row.per_run_batched, row.shared_float32, row.shared_bfloat16)
        table.add_row(row.study, _of(row.known, row.runs), f"{row.frames / 1e6:.1f}", *map(_hours, figures))
    columns = zip(
        *((r.core_hours, r.per_run, r.per_run_batched, r.shared_float32, r.shared_bfloat16) for r in rows), strict=True
    )
    runs, known, frames = (sum(getattr(row, name) for row in rows) for name in ("runs", "known", "frames"))
    table.add_section()
    table.add_row("all", _of(known, runs), f"{frames / 1e6:.1f}", *(_hours(sum(column)) for column in columns))
    out.print("GPU-hours of training, for all runs of the paper; a run of several studies is counted with the first")
    out.print(table)
    for note in notes(rows):
        out.print(f"- {note}", markup=False, soft_wrap=True)


def _of(part: int, whole: int) -> str:
    return str(whole) if part == whole else f"{part} of {whole}"


def _run(command: RunCommand) -> None:
    from vlmsafe.io.interrupts import stop_on_signals
    from vlmsafe.studies.cost.plan import Speeds
    from vlmsafe.studies.execute import execute

    study, folder = command.load()
    specs = study.expand(folder)
    launcher, gpus = _launcher(command)
    if command.launcher != "local":
        folder = folder.resolve()  # other machines have other working directories
    speeds = Speeds.of(folder.parent)
    out.print(f"{study.title}: {len(specs)} runs in {folder}, on {launcher.describe()}", markup=False, soft_wrap=True)

    def told(event: Event) -> None:
        line = f"{time.strftime('%H:%M:%S')} {event}"
        out.print(line, markup=False, soft_wrap=True, style="red" if event.what == "failed" else "")

    service = None
    try:
        service = _shared_scorer(command, study, folder, launcher)

        def on_turn() -> None:
            screen.redraw()
            if service is not None:
                service.look()

        with Screen(lambda: status_table(study, specs, folder)) as screen, stop_on_signals() as stop:
            outcome = execute(
                study, folder, launcher,
                memory=partial(speeds.memory, shared=command.share_scorer), gpus=gpus, restarts=command.restarts,
                store=command.store(), service="" if service is None else service.address,
                stop=stop, on_event=told, on_turn=on_turn,
            )  # fmt: skip
    finally:
        if service is not None:
            service.close()
        launcher.close()
    if outcome.failed:
        for name, reason in outcome.failed.items():
            err.print(f"failed: {name}: {reason}", markup=False, soft_wrap=True)
        err.print(
            f"{len(outcome.failed)} of {len(specs)} runs failed, the others are done; once the causes are gone, "
            f"{command.command('run', folder)} goes on with them",
            markup=False, soft_wrap=True,
        )  # fmt: skip
        raise SystemExit(EXIT_FAILED)
    out.print(f"finished: {len(outcome.done)} runs", markup=False)
    out.print(f"report: {command.command('report', folder)}", markup=False, soft_wrap=True)


def _launcher(command: RunCommand) -> tuple[Launcher, Callable[[RunSpec], float]]:
    """Where the commands run, and what share of a GPU each gets."""
    if command.launcher == "local":
        from vlmsafe.studies.launch.local import LocalLauncher

        for name in ("address", "gpus"):
            if getattr(command, name) is not None:
                raise InputError(f"--{name} is for --launcher ray; on this machine a run takes the GPU it finds")
        memory = None if command.memory is None else int(command.memory * 2**30)
        return LocalLauncher(cores=command.cores, memory=memory, jobs=command.jobs), lambda spec: 0.0
    from vlmsafe.studies.cost.plan import gpu_share
    from vlmsafe.studies.launch.ray import RayLauncher

    if command.memory is not None:
        raise InputError("--memory is for --launcher local; the nodes of a Ray cluster know their own")
    gpus = command.gpus
    if gpus is not None and not (0.0 <= gpus <= 1.0 or (gpus > 1.0 and gpus.is_integer())):
        raise InputError(f"--gpus is {gpus:g}; expected a share of one from 0 to 1, or a whole number")
    if gpus and command.share_scorer:
        raise InputError(f"--gpus is {gpus:g}, but with --share-scorer the service has the GPUs; leave one of them out")

    def tell(line: str) -> None:
        out.print(f"{time.strftime('%H:%M:%S')} {line}", markup=False, soft_wrap=True)

    launcher = RayLauncher(
        command.address, cores=command.cores, jobs=command.jobs, patience=command.patience, tell=tell
    )
    share = gpus if gpus is not None else float(launcher.has_gpus() and not command.share_scorer)
    return launcher, lambda spec: gpu_share(spec, share)


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


def _status(command: StatusCommand) -> None:
    study, folder = command.load()
    command.bring(study, folder)
    specs, elsewhere = study.expand(folder), command.store() is not None
    draw = partial(runs_table if command.runs else status_table, study, specs, folder, elsewhere)
    if command.once or not out.is_terminal:
        out.print(draw())
        return
    from vlmsafe.studies.progress import cell_states

    due = time.monotonic() + _FETCH
    with Screen(draw) as screen:
        while not all(state.done for state in cell_states(specs, {})):
            screen.redraw()
            time.sleep(REDRAW)
            if time.monotonic() >= due:
                command.bring(study, folder)
                due = time.monotonic() + _FETCH


def _report(command: ReportCommand) -> None:
    from vlmsafe.cli.report import print_report
    from vlmsafe.studies.api import report_on_study

    study, folder = command.load()
    command.bring(study, folder)
    if not folder.is_dir():
        raise InputError(f"there is no {folder}; {command.command('run', Path(command.study))} makes its runs")
    print_report(report_on_study(study, folder, command.out, command=command.command("run", folder)))


def _wide(*headings: str) -> Table:
    """A table of cells: environment and arm are never cut, and nothing is left out of the others."""
    table = listing(*headings)
    table.columns[1].no_wrap = True
    for column in table.columns[2:]:
        column.overflow = "fold"
    return table


def _cells(specs: Sequence[RunSpec]) -> dict[tuple[str, str], list[RunSpec]]:
    cells: dict[tuple[str, str], list[RunSpec]] = {}
    for spec in specs:
        cells.setdefault((spec.env, spec.arm), []).append(spec)
    return cells


def _looks(looks: Sequence[Any]) -> str:
    return ", ".join(f"{look.protocol} ({look.count})" for look in looks) or "-"


def _millions(steps: int) -> str:
    return f"{steps / 1e6:g} M" if steps >= 1e6 else f"{steps:,}"


def _hours(hours: float | None) -> str:
    if hours is None:
        return "?"
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.1f}" if hours >= 1 else f"{hours:.2f}"
