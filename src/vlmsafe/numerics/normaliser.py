"""Running statistics of vectors and standardisation by them, for the observations of policies and of RND."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

_STD_FLOOR = 1e-2
_CLIP = 5.0


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

    @classmethod
    def empty(cls, dimension: int) -> Normaliser:
        return cls(0.0, np.zeros(dimension), np.zeros(dimension))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Normaliser:
        """The normaliser that gave `arrays`."""
        count, mean, m2 = (arrays[f"normaliser.{name}"].copy() for name in ("count", "mean", "m2"))
        return cls(float(count[0]), mean, m2)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its state, for a checkpoint."""
        return {"normaliser.count": np.array([self.count]), "normaliser.mean": self.mean, "normaliser.m2": self.m2}

    def copy(self) -> Normaliser:
        return Normaliser(self.count, self.mean.copy(), self.m2.copy())

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
        return np.maximum(np.sqrt(variance), _STD_FLOOR)

    def normalise(self, observation: Array) -> Array:
        """The observation as the networks see it; changes no statistic."""
        if self.count <= 1:
            return observation.astype(np.float32)
        standardised = (observation - self.mean) / self.std
        return np.clip(standardised, -_CLIP, _CLIP).astype(np.float32)
