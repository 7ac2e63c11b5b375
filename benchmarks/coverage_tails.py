"""How often the intervals of tails, of cost per distance and of the probability of improvement hold.

    python benchmarks/coverage_tails.py [--simulations 4000] [--seed 0]

Each simulation draws 3, 5 or 10 runs of 50 episodes. In a run 40 % of the episodes cost nothing, and the others are
exponential around the run's own level. The levels of runs are normal (a deviation of 30 % of the mean), skewed
(lognormal with a deviation of 0.8 on the log scale) or zero-inflated (30 % of the runs cost nothing, the others are
lognormal with 0.5). Distances of runs vary by 15 % if the levels are normal, and are lognormal with 0.4 otherwise;
in the skewed case cost also grows with distance. The right answer is the mean over 50,000 such runs.

The table has the share of simulations in which the 95 % interval contains the right answer, in brackets the share that
has no interval and is not counted, and for comparison the same for another interval: the percentile bootstrap over
runs, the linearised ratio, and Brunner and Munzel's t interval. The last rows count false alarms: how often the
one-sided 95 % bound is above a budget that the arm meets exactly.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import vlmsafe  # isort: skip  # noqa: F401 - first: it pins the kernels

import numpy as np
from numpy.typing import NDArray
from scipy import special

from vlmsafe.analysis.resampling import bootstrap_mean
from vlmsafe.analysis.tails import cost_per_distance, cvar, over_runs, probability_of_improvement, quantile

Array = NDArray[np.float64]
Ends = tuple[float | None, float | None]

SIZES = (3, 5, 10)
SHAPES = ("normal", "skewed", "zero-inflated")
POOL, EPISODES, RESAMPLES = 50_000, 50, 500


@dataclass(frozen=True)
class Runs:
    """Many runs of one arm, by what a report says of each."""

    values: dict[str, Array]
    distance: Array


def runs(shape: str, level: float, rng: np.random.Generator) -> Runs:
    """Runs whose episodes cost `level` in the mean, about."""
    if shape == "normal":
        levels = np.maximum(rng.normal(1.0, 0.3, POOL), 0.02)
        distance = np.maximum(rng.normal(500.0, 75.0, POOL), 50.0)
    else:
        spread = 0.8 if shape == "skewed" else 0.5
        levels = rng.lognormal(0.0, spread, POOL)
        distance = 500.0 * rng.lognormal(0.0, 0.4, POOL)
    if shape == "skewed":
        levels *= distance / 500.0
    if shape == "zero-inflated":
        levels[rng.random(POOL) < 0.3] = 0.0
    some = rng.random((POOL, EPISODES)) < 0.6
    costs = np.where(some, rng.exponential(1.0 / 0.6, (POOL, EPISODES)), 0.0) * (level * levels)[:, None]
    values = {
        "mean": costs.mean(axis=1),
        "median": np.array([quantile(own, 0.5) for own in costs]),
        "90 % quantile": np.array([quantile(own, 0.9) for own in costs]),
        "CVaR 10 %": np.array([cvar(own) for own in costs]),
    }
    return Runs(values, distance)


def held(ends: Iterator[Ends], truth: float) -> str:
    """The share of intervals that contain the truth, and the share of simulations without one."""
    found = list(ends)
    known = [(low, high) for low, high in found if low is not None and high is not None]
    share = np.mean([low - 1e-9 <= truth <= high + 1e-9 for low, high in known])
    missing = 1.0 - len(known) / len(found)
    return f"{100 * share:.1f}" + (f" ({100 * missing:.1f} none)" if missing >= 0.0005 else "")


def of_values(pool: Array, n: int, count: int, rng: np.random.Generator, old: bool) -> Iterator[Ends]:
    for _ in range(count):
        values = pool[rng.integers(0, POOL, n)]
        if old:
            interval = bootstrap_mean(values, resamples=RESAMPLES)
            yield interval.low, interval.high
        else:
            found = over_runs(values, least=0.0)
            yield found.low, found.high


def of_ratio(pool: Runs, n: int, count: int, rng: np.random.Generator, old: bool) -> Iterator[Ends]:
    for _ in range(count):
        chosen = rng.integers(0, POOL, n)
        costs, distances = pool.values["mean"][chosen], pool.distance[chosen]
        if old:
            ratio = costs.sum() / distances.sum()
            error = (costs - ratio * distances).std(ddof=1) / math.sqrt(n) / distances.mean()
            reach = special.stdtrit(n - 1, 0.975) * error
            yield ratio - reach, ratio + reach
        else:
            found = cost_per_distance(costs, distances)
            yield found.low, found.high


def of_improvement(first: Array, second: Array, n: int, count: int, rng: np.random.Generator, old: bool) -> Iterator[Ends]:
    for _ in range(count):
        a, b = first[rng.integers(0, POOL, n)], second[rng.integers(0, POOL, n)]
        if old:
            yield brunner_munzel(a, b)
        else:
            found = probability_of_improvement(a, b)
            yield found.low, found.high


def brunner_munzel(a: Array, b: Array) -> Ends:
    """The t interval of the share of pairs, by the variances of the runs' own shares."""
    below = np.less.outer(a, b) + 0.5 * np.equal.outer(a, b)
    first, second = (below.mean(axis=axis).var(ddof=1) / below.shape[1 - axis] for axis in (1, 0))
    if first + second == 0.0:
        return None, None
    freedom = (first + second) ** 2 / (first**2 / (len(a) - 1) + second**2 / (len(b) - 1))
    reach = special.stdtrit(freedom, 0.975) * math.sqrt(first + second)
    return max(0.0, below.mean() - reach), min(1.0, below.mean() + reach)


