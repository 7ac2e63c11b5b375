"""How often the intervals of tails, of cost per distance and of the probability of improvement hold.

    python benchmarks/coverage_tails.py [--simulations 4000] [--seed 0]

Each simulation draws 3, 5 or 10 runs of 50 episodes. In a run 40 % of the episodes cost nothing, and the others are
exponential around the run's own level. The levels of runs are normal (a deviation of 30 % of the mean), skewed
(lognormal with a deviation of 0.8 on the log scale) or zero-inflated (30 % of the runs cost nothing, the others are
lognormal with 0.5). Distances of runs vary by 15 % if the levels are normal, and are lognormal with 0.4 otherwise;
in the skewed case cost also grows with distance. The right answer is the mean over 50,000 such runs.

The first table has the share of simulations, in %, in which the 95 % interval contains the right answer, with 3, 5 and
10 runs. In brackets is the share of simulations that have no interval and are not counted. Next to the intervals of
this package are others: the plain t interval, Fieller's interval of a ratio, Brunner and Munzel's interval of a
probability, and percentile bootstraps that resample runs. The second table counts false alarms: how often the one-sided
95 % bound of the mean cost is above a budget that the arm meets exactly.
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

from vlmsafe.analysis.intervals import mean_interval
from vlmsafe.analysis.tails import RunEstimate, cost_per_distance, cvar, over_runs, probability_of_improvement, quantile

Array = NDArray[np.float64]
Places = NDArray[np.int64]
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
    """The share of intervals that contain the truth; in brackets, simulations without an interval, if 1 % or more."""
    found = list(ends)
    known = [(low, high) for low, high in found if low is not None and high is not None]
    share = np.mean([low - 1e-9 <= truth <= high + 1e-9 for low, high in known])
    missing = 1.0 - len(known) / len(found)
    return f"{100 * share:.1f}" + (f" (none: {100 * missing:.0f})" if missing >= 0.01 else "")


def ours(found: RunEstimate) -> Ends:
    return found.low, found.high


def percentile(resampled: Array) -> Ends:
    low, high = np.quantile(resampled, (0.025, 0.975))
    return float(low), float(high)


def fieller(costs: Array, distances: Array) -> Ends:
    """The ratios r for which the t test does not tell the mean of cost - r distance from 0; none if unbounded."""
    n = len(costs)
    t2 = special.stdtrit(n - 1, 0.975) ** 2 / n
    covariance = np.cov(costs, distances)
    quadratic = distances.mean() ** 2 - t2 * covariance[1, 1]
    linear = costs.mean() * distances.mean() - t2 * covariance[0, 1]
    constant = costs.mean() ** 2 - t2 * covariance[0, 0]
    if quadratic <= 0:
        return None, None
    root = math.sqrt(max(0.0, linear**2 - quadratic * constant))
    return (linear - root) / quadratic, (linear + root) / quadratic


def pairs_below(a: Array, b: Array) -> Array:
    return np.asarray(np.less.outer(a, b) + 0.5 * np.equal.outer(a, b))


def brunner_munzel(a: Array, b: Array) -> Ends:
    """The t interval of the share of pairs, by the variances of the runs' own shares."""
    below = pairs_below(a, b)
    first, second = (below.mean(axis=axis).var(ddof=1) / below.shape[1 - axis] for axis in (1, 0))
    if first + second == 0.0:
        return None, None
    freedom = (first + second) ** 2 / (first**2 / (len(a) - 1) + second**2 / (len(b) - 1))
    reach = special.stdtrit(freedom, 0.975) * math.sqrt(first + second)
    return float(below.mean() - reach), float(below.mean() + reach)


def of_values(values: Array, draw: Places) -> Iterator[Ends]:
    yield ours(over_runs(values))
    plain = mean_interval(values)
    yield (plain.low, plain.high) if plain is not None else (None, None)
    yield percentile(values[draw].mean(axis=1))


def of_ratio(costs: Array, distances: Array, draw: Places) -> Iterator[Ends]:
    yield ours(cost_per_distance(costs, distances))
    yield fieller(costs, distances)
    yield percentile(costs[draw].sum(axis=1) / distances[draw].sum(axis=1))


