"""Metrics: does the return contain the bonus, does low cost only mean a short distance, and is it within the budget?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeGuard

import numpy as np
import polars as pl
from scipy import stats

from vlmsafe.analysis.intervals import mean_interval
from vlmsafe.analysis.returns import cost_correlations, passive_episodes
from vlmsafe.analysis.tables import floats, stacked
from vlmsafe.analysis.tails import distance_of
from vlmsafe.audit.findings import (
    Finding,
    Unchecked,
    about_arm,
    about_comparison,
    about_environment,
    counted,
    finding,
    listed,
)
from vlmsafe.audit.kinds import Severity
from vlmsafe.comparison.claims import Outcome
from vlmsafe.comparison.comparisons import Comparison
from vlmsafe.comparison.outcomes import against, run_outcome, shared_protocols, source_of, values_of
from vlmsafe.runs.records import ArmRecord, RunRecord

STRONG = 0.8
"""A correlation of cost with distance from which it counts."""
CHANCE = 0.005
"""How probable it may be, over runs or arms, if there is none."""
PASSIVE_SHARE = 0.2
"""Share of an arm's episodes that may cost nothing and achieve nothing."""
PASSIVE_RUN = 0.8
"""The same of a single run."""
CLEARLY = 0.8
"""Share of another arm's mean cost up to which a cost over the budget still counts as low."""
FURTHER = 1.5
"""How many times as far one arm may get as another before their costs no longer compare."""
_BONUS_WINDOW = 10
_OF_COST = ("cost", "violation", "catastrophe")
_DISTANCES = ("path", "distance", "net_progress", "route_completion")
_PROGRESS = ("net_progress", "route_completion", "distance", "path")
"""What an arm achieved, the task's own measure first: who takes a shorter way to the same end gets as far."""


def shaped_return(comparison: Comparison) -> Iterator[Finding]:
    """A return that contains the bonus does not measure the task."""
    arms = comparison.first, comparison.second
    if not any(run.has_signal and run.config.signal.reward_weight > 0.0 for arm in arms for run in arm.runs):
        return
    claimed = comparison.claim.outcome == "shaped_return"
    if not claimed and not _reversed(comparison):
        return
    means = {name: [_mean(arm, name) for arm in arms] for name in ("shaped_return", "bonus", "env_return")}
    for place, plain in enumerate(means["env_return"]):
        if means["shaped_return"][place] is None:  # an arm without a signal logs its environment return
            means["shaped_return"][place] = plain
    words = {"shaped_return": "logged return", "bonus": "of it bonus", "env_return": "environment return"}
    known = {name: [value or 0.0 for value in pair] for name, pair in means.items() if any(v is not None for v in pair)}
    yield finding(
        "shaped-return",
        about_comparison(comparison),
        [
            *(["the comparison is claimed on the logged return, which contains the bonus"] if claimed else []),
            *(
                f"{words[name]} {against(pair)}, a difference of {pair[0] - pair[1]:.4g}"
                for name, pair in known.items()
            ),
        ],
        {**means, "claimed": claimed},
        metric="shaped_return",
    )


def shaped_return_evaluated(arm: ArmRecord) -> Iterator[Finding]:
    """An evaluation whose return matches training with the bonus, and not without it, contains the bonus."""
    for protocol in arm.protocols:
        near: list[tuple[RunRecord, float, bool]] = []
        for run in arm.runs:
            own, bonus = run.over("env_return", _BONUS_WINDOW), run.over("bonus", _BONUS_WINDOW)
            table = run.evaluations.get(protocol)
            if own is None or not bonus or table is None or "env_return" not in table.columns:
                continue
            returns = floats(table, "env_return")
            error = float(np.std(returns)) / max(1.0, len(returns)) ** 0.5
            share = (float(np.mean(returns)) - own) / bonus
            near.append((run, share, error < abs(bonus) / 4))
        shaped = [(run, share) for run, share, sharp in near if sharp and 0.8 <= share <= 1.2]
        if len(near) >= 2 and 4 * len(shaped) >= 3 * len(near):
            yield finding(
                "shaped-return",
                about_arm(arm, protocol, [run for run, _ in shaped]),
                [f"{run.name}: evaluated return is training's plus {share:.0%} of its bonus" for run, share in shaped],
                {"bonus_share": {run.name: share for run, share in shaped}},
                fix="evaluate the environment alone (vlmsafe evaluate does): an evaluation has no bonus",
                severity=Severity.WARNING,
                metric="env_return",
            )


