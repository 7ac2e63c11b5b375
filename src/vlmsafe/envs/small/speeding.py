"""A small constrained problem with a known answer, for tests and first steps without a simulator.

In each of T steps the agent picks a speed v, earns v (2 - v) plus noise and pays 3 w v^2. The risk of the road, w, is
drawn uniformly from [0.5, 1.5] per scenario and observed. Ignoring the cost, v = 1 is best. With a multiplier lambda
on the cost the best speed is v = 1 / (1 + 3 lambda w), and the constrained optimum has the multiplier at which the
expected cost equals the budget (`optimum`). For T = 20 and the default budget of 30 its return is 18.38; v = 1 earns
20 and pays 60.

Two details keep the problem well posed for policy gradients. The reward falls beyond v = 1, which keeps policies away
from the bound of their actions, where clipping leaves no gradient. Noise keeps the deviation of the advantages, by
which learners divide, from vanishing as the policy becomes certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.api import Env, EnvSpec, Frame, Observation, Scenarios

_TOP_SPEED = 1.5
_REWARD_NOISE = 0.2
_COST_SCALE = 3.0
_LEAST_RISK, _MOST_RISK = 0.5, 1.5
_FRAME = 64


def optimum(horizon: int, budget: float) -> tuple[float, float]:
    """(return, multiplier) of the best policy whose expected cost is within the budget."""
    from scipy.optimize import brentq  # slow to import, and workers never need it

    def mean(antiderivative: Callable[[float], float]) -> float:
        return antiderivative(1.5) - antiderivative(0.5)

    def cost(price: float) -> float:  # T E[3 w v^2] with v = 1 / (1 + price w)
        return _COST_SCALE * horizon * mean(lambda w: (math.log1p(price * w) + 1 / (1 + price * w)) / price**2)

    if budget >= _COST_SCALE * horizon * mean(lambda w: w**2 / 2):  # what the best unconstrained policy, v = 1, pays
        return float(horizon), 0.0
    price: float = brentq(lambda price: cost(price) - budget, 1e-6, 1e6)
    best = horizon * mean(lambda w: (2 * math.log1p(price * w) + 1 / (1 + price * w)) / price)
    return best, price / _COST_SCALE


class Speeding(Env):
    """The environment of this module's description."""

    def __init__(self, scenarios: Scenarios, horizon: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(0.0, _TOP_SPEED, (1,), np.float32)
        self._scenarios = scenarios
        self._horizon = horizon
        self._risk, self._step, self._distance, self._cost = 1.0, 0, 0.0, 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        scenario = self._scenarios.choose(seed, self.np_random)
        self._rng = np.random.default_rng(scenario)
        self._risk = float(self._rng.uniform(_LEAST_RISK, _MOST_RISK))
        self._step, self._distance, self._cost = 0, 0.0, 0.0
        return self._observation(), {"scenario": scenario}

    def step(self, action: NDArray[np.floating[Any]]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        speed = float(np.clip(action[0], 0.0, _TOP_SPEED))
        self._step += 1
        self._distance += speed
        self._cost = _COST_SCALE * self._risk * speed**2
        reward = speed * (2.0 - speed) + _REWARD_NOISE * self._rng.standard_normal()
        return self._observation(), reward, False, self._step >= self._horizon, {"cost": self._cost}

    def _observation(self) -> Observation:
        return np.array([2.0 * (self._risk - 1.0), 2.0 * self._step / self._horizon - 1.0], np.float32)

    def frame(self) -> Frame:
        """A road seen from above, redder where it is riskier, with the car at the distance it has covered."""
        image = np.full((_FRAME, _FRAME, 3), 255, np.uint8)
        image[:, 24:40] = (int(100 + 80 * (self._risk - 0.5)), 100, 100)
        top = int((_FRAME - 8) * (1.0 - self._distance / (_TOP_SPEED * self._horizon)))
        image[top : top + 8, 29:35] = (30, 160, 60)
        return image

    def progress(self) -> Mapping[str, float]:
        return {"distance": self._distance}

    def facts(self) -> Mapping[str, float]:
        return {"hazard": self.hazard(), "risk": self._risk - _LEAST_RISK}

    def hazard(self) -> float:
        """The last step's cost as a share of the largest possible.

        There is nothing to see in advance here: the speed itself costs, in the step that chooses it.
        """
        return self._cost / (_COST_SCALE * _MOST_RISK * _TOP_SPEED**2)


def make(spec: EnvSpec, scenarios: Scenarios, randomise: bool) -> Env:
    """Called by `EnvSpec.make`; there is nothing to randomise beyond the scenario."""
    assert spec.horizon is not None
    return Speeding(scenarios, spec.horizon)
