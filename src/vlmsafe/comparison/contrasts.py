"""Contrasts: interactions, which are differences between differences of arms.

Whether a gate changes what a bonus does is not answered by two tests of the bonus, with and without the gate: one may
be significant and the other not although both effects are the same. The contrast (bonus with gate - gate) - (bonus -
none) asks it directly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from vlmsafe.analysis.exact_tests import sign_flip_test
from vlmsafe.analysis.intervals import Interval, contrast_interval, contrast_of, mean_interval, sign_flip_interval
from vlmsafe.analysis.statistics import Float64, Pairs
from vlmsafe.comparison.claims import ContrastCell, ContrastClaim
from vlmsafe.comparison.decisions import LookPlan, Tested, finished
from vlmsafe.comparison.looks import look_state
from vlmsafe.comparison.outcomes import Values, values_of
from vlmsafe.errors import unknown_name
from vlmsafe.runs.records import ArmRecord


@dataclass(frozen=True)
class ContrastVerdict:
    """What the runs say about a contrast."""

    claim: ContrastClaim
    cells: Mapping[ContrastCell, Values]
    """The outcomes of each arm that counts: for a paired test, those of the seeds that all arms have."""
    estimate: float | None
    interval: Interval | None
    p: float | None
    """None if there are too few runs."""
    text: str = ""
    missing: tuple[ContrastCell, ...] = ()
    """Arms without any outcome."""

    def tested_unless(self, waits: str) -> Tested:
        """What a decision needs to know; without p if there is a reason to wait."""
        direction = 0 if self.estimate is None else int(np.sign(self.estimate))
        return Tested(self.claim.alpha, None if waits else self.p, direction)


def judge_contrast(claim: ContrastClaim, arms: Mapping[tuple[str, str], ArmRecord]) -> ContrastVerdict:
    """The verdict on a contrast of the arms by (environment, name)."""
    cells = {}
    for cell in (*claim.plus, *claim.minus):
        arm = arms.get((cell.env, cell.arm))
        cells[cell] = {} if arm is None else values_of(arm, claim.outcome, claim.source, claim.window)
    return judge_cells(claim, cells)


def judge_cells(claim: ContrastClaim, cells: Mapping[ContrastCell, Values]) -> ContrastVerdict:
    """The verdict on a contrast of given outcomes."""
    missing = tuple(cell for cell, values in cells.items() if not values)
    if missing:
        return ContrastVerdict(claim, cells, None, None, None, missing=missing)
    weights = {cell: (1.0 if cell in claim.plus else -1.0) / claim.divide for cell in cells}
    sided = claim.sides != "two-sided"
    level = 1.0 - claim.alpha * (2.0 if sided else 1.0)
    if claim.test == "welch":
        return _independent(claim, cells, weights, level)
    shared = set.intersection(*(set(values) for values in cells.values()))
    cells = {cell: {key: value for key, value in values.items() if key in shared} for cell, values in cells.items()}
    seeds = [key for key in next(iter(cells.values())) if key in shared]
    per_seed = np.array([sum(weights[cell] * values[key] for cell, values in cells.items()) for key in seeds])
    return _paired(claim, cells, per_seed, level)


def _independent(
    claim: ContrastClaim, cells: Mapping[ContrastCell, Values], weights: Mapping[ContrastCell, float], level: float
) -> ContrastVerdict:
    groups = [np.array(list(values.values())) for values in cells.values()]
    signs = [weights[cell] for cell in cells]
    estimate = float(sum(sign * group.mean() for sign, group in zip(signs, groups, strict=True)))
    found = contrast_of(groups, signs)
    if found is None:
        return ContrastVerdict(claim, cells, estimate, None, None)
    _, error, df = found
    p = _t_p(estimate / error, df, claim.sides)
    return ContrastVerdict(claim, cells, estimate, contrast_interval(groups, signs, level=level), p, f"p = {p:.2g}")


def _paired(
    claim: ContrastClaim, cells: Mapping[ContrastCell, Values], per_seed: Float64, level: float
) -> ContrastVerdict:
    if len(per_seed) < 2:
        estimate = float(per_seed.mean()) if len(per_seed) else None
        return ContrastVerdict(claim, cells, estimate, None, None)
    estimate, pairs = float(per_seed.mean()), Pairs(per_seed, np.zeros(len(per_seed)))
    interval = mean_interval(per_seed, level=level)
    if claim.test == "sign-flip":
        exact, result = sign_flip_interval(pairs, level=level), sign_flip_test(pairs, claim.sides)
        interval = exact if exact.bounded else interval
        return ContrastVerdict(claim, cells, estimate, interval, float(result.p), f"p = {result}")
    if interval is None:  # all seeds agree to the last digit, so there is no variation to compare with
        return ContrastVerdict(claim, cells, estimate, None, None)
    error = float(per_seed.std(ddof=1)) / np.sqrt(len(per_seed))
    p = _t_p(estimate / error, len(per_seed) - 1, claim.sides)
    return ContrastVerdict(claim, cells, estimate, interval, p, f"p = {p:.2g}")


def _t_p(statistic: float, df: float, sides: str) -> float:
    if sides == "two-sided":
        return float(2.0 * stats.t.sf(abs(statistic), df))
    return float(stats.t.cdf(statistic, df) if sides == "less" else stats.t.sf(statistic, df))


def waits_for(verdict: ContrastVerdict, arms: Mapping[tuple[str, str], ArmRecord], plan: LookPlan) -> str:
    """Why a contrast has no verdict yet; empty if all its planned seeds are there. It has no interim looks."""
    planned, there = [], []
    for cell, values in verdict.cells.items():
        if seeds := plan.seeds.get((cell.env, cell.arm)):
            arm = arms.get((cell.env, cell.arm))
            planned.append(seeds)
            there.append(finished(arm, values) if arm is not None else [])
    state = look_state(planned, there, alpha=verdict.claim.alpha) if planned else None
    return state.text if state is not None and state.level is None else ""


def check_cells(claims: Sequence[ContrastClaim], planned: Sequence[tuple[str, str]]) -> None:
    """Raise an error if a contrast names an arm or an environment that the study does not have."""
    names = [f"{arm} on {env}" for env, arm in planned]
    for claim in claims:
        for cell in (*claim.plus, *claim.minus):
            if (cell.env, cell.arm) not in planned:
                raise unknown_name(f"arm of the contrast {claim}", f"{cell.arm} on {cell.env}", names)
