"""Levels for interim looks: how strict each look at growing data must be so that all of them together hold one level.

A test that is repeated on growing data at 0.05 each time rejects too often. A spending function says which part of the
level may be used up by the time a share of the information is there (Lan and DeMets, 1983). The bound of each look
follows from the joint distribution of the looks: the test statistic, multiplied by the root of the information, is a
Brownian motion. Its density over the values at which the study continues is carried from look to look by numerical
integration (Armitage, McPherson and Rowe, 1969).

The distribution is exact for normal means with a known deviation. For the tests of this package, on few runs, it is an
approximation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy import optimize, special, stats

from vlmsafe.analysis.statistics import Float64
from vlmsafe.errors import InputError, unknown_name

Spending = Literal["obrien-fleming", "pocock"]
SPENDING: tuple[str, ...] = get_args(Spending)

_FAR = 9.0  # deviations beyond which a normal density is nothing
_LEAST = 1e-16  # a look that may spend less than this cannot decide
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


def spent(share: float, alpha: float, spending: Spending = "obrien-fleming") -> float:
    """The part of a one-sided level that may be used up when a share of the information is there.

    `obrien-fleming` spends almost nothing early, so the level of the last look is close to that of a single test.
    `pocock` spends almost evenly.

    >>> [round(spent(share, 0.025), 5) for share in (0.2, 0.5, 1.0)]
    [0.0, 0.00153, 0.025]
    >>> [round(spent(share, 0.025, "pocock"), 5) for share in (0.2, 0.5, 1.0)]
    [0.00738, 0.0155, 0.025]
    """
    if spending not in SPENDING:
        raise unknown_name("spending function", str(spending), SPENDING)
    if spending == "pocock":
        return float(alpha * np.log1p((np.e - 1.0) * share))
    return float(2.0 * stats.norm.sf(stats.norm.isf(alpha / 2.0) / np.sqrt(share)))


def check_shares(shares: Sequence[float]) -> None:
    """Raise an `InputError` unless the shares rise, lie above 0 and end at 1."""
    rising = all(before < after for before, after in zip((0.0, *shares), shares, strict=False))
    if len(shares) == 0 or not rising or shares[-1] != 1.0:
        raise InputError(f"looks at {list(shares)}: expected shares above 0 that rise and end at 1, such as [0.5, 1.0]")


def bounds(
    shares: Sequence[float], alpha: float, *, two_sided: bool = True, spending: Spending = "obrien-fleming"
) -> Float64:
    """The z that a test must pass at each look, at these shares of the information, to hold a level over all looks.

    Two-sided bounds are symmetric: each side has half of the level. A look that may spend nothing has an infinite
    bound.

    >>> bounds([0.2, 0.4, 0.6, 0.8, 1.0], 0.05).round(3).tolist()
    [4.877, 3.357, 2.68, 2.29, 2.031]
    """
    check_shares(shares)
    if not 0.0 < alpha < (1.0 if two_sided else 0.5):
        raise InputError(f"alpha is {alpha}; expected a level between 0 and {1 if two_sided else 0.5}")
    side = alpha / 2.0 if two_sided else alpha
    used, found = 0.0, []
    density: _Density | None = None
    before = 0.0
    for place, share in enumerate(shares):
        may = spent(share, side, spending) - used
        bound = _bound(density, share - before, np.sqrt(share), may, two_sided) if may > _LEAST else np.inf
        used += may if np.isfinite(bound) else 0.0
        found.append(float(bound))
        if place + 1 < len(shares):
            density = _continued(density, before, share, bound, two_sided, shares[place + 1] - share)
        before = share
    return np.array(found)


def levels(
    shares: Sequence[float], alpha: float, *, two_sided: bool = True, spending: Spending = "obrien-fleming"
) -> Float64:
    """The level of each look: a look decides if its p is below it.

    >>> levels([0.5, 1.0], 0.05).round(4).tolist()
    [0.0031, 0.049]
    """
    sides = 2.0 if two_sided else 1.0
    found = bounds(shares, alpha, two_sided=two_sided, spending=spending)
    return np.asarray(sides * stats.norm.sf(found), np.float64)


def crossing(
    shares: Sequence[float], limits: Sequence[float], *, two_sided: bool = True, drift: float = 0.0
) -> Float64:
    """The probability that each look is the first to pass its limit; `drift` is the expected z at the last look.

    >>> crossing([0.5, 1.0], [1.96, 1.96]).sum().round(3)  # two tests at 0.05 each
    np.float64(0.083)
    """
    check_shares(shares)
    if len(limits) != len(shares):
        raise InputError(f"{len(limits)} limits for {len(shares)} looks; expected one for each")
    density: _Density | None = None
    found, before = [], 0.0
    for place, (share, limit) in enumerate(zip(shares, limits, strict=True)):
        end, gap = limit * np.sqrt(share), share - before
        beyond = _beyond(density, gap, end, drift)
        found.append(beyond + (_beyond(density, gap, end, drift, below=True) if two_sided else 0.0))
        if place + 1 < len(shares):
            density = _continued(density, before, share, limit, two_sided, shares[place + 1] - share, drift)
        before = share
    return np.array(found)


@dataclass(frozen=True)
class _Density:
    """Where the Brownian motion is at a look, if no look has decided: points, their weights and the density there."""

    points: Float64
    mass: Float64
    """The density at each point, times the point's weight in an integral."""


def _beyond(density: _Density | None, gap: float, end: float, drift: float = 0.0, *, below: bool = False) -> float:
    """The probability that no earlier look decides and that the motion is now above `end`, or below its negative."""
    sign = -1.0 if below else 1.0
    if density is None:
        return float(special.ndtr(-(end - sign * drift * gap) / np.sqrt(gap)))
    away = end - sign * (density.points + drift * gap)
    return float(density.mass @ special.ndtr(-away / np.sqrt(gap)))


def _bound(density: _Density | None, gap: float, root: float, may: float, two_sided: bool) -> float:
    """The z beyond which a look spends what it may, on one side; without a drift both sides are equal."""
    if density is None:
        return float(stats.norm.isf(may))

    def excess(z: float) -> float:
        return _beyond(density, gap, z * root) - may

    lowest = 0.0 if two_sided else -_FAR
    return float(optimize.brentq(excess, lowest, 40.0, xtol=1e-10))


def _continued(
    density: _Density | None, before: float, share: float, bound: float, two_sided: bool, next_gap: float,
    drift: float = 0.0,
) -> _Density:  # fmt: skip
    """The density at a look, over the values at which the study continues."""
    root, mean = np.sqrt(share), drift * share
    high = min(bound * root, mean + _FAR * root)
    low = max(-bound * root, mean - _FAR * root) if two_sided else mean - _FAR * root
    # The density of the next look is as narrow as the step towards it, so panels must not be wider.
    gap = share - before
    panels = int(np.ceil((high - low) / min(np.sqrt(gap), np.sqrt(next_gap)))) + 8
    edges = np.linspace(low, high, panels + 1)
    half = (edges[1:] - edges[:-1]) / 2.0
    points = ((edges[:-1] + half)[:, None] + half[:, None] * _NODES).ravel()
    weights = (half[:, None] * _WEIGHTS).ravel()
    step = np.sqrt(gap)
    if density is None:
        values = stats.norm.pdf(points, drift * gap, step)
    else:
        values = stats.norm.pdf(points[:, None] - density.points - drift * gap, 0.0, step) @ density.mass
    return _Density(points, weights * values)