def _mean(arm: ArmRecord, name: str, window: int = 1) -> float | None:
    values = [value for run in arm.runs if (value := run.over(name, window)) is not None]
    return float(np.mean(values)) if values else None


def _reversed(comparison: Comparison) -> bool:
    """Whether the logged and the environment's return order the arms in opposite ways, each by two standard errors."""
    signs = []
    outcomes: tuple[Outcome, ...] = ("shaped_return", "env_return")
    for outcome in outcomes:
        sides = [list(values_of(arm, outcome, "training").values()) for arm in (comparison.first, comparison.second)]
        if min(map(len, sides)) < 2:
            return False
        error = np.sqrt(sum(np.var(side, ddof=1) / len(side) for side in sides))
        gap = float(np.mean(sides[0]) - np.mean(sides[1]))
        signs.append(np.sign(gap) if abs(gap) > 2 * error else 0.0)
    return bool(signs[0] * signs[1] < 0)


def _protocols(arms: Sequence[ArmRecord]) -> list[str]:
    return sorted({name for arm in arms for name in arm.protocols})


def _tables(arms: Sequence[ArmRecord], protocol: str) -> pl.DataFrame | None:
    """The evaluations of the arms in one table, without episodes of an untrained policy."""
    found: dict[str, dict[str, pl.DataFrame]] = {}
    for arm in arms:
        for run in arm.runs:
            table = run.evaluations.get(protocol)
            if table is not None and {"cost", "env_return"} <= set(table.columns):
                if "checkpoint_epoch" in table.columns:
                    table = table.filter(pl.col("checkpoint_epoch").is_null() | (pl.col("checkpoint_epoch") > 0))
                table = table.filter(pl.col("cost").is_finite() & pl.col("env_return").is_finite())
                if len(table):
                    found.setdefault(arm.name, {})[run.name] = table
    return stacked(found) if found else None


def cost_tracks_distance(env: str, arms: Sequence[ArmRecord]) -> Iterator[Finding | Unchecked]:
    """Over the runs of an environment, cost may measure little more than distance."""
    for protocol in _protocols(arms):
        episodes = _tables(arms, protocol)
        if episodes is None:
            continue
        columns = [name for name in (*_DISTANCES, "length") if name in episodes.columns]
        if not set(columns) & set(_DISTANCES):
            reason = "its evaluation has no path or progress"
            codes = ("cost-tracks-distance", *(("progress-differs",) if len(arms) > 1 else ()))
            yield Unchecked(codes, (about_environment(env, arms, protocol),), reason)
        if not columns:
            continue
        within = episodes.with_columns((pl.col(name) - pl.col(name).mean().over("arm")) for name in ("cost", *columns))
        tables = [cost_correlations(episodes, columns)]
        if episodes["arm"].n_unique() > 1:
            alone = cost_correlations(within, columns).filter(level="episodes")
            tables.append(alone.with_columns(level=pl.lit("episodes within arms")))
        strong = [row for row in pl.concat(tables).iter_rows(named=True) if _tracks(row)]
        if strong:
            yield finding(
                "cost-tracks-distance",
                about_environment(env, arms, protocol),
                [
                    f"over {row['n']} {row['level']}, cost and {row['against'].replace('_', ' ')}: "
                    f"Pearson {row['pearson']:.3f}, Spearman {row['spearman']:.3f}"
                    for row in strong
                ],
                {"correlations": strong},
                metric="cost",
            )


def _tracks(row: dict[str, Any]) -> bool:
    """Strong, by value or by rank, and more than few points give by chance."""
    if row["pearson"] is None:
        return False
    r, n = max(row["pearson"], row["spearman"]), row["n"]
    if row["level"].startswith("episodes"):
        return n >= 30 and bool(r >= STRONG)
    if n < 4 or r < STRONG:
        return False
    t = r * np.sqrt((n - 2) / max(1e-12, 1 - r * r))
    return bool(stats.t.sf(t, n - 2) < CHANCE)