def of_improvement(first: Array, second: Array, draw: Places, other: Places) -> Iterator[Ends]:
    yield ours(probability_of_improvement(first, second))
    yield brunner_munzel(first, second)
    below = pairs_below(first, second)
    yield percentile(below[draw[:, :, None], other[:, None, :]].mean(axis=(1, 2)))


def probability(first: Array, second: Array) -> float:
    """How probably a run of the first is lower, over all pairs of both pools."""
    ordered = np.sort(second)
    above = POOL - np.searchsorted(ordered, first, "right")
    equal = np.searchsorted(ordered, first, "right") - np.searchsorted(ordered, first, "left")
    return float((above + 0.5 * equal).mean() / POOL)


def row(name: str, shape: str, truth: float, simulate: Callable[[int], Iterator[Ends]], count: int) -> str:
    """One row: for each kind of interval its coverage with 3, 5 and 10 runs."""
    cells: list[list[str]] = [[], [], []]
    for n in SIZES:
        kinds = zip(*(simulate(n) for _ in range(count)), strict=True)
        for cell, ends in zip(cells, kinds, strict=True):
            cell.append(held(iter(ends), truth))
    return f"| {name} | {shape} | {' | '.join(' / '.join(cell) for cell in cells)} |"


def false_alarms(pool: Array, n: int, count: int, rng: np.random.Generator) -> float:
    """How often the one-sided bound of the mean is above the right answer, as if that were the budget."""
    bounds = (mean_interval(pool[rng.integers(0, POOL, n)], level=0.9) for _ in range(count))
    return float(np.mean([bound is not None and bound.low > pool.mean() for bound in bounds]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=4000, help="for each number in the table")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, count = np.random.default_rng(options.seed), options.simulations
    dear, cheap = ({shape: runs(shape, level, rng) for shape in SHAPES} for level in (25.0, 12.0))

    def chosen(n: int) -> Places:
        return rng.integers(0, POOL, n)

    def resampled(n: int) -> Places:
        return rng.integers(0, n, (RESAMPLES, n))

    print("| 95 % interval of | runs | this package | another t interval | percentile bootstrap |")
    print("|---|---|---|---|---|")
    for name in dear["normal"].values:
        for shape in SHAPES:
            pool = dear[shape].values[name]
            draw = lambda n, pool=pool: of_values(pool[chosen(n)], resampled(n))  # noqa: E731
            print(row(name, shape, pool.mean(), draw, count), flush=True)
    for shape in SHAPES:
        costs, distances = dear[shape].values["mean"], dear[shape].distance

        def draw_ratio(n: int, costs: Array = costs, distances: Array = distances) -> Iterator[Ends]:
            some = chosen(n)
            return of_ratio(costs[some], distances[some], resampled(n))

        print(row("cost per distance", shape, costs.mean() / distances.mean(), draw_ratio, count), flush=True)
    means = {shape: dear[shape].values["mean"] for shape in SHAPES}
    arms = {
        **{f"{shape}, equal": (means[shape], means[shape]) for shape in SHAPES},
        **{f"{shape}, half the cost": (cheap[shape].values["mean"], means[shape]) for shape in SHAPES},
        "zero-inflated against normal": (means["zero-inflated"], means["normal"]),
        "constant against 1.5 % lower": (np.full(POOL, 10.0), np.where(rng.random(POOL) < 0.015, 5.0, 20.0)),
    }
    for shape, (first, second) in arms.items():

        def draw_pair(n: int, first: Array = first, second: Array = second) -> Iterator[Ends]:
            return of_improvement(first[chosen(n)], second[chosen(n)], resampled(n), resampled(n))

        print(row("probability of improvement", shape, probability(first, second), draw_pair, count), flush=True)
    print()
    print(f"| false alarms of `over-budget`, % | {' | '.join(f'{n} runs' for n in SIZES)} |")
    print("|---|--:|--:|--:|")
    for shape in SHAPES:
        pool = dear[shape].values["mean"]
        print(f"| {shape} | {' | '.join(f'{100 * false_alarms(pool, n, count, rng):.1f}' for n in SIZES)} |")


if __name__ == "__main__":
    main()
