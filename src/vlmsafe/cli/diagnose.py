"""vlmsafe diagnose: what a signal did, and what a result may hide."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from vlmsafe.cli.terminal import err, out, parse
from vlmsafe.errors import InputError

if TYPE_CHECKING:
    from vlmsafe.report.diagnose import Diagnosis


@dataclass(frozen=True)
class DiagnoseCommand:
    """Did the term move the multiplier? Does the signal warn? Is the gate open? What is a return made of?

    Shows the report's tables on one question, from every traced episode. multiplier and returns read epochs.jsonl,
    returns also evaluations; lead-time and gate read what vlmsafe trace recorded. Runs of different environments are
    kept apart.
    """

    what: tyro.conf.Positional[Literal["multiplier", "lead-time", "gate", "returns"]]
    """What to diagnose."""
    paths: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories, folders with runs, or traces (Parquet files)."""
    out: Path | None = None
    """Folder for every table and figure, in the formats of a report."""
    json: bool = False
    """Print JSON for programs instead of tables."""
    protocol: str | None = None
    """Evaluation or trace to read; by default held-out, else the one that there is."""
    scorer: str | None = None
    """Scorer to look at, where a trace has several."""
    resamples: int = 2000
    """Resamples of episodes behind each interval."""
    seed: int = 0
    """Seed of the resamples, and of how episodes are split in half."""
    frames: int | None = None
    """For gate: so many frames per run, evenly spaced, in the tables of margins and kappa; the paper takes 200."""
    onsets: int | None = None
    """For lead-time and gate: arms with fewer onsets of contact are left out. By default the audit's minimum."""
    passive_below: float | None = None
    """For returns: an episode without cost counts as passive if its return is below this; the paper takes 20 on
    MetaDrive. By default the audit's threshold."""


def diagnose_verb(argv: list[str]) -> None:
    command = parse(DiagnoseCommand, argv, "diagnose")
    from vlmsafe.audit.checks.signal import FEWEST_ONSETS
    from vlmsafe.report.diagnose import diagnose, read_sources
    from vlmsafe.report.render.files import to_json
    from vlmsafe.report.request import AnalysisOptions
    from vlmsafe.runs.versions import other_worlds
    from vlmsafe.studies.api import runs_of_studies

    if not command.paths:
        raise InputError(f"diagnose {command.what} needs a run directory, a folder with runs, or a trace")
    options = AnalysisOptions(
        episodes=None,
        resamples=command.resamples,
        seed=command.seed,
        by_run=True,
        scorer=command.scorer,
        frames=command.frames,
        onsets=FEWEST_ONSETS if command.onsets is None else command.onsets,
        passive_below=command.passive_below,
    )
    studies, problems = runs_of_studies(command.paths)
    dataset = read_sources(command.paths, options, command.protocol, studies=studies, problems=problems)
    found = [diagnose(command.what, dataset, env, command.protocol) for env in dataset.environments]
    elsewhere = other_worlds(source.run for source in dataset.sources)
    for note in (*dataset.unread, *elsewhere, *(note for one in found for note in one.notes)):
        err.print(f"note: {note}", markup=False, soft_wrap=True)
    if command.out is not None:  # before anything is printed: who reads that may stop early
        for one in found:
            folder = command.out if len(found) == 1 else command.out / (one.env or "traces").replace(":", "-")
            err.print(f"{len(one.write(folder))} files in {folder}", markup=False, soft_wrap=True)
    if command.json:
        out.print(to_json([one.as_dict() for one in found]), end="", markup=False, soft_wrap=True)
        return
    for one in found:
        _show(one, written=command.out is not None)


def _show(diagnosis: Diagnosis, written: bool) -> None:
    from vlmsafe.report.render.terminal import rendered

    out.print(diagnosis.reading, markup=False)
    out.print()
    for table in diagnosis.tables:
        for part in rendered(table, out.width):
            out.print(part)
    names = ", ".join(chart.title for chart in diagnosis.charts)
    if names and not written:
        out.print(f"Figures: {names}. --out FOLDER writes them, and every table, to files.", markup=False)
