"""The four diagnoses of runs of one environment: which tables and figures of a report each shows, and what they say.

A diagnosis is a small report. It takes every traced episode and more resamples, refuses runs without the traces that
it needs, and names what it had to leave out.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import polars as pl

from vlmsafe.analysis.lead_time import verdicts
from vlmsafe.analysis.multiplier_replay import summarise
from vlmsafe.analysis.tables import require_trace, stacked
from vlmsafe.audit.findings import counted
from vlmsafe.comparison.claims import Claims
from vlmsafe.errors import InputError
from vlmsafe.report.build import build_chart, build_table
from vlmsafe.report.dataset import Dataset, read_dataset
from vlmsafe.report.elements import Chart, Missing, Table
from vlmsafe.report.render.records import chart_records, table_records
from vlmsafe.report.request import AnalysisOptions, Entry, StudyInfo
from vlmsafe.report.tables.returns import return_tables
from vlmsafe.report.traces import chosen_scorer, count_onsets
from vlmsafe.report.write import write_content
from vlmsafe.runs.layout import DEFAULT_PROTOCOL, find_table, is_run, protocol_of, protocol_option
from vlmsafe.runs.records import RunRecord
from vlmsafe.runs.tables import read_table

DiagnosisName = Literal["multiplier", "lead-time", "gate", "returns"]
DIAGNOSES: tuple[DiagnosisName, ...] = get_args(DiagnosisName)
OF_TRACES = ("lead-time", "gate")
RESAMPLES = 2000

_TABLES: Mapping[str, Sequence[str]] = {
    "multiplier": ("multiplier-runs", "multiplier-terms", "multiplier-epochs"),
    "lead-time": (
        "lead-time", "lead-time-aucs", "lead-time-counts", "lead-lag", "score-variability", "lead-time-runs",
    ),
    "gate": ("gate", "gate-margins", "gate-cells", "gate-roc", "gate-thresholds"),
    "returns": ("returns-runs", "cost-correlations", "passive-runs"),
}  # fmt: skip
_FIGURES: Mapping[str, Sequence[str]] = {
    "multiplier": ("multiplier-replay", "multiplier"),
    "lead-time": ("lead-time", "lead-time-raw"),
    "gate": ("gate-cells", "gate-curves"),
    "returns": ("returns", "cost-against"),
}


@dataclass(frozen=True)
class Diagnosis:
    """What was found on the runs of one environment."""

    name: str
    env: str
    """Empty for traces that came without a run."""
    reading: str
    """The result in a sentence or two."""
    tables: Sequence[Table]
    charts: Sequence[Chart]
    notes: Sequence[str] = field(default_factory=tuple)
    """What could not be included, and why."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for programs, by the kinds of tables and figures."""
        return {
            "diagnosis": self.name,
            "env": self.env or None,
            "notes": list(self.notes),
            "tables": {table.name: table_records(table) for table in self.tables},
            "figures": {chart.name: chart_records(chart) for chart in self.charts},
        }

    def write(self, folder: Path) -> list[Path]:
        """Every table and figure as the files that a report has of them."""
        taken: set[str] = set()
        contents: list[Table | Chart] = [*self.tables, *self.charts]
        return [path for content in contents for path in write_content(content, folder, taken)[1]]


def read_sources(
    paths: Sequence[Path],
    options: AnalysisOptions,
    protocol: str | None = None,
    *,
    studies: Mapping[Path, Sequence[Path]] | None = None,
    problems: Sequence[str] = (),
) -> Dataset:
    """The runs in these directories or under them, and traces that are given as Parquet files.

    A trace in a run's `traces/` is that run with this trace only. Any other is an arm by itself, with the name of the
    file, in an environment that is not known. `studies` has the runs of studies by their folders, as in `of_studies`,
    and `problems` what to say about them.
    """
    folders = [path for path in paths if path.suffix != ".parquet"]
    files = [path for path in paths if path.suffix == ".parquet"]
    missing = next((path for path in files if not path.is_file()), None)
    if missing is not None:
        raise InputError(f"there is no {missing}; expected a trace, a run directory, or a folder with runs")
    homes = {path: home for path in files if (home := _run_of(path)) is not None}
    lone = [path for path in files if path not in homes]
    stems = [path.stem for path in lone]
    lone_traces = {path.stem if stems.count(path.stem) == 1 else str(path): read_table(path) for path in lone}
    info = StudyInfo("diagnosis", claims=Claims(), studies=studies or {}, problems=tuple(problems))
    if not folders and not homes:
        return Dataset(info, (), (), {}, None, options, lone_traces)
    dataset = replace(read_dataset([*folders, *homes.values()], info, options), lone_traces=lone_traces)
    given: dict[Path, Path] = {}
    for path, home in homes.items():
        above = {folder.resolve() for folder in folders} & {home, *home.parents}
        if above or home in given:
            label = next(run.label for run in dataset.runs if run.source.run.path.resolve() == home)
            raise InputError(f"{label} was given twice, as a run and as its trace; give one of them")
        given[home] = path

    def with_given(run: RunRecord) -> RunRecord:
        path = given.get(run.source.run.path.resolve())
        traces = (
            {protocol or path.stem: read_table(path)} if path else _named(run.source.run.traces, run.traces, protocol)
        )
        return replace(run, traces=traces, evaluations=_named(run.source.run.evaluations, run.evaluations, protocol))

    every_arm = {key: replace(arm, runs=tuple(map(with_given, arm.runs))) for key, arm in dataset.every_arm.items()}
    return replace(dataset, every_arm=every_arm)


