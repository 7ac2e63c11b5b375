"""Everything a report is made from, read once: runs by arm, traces, comparisons, the audit and published values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from vlmsafe.analysis import gate_roc, lead_time
from vlmsafe.analysis.multiplier_replay import replay
from vlmsafe.analysis.tables import episode_numbers, stacked
from vlmsafe.audit import audit
from vlmsafe.audit.findings import Audit
from vlmsafe.comparison.claims import Claims, count_tests, find_claims
from vlmsafe.comparison.comparisons import Comparison, claims_with_runs, comparisons, planned_cells
from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.paper.side_by_side import SCHEMA, side_by_side
from vlmsafe.report.request import AnalysisOptions, Entry, StudyInfo
from vlmsafe.report.traces import TraceTables, count_onsets, first_episodes, of_scorer
from vlmsafe.runs.arms import ArmRun, of_studies, open_arms
from vlmsafe.runs.records import ArmRecord, RunRecord, read_arms

_NO_TRACE = "no run has a trace that a scorer looked at; vlmsafe trace RUN records one"
_Key = tuple[str, str, str, int | None, int]


@dataclass(frozen=True, eq=False)
class Dataset:
    """The runs of a report. What is computed from them is computed when it is first asked for, and kept."""

    info: StudyInfo
    roots: Sequence[Path]
    """Where the runs were looked for."""
    sources: Sequence[ArmRun]
    every_arm: Mapping[tuple[str, str], ArmRecord]
    claims: Claims | None
    """Those that have runs; None where arms are compared as a reader would compare them."""
    options: AnalysisOptions = field(default_factory=AnalysisOptions)
    lone_traces: Mapping[str, pl.DataFrame] | None = None
    """Traces that came without a run, by name. Their environment, which is not known, is the empty name."""
    unread: Sequence[str] = ()
    """Runs that could not be read, each with its reason."""
    unclaimed: Sequence[str] = ()
    """Claims without runs, each with its reason."""
    tests: int = 0
    """How many tests are claimed, with those that have no runs yet."""

    @property
    def runs(self) -> list[RunRecord]:
        return [run for arm in self.every_arm.values() for run in arm.runs]

    @cached_property
    def environments(self) -> list[str]:
        found = [env for env, _ in self.every_arm]
        return [*_ordered(set(found), self.info.environments, found), *([""] if self.lone_traces else [])]

    @cached_property
    def arm_names(self) -> list[str]:
        """All arms, in the order of their colours: the study's, else those without a signal first."""
        found = [name for _, name in self.every_arm]
        plain = [name for (_, name), arm in self.every_arm.items() if not arm.has_signal]
        return [*_ordered(set(found), self.info.arms, [*plain, *found]), *(self.lone_traces or ())]

    def envs(self, entry: Entry) -> list[str]:
        """The environments an entry is about."""
        return [env for env in self.environments if not entry.environments or env in entry.environments]

    def arms(self, env: str, entry: Entry) -> list[ArmRecord]:
        """The arms of an environment that an entry is about, in the report's order."""
        wanted = [name for name in self.arm_names if not entry.arms or name in entry.arms]
        return [self.every_arm[env, name] for name in wanted if (env, name) in self.every_arm]

    def seed_of(self, env: str, arm: str, run: str) -> int | None:
        """The seed of a run; None for a trace that came without one."""
        known = self.every_arm.get((env, arm))
        return next((one.seed for one in known.runs if one.name == run), None) if known else None

    def source(self, env: str, entry: Entry) -> str:
        """Where an entry's numbers come from: what it says, else an evaluation that most runs have, held-out first."""
        if entry.source:
            return entry.source
        runs = [run for arm in self.arms(env, entry) for run in arm.runs]
        counts = {name: sum(name in run.evaluations for run in runs) for run in runs for name in run.evaluations}
        if not counts or entry.outcome == "shaped_return":
            return "training"
        return min(counts, key=lambda name: (-counts[name], name != "held-out", name))

    def protocols(self, env: str, entry: Entry) -> list[str]:
        """Every evaluation there is on an environment, held-out first."""
        found = {name for arm in self.arms(env, entry) for run in arm.runs for name in run.evaluations}
        return sorted(found, key=lambda name: (name != "held-out", name))

    def episodes(self, env: str, entry: Entry) -> pl.DataFrame | None:
        """The evaluation episodes of an environment's runs, stacked; None where no run was evaluated."""
        source = self.source(env, entry)
        tables = {
            arm.name: {run.name: run.evaluations[source] for run in arm.runs if source in run.evaluations}
            for arm in self.arms(env, entry)
        }
        tables = {name: own for name, own in tables.items() if own}
        return stacked(tables) if tables else None

    # -- what is judged

    @cached_property
    def compared(self) -> list[Comparison]:
        """At the level that was claimed, which `comparison.decisions` corrects."""
        return comparisons(self.every_arm, self.claims)

    def comparisons(self, entry: Entry) -> list[Comparison]:
        """The comparisons on its environments in which all arms are its own."""
        envs = self.envs(entry)
        return [
            one
            for one in self.compared
            if one.env in envs and (not entry.arms or {one.claim.first, one.claim.second} <= set(entry.arms))
        ]

    @cached_property
    def audit(self) -> Audit:
        claims = self.claims if self.claims is not None else Claims()
        return audit(self.roots, claims=claims, studies=self.info.studies, tests=self.tests)

    @cached_property
    def _beside(self) -> tuple[pl.DataFrame, list[str]]:
        try:
            return side_by_side(self.sources), []
        except VlmsafeError as error:
            return pl.DataFrame(schema=SCHEMA), [f"published values are not shown: {error}"]

    @property
    def beside(self) -> pl.DataFrame:
        """Of `side_by_side`."""
        return self._beside[0]

    @property
    def problems(self) -> list[str]:
        """What could not be read or is missing, each with its reason."""
        return [*self.unread, *self._beside[1], *self.unclaimed]

    @cached_property
    def _published(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        rows = self.beside.filter(pl.col("published").is_not_null())
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in rows.iter_rows(named=True):
            window = row["window"] if row["source"] == "training" else None
            found[row["env"], row["arm"], row["run"], row["source"], window, row["quantity"]] = row
        return found

    def published(
        self, env: str, arm: str, run: str | None, source: str, window: str, quantity: str
    ) -> dict[str, Any] | None:
        """The row of `side_by_side` with the paper's value of a quantity, where there is one."""
        return self._published.get((env, arm, run, source, window if source == "training" else None, quantity))

    # -- the multiplier

    def replays(self, arm: ArmRecord) -> dict[str, pl.DataFrame]:
        """`replay` of each run of an arm, by the run's name; without those that have no term to remove."""
        found = {run.name: self._replay(run) for run in arm.runs}
        return {name: table for name, table in found.items() if isinstance(table, pl.DataFrame)}

    def not_replayed(self, env: str) -> list[str]:
        """A line about each run of an environment that has no term to remove, or a record that cannot be replayed."""
        runs = [run for arm in self.arms(env, Entry("multiplier")) for run in arm.runs]
        return [f"{run.label}: {why}" for run in runs if isinstance(why := self._replay(run), str)]

    def _replay(self, run: RunRecord) -> pl.DataFrame | str:
        try:
            return replay(run.epochs, run.config.multiplier)
        except InputError as error:
            return str(error).removeprefix("multiplier replay: ")

    # -- traces

    def trace_tables(self, env: str, protocol: str = "") -> TraceTables:
        """The traces of an environment as they were recorded: those of a protocol, else held-out, else the first."""
        if not env and self.lone_traces:
            return {name: {name: table} for name, table in self.lone_traces.items()}
        found: TraceTables = {}
        for arm in self.arms(env, Entry("lead-time")):
            for run in arm.runs:
                some = protocol or next((name for name in ("held-out", *sorted(run.traces)) if name in run.traces), "")
                if some in run.traces:
                    found.setdefault(arm.name, {})[run.name] = run.traces[some]
        return found

    def most_episodes(self, entry: Entry) -> int | None:
        """The traced episodes of an arm that an entry uses at most; None for all."""
        if entry.episodes is None:
            return self.options.episodes
        return None if entry.episodes == "all" else entry.episodes

    def resamples(self, entry: Entry) -> int:
        """The resamples of episodes behind an entry's intervals."""
        return self.options.resamples if entry.resamples is None else entry.resamples

    def traces(self, env: str, entry: Entry) -> pl.DataFrame | None:
        """The traces of an environment that a scorer looked at, stacked, of one scorer; None where there is none."""
        found: TraceTables = {}
        most = self.most_episodes(entry)
        for arm, runs in self.trace_tables(env, entry.source).items():
            own = {name: of_scorer(table, self.options.scorer) for name, table in runs.items()}
            scored = {name: table for name, table in own.items() if table is not None and table["scored"].any()}
            if scored:
                found[arm] = first_episodes(scored, most) if most is not None else scored
        return stacked(found) if found else None

    def why_no_trace(self, entry: Entry, otherwise: str = "") -> str:
        """Why a table of traces is empty: what is wrong with them, that there are none, or else `otherwise`."""
        envs = self.envs(entry)
        problems = [why for env in envs if (why := self._problems.get((env, entry.source)))]
        if problems:
            return problems[0]
        traces = [steps for env in envs if (steps := self.traces(env, entry)) is not None]
        some = any(count_onsets(steps, "arm", "run") for steps in traces)
        if some and all(self.with_onsets(steps) is None for steps in traces):
            return f"no arm has {self.options.onsets} onsets of contact in its traces, the fewest that the audit takes"
        traced = any(self.traces(env, entry) is not None for env in envs)
        return otherwise if otherwise and traced else _NO_TRACE

    def with_onsets(self, steps: pl.DataFrame) -> pl.DataFrame | None:
        """The traces of the arms that have enough onsets; None where no arm has."""
        kept = [own for own in steps.partition_by("arm") if count_onsets(own, "run") >= self.options.onsets]
        return pl.concat(kept) if kept else None

    def gated(self, env: str, entry: Entry) -> list[str]:
        """The arms whose runs have a gate, or all that an entry names where it was asked for."""
        if entry.asked or not env:
            return self.arm_names
        return [arm.name for arm in self.arms(env, entry) if any(run.config.signal.gate != "off" for run in arm.runs)]

    def lead_times(self, entry: Entry, by_run: bool = False) -> dict[str, pl.DataFrame]:
        """Of `lead_time`, by environment: the runs of an arm together, and each run where that is asked for."""
        options = self.options
        by_run = by_run or options.by_run

        def computed(steps: pl.DataFrame) -> pl.DataFrame:
            if not by_run:  # one run stands for all: single runs take as long again
                steps = steps.with_columns(run=pl.lit("all"), episode=pl.Series(episode_numbers(steps, "lead time")))
            found = lead_time.lead_time(steps, resamples=self.resamples(entry), seed=options.seed)
            return found if by_run else found.filter(pl.col("run").is_null())

        return self._of_traces(f"lead time, by run: {by_run}", computed, entry, onsets=True)

    def lead_lags(self, entry: Entry) -> dict[str, pl.DataFrame]:
        return self._of_traces("lead lag", lead_time.lead_lag, entry, onsets=True)

    def score_variability(self, entry: Entry) -> dict[str, pl.DataFrame]:
        return self._of_traces("variability", lead_time.score_variability, entry)

    def gate_cells(self, entry: Entry) -> dict[str, pl.DataFrame]:
        frames = self.options.frames
        found = self._of_traces("gate cells", lambda steps: gate_roc.gate_cells(steps, frames=frames), entry)
        return self._of_gated(found, entry)

    def gate_rocs(self, entry: Entry) -> dict[str, pl.DataFrame]:
        resamples, seed = self.resamples(entry), self.options.seed
        found = self._of_traces(
            "gate roc", lambda steps: gate_roc.gate_roc(steps, resamples=resamples, seed=seed), entry, onsets=True
        )
        return self._of_gated(found, entry)

    def gate_thresholds(self, entry: Entry) -> dict[str, pl.DataFrame]:
        seed = self.options.seed
        found = self._of_traces(
            "thresholds", lambda steps: gate_roc.gate_thresholds(steps, seed=seed), entry, onsets=True
        )
        return self._of_gated(found, entry)

    def gate_curves(self, entry: Entry) -> dict[str, pl.DataFrame]:
        seed = self.options.seed
        found = self._of_traces("gate curves", lambda steps: gate_roc.gate_curves(steps, seed=seed), entry, onsets=True)
        return self._of_gated(found, entry)

    def _of_gated(self, found: Mapping[str, pl.DataFrame], entry: Entry) -> dict[str, pl.DataFrame]:
        """The rows of arms with a gate: that of a trace is only supposed where its run has none."""
        kept = {env: table.filter(pl.col("arm").is_in(self.gated(env, entry))) for env, table in found.items()}
        return {env: table for env, table in kept.items() if len(table)}

    @cached_property
    def _kept(self) -> dict[_Key, pl.DataFrame | None]:
        return {}

    @cached_property
    def _problems(self) -> dict[tuple[str, str], str]:
        """What is wrong with the traces of an environment and a protocol."""
        return {}

    def _of_traces(
        self, what: str, compute: Callable[[pl.DataFrame], pl.DataFrame], entry: Entry, *, onsets: bool = False
    ) -> dict[str, pl.DataFrame]:
        """By environment, the rows of an entry's arms; nothing of traces that cannot be used, which the audit names."""
        found: dict[str, pl.DataFrame] = {}
        for env in self.envs(entry):
            key = (what, env, entry.source, self.most_episodes(entry), self.resamples(entry))
            if key not in self._kept:
                steps = self.traces(env, entry)
                if onsets and steps is not None:
                    steps = self.with_onsets(steps)
                try:
                    self._kept[key] = compute(steps) if steps is not None else None
                except InputError as error:
                    self._kept[key] = None
                    self._problems[env, entry.source] = str(error)
            table = self._kept[key]
            if table is not None:
                own = table.filter(pl.col("arm").is_in(entry.arms)) if entry.arms else table
                found |= {env: own} if len(own) else {}
        return found


def read_dataset(paths: Sequence[Path | str], info: StudyInfo, options: AnalysisOptions | None = None) -> Dataset:
    """Read the runs in these directories, or under them."""
    sources, unreadable = open_arms(paths)
    problems = [*map(str, unreadable), *info.problems]
    sources, left_out = of_studies(sources, info.studies)
    problems += left_out
    claims = info.claims if info.claims is not None else find_claims(paths)
    every_arm = read_arms(sources)
    kept, missing = claims_with_runs(claims, every_arm) if claims is not None else (None, [])
    if kept is not None and not kept.comparisons and not kept.contrasts:
        kept = None  # arms are compared as a reader would
    return Dataset(
        info,
        [Path(path) for path in paths],
        sources,
        every_arm,
        kept,
        options or AnalysisOptions(),
        unread=problems,
        unclaimed=missing,
        tests=count_tests(claims, planned_cells(info.studies, every_arm)) if claims is not None else 0,
    )


def _ordered(present: set[str], first: Sequence[str], then: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys([*first, *then]) if name in present]
