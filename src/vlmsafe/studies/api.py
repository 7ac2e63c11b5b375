"""Studies, audits and reports from Python: the functions behind `vlmsafe study run`, `audit` and `report`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from vlmsafe.audit.auditor import RESAMPLES
from vlmsafe.audit.auditor import audit as audit_runs
from vlmsafe.audit.findings import Audit
from vlmsafe.comparison.claims import CLAIMS_FILE, Claims
from vlmsafe.comparison.preregistration import FrozenProtocol
from vlmsafe.config.yaml import to_yaml
from vlmsafe.errors import InputError, RunError, VlmsafeError
from vlmsafe.evaluation.plan import warn
from vlmsafe.io.disk import make_directory
from vlmsafe.io.interrupts import stop_on_signals
from vlmsafe.io.locks import DirectoryLock, is_locked
from vlmsafe.report.request import StudyInfo
from vlmsafe.report.write import Written, write_report
from vlmsafe.runs.layout import STUDY_FILE
from vlmsafe.studies.cost.plan import Speeds
from vlmsafe.studies.execute import execute, prepare
from vlmsafe.studies.journal import Event
from vlmsafe.studies.launch.local import LocalLauncher
from vlmsafe.studies.preflight import require_ready
from vlmsafe.studies.protocol import claims_in_force, notice
from vlmsafe.studies.remote.store import Store
from vlmsafe.studies.remote.study_side import fetch
from vlmsafe.studies.schema import load_study
from vlmsafe.studies.steps import other_settings
from vlmsafe.studies.study import Study, assumptions, cells

__all__ = ["audit", "load_study", "report", "report_on_study", "run_study", "runs_of_studies"]

_NOTED = ("kept", "not copied", "changed")
"""Events that say something about results, and that who follows no events should hear of too."""


def run_study(
    study: Study | Path | str,
    root: Path | str = "runs",
    *,
    scale: float = 1.0,
    scorer: str | None = None,
    jobs: int | None = None,
    cores: int | None = None,
    accept_changed_code: bool = False,
    on_event: Callable[[Event], None] | None = None,
) -> Path:
    """Train, evaluate and trace every run of a study on this machine, and return the study's folder.

    `study` is the name of a shipped study, a YAML file, the folder of a study that was begun, or what `load_study`
    returned. Its runs are in `root`, in a folder of the study's name. Calling it again continues: finished work is not
    done again. `scale` shrinks steps, seeds and episodes; `scorer` replaces CLIP and Qwen2-VL, for a trial without
    their weights. What the runs need, such as prompts and environments, is looked up before anything is trained, and an
    InputError names what cannot be had. `accept_changed_code` resumes interrupted runs although the source of your own
    environment or scorer has changed. Runs that fail do not stop the others; RunError names them at the end.

    `on_event` is told what begins, ends and fails. Without it, warnings tell which runs other code computed. What the
    study does not say and is assumed, such as a budget, is always a warning.

    >>> from pathlib import Path
    >>> import vlmsafe
    >>> _ = Path("mine.yaml").write_text('''
    ... name: mine
    ... question: Does the oracle lower the cost?
    ... environments: [speeding]
    ... seeds: [1]
    ... total_steps: 400
    ... settings: {steps_per_epoch: 200}
    ... arms:
    ...   plain: {method: ppo-lag}
    ...   oracle: {method: vlm-ppo-lag, settings: {scorer: oracle}}
    ... ''')
    >>> folder = vlmsafe.run_study("mine.yaml", jobs=1)
    >>> sorted(path.name for path in (folder / "speeding").iterdir())
    ['oracle', 'plain']
    """
    chosen = study if isinstance(study, Study) else load_study(study)
    if scale != 1.0 or scorer is not None:
        chosen = chosen.varied(scale, scorer)
    begun = isinstance(study, Path | str) and (Path(study) / STUDY_FILE).is_file()
    folder = Path(study) if begun and isinstance(study, Path | str) else Path(root) / chosen.title
    specs = chosen.expand(folder)
    require_ready(chosen, specs)
    for note in assumptions(specs):
        warn(note)
    launcher = LocalLauncher(cores=cores, jobs=jobs)
    try:
        with stop_on_signals() as stop:
            result = execute(
                chosen, folder, launcher, memory=Speeds.of(folder.parent).memory,
                accept_changed_code=accept_changed_code, stop=stop, on_event=on_event or _warn_of,
            )  # fmt: skip
    finally:
        launcher.close()
    if result.failed:
        name, reason = next(iter(result.failed.items()))
        more = f" (and {len(result.failed) - 1} more)" if len(result.failed) > 1 else ""
        raise RunError(f"{name} failed: {reason}{more}; the other runs are done, and calling again continues")
    return folder


def freeze_study(study: Study, folder: Path, store: Store | None = None) -> tuple[FrozenProtocol, list[Event]]:
    """Freeze a study in its folder, and in its store if it has one, before any run; the protocol, and what is new."""
    if is_locked(folder):
        raise RunError(f"a process is working in {folder}; `study run` freezes the study itself")
    with DirectoryLock(make_directory(folder)):
        specs = study.expand(folder)
        if store is not None:
            fetch(store, specs, folder)
        protocol, events = prepare(study, folder, specs)
        if store is not None:
            store.store_study(folder)
    return protocol, events


def _warn_of(event: Event) -> None:
    if event.what in _NOTED:
        warn(str(event))


def audit(
    paths: Sequence[Path | str] | Path | str,
    *,
    claims: Path | str | Claims | None = None,
    baseline: str | None = None,
    passive_below: float | None = None,
    resamples: int = RESAMPLES,
) -> Audit:
    """Find out what a comparison of runs can and cannot show.

    `paths` are run directories or folders of runs. Of the folder of a study, the runs count that the study has as it is
    defined now.

    `claims` is a file that says what is compared. Without it a `claims.yaml` in one of the folders does. Without that,
    arms are compared in pairs, each with `baseline` where one is named. `passive_below` is the return below which an
    episode without cost counts as passive. If the study or its claims were changed since they were frozen, that is
    recorded in the study's folder.

    >>> import vlmsafe
    >>> for method in ("ppo", "ppo-lag"):
    ...     place = f"runs/{method}/seed-0"
    ...     run = vlmsafe.train(
    ...         env="speeding", method=method, total_steps=400, steps_per_epoch=200, run_dir=place, quiet=True
    ...     )
    >>> found = vlmsafe.audit("runs")
    >>> "too-few-seeds" in {finding.code for finding in found.findings}
    True
    """
    given = _as_paths(paths)
    studies, notes = runs_of_studies(given)
    for folder in studies:
        notice(load_study(folder), folder)
    if claims is None and len(given) == 1 and given[0] in studies and not (given[0] / CLAIMS_FILE).is_file():
        own = load_study(given[0]).claims
        if own.comparisons or own.contrasts:
            claims = own
            notes.append(f"{given[0] / CLAIMS_FILE} is not there, so the comparisons of the study file are audited")
    return audit_runs(
        given, claims=claims, baseline=baseline, passive_below=passive_below, resamples=resamples, studies=studies,
        notes=notes,
    )  # fmt: skip


def runs_of_studies(paths: Sequence[Path]) -> tuple[dict[Path, Sequence[Path]], list[str]]:
    """The runs of each study whose folder is among the paths, as it is defined now, and a line about each that is not.

    All runs of a folder count whose study can no longer be read.
    """
    studies: dict[Path, Sequence[Path]] = {}
    notes: list[str] = []
    for path in paths:
        if (path / STUDY_FILE).is_file():
            try:
                studies[path] = [spec.path for spec in load_study(path).expand(path, recorded=True)]
            except VlmsafeError as error:
                notes.append(f"every run in {path} counts, because its study cannot be read: {error}")
    return studies, notes


def _as_paths(paths: Sequence[Path | str] | Path | str) -> list[Path]:
    return [Path(paths)] if isinstance(paths, Path | str) else [Path(path) for path in paths]


def report(
    paths: Sequence[Path | str] | Path | str,
    out: Path | str | None = None,
    *,
    question: str = "",
    files: bool = True,
) -> Written:
    """Write a report on runs: one HTML page, and a folder of the same name with every table and figure.

    `paths` are run directories or folders of runs. The folder of a study, or a study's name in `runs/`, gives a report
    with that study's question, claims, tables and figures. `out` is the page, by default `report.html` in the folder.

    >>> import vlmsafe
    >>> run = vlmsafe.train(env="speeding", total_steps=400, steps_per_epoch=200, run_dir="runs/first", quiet=True)
    >>> written = vlmsafe.report("runs", "report.html")
    >>> str(written.page), len(written.answer) > 0
    ('report.html', True)
    """
    given = _as_paths(paths)
    if not given:
        raise InputError("report: no runs; expected a folder that holds runs, such as runs/, or run directories")
    page = None if out is None else Path(out)
    folder = _study_folder(given)
    if folder is not None:
        return report_on_study(load_study(folder), folder, page, question=question, files=files)
    studies, notes = runs_of_studies(given)
    for studied in studies:
        notice(load_study(studied), studied)
    name = ", ".join(path.resolve().name for path in given)
    info = StudyInfo(name, question=question, studies=studies, problems=tuple(notes))
    place = given[0] if len(given) == 1 else Path()
    return write_report(given, _page(page or place / "report.html"), info, files=files)


def report_on_study(
    study: Study, folder: Path, out: Path | None = None, *, command: str = "", question: str = "", files: bool = True
) -> Written:
    """Write the report of a study whose runs are in a folder; `command` is what makes them."""
    info = _study_info(study, folder, command)
    info = replace(info, question=question or info.question)
    return write_report([folder], _page(out or folder / "report.html"), info, files=files)


def _page(page: Path) -> Path:
    if page.suffix != ".html":
        raise InputError(f"report: --out is {page}; expected the name of an HTML file, such as report.html")
    return page


def _study_folder(paths: Sequence[Path]) -> Path | None:
    """The folder of a study, given as a path or as the study's name."""
    if len(paths) != 1:
        return None
    named = paths[0] if paths[0].exists() else Path("runs") / paths[0]
    return named if (named / STUDY_FILE).is_file() else None


def _study_info(study: Study, folder: Path, command: str) -> StudyInfo:
    """What a report says of a study. A change of what was frozen is recorded first."""
    specs = study.expand(folder, recorded=True)
    protocol, unrecorded = notice(study, folder)
    claims = claims_in_force(study, folder)
    problems = [f"{path} was made with other settings: {what}" for path, what in other_settings(specs)]
    return StudyInfo(
        name=study.title,
        question=study.question,
        paper=study.paper,
        tables=study.tables,
        figures=study.figures,
        command=command or f"vlmsafe study run {shlex.quote(str(folder))}",
        planned=len(specs),
        claims=claims if claims.comparisons or claims.contrasts else None,
        definition=to_yaml(study.document),
        arms=tuple(arm.name for arm in study.arms),
        environments=tuple(study.environments),
        studies={folder: [spec.path for spec in specs]},
        problems=(*problems, *filter(None, (unrecorded,))),
        protocol=protocol,
        planned_seeds={cell: tuple(spec.seed for spec in own) for cell, own in cells(specs).items()},
        looks=study.looks,
    )
