"""How close a state is to something that costs, as one number from 0 to 1.

Privileged: it is computed from the simulator's state, which no policy observes. It is the positive control of a signal:
what a perfect judge of frames could know. An environment defines it as `Env.hazard`.
"""

from __future__ import annotations

import math


def hazard_of(gap: float, closing_speed: float, *, reach: float, seconds: float) -> float:
    """1 at contact, falling with the gap, and the slower the faster the gap closes.

    With nothing closing, a gap of `reach` gives 1/e. At speeds at which `reach` hardly matters, so does contact in
    `seconds`. A gap that widens is no safer than one that stays: what is near can turn.

    >>> hazard_of(0.0, 5.0, reach=1.0, seconds=2.0)
    1.0
    >>> round(hazard_of(11.0, 5.0, reach=1.0, seconds=2.0), 3)
    0.368
    """
    return math.exp(-max(gap, 0.0) / (reach + max(closing_speed, 0.0) * seconds))