def _named(folder: Path, tables: Mapping[str, pl.DataFrame], protocol: str | None) -> dict[str, pl.DataFrame]:
    """The tables of a run by protocol, with the table of a certain epoch where that is what was named."""
    path = find_table(folder, protocol) if protocol is not None and protocol not in tables else None
    return {**tables, **({protocol: read_table(path)} if path is not None and protocol is not None else {})}


def _run_of(trace: Path) -> Path | None:
    """The run directory that a trace lies in."""
    home = trace.resolve().parent
    return home.parent if home.name == "traces" and is_run(home.parent) else None


def diagnose(name: DiagnosisName, dataset: Dataset, env: str, protocol: str | None = None) -> Diagnosis:
    """The diagnosis of that name, on one environment of a dataset."""
    if name in OF_TRACES:
        _require_traces(dataset, env, protocol)
    elif not env:
        raise InputError(f"diagnose {name} reads run directories; {next(iter(dataset.lone_traces or ()))} is a trace")
    if name == "returns":
        protocol = protocol or _evaluation(dataset, env)
    entry = Entry(name, environments=(env,), source=protocol or "")
    notes = [f"{run.label}: {problem}" for run in dataset.runs if run.env == env for problem in run.problems]
    notes += _LEFT_OUT[name](dataset, env, protocol)
    contents = [build_table(dataset, replace(entry, kind=kind)) for kind in _TABLES[name]]
    tables = [content for content in contents if isinstance(content, Table)]
    missing = [content for content in contents if isinstance(content, Missing)]
    if not tables:
        raise InputError(f"diagnose {name}: {'; '.join([missing[0].reason, *notes])}")
    drawn = [build_chart(dataset, replace(entry, kind=kind)) for kind in _FIGURES[name]]
    missing += [content for content in drawn if isinstance(content, Missing)]
    notes += dict.fromkeys(f"{one.title}: {one.reason}" for one in missing)
    charts = [content for content in drawn if isinstance(content, Chart)]
    return Diagnosis(name, env, " ".join(_READINGS[name](dataset, entry)), tables, charts, notes)


# -- what is required, and what is left out


def _require_traces(dataset: Dataset, env: str, protocol: str | None) -> None:
    """Refuse runs without a trace, with the command that records one, and traces that cannot be used."""
    runs = [run for run in dataset.runs if run.env == env]
    chosen = {run.label: set(run.traces) for run in runs}
    found = dataset.trace_tables(env, protocol or "")
    lacking: list[Path] = []
    for run in runs:
        if run.name in found.get(run.arm, {}):
            if len(chosen[run.label]) > 1 and protocol is None:
                find_table(run.source.run.traces, None)  # says that one of several must be chosen
        elif find_table(run.source.run.traces, protocol) is None:
            lacking.append(run.source.run.path)
        else:
            raise InputError(next(iter(run.problems), f"the trace of {run.label} has no steps"))
    if lacking:
        command = f"vlmsafe trace {shlex.quote(str(lacking[0]))}{protocol_option(protocol)}"
        others = f" (and {len(lacking) - 1} more runs)" if len(lacking) > 1 else ""
        kind = "" if protocol is None else f" '{protocol}'"
        raise InputError(f"{lacking[0]} has no trace{kind}; record one with: {command}{others}")
    steps = stacked(found)
    scorer = chosen_scorer(steps.columns, dataset.options.scorer)
    require_trace(steps, "diagnose", scorer, ("positive", "negative", "margin"))


def _evaluation(dataset: Dataset, env: str) -> str | None:
    """Held-out if a run has it, else the only evaluation there is; None without any. Several must be chosen from."""
    found = {find_table(run.source.run.evaluations, None) for run in dataset.runs if run.env == env}
    names = {protocol_of(path) for path in found if path is not None}
    if DEFAULT_PROTOCOL in names:
        return DEFAULT_PROTOCOL
    if len(names) > 1:
        raise InputError(f"the runs have different evaluations; choose with --protocol: {', '.join(sorted(names))}")
    return next(iter(names), None)


