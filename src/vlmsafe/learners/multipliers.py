"""Lagrange multipliers: the weight of cost in the policy's objective, which rises while the budget is exceeded.

Each is updated once per epoch from a `Bracket`, whose two terms are recorded separately. With these records a
multiplier can be replayed with and without its signal term (`vlmsafe.analysis.multiplier_replay`).
"""

from __future__ import annotations

import abc
import math
from collections import deque
from dataclasses import dataclass
from typing import Any

from vlmsafe.config.learning import MultiplierConfig
from vlmsafe.config.settings import SignalMultiplierConfig

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class Bracket:
    """g, what moves a multiplier, as its two terms."""

    cost_gap: float
    """J_C - d."""
    signal_term: float = 0.0
    """eta_2 (mean c_vlm - tau)."""

    @property
    def value(self) -> float:
        """g. A zero signal term leaves the gap unchanged, bit for bit."""
        return self.cost_gap + self.signal_term


class Multiplier(abc.ABC):
    """A non-negative number with a state that can be saved."""

    value: float

    def __init__(self, config: MultiplierConfig) -> None:
        self.config = config
        self._upper = math.inf if config.upper_bound is None else config.upper_bound

    def bracket(self, episode_cost: float, budget: float, signal_mean: float | None = None) -> Bracket:
        """Eq. 7's g = (J_C - d) + eta_2 (mean c_vlm - tau), from the mean episode cost and the mean negative score.

        The second term is zero where eta_2 is zero or nothing was scored.
        """
        signal = (
            0.0 if signal_mean is None else self.config.signal_weight * (signal_mean - self.config.signal_reference)
        )
        return Bracket(episode_cost - budget, signal)

    @abc.abstractmethod
    def update(self, bracket: Bracket, episode_cost: float) -> float:
        """The multiplier after an epoch."""

    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything needed to continue exactly, as JSON."""

    @abc.abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""

    def _project(self, value: float) -> float:
        return min(max(value, 0.0), self._upper)


class AdamMultiplier(Multiplier):
    """Eq. 7's update: one Adam step on -lambda g per epoch, projected onto [0, upper bound].

    Adam divides by the running size of g, so a step is about the learning rate however large the violation is. Its
    moments persist over epochs and are not reset by the projection.
    """

    def __init__(self, config: MultiplierConfig) -> None:
        super().__init__(config)
        self.value = self._project(config.initial)
        self._steps, self._first, self._second = 0, 0.0, 0.0

    def update(self, bracket: Bracket, episode_cost: float) -> float:
        gradient = -bracket.value  # of the loss -lambda g
        self._steps += 1
        self._first = _BETA_1 * self._first + (1 - _BETA_1) * gradient
        self._second = _BETA_2 * self._second + (1 - _BETA_2) * gradient * gradient
        mean = self._first / (1 - _BETA_1**self._steps)
        size = math.sqrt(self._second / (1 - _BETA_2**self._steps)) + _EPSILON
        self.value = self._project(self.value - self.config.learning_rate * mean / size)
        return self.value

    def state(self) -> dict[str, Any]:
        return {"value": self.value, "steps": self._steps, "first_moment": self._first, "second_moment": self._second}

    def load_state(self, state: dict[str, Any]) -> None:
        self.value, self._steps = state["value"], state["steps"]
        self._first, self._second = state["first_moment"], state["second_moment"]


class GradientMultiplier(Multiplier):
    """One plain gradient step, lambda + eta_1 g, projected: the rule of the published FOCOPS and CUP."""

    def __init__(self, config: MultiplierConfig) -> None:
        super().__init__(config)
        self.value = self._project(config.initial)

    def update(self, bracket: Bracket, episode_cost: float) -> float:
        self.value = self._project(self.value + self.config.learning_rate * bracket.value)
        return self.value

    def state(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class PidMultiplier(Multiplier):
    """A PID controller on g: proportional and derivative parts smoothed, the integral kept non-negative.

    The derivative looks at the smoothed episode cost against its value `pid_delay` epochs ago and counts only while
    the cost rises. `initial` is where the integral starts; the multiplier itself starts at zero.
    """

    def __init__(self, config: MultiplierConfig) -> None:
        super().__init__(config)
        self.value = 0.0
        self._integral = config.initial
        self._proportional = 0.0
        self._smoothed_cost = 0.0
        self._past_costs: deque[float] = deque([0.0], maxlen=config.pid_delay)

    def update(self, bracket: Bracket, episode_cost: float) -> float:
        config = self.config
        self._integral = max(0.0, self._integral + config.pid_ki * bracket.value)
        self._proportional = config.pid_smoothing * self._proportional + (1 - config.pid_smoothing) * bracket.value
        self._smoothed_cost = config.pid_smoothing * self._smoothed_cost + (1 - config.pid_smoothing) * episode_cost
        rise = max(0.0, self._smoothed_cost - self._past_costs[0])
        self._past_costs.append(self._smoothed_cost)
        self.value = self._project(config.pid_kp * self._proportional + self._integral + config.pid_kd * rise)
        return self.value

    def state(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "integral": self._integral,
            "proportional": self._proportional,
            "smoothed_cost": self._smoothed_cost,
            "past_costs": list(self._past_costs),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.value, self._integral = state["value"], state["integral"]
        self._proportional, self._smoothed_cost = state["proportional"], state["smoothed_cost"]
        self._past_costs = deque(state["past_costs"], maxlen=self.config.pid_delay)


def make_multiplier(config: MultiplierConfig) -> Multiplier | None:
    """The multiplier that a configuration asks for, or None."""
    kinds: dict[str, type[Multiplier]] = {
        "adam": AdamMultiplier,
        "gradient": GradientMultiplier,
        "pid": PidMultiplier,
    }
    return kinds[config.kind](config) if config.kind != "none" else None


def make_signal_multiplier(config: SignalMultiplierConfig) -> Multiplier | None:
    """The signal's own multiplier, moved by the same rules from its own gap, or None."""
    return make_multiplier(
        MultiplierConfig(
            kind=config.kind,
            initial=config.initial,
            learning_rate=config.learning_rate,
            upper_bound=config.upper_bound,
        )
    )
