"""The confidence gate kappa, which weighs the bonus of a frame.

Gate             Eq. 3 of the paper: a distance from a centre, large on both sides
SignedGate       its safe half: frames that look dangerous earn nothing
PlattGate        the probability that a frame is safe, fitted on cost or hazard (`vlmsafe.signals.platt`)
ProbabilityGate  for scores that are probabilities
UserGate         a function of the user's
OpenGate         no gate

A gate is a pure function of the scores of a batch. `vlmsafe.signals.calibration` fits those that need it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.io.source import SourceHash, hash_source
from vlmsafe.signals.rules import Scores
from vlmsafe.signals.scorers.api import GateKind
from vlmsafe.signals.scorers.user_code import PREFIX, import_named, loaded_source

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Gate:
    """kappa = |2 sigma(s (m - c)) - 1|: 0 where the margin m equals the centre c, and close to 1 far from it."""

    scale: float = 100.0
    """s."""
    centre: float = 0.0
    """c. The defaults are the prior-symmetric gate."""

    def kappa(self, margin: Float64) -> Float64:
        """Eq. 3: confidence in [0, 1] per margin. It uses 2 sigma(x) - 1 = tanh(x / 2), which does not overflow."""
        return np.abs(np.tanh(self.scale * (np.asarray(margin, np.float64) - self.centre) / 2.0))

    def __call__(self, scores: Scores) -> Float64:
        return self.kappa(scores.margin)

    @classmethod
    def calibrated(cls, margins: Float64, target: float = 0.5) -> Gate:
        """Eq. 5: the gate with kappa = 0 at the median of the margins, and `target` one interquartile range away."""
        if not 0.0 < target < 1.0:
            raise InputError(f"the gate's target is {target}; it must lie between 0 and 1")
        low, centre, high = np.quantile(np.asarray(margins, np.float64), [0.25, 0.5, 0.75])
        spread = float(high - low)
        if not spread > 0.0:
            raise InputError(
                f"the gate cannot be calibrated: the middle half of {len(margins)} margins are all {centre:.6g}, so "
                "their interquartile range is 0. The scorer does not tell these frames apart; use more frames, other "
                "prompts, or the prior-symmetric gate"
            )
        return cls(math.log((1.0 + target) / (1.0 - target)) / spread, float(centre))


@dataclass(frozen=True)
class SignedGate:
    """kappa = max(0, 2 sigma(s (m - c)) - 1): Eq. 3 on the safe side of the centre, and 0 on the dangerous side.

    Eq. 3 has no direction: a frame that looks unusually dangerous gets as large a weight as one that looks unusually
    safe, and its bonus is paid in full. Here such a frame earns nothing.
    """

    scale: float = 100.0
    """s."""
    centre: float = 0.0
    """c. Margins below it say danger."""

    def kappa(self, margin: Float64) -> Float64:
        """Weight in [0, 1] per margin; it never falls where the margin rises."""
        return np.maximum(np.tanh(self.scale * (np.asarray(margin, np.float64) - self.centre) / 2.0), 0.0)

    def __call__(self, scores: Scores) -> Float64:
        return self.kappa(scores.margin)


@dataclass(frozen=True)
class PlattGate:
    """kappa = 1 - sigma(a m + b): the probability that a frame is safe, by a logistic regression of danger on margins.

    The sign is fitted too. A negative slope a means that frames with higher margins are safer, as the prompts intend.
    """

    slope: float
    """a."""
    intercept: float
    """b."""

    @property
    def scale(self) -> float:
        """s of sigma(s (m - c)), which is the same probability."""
        return -self.slope

    @property
    def centre(self) -> float | None:
        """c, the margin at which safe and dangerous are equally probable; None if the margin says nothing."""
        return -self.intercept / self.slope if self.slope else None

    def kappa(self, margin: Float64) -> Float64:
        """Weight in [0, 1] per margin. It uses sigma(x) = (1 + tanh(x / 2)) / 2, which does not overflow."""
        return (1.0 - np.tanh((self.slope * np.asarray(margin, np.float64) + self.intercept) / 2.0)) / 2.0

    def __call__(self, scores: Scores) -> Float64:
        return self.kappa(scores.margin)


@dataclass(frozen=True)
class OpenGate:
    """kappa = 1 everywhere: the gate is off."""

    def __call__(self, scores: Scores) -> Float64:
        return np.ones_like(scores.positive)


@dataclass(frozen=True)
class ProbabilityGate:
    """kappa = |2 r / (r + c) - 1|, for scores that are probabilities. It needs no calibration.

    Where both scores are 0, neither answer is more likely, so kappa is 0.
    """

    def __call__(self, scores: Scores) -> Float64:
        total = scores.positive + scores.negative
        share = np.divide(scores.positive, total, out=np.full_like(total, 0.5), where=total > 0.0)
        return np.abs(2.0 * share - 1.0)


@dataclass(frozen=True)
class UserGate:
    """A function of the user's: arrays of positive scores, negative scores and margins to one kappa per frame."""

    name: str
    """python:<module>:<name>."""
    function: Callable[[Float64, Float64, Float64], Any]
    source: SourceHash | None = field(default=None, compare=False)
    """The source that it was loaded from."""

    def __call__(self, scores: Scores) -> Float64:
        if not len(scores.margin):
            return np.empty(0)
        try:
            # Copies, so that a function that works in place changes no score.
            found = self.function(scores.positive.copy(), scores.negative.copy(), scores.margin.copy())
            kappa = np.array(found, np.float64)
        except VlmsafeError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise InputError(f"the gate '{self.name}' raised {type(error).__name__}: {error}") from error
        if kappa.shape != scores.margin.shape:
            raise InputError(
                f"the gate '{self.name}' gave an array of shape {kappa.shape} for {len(scores.margin)} frames; "
                f"expected one kappa per frame, {scores.margin.shape}"
            )
        if not (np.isfinite(kappa).all() and kappa.min() >= 0.0 and kappa.max() <= 1.0):
            raise InputError(
                f"the gate '{self.name}' gave kappa from {kappa.min():.4g} to {kappa.max():.4g}; every kappa must lie "
                "between 0 and 1"
            )
        return kappa


