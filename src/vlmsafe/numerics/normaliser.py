"""Running statistics of vectors and standardisation by them, for the observations of policies and of RND."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

# Arrays, because numpy converts a Python number at every call.
_ONE = np.array(1.0)
CLIP = 5.0
"""Deviations from the mean at which a standardised observation is cut, unless a run says otherwise."""
STD_FLOOR = 1e-2
"""The least deviation by which it is divided, unless a run says otherwise."""


@dataclass
class Normaliser:
    """Running mean and unbiased variance of observations, and standardisation by them.

    Updated one observation at a time while acting, and merged over workers at the end of an epoch, both by Chan's
    formula. The first observation has no deviation yet and is returned unchanged.
    """

    count: float
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]
    """Sum of squared deviations from the mean."""
    clip: float = CLIP
    floor: float = STD_FLOOR

    @classmethod
    def empty(cls, dimension: int, clip: float = CLIP, floor: float = STD_FLOOR) -> Normaliser:
        return cls(0.0, np.zeros(dimension), np.zeros(dimension), clip, floor)

    @classmethod
    def of(cls, observations: Array) -> Normaliser:
        """Statistics of rows."""
        mean = observations.mean(axis=0, dtype=np.float64)
        return cls(float(len(observations)), mean, ((observations - mean) ** 2).sum(axis=0))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Normaliser:
        """The normaliser that gave `arrays`."""
        count, mean, m2 = (arrays[f"normaliser.{name}"].copy() for name in ("count", "mean", "m2"))
        clip = arrays.get("normaliser.clip", np.array([CLIP]))
        floor = arrays.get("normaliser.floor", np.array([STD_FLOOR]))
        return cls(float(count[0]), mean, m2, float(clip[0]), float(floor[0]))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its state, for a checkpoint."""
        # The usual limits are not among them, so that files and digests are those of versions without a choice.
        clip = {} if self.clip == CLIP else {"normaliser.clip": np.array([self.clip])}
        clip |= {} if self.floor == STD_FLOOR else {"normaliser.floor": np.array([self.floor])}
        own = {"normaliser.count": np.array([self.count]), "normaliser.mean": self.mean, "normaliser.m2": self.m2}
        return own | clip

    def copy(self) -> Normaliser:
        return Normaliser(self.count, self.mean.copy(), self.m2.copy(), self.clip, self.floor)

    def update(self, observation: Array) -> None:
        """Add one observation."""
        self.count += 1.0
        delta = observation - self.mean
        self.mean += delta / self.count
        self.m2 += delta * (observation - self.mean)

    def merge(self, other: Normaliser) -> None:
        """Add everything that another normaliser has seen."""
        total = self.count + other.count
        if other.count == 0:
            return
        delta = other.mean - self.mean
        self.mean += delta * (other.count / total)
        self.m2 += other.m2 + delta**2 * (self.count * other.count / total)
        self.count = total

    @property
    def std(self) -> NDArray[np.float64]:
        """Deviation, never below a floor that keeps constant inputs finite."""
        variance = self.m2 / max(self.count - 1.0, 1.0)
        return np.maximum(np.sqrt(variance), self.floor)

    def normalise(self, observation: Array) -> Array:
        """The observation as the networks see it; changes no statistic."""
        if self.count <= 1:
            return observation.astype(np.float32)
        standardised = observation - self.mean
        standardised /= self.std
        return _clipped(standardised, np.array(-self.clip), np.array(self.clip)).astype(np.float32)

    def standardiser(self) -> Callable[[Array], Array]:
        """`normalise` for many observations at a time, in float32: the statistics are rounded first."""
        if self.count <= 1:
            return np.asarray
        mean, inverse = self.mean.astype(np.float32), (1.0 / self.std).astype(np.float32)
        clip = np.float32(self.clip)

        def standardise(observations: Array) -> Array:
            rows = observations - mean
            rows *= inverse
            np.minimum(rows, clip, out=rows)
            return np.maximum(rows, -clip, out=rows)

        return standardise


class RunningNormaliser:
    """A normaliser that learns from each observation before it standardises it.

    It also keeps statistics of the observations it has seen itself, which workers hand back. Both sets of statistics
    are updated together, in memory that is allocated once: at these sizes a numpy call costs more than its arithmetic.
    The numbers are those of `Normaliser.update` and `Normaliser.normalise`, bit for bit.
    """

    def __init__(self, start: Normaliser) -> None:
        own = Normaliser.empty(len(start.mean))
        # Each is one flat array, first the running statistics and then its own: operands of one shape avoid numpy's
        # broadcasting, which takes three times as long.
        self._count = np.repeat([start.count, own.count], len(start.mean))
        self._mean = np.concatenate([start.mean, own.mean])
        self._m2 = np.concatenate([start.m2, own.m2])
        self._raw, self._delta, self._shift = (np.empty_like(self._mean) for _ in range(3))
        self._rows = self._raw.reshape(2, -1)
        running = slice(len(start.mean))
        self._running_m2, self._running_shift = self._m2[running], self._shift[running]
        self._standardised = np.empty_like(start.mean)
        self._seen_before = start.count
        self._divisor = np.empty(())
        self._lowest, self._highest = np.array(-start.clip), np.array(start.clip)
        self._floor = np.array(start.floor)

    def see(self, observation: Array, out: Array) -> None:
        """Add one observation, and write it to `out` as the networks see it."""
        raw, mean, delta, shift = self._raw, self._mean, self._delta, self._shift
        self._rows[...] = observation
        np.add(self._count, _ONE, self._count)
        np.subtract(raw, mean, delta)
        np.divide(delta, self._count, shift)
        np.add(mean, shift, mean)
        np.subtract(raw, mean, shift)
        np.multiply(delta, shift, delta)
        np.add(self._m2, delta, self._m2)
        divisor = self._seen_before  # the count less one
        self._seen_before += 1.0
        if divisor < 1.0:
            out[...] = observation
            return
        standardised = self._standardised
        self._divisor[...] = divisor
        np.divide(self._running_m2, self._divisor, standardised)
        np.sqrt(standardised, standardised)
        np.maximum(standardised, self._floor, out=standardised)
        np.divide(self._running_shift, standardised, standardised)
        out[...] = _clipped(standardised, self._lowest, self._highest)

    def seen(self) -> Normaliser:
        """Statistics of what it has seen itself."""
        own = slice(len(self._standardised), None)
        return Normaliser(float(self._count[-1]), self._mean[own].copy(), self._m2[own].copy())


def _clipped(
    standardised: NDArray[np.float64], lowest: NDArray[np.float64], highest: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Limit extremes, in place."""
    np.minimum(standardised, highest, out=standardised)
    return np.maximum(standardised, lowest, out=standardised)
