"""What an epoch leaves behind: figures per episode and per epoch, and where the time went."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmsafe.signals.shaping import Shaped, path_means, path_sums


def signal_figures(shaped: Shaped, path_ends: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
    """What each episode's record says of the signal.

    Scores are means over all steps, as Eq. 6 takes them; kappa and margin over the scored steps alone, None where an
    episode ended before its first.
    """
    signals = shaped.signals
    columns = {
        "bonus": path_sums(shaped.bonus, path_ends),
        "positive_score": path_means(signals.positive, path_ends),
        "negative_score": path_means(signals.negative, path_ends),
    }
    if shaped.excess is not None:
        columns["signal_excess"] = path_means(shaped.excess, path_ends)
    start = 0
    for path, end in enumerate(path_ends.tolist()):
        scored = np.flatnonzero(signals.scored[start:end]) + start
        yield {name: float(column[path]) for name, column in columns.items()} | {
            "kappa": float(signals.kappa[scored].mean()) if len(scored) else None,
            "margin": float(signals.margin[scored].mean()) if len(scored) else None,
            "scored": len(scored),
        }
        start = end


def mean_of(episodes: list[dict[str, Any]], name: str, weight: str | None = None) -> float | None:
    """Mean of a figure over the episodes that have it, each counted once or by another of its figures."""
    rows = [row for row in episodes if row.get(name) is not None]
    if not rows:
        return None
    return float(np.average([row[name] for row in rows], weights=[row[weight] for row in rows] if weight else None))


class Clock:
    """Seconds spent in each stage of an epoch."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = round(now - self._since, 4)
        self._since = now
