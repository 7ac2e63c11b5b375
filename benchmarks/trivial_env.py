"""An environment whose step does next to nothing, for `bridge.py`. It runs in both interpreters."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Trivial(gymnasium.Env[Any, Any]):
    """Counts its steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (8,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.state = np.zeros(8, np.float32)
        return self.state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.state[0] += 1.0
        return self.state, 1.0, False, False, {"cost": 0.0}


gymnasium.register("Trivial-v0", "trivial_env:Trivial", max_episode_steps=1000)
