"""A small constrained problem whose cost comes late: the mistake is made long before the step that is charged for it.

A car drives T steps of 0.2 s along a road with speed bumps, each 120 to 240 m after the last. Its action in [-1, 1] is
its acceleration in units of 2 m/s^2. It starts at 20 m/s and cannot go faster than 30 m/s or backwards. At u times
20 m/s a step earns u (2 - u) plus noise. Crossing a bump costs 3 for every m/s above 5 m/s and does not change the
speed; nothing else costs. The car observes the gap to the next bump and its speed, which is the complete state.

From 20 m/s it takes 38 steps and 93 m of full braking to cross a bump without cost, so a cost is decided up to 38 steps
before it is charged. For T = 200 and ignoring the cost, 20 m/s is best: it earns 200 and pays 179, six times the
default budget of 30. A driver that brakes for each bump at the last moment earns 165 and pays nothing. One that always
drives at 10 m/s earns 154 and pays 28.

As in `speeding`, the reward falls beyond a best speed, which keeps policies away from the bound of their actions, where
clipping leaves no gradient. Noise keeps the deviation of the advantages, by which learners divide, from vanishing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.api import Env, EnvSpec, Frame, Observation, Scenarios
from vlmsafe.envs.hazard import hazard_of

_STEP = 0.2  # seconds
_ACCELERATION = 2.0  # m/s^2, forwards and backwards
_FREE_SPEED, _BEST_SPEED, _TOP_SPEED = 5.0, 20.0, 30.0  # m/s
_NEAREST, _FARTHEST = 120.0, 240.0  # metres from one bump to the next
_COST_SCALE = 3.0  # per m/s
_REWARD_NOISE = 0.2
_FRAME = 64
_CAR = 6  # pixels
_METRES_PER_PIXEL = _FARTHEST / (_FRAME - _CAR - 2)


class Braking(Env):
    """The environment of this module's description."""

    def __init__(self, scenarios: Scenarios, horizon: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._scenarios = scenarios
        self._horizon = horizon
        self._step, self._distance, self._speed, self._gap = 0, 0.0, _BEST_SPEED, _FARTHEST

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        scenario = self._scenarios.choose(seed, self.np_random)
        self._rng = np.random.default_rng(scenario)
        self._step, self._distance, self._speed = 0, 0.0, _BEST_SPEED
        self._gap = self._rng.uniform(_NEAREST, _FARTHEST)
        return self._observation(), {"scenario": scenario}

    def step(self, action: NDArray[np.floating[Any]]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        change = float(np.clip(action[0], -1.0, 1.0)) * _ACCELERATION * _STEP
        self._speed = min(max(self._speed + change, 0.0), _TOP_SPEED)
        self._step += 1
        self._distance += self._speed * _STEP
        self._gap -= self._speed * _STEP
        cost = 0.0
        if self._gap <= 0.0:
            cost = _COST_SCALE * max(self._speed - _FREE_SPEED, 0.0)
            self._gap += self._rng.uniform(_NEAREST, _FARTHEST)
        share = self._speed / _BEST_SPEED
        reward = share * (2.0 - share) + _REWARD_NOISE * self._rng.standard_normal()
        return self._observation(), reward, False, self._step >= self._horizon, {"cost": cost}

    def _observation(self) -> Observation:
        return np.array([2.0 * self._gap / _FARTHEST - 1.0, 2.0 * self._speed / _TOP_SPEED - 1.0], np.float32)

    def frame(self) -> Frame:
        """A road seen from above, the car at its lower end and the next bump as a bar across it."""
        image = np.full((_FRAME, _FRAME, 3), 255, np.uint8)
        image[:, 20:44] = 120
        bump = _FRAME - _CAR - 2 - round(self._gap / _METRES_PER_PIXEL)
        image[bump : bump + 2, 20:44] = (240, 190, 30)
        image[_FRAME - _CAR :, 30:34] = (30, 160, 60)
        return image

    def progress(self) -> Mapping[str, float]:
        """The distance covered in metres."""
        return {"distance": self._distance}

    def expert(self) -> Callable[[], NDArray[np.float64]]:
        """Drives at the best speed and brakes for each bump at the last moment."""

        def act() -> NDArray[np.float64]:
            distance = (self._speed**2 - _FREE_SPEED**2) / (2 * _ACCELERATION) + 2 * self._speed * _STEP
            return np.array([-1.0 if distance >= self._gap else np.clip(_BEST_SPEED - self._speed, -1.0, 1.0)])

        return act

    def facts(self) -> Mapping[str, float]:
        return {"hazard": self.hazard(), "pace": self._speed / _BEST_SPEED, "bump_gap": self._gap}

    def hazard(self) -> float:
        """How near the next bump is for a car of this speed.

        The closing speed is the speed above 5 m/s, which must be lost before the bump; at 5 m/s or less there is no
        hazard. Six seconds put 1/e where a car at 20 m/s must start to brake (93 m ahead), so that the hazard shows
        while there is still time to brake.
        """
        excess = self._speed - _FREE_SPEED
        return hazard_of(self._gap, excess, reach=1.0, seconds=6.0) if excess > 0.0 else 0.0


def make(spec: EnvSpec, scenarios: Scenarios, randomise: bool) -> Env:
    """Called by `EnvSpec.make`; there is nothing to randomise beyond the scenario."""
    assert spec.horizon is not None
    return Braking(scenarios, spec.horizon)
