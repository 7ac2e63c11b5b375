"""Everything a report is made from, read once: runs by arm, comparisons, the audit, published values, traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from vlmsafe.analysis import gate_roc, lead_time
from vlmsafe.analysis.tables import episode_numbers, stacked
from vlmsafe.audit import audit
from vlmsafe.audit.findings import Audit
from vlmsafe.comparison.claims import (
    Claims,
    Comparison,
    claims_with_runs,
    comparisons,
    find_claims,
)
from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.paper.side_by_side import SCHEMA, side_by_side
from vlmsafe.report.request import Entry, StudyInfo
from vlmsafe.runs.arms import ArmRun, open_arms
from vlmsafe.runs.records import ArmRecord, RunRecord, read_arms

TRACED = 60
"""Episodes of an arm that figures of traces are made from; `vlmsafe diagnose` takes all."""
RESAMPLES = 500
"""Of episodes, behind the intervals of traces: enough for a picture, and quick. `vlmsafe diagnose` takes more."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """The runs of a report and what was found out about them."""

    info: StudyInfo
    roots: Sequence[Path]
    """Where the runs were looked for."""
    sources: Sequence[ArmRun]
    every_arm: Mapping[tuple[str, str], ArmRecord]
    compared: Sequence[Comparison]
    claims: Claims | None
    audit: Audit
    beside: pl.DataFrame
    """Of `side_by_side`."""
    problems: Sequence[str]
    """Runs that could not be read, and other things that are missing, each with its reason."""

    @property
    def runs(self) -> list[RunRecord]:
        return [run for arm in self.every_arm.values() for run in arm.runs]

    @cached_property
    def environments(self) -> list[str]:
        return _ordered({env for env, _ in self.every_arm}, self.info.environments, [env for env, _ in self.every_arm])

    @cached_property
    def arm_names(self) -> list[str]:
        """All arms, in the order of their colours: the study's, else those without a signal first."""
        found = [name for _, name in self.every_arm]
        plain = [name for (_, name), arm in self.every_arm.items() if not arm.has_signal]
        return _ordered(set(found), self.info.arms, [*plain, *found])

    def envs(self, entry: Entry) -> list[str]:
        """The environments an entry is about."""
        return [env for env in self.environments if not entry.environments or env in entry.environments]

    def arms(self, env: str, entry: Entry) -> list[ArmRecord]:
        """The arms of an environment that an entry is about, in the report's order."""
        wanted = [name for name in self.arm_names if not entry.arms or name in entry.arms]
        return [self.every_arm[env, name] for name in wanted if (env, name) in self.every_arm]

    def comparisons(self, entry: Entry) -> list[Comparison]:
        """The comparisons on its environments in which all arms are its own."""
        envs = self.envs(entry)
        return [
            one
            for one in self.compared
            if one.env in envs and (not entry.arms or {one.claim.first, one.claim.second} <= set(entry.arms))
        ]

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

    # -- traces: what is computed from them takes seconds, so it is kept

    def traces(self, env: str, protocol: str = "") -> pl.DataFrame | None:
        """The traces of an environment's runs, stacked; None where no run has one that a scorer looked at.

        Those of a protocol; without a name held-out, else the first there is. Of an arm with more than `TRACED`
        episodes, the first of each run, as many of every one.
        """
        found: dict[str, dict[str, pl.DataFrame]] = {}
        for arm in self.arms(env, Entry("lead-time")):
            for run in arm.runs:
                some = protocol or next((name for name in ("held-out", *sorted(run.traces)) if name in run.traces), "")
                own = _one_scorer(run.traces[some]) if some in run.traces else None
                if own is not None and own["scored"].any():
                    found.setdefault(arm.name, {})[run.name] = own
        for runs in found.values():
            most = max(1, TRACED // len(runs))
            for name, own in runs.items():
                runs[name] = own.filter(pl.col("episode").is_in(own["episode"].unique().sort().head(most).implode()))
        return stacked(found) if found else None

    def lead_times(self, entry: Entry) -> dict[str, pl.DataFrame]:
        """Of `lead_time`, the runs of an arm together; by environment."""

        def pooled(steps: pl.DataFrame) -> pl.DataFrame:
            together = steps.with_columns(run=pl.lit("all"), episode=pl.Series(episode_numbers(steps, "lead time")))
            return lead_time.lead_time(together, resamples=RESAMPLES).filter(pl.col("run").is_null())

        return self._of_traces("lead time", pooled, entry)

    def lead_lags(self, entry: Entry) -> dict[str, pl.DataFrame]:
        return self._of_traces("lead lag", lead_time.lead_lag, entry)

    def gate_cells(self, entry: Entry) -> dict[str, pl.DataFrame]:
        return self._of_traces("gate cells", gate_roc.gate_cells, entry)

    def gate_rocs(self, entry: Entry) -> dict[str, pl.DataFrame]:
        return self._of_traces("gate roc", lambda steps: gate_roc.gate_roc(steps, resamples=RESAMPLES), entry)

    @cached_property
    def _kept(self) -> dict[tuple[str, str, str], pl.DataFrame | None]:
        return {}

    def _of_traces(
        self, what: str, compute: Callable[[pl.DataFrame], pl.DataFrame], entry: Entry
    ) -> dict[str, pl.DataFrame]:
        """By environment, the rows of an entry's arms; traces that cannot be used are the audit's to name."""
        found: dict[str, pl.DataFrame] = {}
        for env in self.envs(entry):
            key = (what, env, entry.source)
            if key not in self._kept:
                steps = self.traces(env, entry.source)
                try:
                    self._kept[key] = compute(steps) if steps is not None else None
                except InputError:
                    self._kept[key] = None
            table = self._kept[key]
            if table is not None:
                own = table.filter(pl.col("arm").is_in(entry.arms)) if entry.arms else table
                found |= {env: own} if len(own) else {}
        return found


def read_dataset(paths: Sequence[Path | str], info: StudyInfo) -> Dataset:
    """Read the runs in these directories, or under them, and audit their comparison."""
    sources, unreadable = open_arms(paths)
    problems = [*map(str, unreadable), *info.problems]
    looked_at: Sequence[Path | str] = paths
    if info.runs is not None:
        own = {path.resolve() for path in info.runs}
        others = [source.run.path for source in sources if source.run.path.resolve() not in own]
        if others:
            sources = [source for source in sources if source.run.path.resolve() in own]
            looked_at = [source.run.path for source in sources]
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            if not sources:
                raise InputError(f"{others[0]}{more}: not of the study as it is defined now, and there are no others")
            problems.append(f"{others[0]}{more}: not of the study as it is defined now, and left out")
    claims = info.claims if info.claims is not None else find_claims(paths)
    every_arm = read_arms(sources)
    kept, missing = claims_with_runs(claims, every_arm) if claims is not None else (None, [])
    if kept is not None and not kept.comparisons:
        kept = None  # arms are compared as a reader would
    beside = pl.DataFrame(schema=SCHEMA)
    try:
        beside = side_by_side(sources)
    except VlmsafeError as error:
        problems.append(f"published values are not shown: {error}")
    return Dataset(
        info,
        [Path(path) for path in paths],
        sources,
        every_arm,
        # At the level that was claimed: the answer corrects it for as many tests as there turn out to be.
        comparisons(every_arm, replace(kept, correction="none") if kept is not None else None),
        kept,
        audit(looked_at, claims=kept if kept is not None else Claims()),
        beside,
        [*problems, *missing],
    )


def _one_scorer(table: pl.DataFrame) -> pl.DataFrame | None:
    """A trace with the columns of one scorer under their plain names: its only one, or the first of several."""
    names = [name for name in table.columns if name == "negative" or name.endswith("_negative")]
    if not names or "scored" not in table.columns:
        return None
    prefix = names[0].removesuffix("negative")
    signals = [name for name in ("positive", "negative", "margin") if f"{prefix}{name}" in table.columns]
    if len(signals) < 3:
        return None
    return table.select(
        "episode", "step", "cost", "scored", *(pl.col(f"{prefix}{name}").alias(name) for name in signals)
    )


def _ordered(present: set[str], first: Sequence[str], then: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys([*first, *then]) if name in present]