MarginGate = Gate | SignedGate | PlattGate
"""The gates that need only the margin, so that `kappa` can be replayed from a trace."""
AnyGate = Gate | SignedGate | PlattGate | OpenGate | ProbabilityGate | UserGate

GATES: dict[str, AnyGate] = {
    "off": OpenGate(),
    "prior-symmetric": Gate(),
    "probability": ProbabilityGate(),
    "signed": SignedGate(),
}
"""The gates that need no calibration, by name."""

FITTED = ("calibrated", "signed-calibrated", "platt")
"""The gates that are fitted on frames before training, by name."""

ONE_SIDED = ("signed", "signed-calibrated", "platt")
"""The gates that close on frames that look dangerous. They cannot weigh what the negative score adds to the cost."""


def load_gate(name: str) -> AnyGate:
    """A gate that needs no calibration, by name; a gate of the user's is imported."""
    if not name.startswith(PREFIX):
        return GATES[name]
    argument, before = name.removeprefix(PREFIX), frozenset(sys.modules)
    module = argument.partition(":")[0]
    function = import_named("gate", argument, lambda value: getattr(value, "__module__", None) == module)
    made_in = {module, getattr(function, "__module__", module)}
    return UserGate(name, function, loaded_source(module, made_in, before))


def gate_source(name: str) -> SourceHash | None:
    """The present source of a gate of the user's; None for those of this package."""
    return hash_source([name.split(":")[1]]) if name.startswith(PREFIX) else None


def gate_name(gate: AnyGate) -> str:
    """The name of a gate as in a run's settings."""
    if isinstance(gate, Gate | SignedGate):
        fitted = "calibrated" if isinstance(gate, Gate) else "signed-calibrated"
        return next((name for name, one in GATES.items() if one == gate), fitted)
    if isinstance(gate, UserGate):
        return gate.name
    return "platt" if isinstance(gate, PlattGate) else next(name for name, one in GATES.items() if one == gate)


def gate_levels(gate: AnyGate) -> dict[str, float | None]:
    """Scale s and centre c of a gate; None if it has none."""
    if isinstance(gate, MarginGate):
        return {"scale": gate.scale, "centre": gate.centre}
    return {"scale": None, "centre": None}


def uncalibrated(kind: GateKind) -> AnyGate:
    """A scorer's own gate where nothing calibrates one, as in a trace of a run that has another scorer, or no gate."""
    return GATES["prior-symmetric" if kind == "calibrated" else kind]
