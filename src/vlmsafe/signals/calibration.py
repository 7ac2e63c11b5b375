"""Calibration before training: the level and spread of a scorer's scores on the frames of a policy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vlmsafe.errors import InputError
from vlmsafe.signals.gate import Gate
from vlmsafe.signals.rules import Scores


@dataclass(frozen=True)
class Calibration:
    """Levels of a buffer of scores, as plain numbers. They are stored in the run and in its checkpoints."""

    frames: int
    episodes: int
    margin_quartiles: tuple[float, float, float]
    negative_median: float
    """The default reference level of the negative score."""
    negative_excess: float
    """Mean excess of the negative score over the reference level that is used."""
    gate_scale: float | None = None
    """s of the calibrated gate; None for other gates."""
    gate_centre: float | None = None

    @classmethod
    def of(
        cls, scores: Scores, episodes: int, *, gate_target: float | None = None, reference: float | None = None
    ) -> Calibration:
        """The levels of a buffer of scores; with `gate_target`, the gate is calibrated too."""
        if len(scores.margin) < 4:
            raise InputError(f"the calibration buffer holds {len(scores.margin)} frames; quartiles need at least 4")
        gate = Gate.calibrated(scores.margin, gate_target) if gate_target is not None else None
        low, middle, high = np.quantile(scores.margin, [0.25, 0.5, 0.75]).tolist()
        median = float(np.median(scores.negative))
        level = median if reference is None else reference
        return cls(
            frames=len(scores.margin),
            episodes=episodes,
            margin_quartiles=(low, middle, high),
            negative_median=median,
            negative_excess=float(np.maximum(scores.negative - level, 0.0).mean()),
            gate_scale=gate.scale if gate else None,
            gate_centre=gate.centre if gate else None,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Calibration:
        return cls(**{**values, "margin_quartiles": tuple(values["margin_quartiles"])})

    @property
    def gate(self) -> Gate:
        assert self.gate_scale is not None
        assert self.gate_centre is not None
        return Gate(self.gate_scale, self.gate_centre)
