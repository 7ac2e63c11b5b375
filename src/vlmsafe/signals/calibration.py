"""Calibration before training: the level and spread of a scorer's scores on the frames of a policy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vlmsafe.errors import InputError
from vlmsafe.signals.gate import FITTED, AnyGate, Gate, MarginGate, PlattGate, SignedGate, load_gate
from vlmsafe.signals.platt import Danger, fit_platt
from vlmsafe.signals.rules import Scores

_OF_PLATT = ("platt_slope", "platt_intercept", "labelled_frames", "dangerous_frames")


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
    platt_slope: float | None = None
    """a of the gate 'platt'; None for other gates."""
    platt_intercept: float | None = None
    """b of the gate 'platt'."""
    labelled_frames: int | None = None
    """Frames that the gate 'platt' was fitted on: those for which danger is known."""
    dangerous_frames: int | None = None
    """How many of them are dangerous."""

    @classmethod
    def of(
        cls,
        scores: Scores,
        episodes: int,
        *,
        gate_target: float | None = None,
        reference: float | None = None,
        danger: Danger | None = None,
    ) -> Calibration:
        """The levels of a buffer of scores. With `gate_target` Eq. 5 is calibrated too, with `danger` Platt's fit."""
        if len(scores.margin) < 4:
            raise InputError(f"the calibration buffer holds {len(scores.margin)} frames; quartiles need at least 4")
        gate = Gate.calibrated(scores.margin, gate_target) if gate_target is not None else None
        platt = fit_platt(scores.margin, danger) if danger is not None else None
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
            platt_slope=platt.slope if platt else None,
            platt_intercept=platt.intercept if platt else None,
            labelled_frames=int(danger.known.sum()) if danger is not None else None,
            dangerous_frames=int((danger.dangerous & danger.known).sum()) if danger is not None else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain values. Those of a gate that the run has not are left out, as in runs of earlier versions."""
        return {name: value for name, value in asdict(self).items() if value is not None or name not in _OF_PLATT}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Calibration:
        return cls(**{**values, "margin_quartiles": tuple(values["margin_quartiles"])})

    @property
    def gate(self) -> Gate:
        assert self.gate_scale is not None
        assert self.gate_centre is not None
        return Gate(self.gate_scale, self.gate_centre)

    def fitted(self, name: str) -> MarginGate:
        """The fitted gate of that name."""
        if name != "platt":
            return self.gate if name == "calibrated" else SignedGate(self.gate.scale, self.gate.centre)
        assert self.platt_slope is not None
        assert self.platt_intercept is not None
        return PlattGate(self.platt_slope, self.platt_intercept)

    @property
    def warning(self) -> str | None:
        """What the user should know about the fit, in one sentence; None if there is nothing."""
        if self.platt_slope is None or self.platt_slope <= 0.0:
            return None
        return (
            "the scorer reads danger the wrong way round: the higher the margin of a calibration frame, the more "
            "probable is danger; the gate 'platt' follows the labels, but look at the prompts (vlmsafe prompts bench)"
        )


def run_gate(name: str, calibration: Calibration | None) -> AnyGate:
    """The gate of a run by its name, fitted as the run recorded it."""
    if name not in FITTED:
        return load_gate(name)
    assert calibration is not None
    return calibration.fitted(name)