def _not_evaluated(dataset: Dataset, env: str, protocol: str | None) -> list[str]:
    """A line about each run that lacks the evaluation that the others have, with the command that makes it."""
    entry = Entry("returns", environments=(env,), source=protocol or "")
    source = dataset.source(env, entry)
    option = protocol_option(protocol if source == "training" else source)
    return [
        f"{run.label} has no evaluation, so it is not among the episodes; for one: "
        f"vlmsafe evaluate {shlex.quote(str(run.source.run.path))}{option}"
        for arm in dataset.arms(env, entry)
        for run in arm.runs
        if source not in run.evaluations
    ]


def _few_onsets(dataset: Dataset, env: str, protocol: str | None) -> list[str]:
    """A line about each arm that has too few onsets of contact for figures on what comes before or with them."""
    steps, least = dataset.traces(env, Entry("lead-time", source=protocol or "")), dataset.options.onsets
    arms = [] if steps is None else steps.partition_by("arm")
    counts = {str(own["arm"][0]): count_onsets(own, "run") for own in arms}
    return [
        f"{arm} has {counted(count, 'onset')} of contact in its traces, and the audit needs at least {least}: it has "
        "no figures on contact"
        for arm, count in counts.items()
        if count < least
    ]


_LEFT_OUT: Mapping[str, Callable[[Dataset, str, str | None], list[str]]] = {
    "multiplier": lambda dataset, env, protocol: dataset.not_replayed(env),
    "lead-time": _few_onsets,
    "gate": _few_onsets,
    "returns": _not_evaluated,
}


# -- what the tables say, in a sentence or two


def _read_multiplier(dataset: Dataset, entry: Entry) -> Iterator[str]:
    arms = [arm for env in dataset.envs(entry) for arm in dataset.arms(env, entry)]
    found = summarise(*(table for arm in arms for table in dataset.replays(arm).values()))
    yield (
        f"Removing the signal term changes λ by at most {found.largest_change:.2g}. The term turned the sign of "
        f"J_C - d in {found.sign_reversals} of {found.epochs} epochs."
    )
    yield "Costs are held fixed: this is the direct effect only."


def _read_lead_time(dataset: Dataset, entry: Entry) -> Iterator[str]:
    found = dataset.lead_times(entry)
    if not found:
        yield "Whether a signal rises before contact cannot be said: there are too few onsets of contact."
    for aucs in found.values():
        judged = verdicts(aucs).filter(signal="negative")
        for passes, words in ((True, "meets"), (False, "does not meet")):
            arms = judged.filter(passes=passes)["arm"].to_list()
            if arms:
                yield f"c_vlm {words} the criterion: {', '.join(arms)}."


def _read_gate(dataset: Dataset, entry: Entry) -> Iterator[str]:
    for cells in dataset.gate_cells(entry).values():
        prior = cells.filter(gate="s = 100")
        ends = [f"{_range(prior, name)} % of a run's frames" for name in ("open", "closed")]
        yield f"At s = 100, c = 0 the gate is nearly open in {ends[0]}, and nearly closed in {ends[1]}."
        own = cells.filter(gate="recorded").drop_nulls("kappa_median")
        if len(own) and own["kappa_median"].to_list() != prior["kappa_median"].to_list():
            ends = [f"{_range(own, name)} % of a run's frames" for name in ("open", "closed")]
            yield f"As recorded, it is nearly open in {ends[0]}, and nearly closed in {ends[1]}."


def _range(table: pl.DataFrame, name: str) -> str:
    low, high = (f"{100 * value:.0f}" for value in (min(table[name]), max(table[name])))
    return low if low == high else f"{low} to {high}"


def _read_returns(dataset: Dataset, entry: Entry) -> Iterator[str]:
    parts = []
    for _, arm, found in return_tables(dataset, entry):
        mean = found.filter(pl.col("run").is_null()).row(0, named=True)
        if mean["bonus_final"]:
            parts.append(f"{mean['bonus_final']:.2f} of {mean['logged_return_final']:.2f} ({arm.name})")
    if parts:
        yield f"At the final epoch the bonus is so much of the logged return: {', '.join(parts)}."
    else:
        yield "No logged return has a bonus in it."


_READINGS: Mapping[str, Callable[[Dataset, Entry], Iterator[str]]] = {
    "multiplier": _read_multiplier,
    "lead-time": _read_lead_time,
    "gate": _read_gate,
    "returns": _read_returns,
}
