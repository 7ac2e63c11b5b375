"""Environments that misbehave, registered on import so that workers find them as gym:broken_envs:<id>."""

import os
import signal
from pathlib import Path

import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    """A well-behaved base: ten steps, one dimension."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), self.reward(), False, self.t >= 10, {"cost": 0.0}

    def reward(self):
        return float(self.np_random.normal())

    def render(self):
        image = np.full((32, 48, 3), 255, np.uint8)
        image[:, 4 * self.t : 4 * self.t + 8] = (200, 30, 10 * self.t)
        return image


class Uneven(Walk):
    """Episodes of 1 to 10 steps."""

    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, bool(self.np_random.random() < 0.15), truncated, info


class HugeReward(Walk):
    """Finite, and still beyond what can be learned from."""

    def reward(self):
        return 1e30


class NanReward(Walk):
    def reward(self):
        return float("nan") if self.t == 7 else 0.0


class CrashOnce(Walk):
    """Dies like a simulator with a segmentation fault, the first time only, after the steps of training's own check."""

    def reward(self):
        flag = Path(os.environ["CRASH_FLAG"])
        if self.t == 7 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().reward()


class CrashAlways(Walk):
    def reward(self):
        os._exit(3)


class Raises(Walk):
    def reward(self):
        raise RuntimeError("the physics\nengine diverged")


class Sometimes(Walk):
    """Misbehaves in one of twenty scenarios."""

    def reset(self, *, seed=None, options=None):
        self.bad = seed is not None and seed % 20 == 0
        return super().reset(seed=seed, options=options)


class SometimesRaises(Sometimes):
    def reward(self):
        if self.bad:
            raise RuntimeError("the car left the world")
        return super().reward()


class SometimesHuge(Sometimes):
    def reward(self):
        return 1e30 if self.bad else super().reward()


class NoCost(Walk):
    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {}


class Endless(Walk):
    """Episodes far longer than an epoch."""

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, False, info


class Chatty(Walk):
    """Prints at every step."""

    def reward(self):
        print("a step", flush=True)
        return super().reward()


for kind in (
    Walk,
    Chatty,
    HugeReward,
    NanReward,
    CrashOnce,
    CrashAlways,
    Raises,
    NoCost,
    Endless,
    Uneven,
    SometimesRaises,
    SometimesHuge,
):
    gymnasium.register(f"{kind.__name__}-v0", entry_point=kind)