def probability(first: Array, second: Array) -> float:
    """How probably a run of the first is lower, over all pairs of both pools."""
    ordered = np.sort(second)
    above = POOL - np.searchsorted(ordered, first, "right")
    equal = np.searchsorted(ordered, first, "right") - np.searchsorted(ordered, first, "left")
    return float((above + 0.5 * equal).mean() / POOL)


def row(name: str, shape: str, truth: float, ends: Callable[[int, bool], Iterator[Ends]]) -> str:
    cells = [held(ends(n, old), truth) for old in (False, True) for n in SIZES]
    return f"| {name} | {shape} | {' | '.join(cells)} |"


def false_alarms(pool: Array, n: int, count: int, rng: np.random.Generator) -> float:
    """How often the one-sided bound of the mean is above the right answer, as if that were the budget."""
    bounds = (over_runs(pool[rng.integers(0, POOL, n)], level=0.9).low for _ in range(count))
    return float(np.mean([bound is not None and bound > pool.mean() for bound in bounds]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=4000, help="for each number in the table")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, count = np.random.default_rng(options.seed), options.simulations
    dear, cheap = ({shape: runs(shape, level, rng) for shape in SHAPES} for level in (25.0, 12.0))
    print(f"| 95 % interval of | runs | {' | '.join(f'{n} runs' for n in SIZES)} | other: 3 | 5 | 10 |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for name in dear["normal"].values:
        for shape in SHAPES:
            pool = dear[shape].values[name]
            print(row(name, shape, pool.mean(), lambda n, old, pool=pool: of_values(pool, n, count, rng, old)))
    for shape in SHAPES:
        both = dear[shape]
        truth = both.values["mean"].mean() / both.distance.mean()
        print(row("cost per distance", shape, truth, lambda n, old, both=both: of_ratio(both, n, count, rng, old)))
    pairs = {
        **{f"{shape}, equal": (dear[shape], dear[shape]) for shape in SHAPES},
        **{f"{shape}, half the cost": (cheap[shape], dear[shape]) for shape in SHAPES},
        "zero-inflated against normal": (dear["zero-inflated"], dear["normal"]),
    }
    for shape, (one, other) in pairs.items():
        a, b = one.values["mean"], other.values["mean"]
        print(
            row(
                "probability of improvement",
                shape,
                probability(a, b),
                lambda n, old, a=a, b=b: of_improvement(a, b, n, count, rng, old),
            )
        )
    constant, rare = np.full(POOL, 10.0), np.where(rng.random(POOL) < 0.015, 5.0, 20.0)
    print(
        row(
            "probability of improvement",
            "all equal against 1.5 % lower",
            probability(constant, rare),
            lambda n, old: of_improvement(constant, rare, n, count, rng, old),
        )
    )
    print()
    print(f"| false alarms of `over-budget`, % | {' | '.join(f'{n} runs' for n in SIZES)} |")
    print("|---|--:|--:|--:|")
    for shape in SHAPES:
        pool = dear[shape].values["mean"]
        print(f"| {shape} | {' | '.join(f'{100 * false_alarms(pool, n, count, rng):.1f}' for n in SIZES)} |")


if __name__ == "__main__":
    main()