def passive_threshold(arms: Sequence[ArmRecord], protocol: str, given: float | None) -> float | None:
    """The return below which an episode that cost nothing achieved nothing.

    It is the given one, or else the environment's own, or else a fifth of the best arm's mean return if positive.
    """
    if given is not None:
        return given
    own = arms[0].first.config.spec.passive_below if arms else None
    if own is not None:
        return own
    episodes = _tables(arms, protocol)
    if episodes is None:
        return None
    best: Any = episodes.group_by("arm").agg(pl.col("env_return").mean())["env_return"].max()
    return best / 5 if best is not None and best > 0 else None


def _is_low(arm: ArmRecord, costs: dict[str, float]) -> bool:
    """Whether an arm's mean cost is within its budget, or clearly below that of another arm."""
    budget = max((run.config.budget for run in arm.runs if run.config.budget is not None), default=0.0)
    others = [cost for name, cost in costs.items() if name != arm.name]
    return costs[arm.name] <= max(budget, CLEARLY * max(others, default=0.0))


def passive_policy(env: str, arms: Sequence[ArmRecord], below: float | None) -> Iterator[Finding | Unchecked]:
    """An arm's low cost may come from episodes in which nothing happened."""
    for protocol in _protocols(arms):
        episodes, threshold = _tables(arms, protocol), passive_threshold(arms, protocol, below)
        if episodes is None:
            continue
        if threshold is None:
            reason = "no return is known to be too low; pass --passive-below"
            yield Unchecked(("passive-policy",), (about_environment(env, arms, protocol),), reason)
            continue
        table = passive_episodes(episodes, threshold)
        costs = dict(episodes.group_by("arm").agg(pl.col("cost").mean()).iter_rows())
        rates = {row["arm"]: row["rate"] for row in table.iter_rows(named=True) if row["run"] is None}
        for arm in (arm for arm in arms if arm.name in rates):
            rate = rates[arm.name]
            seeds = [row for row in table.iter_rows(named=True) if row["arm"] == arm.name and row["run"] is not None]
            if rate < PASSIVE_SHARE and all(row["rate"] < PASSIVE_RUN for row in seeds):
                continue
            if not _is_low(arm, costs):
                continue  # its cheap episodes make nothing look safe
            worst = [f"{row['run']} ({row['rate']:.0%})" for row in sorted(seeds, key=lambda row: -row["rate"])[:3]]
            others = [f"'{other}' {other_rate:.1%}" for other, other_rate in rates.items() if other != arm.name]
            yield finding(
                "passive-policy",
                about_arm(arm, protocol, [run for run in arm.runs if protocol in run.evaluations]),
                [
                    f"{rate:.1%} of its episodes cost nothing and return less than {threshold:g}"
                    + (f"; elsewhere: {listed(others)}" if others else ""),
                    f"most in {listed(worst)}",
                ],
                {"threshold": threshold, "rates": rates},
                metric="cost",
            )


def _evaluation(comparison: Comparison) -> str | None:
    """The evaluation that a comparison rests on; for one on training, an evaluation that all its runs have."""
    source = source_of(comparison)
    return source if source != "training" else next(iter(shared_protocols(comparison)), None)


def over_budget(comparison: Comparison) -> Iterator[Finding]:
    """A compared arm may cost more than its budget. Plain PPO ignores cost and cannot miss a budget."""
    protocol = _evaluation(comparison)
    if protocol is None:
        return
    for arm in (comparison.first, comparison.second):
        known = [
            (run, cost, run.config.budget)
            for run in arm.runs
            if run.config.learner.algorithm != "ppo"
            and (cost := run_outcome(run, "cost", protocol)) is not None
            and run.config.budget is not None
        ]
        excess = [cost - budget for _, cost, budget in known]
        if not excess or np.mean(excess) <= 0.0:
            continue
        interval = mean_interval(excess, level=0.9)  # each of its ends is a one-sided 95 % bound
        bound = interval.low if interval is not None else None
        beyond_chance = bound is not None and bound > 0.0
        budgets = sorted({budget for _, _, budget in known})
        allowed = f"{budgets[0]:g}" if len(budgets) == 1 else f"{budgets[0]:g} to {budgets[-1]:g}"
        cost = float(np.mean([cost for _, cost, _ in known]))
        above = sum(cost > budget for _, cost, budget in known)
        yield finding(
            "over-budget",
            about_arm(arm, protocol, [run for run, _, _ in known]),
            [
                f"mean cost {cost:.4g}, budget {allowed}; {above} of {counted(len(known), 'run')} above it",
                _bound_in_words(bound),
            ],
            {"cost": cost, "budgets": budgets, "excess": float(np.mean(excess)), "bound": bound},
            severity=None if beyond_chance else Severity.NOTE,
            metric="cost",
        )


