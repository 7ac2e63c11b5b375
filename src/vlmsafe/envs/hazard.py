"""How close a state is to something that costs, as one number from 0 to 1.

The hazard is privileged: it is computed from the simulator's state, which no policy observes and no frame shows
completely. It serves as the positive control of a signal, the score that a perfect judge of the scene would give.
Environments define it as `Env.hazard`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_CORNERS = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [-1.0, 1.0]])  # in this order, a box's outline


def wrapped(angle: Any) -> Any:
    """An angle, or an array of them, as one from -pi to pi.

    >>> wrapped(1.5 * math.pi) == -0.5 * math.pi
    True
    """
    return (angle + math.pi) % (2 * math.pi) - math.pi


def hazard_of(gap: float, closing_speed: float, *, reach: float, seconds: float) -> float:
    """1 at contact; less for a wider gap, more for one that closes faster.

    A gap of `reach` that does not close gives 1/e. At high speeds, contact in `seconds` gives 1/e too. A gap that
    widens is as hazardous as one that stays, because an object nearby can turn.

    >>> hazard_of(0.0, 5.0, reach=1.0, seconds=2.0)
    1.0
    >>> round(hazard_of(11.0, 5.0, reach=1.0, seconds=2.0), 3)
    0.368
    """
    return math.exp(-max(gap, 0.0) / (reach + max(closing_speed, 0.0) * seconds))


def outlines(centres: Array, half_lengths: Array, half_widths: Array) -> tuple[Array, Array]:
    """The four sides of each of N boxes as segments: (starts [N, 4, 2], ends [N, 4, 2]).

    `half_lengths` and `half_widths` [N, 2] are vectors from the centre of a box to the middles of two of its sides.
    """
    corners = centres[:, None] + _CORNERS[:, :1] * half_lengths[:, None] + _CORNERS[:, 1:] * half_widths[:, None]
    return corners, np.roll(corners, -1, axis=1)


def gaps_to_box(starts: Array, ends: Array, half: Array) -> tuple[Array, Array]:
    """Distances from the box |x| <= half[0], |y| <= half[1] to segments, and unit vectors from it to them.

    Segments [N, 2] to [N, 2] give gaps [N] and directions [N, 2]. Where box and segment touch, the gap is 0 and the
    direction only says where the nearest end or corner is.
    """
    along = ends - starts
    both = np.stack([starts, ends], axis=1)  # [N, 2, 2]
    corners = half * _CORNERS
    from_start = corners - starts[:, None]  # [N, 4, 2]
    # Two convex shapes that are apart are nearest at a corner of one of them.
    to_ends = both - np.clip(both, -half, half)
    squared_length = np.maximum((along**2).sum(axis=-1), 1e-12)  # a segment may be a point
    share = np.clip((from_start * along[:, None]).sum(axis=-1) / squared_length[:, None], 0.0, 1.0)
    to_sides = share[..., None] * along[:, None] - from_start
    between = np.concatenate([to_ends, to_sides], axis=1)  # [N, 6, 2]
    distances = np.hypot(between[..., 0], between[..., 1])
    rows, nearest = np.arange(len(starts)), distances.argmin(axis=1)
    gaps, towards = distances[rows, nearest], between[rows, nearest]
    directions = towards / np.maximum(gaps, 1e-12)[:, None]
    # They are apart where one of the box's axes or the segment's line separates them.
    side = along[:, None, 0] * from_start[..., 1] - along[:, None, 1] * from_start[..., 0]  # [N, 4]
    apart = (both.min(axis=1) > half).any(axis=1) | (both.max(axis=1) < -half).any(axis=1)
    apart |= (side > 0.0).all(axis=1) | (side < 0.0).all(axis=1)
    return np.where(apart, gaps, 0.0), directions
