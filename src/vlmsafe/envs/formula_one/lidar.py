"""What the car senses, in bins of angle: pure functions of positions in the car's coordinates.

Bin 0 begins straight ahead and bins go around to the left. An object fills its bin by its nearness, from 0 at the end
of the range to 1 at the car, and partly fills the neighbouring bin that its direction is closer to, so that a reading
changes smoothly while an object passes from one bin to the next.
"""

from __future__ import annotations

import math

import numpy as np

from vlmsafe.envs.formula_one.circuit import Array

BINS = 16
RANGE = 3.0  # metres
_BIN = 2 * math.pi / BINS


def to_car(points: Array, position: Array, heading: float) -> Array:
    """World coordinates [N, 2] in those of the car: ahead, and to the left."""
    cos, sin = math.cos(heading), math.sin(heading)
    return (points - position) @ np.array([[cos, -sin], [sin, cos]])


def objects(points: Array) -> Array:
    """Nearness of the objects at `points` [N, 2], in the car's coordinates, per bin.

    >>> objects(np.array([[1.5 * math.cos(_BIN / 2), 1.5 * math.sin(_BIN / 2)]]))[[15, 0, 1]].round(2).tolist()
    [0.25, 0.5, 0.25]
    """
    bins = np.zeros(BINS)
    distances = np.hypot(points[:, 0], points[:, 1])
    seen = distances < RANGE
    if not seen.any():
        return bins
    near = 1.0 - distances[seen] / RANGE
    angles = np.arctan2(points[seen, 1], points[seen, 0]) % (2 * math.pi)
    own = np.minimum((angles / _BIN).astype(np.int64), BINS - 1)
    lean = angles / _BIN - own
    np.maximum.at(bins, own, near)
    np.maximum.at(bins, (own + 1) % BINS, near * lean)
    np.maximum.at(bins, own - 1, near * (1.0 - lean))
    return bins


def ray_lengths(origins: Array, directions: Array, starts: Array, ends: Array) -> Array:
    """How far each of R rays gets before it meets one of S segments; infinite where it meets none. [R, 2], [S, 2]."""
    along = ends - starts
    across = directions[:, None, 0] * along[:, 1] - directions[:, None, 1] * along[:, 0]  # [R, S]
    gap = starts - origins[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        length = (gap[..., 0] * along[:, 1] - gap[..., 1] * along[:, 0]) / across
        share = (gap[..., 0] * directions[:, None, 1] - gap[..., 1] * directions[:, None, 0]) / across
    met = (across != 0.0) & (length >= 0.0) & (share >= 0.0) & (share <= 1.0)
    return np.where(met, length, np.inf).min(axis=1, initial=np.inf)


_MIDDLES = (np.arange(BINS) + 0.5) * _BIN
_RAYS = np.stack([np.cos(_MIDDLES), np.sin(_MIDDLES)], axis=1)


def walls(starts: Array, ends: Array) -> Array:
    """Nearness of the walls whose outlines these are, in the car's coordinates, along the middle of each bin."""
    return np.maximum(0.0, 1.0 - ray_lengths(np.zeros((BINS, 2)), _RAYS, starts, ends) / RANGE)
