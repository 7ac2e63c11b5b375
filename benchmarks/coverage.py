"""How often intervals cover and tests decide wrongly, with the numbers of runs that studies have.

    python benchmarks/coverage.py [--simulations 10000]

Runs are drawn from three shapes: normal; skewed (lognormal, sigma 1, as costs of few bad runs are); and zero-inflated
(60 % of the runs cost nothing, the others are exponential). Coverage should be 95 %. Errors of tests at 5 % should be
at most 5 %: for a difference with equal arms, for a margin with arms that differ by exactly the margin in the bad
direction, and for a joint claim with one part true and the other exactly at its margin. The same seed gives the same
tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tyro
from numpy.typing import NDArray

from vlmsafe.analysis.exact_tests import permutation_test
from vlmsafe.analysis.intervals import Interval, mean_interval, permutation_interval, welch_interval
from vlmsafe.analysis.resampling import PercentileInterval, bootstrap_mean, bootstrap_mean_difference
from vlmsafe.comparison.claims import Claim, Correction, Test
from vlmsafe.comparison.decisions import Tested, decide
from vlmsafe.comparison.judging import judge

Runs = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Runs]
SIZES = (3, 5, 10)
_RESAMPLES = 1000  # of the percentile bootstrap; more change its coverage by less than the simulation's own error
_SHIFT = 3.0  # of the first arm where coverage of a difference is measured: other than zero, and any number will do


@dataclass(frozen=True)
class Shape:
    """A distribution of runs."""

    draw: Draw
    mean: float


SHAPES = {
    "normal": Shape(lambda rng, n: rng.normal(0.0, 1.0, n), 0.0),
    "skewed": Shape(lambda rng, n: rng.lognormal(0.0, 1.0, n), float(np.exp(0.5))),
    "zero-inflated": Shape(lambda rng, n: rng.exponential(1.0, n) * (rng.random(n) < 0.4), 0.4),
}


@dataclass(frozen=True)
class Options:
    """Measure coverage and errors."""

    simulations: int = 10_000
    """Simulated studies of each kind."""
    seed: int = 0
    """Seed of the runs."""


def main() -> None:
    options = tyro.cli(Options)
    for title, rows in (
        ("Coverage of 95 % intervals of a mean, %", means(options)),
        ("Coverage of 95 % intervals of a difference, %; in brackets, how many are bounded", differences(options)),
        ("Wrong decisions at 5 %, %", errors(options)),
        ("At least one wrong decision among five claims, of which three are finished first, %", families(options)),
    ):
        print(f"\n### {title}\n")
        for line in rows:
            print(line)


def means(options: Options) -> Iterator[str]:
    yield "| runs | shape | percentile bootstrap | t | no interval (all runs equal) |"
    yield "|--:|---|--:|--:|--:|"
    for size, name, shape in _cases():
        rng = np.random.default_rng((options.seed, size))
        samples = [shape.draw(rng, size) for _ in range(options.simulations)]
        old = np.mean([covers(bootstrap_mean(one, resamples=_RESAMPLES), shape.mean) for one in samples])
        found = [mean_interval(one) for one in samples]
        known = [one for one in found if one is not None]
        new, none = np.mean([covers(one, shape.mean) for one in known]), 1.0 - len(known) / len(found)
        yield f"| {size} | {name} | {_percent(old)} | {_percent(new)} | {_percent(none)} |"


def differences(options: Options) -> Iterator[str]:
    yield "| runs per arm | shape | percentile bootstrap | Welch's t | inverted permutation test |"
    yield "|--:|---|--:|--:|--:|"
    for size, name, shape in _cases():
        rng = np.random.default_rng((options.seed, size, 1))
        pairs = [(shape.draw(rng, size) + _SHIFT, shape.draw(rng, size)) for _ in range(options.simulations)]
        old = [covers(bootstrap_mean_difference(*pair, resamples=_RESAMPLES), _SHIFT) for pair in pairs]
        welch = [covers(found, _SHIFT) for pair in pairs if (found := welch_interval(*pair)) is not None]
        # An interval covers a shift exactly where the test of this shift is not significant, which is quicker to see.
        exact = [permutation_test(first - _SHIFT, second, "two-sided").p >= 0.05 for first, second in pairs]
        bounded = np.mean([permutation_interval(*pair).bounded for pair in pairs[:50]])
        yield (
            f"| {size} | {name} | {_percent(np.mean(old))} | {_percent(np.mean(welch))} | "
            f"{_percent(np.mean(exact))} ({_percent(bounded)}) |"
        )


TESTS: tuple[Test, ...] = ("permutation", "sign-flip", "welch", "paired-t")


def errors(options: Options) -> Iterator[str]:
    yield (
        "| runs per arm | shape | percentile bootstrap (before) | "
        + " | ".join(f"{test}: difference, not worse, joint" for test in TESTS)
        + " |"
    )
    yield "|--:|---" + "|--:" * (len(TESTS) + 1) + "|"
    for size, name, shape in _cases():
        rng = np.random.default_rng((options.seed, size, 2))
        pairs = [(shape.draw(rng, size), shape.draw(rng, size)) for _ in range(options.simulations)]
        others = [(shape.draw(rng, size) - 20.0, shape.draw(rng, size)) for _ in range(options.simulations)]
        old = [not covers(bootstrap_mean_difference(*pair, resamples=_RESAMPLES), 0.0) for pair in pairs]
        cells = [_wrong(test, pairs, others) for test in TESTS]
        yield f"| {size} | {name} | {_percent(np.mean(old))} | " + " | ".join(cells) + " |"


def _wrong(test: Test, pairs: list[tuple[Runs, Runs]], others: list[tuple[Runs, Runs]]) -> str:
    """Shares of wrong decisions: a difference where there is none, a margin that is just reached, and a joint claim."""
    difference, worse = Claim("a", "b", test=test), Claim("a", "b", test=test, kind="non-inferiority", margin="1 cost")
    lower = Claim("a", "b", test=test, sides="less")
    wrong = np.zeros((len(pairs), 3))
    for place, ((first, second), (better, baseline)) in enumerate(zip(pairs, others, strict=True)):
        at_margin = judge(worse, _seeds(first + 1.0), _seeds(second))
        parts = [judge(lower, _seeds(better), _seeds(baseline)), at_margin]  # truly lower, and just worse
        tests = [Tested(0.05, one.p if one else None, 1, ("joint",)) for one in parts]
        plain = judge(difference, _seeds(first), _seeds(second))
        wrong[place] = (
            plain is not None and plain.decided != 0,
            at_margin is not None and at_margin.decided != 0,
            decide(tests, "none", 1)[0].joint_holds,
        )
    return ", ".join(map(_percent, wrong.mean(axis=0)))


def families(options: Options) -> Iterator[str]:
    """Five claims are planned, and three have runs. Counting three corrects too little once all five are there."""
    yield "| runs per arm | none | Holm for the three with results (before) | Holm for the five that are claimed |"
    yield "|--:|--:|--:|--:|"
    claim = Claim("a", "b", test="welch")
    for size in SIZES:
        rng = np.random.default_rng((options.seed, size, 3))
        wrong = np.zeros((options.simulations, 3))
        for place in range(options.simulations):
            ps = [judge(claim, _seeds(rng.normal(size=size)), _seeds(rng.normal(size=size))) for _ in range(5)]
            tests = [Tested(0.05, one.p if one else None, 1) for one in ps]
            # What is decided at the look with three is kept, and the other two are decided when they are there.
            early = [any(one.decided for one in decide(tests[:3], name, count)) for name, count in _RULES]
            late = [any(one.decided for one in decide(tests, name, 5)) for name, _ in _RULES]
            wrong[place] = [a or b for a, b in zip(early, late, strict=True)]
        yield f"| {size} | " + " | ".join(map(_percent, wrong.mean(axis=0))) + " |"


_RULES: tuple[tuple[Correction, int], ...] = (("none", 5), ("holm", 3), ("holm", 5))


def covers(interval: Interval | PercentileInterval, value: float) -> bool:
    return bool(interval.low <= value <= interval.high)


def _seeds(values: Runs) -> dict[int | str, float]:
    return dict(enumerate(values.tolist()))


def _cases() -> Iterator[tuple[int, str, Shape]]:
    for size in SIZES:
        for name, shape in SHAPES.items():
            yield size, name, shape


def _percent(share: float | np.floating[Any]) -> str:
    return f"{100 * share:.1f}"


if __name__ == "__main__":
    main()
