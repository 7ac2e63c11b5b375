"""Scaling of rewards by the running deviation of their discounted sum, so that a critic's targets are of order one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmsafe.numerics.normaliser import Normaliser

Float64 = NDArray[np.float64]


class ReturnScale:
    """Running statistics of G_t = r_t + gamma G_{t-1}, which starts at zero with each path."""

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma
        self._statistics = Normaliser.empty(1)

    def scaled(self, rewards: Float64, path_ends: NDArray[np.int64]) -> Float64:
        """Add an epoch's rewards to the statistics, and divide them by the deviation of all sums so far."""
        sums = running_sums(rewards, path_ends, self._gamma)
        mean = sums.mean()
        self._statistics.merge(Normaliser(len(sums), np.array([mean]), np.array([((sums - mean) ** 2).sum()])))
        return rewards / self._statistics.std

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its state, for a checkpoint."""
        return {f"return_scale.{name}": array for name, array in self._statistics.arrays().items()}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue from `arrays`."""
        own = {name.removeprefix("return_scale."): array for name, array in arrays.items()}
        self._statistics = Normaliser.from_arrays(own)


def running_sums(rewards: Float64, path_ends: NDArray[np.int64], gamma: float) -> Float64:
    """G_t = r_t + gamma G_{t-1} along each path.

    >>> running_sums(np.array([1.0, 1.0, 4.0]), np.array([2, 3]), 0.5).tolist()
    [1.0, 1.5, 4.0]
    """
    sums, total, starts = [], 0.0, {0, *path_ends.tolist()}
    for place, reward in enumerate(rewards.tolist()):
        total = reward + gamma * (0.0 if place in starts else total)
        sums.append(total)
    return np.array(sums)
