"""How a learning rate, and the standard deviation of actions, fall over a run."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

PerAction = float | tuple[float, ...]
"""One value for all actions, or one for each."""


def falling_share(progress: float, schedule: Literal["linear", "cosine"], floor: float) -> float:
    """The share of its initial value that a learning rate has at `progress`, from 0 to 1, of a run.

    >>> [falling_share(at, "linear", 0.5) for at in (0.0, 0.5, 1.0)]
    [1.0, 0.75, 0.5]
    >>> [round(falling_share(at, "cosine", 0.0), 3) for at in (0.0, 0.25, 0.5, 1.0)]
    [1.0, 0.854, 0.5, 0.0]
    """
    left = 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return floor + (1.0 - floor) * left


def annealed_std(first: PerAction, last: PerAction, epoch: int, epochs: int) -> NDArray[np.float64]:
    """The standard deviation in epoch `epoch` (from 0) of `epochs`, on a straight line from the first to the last.

    >>> [annealed_std(0.5, 0.1, epoch, 5).round(3).tolist() for epoch in (0, 1, 4)]
    [0.5, 0.4, 0.1]
    """
    progress = epoch / max(epochs - 1, 1)
    return np.asarray(first) * (1.0 - progress) + np.asarray(last) * progress
