"""The Lagrange multiplier: a price on cost that rises while the budget is exceeded (Eq. 7)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from vlmsafe.config import MultiplierConfig

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8


@dataclass
class AdamMultiplier:
    """One Adam step on -lambda * g per epoch, projected onto [0, upper bound], with g = J_C - d.

    Adam divides by the running size of g, so a step is about the learning rate whatever the violation; its moments
    persist over epochs and are not reset by the projection.
    """

    value: float
    learning_rate: float
    upper_bound: float = math.inf
    steps: int = 0
    first_moment: float = 0.0
    second_moment: float = 0.0

    @classmethod
    def from_config(cls, config: MultiplierConfig) -> AdamMultiplier:
        upper = math.inf if config.upper_bound is None else config.upper_bound
        return cls(value=max(config.initial, 0.0), learning_rate=config.learning_rate, upper_bound=upper)

    def update(self, episode_cost: float, budget: float) -> float:
        """The multiplier after an epoch whose mean episode cost J_C was `episode_cost`."""
        gradient = -(episode_cost - budget)  # of the loss -lambda * (J_C - d)
        self.steps += 1
        self.first_moment = _BETA_1 * self.first_moment + (1 - _BETA_1) * gradient
        self.second_moment = _BETA_2 * self.second_moment + (1 - _BETA_2) * gradient**2
        mean = self.first_moment / (1 - _BETA_1**self.steps)
        size = math.sqrt(self.second_moment / (1 - _BETA_2**self.steps)) + _EPSILON
        self.value = min(max(self.value - self.learning_rate * mean / size, 0.0), self.upper_bound)
        return self.value

    def state(self) -> dict[str, float]:
        """Everything needed to continue exactly."""
        return {key: value for key, value in asdict(self).items() if key not in ("learning_rate", "upper_bound")}

    def load_state(self, state: dict[str, float]) -> None:
        self.value, self.steps = state["value"], int(state["steps"])
        self.first_moment, self.second_moment = state["first_moment"], state["second_moment"]
