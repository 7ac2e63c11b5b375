"""What was evaluated: which checkpoint, on which scenarios, and the same for both arms?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from vlmsafe.analysis.statistics import CATASTROPHE
from vlmsafe.audit.findings import (
    Finding,
    Severity,
    Unchecked,
    counted,
    listed,
)
from vlmsafe.comparison.claims import Comparison
from vlmsafe.evaluation.protocols import PROTOCOLS
from vlmsafe.runs.records import ArmRecord, RunRecord


def check_evaluations(arm: ArmRecord) -> Iterator[Finding | Unchecked]:
    """The evaluations of one arm, by protocol."""
    for protocol in sorted({name for run in arm.runs for name in run.evaluations}):
        runs = [run for run in arm.runs if protocol in run.evaluations]
        where = f"{arm.env}: {arm.name}, '{protocol}'"
        yield from _checkpoints(runs, protocol, where)
        yield from _training_scenarios(runs, protocol, where)
        if not any({"scenario", "in_training_pool"} & set(run.evaluations[protocol].columns) for run in runs):
            yield Unchecked(("evaluated-on-training-scenarios",), where, "its tables do not name scenarios")
        yield from _repeated(runs, protocol, where)
        yield from _verdicts(runs, protocol, where)
        known = PROTOCOLS.get(protocol)
        if known is not None and known.shared_simulator:
            yield Finding(
                "shared-simulator",
                where,
                ("its episodes run one after another in one simulator, each depending on those before",),
                "use a protocol with a fresh simulator per episode, such as held-out",
            )


def _checkpoints(runs: Sequence[RunRecord], protocol: str, where: str) -> Iterator[Finding]:
    untrained, stale, data = [], [], {}
    for run in runs:
        epochs = _column(run.evaluations[protocol], "checkpoint_epoch")
        if not epochs:
            continue
        data[run.name] = epochs
        if min(epochs) == 0:
            untrained.append(run.name)
        elif len(epochs) > 1:
            stale.append(f"{run.name}: checkpoints of epochs {listed(epochs)} in one table")
        elif epochs[0] != run.config.epochs:
            stale.append(f"{run.name}: the checkpoint of epoch {epochs[0]} of {run.config.epochs}")
    if untrained:
        yield Finding(
            "untrained-checkpoint",
            where,
            (f"{listed(untrained)}: the initial policy was evaluated (checkpoint of epoch 0)",),
            "leave these rows out, and evaluate a trained checkpoint",
            {"checkpoint_epochs": data},
        )
    if stale:
        yield Finding(
            "stale-evaluation",
            where,
            tuple(stale),
            "evaluate the last checkpoint of every run, or the same epoch of all, chosen before looking",
            {"checkpoint_epochs": data},
        )


def _column(table: pl.DataFrame, name: str) -> list[Any]:
    """The distinct values of a column, in order; none where there is no such column."""
    return sorted(table[name].drop_nulls().unique().to_list()) if name in table.columns else []


def _training_scenarios(runs: Sequence[RunRecord], protocol: str, where: str) -> Iterator[Finding]:
    data: dict[str, dict[str, int | None]] = {}
    for run in runs:
        table, pool = run.evaluations[protocol], run.config.spec.training
        scenarios = _column(table, "scenario")
        flagged = set(table.filter("in_training_pool")["scenario"].to_list()) if _flagged(table) else set()
        inside = {index for index in scenarios if index in pool} | flagged
        if not scenarios and "in_training_pool" in table.columns:  # which ones is not known, how many episodes is
            scenarios = list(range(-len(table), 0))
            inside = set(scenarios[: int(table["in_training_pool"].sum())])
        drawn = {row["scenario"] for row in run.episodes if row.get("scenario") is not None}
        visited = drawn & set(scenarios)
        if inside or visited:
            data[run.name] = {
                "scenarios": len(scenarios),
                "in_pool": len(inside),
                "visited": len(visited) if drawn else None,
                "drawn": len(drawn) if drawn else None,
            }
    if not data:
        return
    lines = []
    for total, inside_pool in dict.fromkeys((own["scenarios"], own["in_pool"]) for own in data.values()):
        alike = {name: own for name, own in data.items() if (own["scenarios"], own["in_pool"]) == (total, inside_pool)}
        known = [own for own in alike.values() if own["visited"] is not None]
        seen = "which of them training visited was not recorded"
        if known:
            seen = f"{_range(known, 'visited')} of them visited in training, which drew {_range(known, 'drawn')}"
        lines.append(f"{listed(list(alike))}: {inside_pool} of {total} scenarios lie in the training pool; {seen}")
    yield Finding(
        "evaluated-on-training-scenarios",
        where,
        tuple(lines),
        "evaluate with: vlmsafe evaluate RUN --protocol held-out; until then this measures the training "
        "distribution, not transfer",
        {"runs": data},
    )


def _range(rows: Sequence[dict[str, Any]], name: str) -> str:
    values = [row[name] for row in rows]
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def _repeated(runs: Sequence[RunRecord], protocol: str, where: str) -> Iterator[Finding]:
    """Episodes of one scenario with deterministic actions are the same episode."""
    found = {}
    for run in runs:
        table = run.evaluations[protocol]
        keys = [name for name in ("scenario", "traffic_seed") if name in table.columns]
        stochastic = "deterministic" in table.columns and not table["deterministic"].all()
        if "scenario" not in keys or stochastic or not run.config.spec.seeds_honoured:
            continue
        table = table.drop_nulls("scenario")
        distinct = table.select(keys).n_unique() if len(table) else 0
        if distinct < len(table):
            found[run.name] = (distinct, len(table))
    if found:
        yield Finding(
            "repeated-episodes",
            where,
            tuple(f"{name}: {total} episodes of {distinct} scenarios" for name, (distinct, total) in found.items()),
            "evaluate as many scenarios as episodes: repetitions make an interval narrower and say nothing",
            {"runs": {name: {"distinct": d, "episodes": n} for name, (d, n) in found.items()}},
        )


def _verdicts(runs: Sequence[RunRecord], protocol: str, where: str) -> Iterator[Finding]:
    """Violation and catastrophe are functions of cost and budget, and the pool is that of the configuration."""
    lines = []
    for run in runs:
        table, budget = run.evaluations[protocol], run.config.budget
        assert budget is not None
        used = _column(table, "budget")
        if used and used != [budget]:
            lines.append(f"{run.name}: judged by the budget {listed(used)}, trained with {budget:g}")
        if _flagged(table):
            inside = table["scenario"].map_elements(run.config.spec.training.__contains__, pl.Boolean)
            wrong = int((inside != table["in_training_pool"]).sum())
            if wrong:
                lines.append(f"{run.name}: 'in_training_pool' is wrong for {counted(wrong, 'episode')}")
        if "cost" in table.columns and (table["cost"] < 0.0).any():
            lines.append(f"{run.name}: a cost is negative")
        for column, limit in (("violation", budget), ("catastrophe", CATASTROPHE * budget)):
            if {column, "cost"} <= set(table.columns) and used in ([], [budget]):
                wrong = int((table[column] != (table["cost"] > limit)).sum())
                if wrong:
                    lines.append(f"{run.name}: {column} of {counted(wrong, 'episode')} is not cost > {limit:g}")
    if lines:
        yield Finding(
            "record-disagrees",
            where,
            tuple(lines),
            f"evaluate again: vlmsafe evaluate RUN --protocol {protocol} --overwrite",
        )


def _flagged(table: pl.DataFrame) -> bool:
    return {"in_training_pool", "scenario"} <= set(table.columns) and table["in_training_pool"].dtype == pl.Boolean


def check_matched_evaluation(comparison: Comparison) -> Iterator[Finding | Unchecked]:
    """Two arms: were they evaluated at all, and alike?"""
    runs = (*comparison.first.runs, *comparison.second.runs)
    protocols = sorted({name for run in runs for name in run.evaluations})
    claimed = comparison.claim.source
    if claimed not in ("auto", "training", *protocols):
        yield Finding(
            "missing-evaluation",
            f"{comparison.where}, '{claimed}'",
            (f"the comparison is claimed on '{claimed}', which no run has",),
            f"evaluate the runs with: vlmsafe evaluate RUN --protocol {claimed}",
        )
    if not protocols:
        yield Unchecked(
            ("evaluated-on-training-scenarios", "cost-tracks-distance", "passive-policy", "evaluations-differ"),
            comparison.where,
            "no run has an evaluation; make them with: vlmsafe evaluate RUN",
        )
        return
    for protocol in protocols:
        without = [run.label for run in runs if protocol not in run.evaluations]
        if without and _matters(comparison, protocol, protocols):
            yield Finding(
                "missing-evaluation",
                f"{comparison.where}, '{protocol}'",
                (f"{len(without)} of {len(runs)} runs have none: {listed(without)}",),
                f"evaluate them with: vlmsafe evaluate RUN --protocol {protocol}",
                {"missing": without},
            )
        arms = [
            [run for run in arm.runs if protocol in run.evaluations] for arm in (comparison.first, comparison.second)
        ]
        if all(arms):
            yield from _alike(comparison, protocol, arms)


def _matters(comparison: Comparison, protocol: str, protocols: Sequence[str]) -> bool:
    """Whether a missing evaluation is one the comparison rests on: the one claimed, or the first that some have."""
    if comparison.claim.source not in ("auto", "training"):
        return protocol == comparison.claim.source
    return protocol == ("held-out" if "held-out" in protocols else protocols[0])


def _alike(comparison: Comparison, protocol: str, arms: Sequence[Sequence[RunRecord]]) -> Iterator[Finding]:
    lines = []
    weight = None
    names = comparison.claim.first, comparison.claim.second

    def sets(what: str) -> list[list[Any]]:
        return [sorted({value for run in runs for value in _column(run.evaluations[protocol], what)}) for runs in arms]

    counts = [sorted({len(run.evaluations[protocol]) for run in runs}) for runs in arms]
    if counts[0] != counts[1] or len(counts[0]) > 1:
        lines.append(f"episodes per run: {listed(counts[0])} in {names[0]}, {listed(counts[1])} in {names[1]}")
    scenarios = [{tuple(_column(run.evaluations[protocol], "scenario")) for run in runs} for runs in arms]
    if len(scenarios[0] | scenarios[1]) > 1 and not lines:
        every = [set().union(*own) for own in scenarios]
        lines.append(
            f"scenarios: {counted(len(every[0] & every[1]), 'scenario')} shared of {len(every[0])} in {names[0]} and "
            f"{len(every[1])} in {names[1]}"
        )
    traffic = [set(own) for own in sets("traffic_seed")]
    if traffic[0] != traffic[1]:
        lines.append(
            f"traffic: {len(traffic[0] & traffic[1])} of {len(traffic[0] | traffic[1])} traffic seeds are shared"
        )
    for column in ("deterministic",) if "budget" in comparison.claim.about else ("budget", "deterministic"):
        values = sets(column)
        if values[0] != values[1] or len(values[0]) > 1:
            lines.append(
                f"{column}: {listed(values[0]) or 'none'} in {names[0]}, {listed(values[1]) or 'none'} in {names[1]}"
            )
    epochs = sets("checkpoint_epoch")
    if epochs[0] != epochs[1] and not lines:
        lines.append(f"checkpoints: of epoch {listed(epochs[0])} in {names[0]}, {listed(epochs[1])} in {names[1]}")
        weight = Severity.WARNING
    if lines:
        yield Finding(
            "evaluations-differ",
            f"{comparison.where}, '{protocol}'",
            tuple(lines),
            f"evaluate all runs anew with one command: vlmsafe evaluate RUN --protocol {protocol} --overwrite",
            severity=weight,
        )
