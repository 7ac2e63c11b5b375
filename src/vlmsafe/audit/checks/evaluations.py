"""Evaluations: which checkpoint was evaluated, on which scenarios, and the same way for both arms?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from vlmsafe.analysis.statistics import thresholds
from vlmsafe.audit.findings import Finding, Unchecked, about_arm, about_comparison, counted, finding, listed
from vlmsafe.audit.kinds import Severity
from vlmsafe.comparison.comparisons import Comparison
from vlmsafe.evaluation.protocols import PROTOCOLS
from vlmsafe.runs.records import ArmRecord, RunRecord

# -- one arm and one protocol ---------------------------------------------------------------------------------------


def untrained_checkpoint(arm: ArmRecord, protocol: str) -> Iterator[Finding]:
    epochs = _evaluated_epochs(arm, protocol)
    untrained = [run for run, own in epochs if min(own) == 0]
    if untrained:
        yield finding(
            "untrained-checkpoint",
            about_arm(arm, protocol, untrained),
            [f"{listed(_names(untrained))}: the initial policy was evaluated (checkpoint of epoch 0)"],
            {"checkpoint_epochs": {run.name: own for run, own in epochs}},
            fix="leave these rows out, and evaluate a trained checkpoint",
        )


def stale_evaluation(arm: ArmRecord, protocol: str) -> Iterator[Finding]:
    epochs = _evaluated_epochs(arm, protocol)
    stale = []
    for run, own in epochs:
        if min(own) > 0 and len(own) > 1:
            stale.append((run, f"{run.name}: checkpoints of epochs {listed(own)} in one table"))
        elif min(own) > 0 and own[0] != run.config.epochs:
            stale.append((run, f"{run.name}: the checkpoint of epoch {own[0]} of {run.config.epochs}"))
    if stale:
        yield finding(
            "stale-evaluation",
            about_arm(arm, protocol, [run for run, _ in stale]),
            [line for _, line in stale],
            {"checkpoint_epochs": {run.name: own for run, own in epochs}},
        )


def _evaluated(arm: ArmRecord, protocol: str) -> list[RunRecord]:
    return [run for run in arm.runs if protocol in run.evaluations]


def _evaluated_epochs(arm: ArmRecord, protocol: str) -> list[tuple[RunRecord, list[int]]]:
    """The epochs of the evaluated checkpoints, of the runs whose tables say so."""
    known = [(run, _column(run.evaluations[protocol], "checkpoint_epoch")) for run in _evaluated(arm, protocol)]
    return [(run, epochs) for run, epochs in known if epochs]


def _column(table: pl.DataFrame, name: str) -> list[Any]:
    """The distinct values of a column, in order; none where there is no such column."""
    return sorted(table[name].drop_nulls().unique().to_list()) if name in table.columns else []


def _names(runs: Sequence[RunRecord]) -> list[str]:
    return [run.name for run in runs]


def evaluated_on_training_scenarios(arm: ArmRecord, protocol: str) -> Iterator[Finding | Unchecked]:
    runs = _evaluated(arm, protocol)
    if not any({"scenario", "in_training_pool"} & set(run.evaluations[protocol].columns) for run in runs):
        reason = "its tables do not name scenarios"
        yield Unchecked(("evaluated-on-training-scenarios",), (about_arm(arm, protocol, runs),), reason)
    inside = [(run, counts) for run in runs if (counts := _training_scenarios(run, protocol))]
    if not inside:
        return
    lines = []
    for total, in_pool in dict.fromkeys((own["scenarios"], own["in_pool"]) for _, own in inside):
        alike = [(run, own) for run, own in inside if (own["scenarios"], own["in_pool"]) == (total, in_pool)]
        known = [own for _, own in alike if own["visited"] is not None]
        seen = "which of them training visited was not recorded"
        if known:
            seen = f"{_range(known, 'visited')} of them visited in training, which drew {_range(known, 'drawn')}"
        names = listed([run.name for run, _ in alike])
        lines.append(f"{names}: {in_pool} of {total} scenarios lie in the training pool; {seen}")
    yield finding(
        "evaluated-on-training-scenarios",
        about_arm(arm, protocol, [run for run, _ in inside]),
        lines,
        {"runs": {run.name: own for run, own in inside}},
    )


def _training_scenarios(run: RunRecord, protocol: str) -> dict[str, int | None] | None:
    """How many scenarios of an evaluation lie in the training pool or were visited; None where none does."""
    table, pool = run.evaluations[protocol], run.config.spec.training
    scenarios = _column(table, "scenario")
    flagged = set(table.filter("in_training_pool")["scenario"].to_list()) if _flagged(table) else set()
    inside = {index for index in scenarios if index in pool} | flagged
    if not scenarios and "in_training_pool" in table.columns:  # which ones is not known, how many episodes is
        scenarios = list(range(-len(table), 0))
        inside = set(scenarios[: int(table["in_training_pool"].sum())])
    drawn = {row["scenario"] for row in run.episodes if row.get("scenario") is not None}
    visited = drawn & set(scenarios)
    if not inside and not visited:
        return None
    return {
        "scenarios": len(scenarios),
        "in_pool": len(inside),
        "visited": len(visited) if drawn else None,
        "drawn": len(drawn) if drawn else None,
    }


def _flagged(table: pl.DataFrame) -> bool:
    return {"in_training_pool", "scenario"} <= set(table.columns) and table["in_training_pool"].dtype == pl.Boolean


def _range(rows: Sequence[dict[str, Any]], name: str) -> str:
    values = [row[name] for row in rows]
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def repeated_episodes(arm: ArmRecord, protocol: str) -> Iterator[Finding]:
    """Episodes of one scenario with deterministic actions are the same episode."""
    found = []
    for run in _evaluated(arm, protocol):
        table = run.evaluations[protocol]
        keys = [name for name in ("scenario", "traffic_seed") if name in table.columns]
        stochastic = "deterministic" in table.columns and not table["deterministic"].all()
        if "scenario" not in keys or stochastic or not run.config.spec.seeds_honoured:
            continue
        table = table.drop_nulls("scenario")
        distinct = table.select(keys).n_unique() if len(table) else 0
        if distinct < len(table):
            found.append((run, distinct, len(table)))
    if found:
        yield finding(
            "repeated-episodes",
            about_arm(arm, protocol, [run for run, _, _ in found]),
            [f"{run.name}: {episodes} episodes of {distinct} scenarios" for run, distinct, episodes in found],
            {"runs": {run.name: {"distinct": d, "episodes": n} for run, d, n in found}},
        )


def record_disagrees(arm: ArmRecord, protocol: str) -> Iterator[Finding]:
    """Violation and catastrophe follow from cost and budget, and the training pool from the configuration."""
    wrong = [(run, lines) for run in _evaluated(arm, protocol) if (lines := _contradictions(run, protocol))]
    if wrong:
        yield finding(
            "record-disagrees",
            about_arm(arm, protocol, [run for run, _ in wrong]),
            [f"{run.name}: {line}" for run, lines in wrong for line in lines],
            fix=f"evaluate again: vlmsafe evaluate RUN --protocol {protocol} --overwrite",
        )


def _contradictions(run: RunRecord, protocol: str) -> list[str]:
    lines = []
    table, budget = run.evaluations[protocol], run.config.budget
    assert budget is not None
    used = _column(table, "budget")
    if used and used != [budget]:
        lines.append(f"judged by the budget {listed(used)}, trained with {budget:g}")
    if _flagged(table):
        inside = table["scenario"].map_elements(run.config.spec.training.__contains__, pl.Boolean)
        wrong = int((inside != table["in_training_pool"]).sum())
        if wrong:
            lines.append(f"'in_training_pool' is wrong for {counted(wrong, 'episode')}")
    if "cost" in table.columns and (table["cost"] < 0.0).any():
        lines.append("a cost is negative")
    for column, limit in thresholds(budget).items():
        if {column, "cost"} <= set(table.columns) and used in ([], [budget]):
            wrong = int((table[column] != (table["cost"] > limit)).sum())
            if wrong:
                lines.append(f"{column} of {counted(wrong, 'episode')} is not cost > {limit:g}")
    return lines


def shared_simulator(arm: ArmRecord, protocol: str) -> Iterator[Finding]:
    known = PROTOCOLS.get(protocol)
    if known is not None and known.shared_simulator:
        yield finding(
            "shared-simulator",
            about_arm(arm, protocol, _evaluated(arm, protocol)),
            ["its episodes run one after another in one simulator, each depending on those before"],
        )


# -- two arms -------------------------------------------------------------------------------------------------------


def _protocols(comparison: Comparison) -> list[str]:
    return sorted({*comparison.first.protocols, *comparison.second.protocols})


def missing_evaluation(comparison: Comparison) -> Iterator[Finding | Unchecked]:
    """The evaluation that a comparison rests on: the one claimed, or else the first that some runs have."""
    protocols, claimed = _protocols(comparison), comparison.claim.source
    chosen = claimed if claimed not in ("auto", "training") else ""
    if chosen and chosen not in protocols:
        yield finding(
            "missing-evaluation",
            about_comparison(comparison, chosen),
            [f"the comparison is claimed on '{chosen}', which no run has"],
            fix=f"evaluate the runs with: vlmsafe evaluate RUN --protocol {chosen}",
        )
    if not protocols:
        yield Unchecked(
            ("evaluated-on-training-scenarios", "cost-tracks-distance", "passive-policy", "evaluations-differ"),
            (about_comparison(comparison),),
            "no run has an evaluation; make them with: vlmsafe evaluate RUN",
        )
        return
    protocol = chosen or ("held-out" if "held-out" in protocols else protocols[0])
    runs = (*comparison.first.runs, *comparison.second.runs)
    without = [run for run in runs if protocol not in run.evaluations]
    if without and protocol in protocols:
        labels = [run.label for run in without]
        yield finding(
            "missing-evaluation",
            about_comparison(comparison, protocol, without),
            [f"{len(without)} of {len(runs)} runs have none: {listed(labels)}"],
            {"missing": labels},
            fix=f"evaluate them with: vlmsafe evaluate RUN --protocol {protocol}",
        )


def evaluations_differ(comparison: Comparison) -> Iterator[Finding]:
    names = f"'{comparison.claim.first}'", f"'{comparison.claim.second}'"
    for protocol in _protocols(comparison):
        arms = [_evaluated(arm, protocol) for arm in (comparison.first, comparison.second)]
        if not all(arms):
            continue
        lines, severity = _conditions(comparison, protocol, arms), None
        epochs = _values(arms, protocol, "checkpoint_epoch")
        if not lines and epochs[0] != epochs[1]:
            lines = [f"checkpoints: of epoch {listed(epochs[0])} in {names[0]}, {listed(epochs[1])} in {names[1]}"]
            severity = Severity.WARNING
        if lines:
            yield finding(
                "evaluations-differ",
                about_comparison(comparison, protocol, (*arms[0], *arms[1])),
                lines,
                {"checkpoint_epochs": epochs},
                fix=f"evaluate all runs anew with one command: vlmsafe evaluate RUN --protocol {protocol} --overwrite",
                severity=severity,
            )


def _conditions(comparison: Comparison, protocol: str, arms: Sequence[Sequence[RunRecord]]) -> list[str]:
    """What differs in how two arms were evaluated, apart from the checkpoint."""
    lines = []
    names = f"'{comparison.claim.first}'", f"'{comparison.claim.second}'"
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
    traffic = [set(own) for own in _values(arms, protocol, "traffic_seed")]
    if traffic[0] != traffic[1]:
        lines.append(
            f"traffic: {len(traffic[0] & traffic[1])} of {len(traffic[0] | traffic[1])} traffic seeds are shared"
        )
    for column in ("deterministic",) if "budget" in comparison.claim.about else ("budget", "deterministic"):
        values = _values(arms, protocol, column)
        if values[0] != values[1] or len(values[0]) > 1:
            lines.append(
                f"{column}: {listed(values[0]) or 'none'} in {names[0]}, {listed(values[1]) or 'none'} in {names[1]}"
            )
    return lines


def _values(arms: Sequence[Sequence[RunRecord]], protocol: str, column: str) -> list[list[Any]]:
    """Of each arm, the distinct values of a column in its evaluations."""
    return [sorted({value for run in runs for value in _column(run.evaluations[protocol], column)}) for runs in arms]


EVALUATION_CHECKS = (
    untrained_checkpoint, stale_evaluation, evaluated_on_training_scenarios, repeated_episodes, record_disagrees,
    shared_simulator,
)  # fmt: skip
COMPARISON_CHECKS = (missing_evaluation, evaluations_differ)
