"""The four diagnoses of runs of one environment: each a set of tables, and the figures drawn from them.

Every function takes what `vlmsafe.report.inputs` finds and computes with `vlmsafe.analysis`; nothing is printed here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from vlmsafe.analysis import (
    gate_roc,
    lead_time,
    multiplier_replay,
    returns,
)
from vlmsafe.analysis.auc import RESAMPLES
from vlmsafe.analysis.tables import stacked
from vlmsafe.errors import InputError
from vlmsafe.io.disk import make_directory
from vlmsafe.io.files import write_atomically
from vlmsafe.report.inputs import (
    Source,
    epochs,
    evaluations,
    runs_only,
    scorer_of,
    traces,
)

if TYPE_CHECKING:  # drawing is asked for less often than tables, and matplotlib takes its time to import
    from matplotlib.figure import Figure

Sources = Sequence[Source]


@dataclass(frozen=True)
class Settings:
    """What a diagnosis may be asked for, beyond its runs."""

    protocol: str | None = None
    """Evaluation or trace to read; None takes held-out, else the only one there is."""
    scorer: str | None = None
    """Which of a trace's scorers; None takes the only one."""
    resamples: int = RESAMPLES
    seed: int = 0
    frames: int | None = None
    """Frames per run in the gate's cells, evenly spaced; None takes all."""
    passive_below: float | None = None
    """Return below which an episode without cost counts as passive; None does not count them."""


@dataclass(frozen=True)
class Diagnosis:
    """What was found on the runs of one environment."""

    name: str
    env: str | None
    """None for traces that came without a run."""
    tables: Mapping[str, pl.DataFrame]
    """By the name that their files have."""
    notes: Sequence[str] = ()
    """What could not be included, and why."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values: a figure that does not exist, or is infinite, is None."""
        tables = {name: _plain(table) for name, table in self.tables.items()}
        return {"diagnosis": self.name, "env": self.env, "notes": list(self.notes), "tables": tables}


def diagnose(name: str, env: str | None, group: Sources, settings: Settings) -> Diagnosis:
    """The diagnosis of that name, one of `DIAGNOSES`."""
    return DIAGNOSES[name](env, group, settings)


def multiplier(env: str | None, group: Sources, settings: Settings) -> Diagnosis:
    """Every run's multiplier replayed with and without the signal term, run by run and together per arm.

    Runs in which there is no term to remove are noted and left out.
    """
    replayed: dict[str, dict[str, pl.DataFrame]] = {}
    notes = []
    for source, run in runs_only(group, "multiplier"):
        try:
            table = multiplier_replay.replay(run.rows("epochs"), run.config.multiplier)
        except InputError as error:
            notes.append(f"{source.title}: {str(error).removeprefix('multiplier replay: ')}")
        else:
            replayed.setdefault(source.arm, {})[source.name] = table
    if not replayed:
        raise InputError(f"multiplier replay: nothing to replay. {'; '.join(notes)}")
    rows = []
    for arm, runs in replayed.items():
        several: list[tuple[str | None, list[pl.DataFrame]]] = [(None, list(runs.values()))]
        several += [(run, [table]) for run, table in runs.items()]
        for name, own in several:
            summary = multiplier_replay.summarise(*own)
            rows.append({"arm": arm, "run": name, **asdict(summary), "agrees": summary.agrees})
    kinds = {"arm": pl.String, "run": pl.String}
    tables = {
        "multiplier": pl.DataFrame(rows, schema_overrides=kinds, infer_schema_length=None),
        "multiplier-epochs": stacked(replayed),
    }
    return Diagnosis("multiplier", env, tables, notes)


def anticipation(env: str | None, group: Sources, settings: Settings) -> Diagnosis:
    """Does a signal rise before contact: AUCs, the criterion, counts, the lead-lag profile, how much scores vary."""
    steps = stacked(traces(group, settings.protocol))
    scorer = scorer_of(steps, settings.scorer)
    aucs = lead_time.lead_time(steps, scorer=scorer, resamples=settings.resamples, seed=settings.seed)
    counts = lead_time.count_aucs(aucs)
    tables = {
        "lead-time": aucs,
        "lead-time-verdicts": lead_time.verdicts(aucs),
        "lead-time-counts": pl.DataFrame(
            [{"of": of, **asdict(count)} for of, count in (("pools", counts.pooled), ("runs", counts.runs))],
            schema_overrides={"lowest": pl.Float64, "highest": pl.Float64},
        ),
        "lead-time-ranges": lead_time.auc_ranges(aucs),
        "lead-lag": lead_time.lead_lag(steps, scorer=scorer),
        "score-variability": lead_time.score_variability(steps, scorer=scorer),
    }
    return Diagnosis("lead-time", env, tables)


