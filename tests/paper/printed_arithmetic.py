"""Computing with printed numbers, each of which stands for an interval.

Each printed number may be off by half a unit of its last digit. A summary agrees with the paper when the two differ
by no more than that rounding, carried through the computation, and half a unit of the summary's own last digit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from scipy import stats

from vlmsafe.paper.published import published

BUDGET = 25.0
EPS = 1e-9
CALIBRATED = "vlm-ppo-lag-conf-calibrated"
GATED, UNGATED, NO_TERM, RND = "vlm-ppo-lag-conf", "vlm-ppo-lag", "ppo-lag-decoupled", "ppo-lag-rnd"


@dataclass(frozen=True)
class Check:
    """One printed cell and what other printed cells give for it."""

    table: str
    row: str
    column: str
    printed: str
    computed: float
    tolerance: float
    source: str

    @property
    def agrees(self) -> bool:
        return abs(float(self.printed) - self.computed) <= self.tolerance + EPS


def half_unit(text: str) -> float:
    """Half a unit of the last printed digit: 0.005 for 1.20, 0.00005 for 1.0e-3.

    >>> half_unit("1.20"), half_unit("1.0e-3"), half_unit("7")
    (0.005, 5e-05, 0.5)
    """
    digits, _, exponent = text.partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


Sum = Callable[[np.ndarray], float]


def carried(compute: Sum, texts: Sequence[str], exact: bool) -> tuple[float, float]:
    """A number from printed ones, and how far the rounding of each of them can move it, to first order."""
    values = np.array([float(text) for text in texts])
    result = float(compute(values))
    if exact:
        return result, 0.0
    moved = 0.0
    for index, text in enumerate(texts):
        ends = [values.copy(), values.copy()]
        ends[0][index] -= half_unit(text)
        ends[1][index] += half_unit(text)
        moved += max(abs(float(compute(end)) - result) for end in ends)
    return result, moved


def cells(name: str, column: str, **where: object) -> list[str]:
    """Printed cells of a column, in the rows that match."""
    kept = published(name, printed=True).filter(**{key: str(value) for key, value in where.items()})
    texts: list[str] = kept[column].to_list()
    assert texts, (name, column, where)
    return texts


def cell(name: str, column: str, **where: object) -> str:
    (text,) = cells(name, column, **where)
    return text


def against(
    target: tuple[str, str], compute: Sum, texts: Sequence[str], source: str, exact: bool = False, **where: object
) -> Check:
    """Compare one cell, given as (table, column) and its row, with a number computed from others."""
    name, column = target
    printed = cell(name, column, **where)
    computed, moved = carried(compute, texts, exact)
    row = ", ".join(f"{key} {value}" for key, value in where.items())
    return Check(name, row, column, printed, computed, half_unit(printed) + moved, source)


def counted(target: tuple[str, str], count: int, source: str, **where: object) -> Check:
    """Compare a printed count with one that must equal it."""
    row = ", ".join(f"{key} {value}" for key, value in where.items())
    return Check(*(target[0], row, target[1]), cell(*target, **where), float(count), 0.0, source)


def mean(x: np.ndarray) -> float:
    return float(np.mean(x))


def std(x: np.ndarray) -> float:
    return float(np.std(x))


def first(x: np.ndarray) -> float:
    return float(x[0])


def minus(x: np.ndarray) -> float:
    return float(x[0] - x[1])


def halves(compute: Callable[[np.ndarray, np.ndarray], float], size: int) -> Sum:
    """A function of two groups as a function of both joined; the first has `size` numbers."""
    return lambda x: float(compute(x[:size], x[size:]))


def over(texts: Sequence[str], limit: float = BUDGET) -> int:
    return sum(float(text) > limit for text in texts)


def permutation_count(one: Sequence[str], other: Sequence[str], alternative: str) -> int:
    """Regroupings whose first group's mean is at least as extreme as the given one, of comb(n + m, n)."""
    joined = np.array([float(text) for text in [*one, *other]])
    sign = 1.0 if alternative == "less" else -1.0
    sums = [sign * joined[list(chosen)].sum() for chosen in combinations(range(len(joined)), len(one))]
    return sum(total <= sums[0] + EPS for total in sums)


def welch(one: np.ndarray, other: np.ndarray) -> float:
    return float(stats.ttest_ind(one, other, equal_var=False).pvalue)


def paired_t(one: np.ndarray, other: np.ndarray) -> float:
    return float(stats.ttest_rel(one, other).pvalue)


def sign_flips(differences: Sequence[float]) -> float:
    """Share of sign patterns whose sum is at most the observed one."""
    sums = [sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in product((1, -1), repeat=3)]
    return sum(total <= sums[0] + EPS for total in sums) / len(sums)


def grid(arm: str, environment: str = "formula-one-l2", column: str = "cost") -> list[str]:
    """The three runs of an arm at their last epoch."""
    return cells("full-results", column, arm=arm, environment=environment)


def family(window: str, name: str = "A") -> list[str]:
    return cells("conf-families", f"cost_{window}", family=name, kind="seed")


def stated(
    key: str, compute: Sum, texts: Sequence[str], source: str, column: str = "value", exact: bool = False
) -> Check:
    """Compare a number of the running text."""
    return against(("text-results", column), compute, texts, source, exact, key=key)


def resampled(values: Sequence[float]) -> dict[float, float]:
    """Every mean of as many draws with replacement, with its probability."""
    totals = {0.0: 1.0}
    for _ in values:
        longer: dict[float, float] = {}
        for (total, chance), value in product(totals.items(), values):
            key = round(total + value, 6)
            longer[key] = longer.get(key, 0.0) + chance / len(values)
        totals = longer
    return {total / len(values): chance for total, chance in totals.items()}
