"""What the designs of the paper could detect, and whether the published differences were within reach.

    python benchmarks/power_of_the_paper.py [--power 0.8] [--alpha 0.05]

Each row is a comparison of the paper: its runs, the test, and the sample standard deviations between its runs, from
the printed runs or from the printed deviation. The table has the smallest true difference that such a design detects
with the wanted power, the published difference, and for a true difference as large as the published one the power of
the design and the number of seeds per arm that the wanted power needs. The published difference is itself an estimate
from these runs, and one that was significant is likely too large.

Where the paper prints no test but an interval, the test is the exact permutation test, two-sided, and the row has no p.
Where it prints the mean of the last ten epochs but no deviation of it, the deviation of the final epoch stands in,
marked with *.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tyro

from vlmsafe.analysis.exact_tests import Alternative
from vlmsafe.analysis.power import Computed, Design, PowerTest, detectable_difference, power, runs_needed
from vlmsafe.paper.published import published
from vlmsafe.paper.values import PublishedValue, published_values

_L2, _BULLET = "formula-one-l2", "bullet-car-reach"
_CALIBRATED, _CONF, _UNGATED = "vlm-ppo-lag-conf-calibrated", "vlm-ppo-lag-conf", "vlm-ppo-lag"
_UNITS = {"violation_pct": " pp", "catastrophe_pct": " pp"}
_WORDS = {"violation_pct": "violation", "catastrophe_pct": "catastrophe", "logged_return": "logged return"}
_TESTS: dict[PowerTest, str] = {
    "permutation": "permutation", "welch": "Welch", "sign-flip": "sign-flip", "paired-t": "paired t",
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Print the power of the paper's designs."""

    power: float = 0.8
    """The probability with which a true difference should be detected."""
    alpha: float = 0.05
    """The level of each test, without a correction for their number."""


@dataclass(frozen=True)
class Published:
    """A comparison of the paper."""

    env: str
    first: str
    second: str
    quantity: str
    window: str
    runs: tuple[int, ...]
    deviations: tuple[float, ...]
    difference: float
    """First arm minus second."""
    test: PowerTest = "permutation"
    sides: Alternative = "two-sided"
    p: str = ""
    """As printed."""
    mark: str = ""
    """After the deviations, where those of another window stand in."""


@dataclass(frozen=True)
class Row:
    """What the design of a comparison could detect."""

    of: Published
    detectable: Computed
    power: Computed | None
    """For a true difference as large as the published one; None where that points away from the claim."""
    needed: Computed | None
    """Seeds per arm for such a difference."""

    @property
    def towards(self) -> bool:
        """Whether the published difference has the claimed direction."""
        return self.of.sides == "two-sided" or (self.of.difference < 0.0) == (self.of.sides == "less")

    @property
    def within_reach(self) -> bool:
        found = self.detectable.value
        return self.towards and found is not None and abs(self.of.difference) >= found


def comparisons() -> Iterator[Published]:
    """The comparisons of the paper that have a test or an interval, and deviations."""
    for env in ("metadrive-hard", "metadrive-medium", "metadrive-easy"):
        for quantity in ("catastrophe_pct", "violation_pct", "cost"):
            yield _compared(env, _CONF, "ppo-lag", quantity, "evaluation-50")
    for steps in (1_000_000, 2_000_000):
        yield _bullet(f"{steps // 1_000_000}M steps", [steps])
    yield _bullet("both", [1_000_000, 2_000_000])
    for row in published("perm-l2").iter_rows(named=True):
        yield _permutation_table(row)
    for other, p in (
        ("ppo-lag-unmatched", "1/56"), ("cpo", "4/56"), (_UNGATED, "5/56"), ("cppo-pid", "28/56"), ("ppo-lag", "19/21"),
    ):  # fmt: skip
        yield _compared(_L2, _CALIBRATED, other, "cost", "evaluation-50", sides="less", p=p)
    yield _compared(_L2, _CONF, _UNGATED, "cost", "final", sides="less", p="0.30")
    for row in published("cr-stats").iter_rows(named=True):
        own = _compared(_L2, row["arm_1"], row["arm_2"], row["metric"], "final")
        yield replace(own, sides=row["alternative"], p=f"{row['permutation_p']:g}")
        yield replace(own, test="welch", p=f"{row['welch_p']:g}")
    yield _compared(_L2, _CALIBRATED, "ppo-lag-rnd", "cost", "final", test="welch", p="0.13")
    table = published("gate-calib-prereg").filter(kind="seed")
    pairs = (table["calibrated_cost"] - table["prior_cost"]).to_numpy()
    gate = Published(
        _L2, _CALIBRATED, _CONF, "cost", "last-10", (len(pairs),), (float(np.std(pairs, ddof=1)),), float(pairs.mean())
    )
    yield replace(gate, test="sign-flip", sides="less", p="0.25")
    yield replace(gate, test="paired-t", p="0.43")


