"""A small constrained problem with a known answer, for tests and first steps without a simulator.

Each of T steps the agent picks a speed v in [0, 1], earns v and pays w v^2, where w, the risk of the road, is drawn
uniformly from [0.5, 1.5] per scenario and observed. With a budget d the best speed is v = 1 / (2 lambda w), because
raising v pays 1 and costs 2 w v. Summing up,

    cost   = T E[1/w] / (4 lambda^2) = d,   hence   lambda = sqrt(T E[1/w] / (4 d)),
    return = T E[1/w] / (2 lambda)   = sqrt(T d E[1/w]),   with   E[1/w] = ln 3.

For T = 20 and d = 5 that is a return of 10.48 at lambda = 1.05, while ignoring the cost earns 20 and pays 20.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.api import Env, EnvSpec, Frame, Observation, Scenarios
from vlmsafe.errors import InputError

_FRAME = 64


def best_return(horizon: int, budget: float) -> float:
    """Largest expected return of any policy whose expected cost is within the budget."""
    return math.sqrt(horizon * budget * math.log(3.0))


class Speeding(Env):
    """See the module's description."""

    def __init__(self, scenarios: Scenarios, horizon: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self._scenarios = scenarios
        self._horizon = horizon
        self._risk, self._step, self._distance = 1.0, 0, 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        scenario = self._scenarios.draw(self.np_random) if seed is None else seed
        if scenario not in self._scenarios:
            last = self._scenarios.start + self._scenarios.size - 1
            raise InputError(f"scenario {scenario} is not in the pool {self._scenarios.start} to {last}")
        self._risk = float(np.random.default_rng(scenario).uniform(0.5, 1.5))
        self._step, self._distance = 0, 0.0
        return self._observation(), {"scenario": scenario}

    def step(self, action: NDArray[np.floating[Any]]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        speed = float(np.clip(action[0], 0.0, 1.0))
        self._step += 1
        self._distance += speed
        info = {"cost": self._risk * speed**2}
        return self._observation(), speed, False, self._step >= self._horizon, info

    def _observation(self) -> Observation:
        return np.array([2.0 * (self._risk - 1.0), 2.0 * self._step / self._horizon - 1.0], np.float32)

    def frame(self) -> Frame:
        """A road seen from above, redder where it is riskier, and the car as far along it as it has come."""
        image = np.full((_FRAME, _FRAME, 3), 255, np.uint8)
        image[:, 24:40] = (int(100 + 80 * (self._risk - 0.5)), 100, 100)
        top = int((_FRAME - 8) * (1.0 - self._distance / self._horizon))
        image[top : top + 8, 29:35] = (30, 160, 60)
        return image

    def progress(self) -> Mapping[str, float]:
        return {"distance": self._distance}


def make(spec: EnvSpec, scenarios: Scenarios, randomise: bool) -> Env:
    """Called by `EnvSpec.make`; there is nothing to randomise beyond the scenario."""
    assert spec.horizon is not None
    return Speeding(scenarios, spec.horizon)