def gate(env: str | None, group: Sources, settings: Settings) -> Diagnosis:
    """How open the gate is, under several scales and calibrated, and whether it knows contact."""
    steps = stacked(traces(group, settings.protocol))
    scorer = scorer_of(steps, settings.scorer)
    cells = gate_roc.gate_cells(steps, frames=settings.frames, scorer=scorer)
    tables = {
        "gate-cells": cells,
        "gate-medians": gate_roc.gate_medians(cells),
        "gate-roc": gate_roc.gate_roc(steps, scorer=scorer, resamples=settings.resamples, seed=settings.seed),
        "gate-thresholds": gate_roc.gate_thresholds(steps, scorer=scorer, seed=settings.seed),
        "gate-curves": gate_roc.gate_curves(steps, scorer=scorer, seed=settings.seed),
    }
    return Diagnosis("gate", env, tables)


def return_parts(env: str | None, group: Sources, settings: Settings) -> Diagnosis:
    """The bonus in a logged return; cost against how far and how well the agent drove; passive episodes.

    The second and third read evaluations, and are left out where no run has one.
    """
    runs = runs_only(group, "returns")
    tables = {"returns": returns.return_table(epochs(runs))}
    found, notes = evaluations(runs, settings.protocol)
    if found:
        episodes = stacked(found)
        tables |= {"episodes": episodes, "cost-correlations": returns.cost_correlations(episodes)}
        if settings.passive_below is not None:
            tables["passive-episodes"] = returns.passive_episodes(episodes, settings.passive_below)
    return Diagnosis("returns", env, tables, notes)


DIAGNOSES: dict[str, Callable[[str | None, Sources, Settings], Diagnosis]] = {
    "multiplier": multiplier,
    "lead-time": anticipation,
    "gate": gate,
    "returns": return_parts,
}


def draw(diagnosis: Diagnosis) -> tuple[dict[str, Figure], list[str]]:
    """The figures of a diagnosis by name, and a note about each that has nothing to show."""
    from vlmsafe.report import figures

    tables = diagnosis.tables
    drawings: dict[str, Callable[[], Figure]] = {
        "multiplier": lambda: figures.multiplier(tables["multiplier-epochs"]),
        "lead-time": lambda: figures.auc_by_horizon(tables["lead-time"]),
        "lead-lag": lambda: figures.lead_lag(tables["lead-lag"]),
        "gate-cells": lambda: figures.gate_distributions(tables["gate-cells"]),
        "gate-curves": lambda: figures.gate_curves(tables["gate-curves"], tables["gate-roc"]),
        "returns": lambda: figures.returns(tables["returns"]),
        "cost-correlations": lambda: figures.cost_against(tables["episodes"], tables["cost-correlations"]),
    }
    drawn: dict[str, Figure] = {}
    notes = []
    for name, drawing in drawings.items():
        if name in tables:
            try:
                drawn[name] = drawing()
            except InputError as error:
                notes.append(f"no figure {name}: {error}")
    return drawn, notes


def write(diagnosis: Diagnosis, folder: Path) -> tuple[list[Path], list[str]]:
    """Every table as CSV and JSON and every figure as PNG and PDF; the paths, and notes on figures left out."""
    from vlmsafe.report.render.style import save_figure

    make_directory(folder)
    paths = []
    for name, table in diagnosis.tables.items():
        for kind, text in (("csv", table.write_csv()), ("json", to_json(_plain(table)))):
            paths.append(folder / f"{name}.{kind}")
            write_atomically(paths[-1], text.encode())
    drawn, notes = draw(diagnosis)
    for name, figure in drawn.items():
        paths += save_figure(figure, folder, name)
    return paths, notes


def to_json(value: Any) -> str:
    """For programs: one row per line would be longer, all in one line unreadable."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _plain(table: pl.DataFrame) -> list[dict[str, Any]]:
    return [
        {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()}
        for row in table.iter_rows(named=True)
    ]
