"""How a learning rate falls over a run."""

from __future__ import annotations

import math
from typing import Literal


def falling_share(progress: float, schedule: Literal["linear", "cosine"], floor: float) -> float:
    """The share of its initial value that a learning rate has at `progress`, from 0 to 1, of a run.

    >>> [falling_share(at, "linear", 0.2) for at in (0.0, 0.5, 1.0)]
    [1.0, 0.6, 0.2]
    >>> [round(falling_share(at, "cosine", 0.0), 3) for at in (0.0, 0.25, 0.5, 1.0)]
    [1.0, 0.854, 0.5, 0.0]
    """
    left = 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return floor + (1.0 - floor) * left