def _compared(env: str, first: str, second: str, quantity: str, window: str, **test: Any) -> Published:
    """A comparison of two arms, from their published means and deviations."""
    arms = [_arm(env, arm, quantity, window) for arm in (first, second)]
    runs = (arms[0].runs or 0, arms[1].runs or 0)
    deviations = (_sample(arms[0]), _sample(arms[1]))
    return Published(env, first, second, quantity, window, runs, deviations, arms[0].value - arms[1].value, **test)


def _arm(env: str, arm: str, quantity: str, *windows: str) -> PublishedValue:
    """The mean over an arm's runs, in the first of these windows that has a deviation."""
    key = (env, arm, quantity)
    means = {
        one.window: one
        for one in published_values()
        if (one.env, one.arm, one.quantity) == key and one.seed is None and one.std is not None and not one.settings
    }
    return next(means[window] for window in windows if window in means)


def _sample(arm: PublishedValue) -> float:
    """The sample deviation; the paper prints population deviations."""
    assert arm.std is not None
    assert arm.runs is not None
    return arm.std * math.sqrt(arm.runs / (arm.runs - 1))


def _bullet(which: str, steps: Sequence[int]) -> Published:
    table = published("bullet-perseed").filter(kind="seed")
    rates = [
        np.concatenate([table.filter(arm=arm, training_steps=many)["catastrophe_pct"].to_numpy() for many in steps])
        for arm in (_CONF, "ppo-lag")
    ]
    return Published(
        f"{_BULLET}, {which}", _CONF, "ppo-lag", "catastrophe_pct", "evaluation-200", (len(rates[0]), len(rates[1])),
        (float(np.std(rates[0], ddof=1)), float(np.std(rates[1], ddof=1))), float(rates[0].mean() - rates[1].mean()),
    )  # fmt: skip


def _permutation_table(row: dict[str, Any]) -> Published:
    """A row of the paper's table of permutation tests, which are on the last ten epochs."""
    arms = [_arm(_L2, row[name], row["metric"], "last-10", "final") for name in ("arm_1", "arm_2")]
    stand_in = any(arm.window == "final" for arm in arms)
    return Published(
        _L2, row["arm_1"], row["arm_2"], row["metric"], "last-10", (row["runs_1"], row["runs_2"]),
        (_sample(arms[0]), _sample(arms[1])), row["difference"], sides=row["alternative"],
        p=f"{row['p_count']}/{row['p_total']}", mark="*" if stand_in else "",
    )  # fmt: skip


def rows(options: Options) -> list[Row]:
    found = []
    for one in comparisons():
        design = Design(one.test, one.runs, one.deviations, one.sides, options.alpha)
        row = Row(one, detectable_difference(design, options.power), None, None)
        if row.towards:
            size = abs(one.difference)
            row = replace(row, power=power(design, size), needed=runs_needed(design, size, options.power))
        found.append(row)
    return found


def table(found: Sequence[Row], options: Options) -> list[str]:
    """The rows as a Markdown table."""
    heading = (
        "environment", "comparison", "outcome", "runs", "test", "sd", f"detectable, {100 * options.power:g} %",
        "published", "p", "within reach", "power for it", "seeds for it",
    )  # fmt: skip
    lines = [f"| {' | '.join(heading)} |", f"|{'---|' * len(heading)}"]
    for row in found:
        one, unit = row.of, _UNITS.get(row.of.quantity, "")
        sides = "two-sided" if one.sides == "two-sided" else "one-sided"
        value = row.detectable.value
        if value is None:
            reach = "no: nothing is"
        elif not row.towards:
            reach = "no: other direction"
        else:
            reach = "yes" if row.within_reach else "no"
        chance = "" if row.power is None or row.power.value is None else f"{100 * row.power.value:.0f} %"
        needed = "" if row.needed is None else "over 1000" if row.needed.value is None else f"{row.needed.value:g}"
        cells = (
            one.env, f"{one.first} - {one.second}", f"{_WORDS.get(one.quantity, one.quantity)}, {one.window}",
            " + ".join(map(str, one.runs)) if len(one.runs) > 1 else f"{one.runs[0]} pairs",
            f"{_TESTS[one.test]}, {sides}", ", ".join(f"{sd:.3g}" for sd in one.deviations) + one.mark,
            "nothing" if value is None else f"{value:.3g}{unit}", f"{one.difference:+.3g}{unit}", one.p,
            reach, chance, needed,
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def summary(found: Sequence[Row]) -> str:
    nothing = sum(row.detectable.value is None for row in found)
    reached = sum(row.within_reach for row in found)
    return (
        f"{reached} of {len(found)} published differences were within reach of their design. {nothing} designs could "
        "detect no difference at all."
    )


def main(options: Options) -> None:
    found = rows(options)
    print("\n".join(table(found, options)))
    print(f"\n{summary(found)}")


if __name__ == "__main__":
    main(tyro.cli(Options))
