"""The constraints of a run: episode cost within its budget and, where a run asks for it, the signal within its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlmsafe.config.settings import TrainConfig
from vlmsafe.learners.advantages import combine_costs
from vlmsafe.learners.multipliers import Bracket, make_multiplier, make_signal_multiplier
from vlmsafe.numerics.normaliser import Array
from vlmsafe.training.summaries import Row, mean_of


class Constraints:
    """Eq. 1's J_C <= d as a multiplier lambda on the cost advantage, and the signal's own multiplier mu.

    Holds what moved the multipliers last, for the epoch's row.
    """

    def __init__(self, config: TrainConfig) -> None:
        assert config.budget is not None
        self.budget = config.budget
        self.multiplier = make_multiplier(config.multiplier)
        self.signal_multiplier = make_signal_multiplier(config.signal.multiplier)
        self._bracket: Bracket | None = None
        self._signal_bracket: Bracket | None = None

    def update(
        self,
        episode_cost: float | None,
        finished: Sequence[Row],
        excess_budget: float | None,
        *,
        held: bool = False,
    ) -> None:
        """Move the multipliers by J_C and by the mean scores of the epoch's finished episodes.

        Where no episode finished, nothing is known and nothing changes. With `held`, lambda keeps its value.
        """
        self._bracket = self._signal_bracket = None
        if episode_cost is None or not finished:
            return
        self._bracket = Bracket(episode_cost - self.budget)
        if self.multiplier is not None:
            self._bracket = self.multiplier.bracket(episode_cost, self.budget, mean_of(finished, "negative_score"))
            if not held:
                self.multiplier.update(self._bracket, episode_cost)
        if self.signal_multiplier is not None:
            mean_excess = mean_of(finished, "signal_excess")
            assert mean_excess is not None
            assert excess_budget is not None
            self._signal_bracket = Bracket(mean_excess - excess_budget)
            self.signal_multiplier.update(self._signal_bracket, mean_excess)

    @property
    def cost_gap(self) -> float:
        """J_C - d; where it is unknown the budget counts as just met."""
        return self._bracket.cost_gap if self._bracket else 0.0

    @property
    def total(self) -> float:
        """lambda + mu, the multiplier of the combined cost advantages."""
        return self._lambda + self._mu

    def combine(self, cost: Array, signal: Array | None) -> Array:
        """One advantage for cost and signal together, as a learner expects it."""
        return cost if signal is None else combine_costs(cost, self._lambda, signal, self._mu)

    @property
    def _lambda(self) -> float:
        return self.multiplier.value if self.multiplier else 0.0

    @property
    def _mu(self) -> float:
        return self.signal_multiplier.value if self.signal_multiplier else 0.0

    def figures(self) -> dict[str, float | None]:
        """Each term separately, for the epoch's row."""
        return {
            "budget": self.budget,
            "cost_gap": self._bracket.cost_gap if self._bracket else None,
            "signal_term": self._bracket.signal_term if self._bracket else None,
            "bracket": self._bracket.value if self._bracket else None,
            "multiplier": self.multiplier.value if self.multiplier else None,
            "signal_gap": self._signal_bracket.cost_gap if self._signal_bracket else None,
            "signal_multiplier": self.signal_multiplier.value if self.signal_multiplier else None,
        }

    def state(self) -> dict[str, Any]:
        """Both multipliers as JSON; None for one that the run does not have."""
        return {
            "multiplier": self.multiplier.state() if self.multiplier else None,
            "signal_multiplier": self.signal_multiplier.state() if self.signal_multiplier else None,
        }

    def load_state(self, values: dict[str, Any]) -> None:
        """Continue from `state`, among the other values of a checkpoint."""
        if self.multiplier is not None:
            self.multiplier.load_state(values["multiplier"])
        if self.signal_multiplier is not None:
            self.signal_multiplier.load_state(values["signal_multiplier"])
