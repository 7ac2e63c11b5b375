"""Environments that are broken in one way each, some that are odd, and three that are in order, for `check-env`."""

import os
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Good(gymnasium.Env):
    """Walks on a line; every fifth step costs."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Box(-2.0, 2.0, (2,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.x = 0, self.np_random.normal(size=3).astype(np.float32)
        return self.x, {}

    def step(self, action):
        self.t += 1
        self.x = self.x + 0.1 * self.np_random.normal(size=3).astype(np.float32)
        return self.x, float(action.sum()), False, False, {"cost": self.cost()}

    def cost(self):
        return float(self.t % 5 == 0)

    def render(self):
        return np.full((16, 24, 3), self.t % 256, np.uint8)


class GoodImage(Good):
    """A small picture as observation, and no rendering."""

    metadata = {"render_modes": []}  # noqa: RUF012
    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._picture(), {}

    def step(self, action):
        _, *rest = super().step(action)
        return self._picture(), *rest

    def _picture(self):
        return self.np_random.integers(0, 256, (8, 8, 3), np.uint8)


class GoodSix(Good):
    """Six values per step, a dictionary as observation, and everything that may be forwarded."""

    observation_space = spaces.Dict({"x": Good.observation_space, "kind": spaces.Discrete(2)})
    steering = 1

    def reset(self, *, seed=None, options=None):
        return {"x": super().reset(seed=seed)[0], "kind": 1}, {}

    def step(self, action):
        x, reward, terminated, truncated, _ = super().step(action)
        return {"x": x, "kind": 1}, reward, self.cost(), terminated, truncated, {}

    def hazard(self):
        return 0.5

    def progress(self):
        return {"covered": self.t / 40}

    def facts(self):
        return {"speed": 1.0}

    def expert(self):
        return lambda: np.zeros(2)

    def frame(self):
        return np.full((16, 24, 3), 7, np.uint8)


class NoCost(Good):
    def step(self, action):
        return *super().step(action)[:4], {}


class NegativeCost(Good):
    def cost(self):
        return -60.0 if self.t % 5 == 0 else 0.0


class NanCost(Good):
    def cost(self):
        return float("nan") if self.t == 7 else 0.0


class WrongShape(Good):
    def step(self, action):
        x, *rest = super().step(action)
        return x[:2], *rest


class WrongKind(Good):
    """Declares bytes and returns other numbers."""

    observation_space = spaces.Box(0, 255, (3,), np.uint8)


class Endless(Good):
    """Registered without a time limit."""


class Unseeded(Good):
    def reset(self, *, seed=None, options=None):
        observation, info = super().reset()
        return observation, info


class CarriesOver(Good):
    """Goes on where the last episode ended."""

    drift = 0.0

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.drift += 1.0
        self.x = observation + self.drift
        return self.x, info


class Slow(Good):
    def step(self, action):
        time.sleep(0.012)
        return super().step(action)


class Huge(GoodImage):
    observation_space = spaces.Box(0, 255, (512, 512, 3), np.uint8)

    def _picture(self):
        return np.full((512, 512, 3), self.t % 256, np.uint8)


class Raises(Good):
    def cost(self):
        if self.t == 9:
            raise ValueError("the wheel came off")
        return super().cost()


class TextCost(Good):
    def cost(self):
        return "1"


class AlwaysCost(Good):
    def cost(self):
        return 1.0


class NanObservation(Good):
    def step(self, action):
        x, *rest = super().step(action)
        return np.full_like(x, np.nan), *rest


class FixedAction(Good):
    action_space = spaces.Box(np.array([-2.0, 1.0], np.float32), np.array([2.0, 1.0], np.float32))


class WholeActions(Good):
    action_space = spaces.Box(0, 10, (2,), np.int64)


class OneStep(Good):
    def step(self, action):
        x, reward, _, truncated, _ = super().step(action)
        return x, reward, True, truncated, {"cost": float(self.x[0] > 0)}


class OwnUnits(Good):
    """A scripted driver whose later actions are in the environment's units."""

    def expert(self):
        return lambda: np.array([0.5, 1.0 if self.t < 5 else 2.0])


class NoFunction(Good):
    def expert(self):
        return np.zeros(2)


class Dies(Good):
    def cost(self):
        if self.t == 9:
            os._exit(3)
        return super().cost()


class DiesAtOnce(Good):
    def __init__(self, render_mode=None):
        os._exit(3)


class FloatFrame(Good):
    def render(self):
        return super().render() / 255.0


class WideFrame(Good):
    def render(self):
        return super().render().astype(np.int64)


class GreyFrame(Good):
    def render(self):
        return super().render()[..., 0]


class AlphaFrame(Good):
    def render(self):
        return np.zeros((16, 24, 4), np.uint8)


class NoFrame(Good):
    def render(self):
        return None


class ListFrame(Good):
    def render(self):
        return [super().render()]


class RaisingFrame(Good):
    def render(self):
        raise RuntimeError("no display")


class GrowingFrame(Good):
    def render(self):
        return np.zeros((16 + self.t, 24, 3), np.uint8)


class NoMode(Good):
    def __init__(self):
        pass


class Undeclared(NoFrame):
    """Does not say that it renders, and does not."""

    metadata = {"render_modes": []}  # noqa: RUF012


class Hangs(Good):
    def step(self, action):
        while self.t == 5:
            time.sleep(1.0)
        return super().step(action)


class Prints(Good):
    def step(self, action):
        print("chatter from Python")
        return super().step(action)


class PrintsBelow(Good):
    """Prints as a library that is not written in Python does."""

    def step(self, action):
        os.write(1, b"chatter from below\n")
        return super().step(action)


GOOD = (Good, GoodImage, GoodSix)
BROKEN = (
    NoCost, NegativeCost, NanCost, WrongShape, WrongKind, Endless, Unseeded, CarriesOver, Slow, Huge, Raises, TextCost,
    AlwaysCost, NanObservation, FixedAction, WholeActions, OneStep, OwnUnits, NoFunction, Dies, DiesAtOnce, FloatFrame,
    WideFrame, GreyFrame, AlphaFrame, NoFrame, ListFrame, RaisingFrame, GrowingFrame, NoMode, Hangs,
)  # fmt: skip
ODD = (Undeclared, Prints, PrintsBelow)
for kind in (*GOOD, *BROKEN, *ODD):
    limit = None if kind is Endless else 40
    gymnasium.register(f"{kind.__name__}-v0", entry_point=kind, max_episode_steps=limit)