def _bound_in_words(bound: float | None) -> str:
    """How far from the budget the lower bound of the mean is."""
    if bound is None:
        return "a single run, or equal runs: there is no bound for chance"
    if bound > 0.0:
        return f"the one-sided 95 % bound of the mean over runs is {bound:.3g} above the budget"
    return f"the one-sided 95 % bound of the mean over runs is {-bound:.3g} below the budget: it may be chance"


def progress_differs(compared: Iterable[Comparison], passive: Iterable[Finding | Unchecked]) -> Iterator[Finding]:
    """The arm that costs less may have got less far. `passive` has the findings that say why already."""
    idle = {(one.subject.environment, one.subject.protocol, *one.subject.arms) for one in passive if _is_finding(one)}
    for comparison in compared:
        protocol = _evaluation(comparison)
        if protocol is None or comparison.claim.outcome not in _OF_COST:
            continue
        arms = comparison.first, comparison.second
        tables = [[run.evaluations[protocol] for run in arm.runs if protocol in run.evaluations] for arm in arms]
        both = [table for side in tables for table in side if "cost" in table.columns]
        column = next((name for name in _PROGRESS if all(_is_known(table, name) for table in both)), None)
        if column is None or not all(tables) or len(both) < sum(map(len, tables)):
            continue
        progress = [[float(np.mean(floats(table, column))) for table in side] for side in tables]
        means = [float(np.mean(side)) for side in progress]
        costs = [float(np.mean([np.mean(floats(table, "cost")) for table in side])) for side in tables]
        ahead = int(means[1] > means[0])
        if not _much_further(progress[ahead], progress[1 - ahead]) or not costs[ahead] >= costs[1 - ahead]:
            continue
        if (comparison.env, protocol, arms[1 - ahead].name) in idle:
            continue
        yield finding(
            "progress-differs",
            about_comparison(
                comparison, protocol, [run for arm in arms for run in arm.runs if protocol in run.evaluations]
            ),
            [
                f"{column.replace('_', ' ')} {against(means)}, with 95 % intervals "
                + " and ".join("{:.4g} to {:.4g}".format(*_ends(side)) for side in progress),
                f"cost {against(costs)}: '{arms[1 - ahead].name}' does not cost more, but gets less far",
                *_per_distance(tables),
            ],
            {"progress": {column: means}, "intervals": [_ends(side) for side in progress], "cost": costs},
            metric="cost",
        )


def _is_finding(one: Finding | Unchecked) -> TypeGuard[Finding]:
    return isinstance(one, Finding)


def _is_known(table: pl.DataFrame, column: str) -> bool:
    return column in table.columns and bool(np.isfinite(floats(table, column)).all())


def _much_further(ahead: Sequence[float], behind: Sequence[float]) -> bool:
    """Whether the runs of one arm get clearly further than those of another, in the mean and beyond chance."""
    if min(len(ahead), len(behind)) < 2 or not np.mean(ahead) > 0.0 or np.mean(ahead) < FURTHER * np.mean(behind):
        return False
    return _ends(ahead)[0] > _ends(behind)[1]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """The ends of the 95 % interval of a mean; of runs that are all equal, their value."""
    interval = mean_interval(values)
    return (values[0], values[0]) if interval is None else (interval.low, interval.high)


def _per_distance(tables: Sequence[Sequence[pl.DataFrame]]) -> Iterator[str]:
    """Both arms' cost per distance in words."""
    distance = distance_of([table for side in tables for table in side])
    if distance is None:
        return
    ratios = []
    for side in tables:
        costs, ways = ([float(floats(table, name).sum()) for table in side] for name in ("cost", distance.column))
        ratios.append(distance.size * sum(costs) / sum(ways))
    yield f"cost per {distance.unit}: {against(ratios)}"


ARM_CHECKS = (shaped_return_evaluated,)
COMPARISON_CHECKS = (shaped_return, over_budget)
