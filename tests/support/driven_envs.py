"""A small environment with a scripted driver whose action is a linear function of the observation."""

import gymnasium
import numpy as np

from vlmsafe.envs.api import Env

GAIN = np.array([[0.5, -0.3], [0.2, 0.4]])
HORIZON = 100


class Steered(Env):
    """A point that actions push. Each step in `costly` costs 1; `executed` keeps the actions of each episode."""

    def __init__(self, costly=(), answer=lambda state: GAIN @ state):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)
        self.costly, self.answer, self.executed = costly, answer, []

    def reset(self, *, seed=None, options=None):
        self.state = np.random.default_rng(seed).uniform(-1.0, 1.0, 2)
        self.executed.append([])
        return self.state.astype(np.float32), {}

    def step(self, action):
        self.executed[-1].append(action.copy())
        self.state = 0.9 * self.state + 0.05 * action
        step = len(self.executed[-1])
        cost = float(step in self.costly)
        return self.state.astype(np.float32), 1.0, False, step >= HORIZON, {"cost": cost}

    def frame(self):
        return np.zeros((8, 8, 3), np.uint8)

    def expert(self):
        return lambda: self.answer(self.state)


class Undriven(gymnasium.Env):
    """The same for Gymnasium alone, without a scripted driver."""

    def __init__(self):
        self.inner = Steered()
        self.observation_space, self.action_space = self.inner.observation_space, self.inner.action_space

    def reset(self, *, seed=None, options=None):
        return self.inner.reset(seed=seed)

    def step(self, action):
        return self.inner.step(action)


class Driven(Undriven):
    """With one."""

    def expert(self):
        return self.inner.expert()


class Confused(Undriven):
    """With one that answers nonsense."""

    def expert(self):
        return lambda: np.array([np.nan])


for kind in (Undriven, Driven, Confused):
    gymnasium.register(f"{kind.__name__}-v0", kind, max_episode_steps=HORIZON)
