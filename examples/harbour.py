"""A boat in a harbour with rocks: an environment that is not of this package, for docs/guides/distil.md.

It needs only numpy and Gymnasium, and draws its own frames of 96 x 128 pixels.
"""

import gymnasium
import numpy as np

WIDTH, HEIGHT, PIXELS = 4.0, 3.0, 32  # of the harbour, and pixels per unit
ROCK, BOAT = 0.25, 0.08  # radii
_ROWS, _COLUMNS = np.mgrid[0 : int(HEIGHT * PIXELS), 0 : int(WIDTH * PIXELS)]


class Harbour(gymnasium.Env):
    """Sailing towards the buoy pays. Touching a rock costs."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (10,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rocks = self.np_random.uniform((0.8, 0.3), (WIDTH - 0.6, HEIGHT - 0.3), (5, 2))
        self.boat = np.array([0.3, self.np_random.uniform(0.5, HEIGHT - 0.5)])
        self.buoy = np.array([WIDTH - 0.3, self.np_random.uniform(0.5, HEIGHT - 0.5)])
        self.speed, self.current = np.zeros(2), self.np_random.normal(0.0, 0.004, 2)
        return self._observation(), {}

    def step(self, action):
        before = np.linalg.norm(self.buoy - self.boat)
        self.speed = 0.9 * self.speed + 0.02 * np.clip(action, -1.0, 1.0) + self.current
        self.boat = np.clip(self.boat + self.speed, BOAT, (WIDTH - BOAT, HEIGHT - BOAT))
        left = np.linalg.norm(self.buoy - self.boat)
        return self._observation(), float(before - left), bool(left < 0.2), False, {"cost": float(self._gap() <= 0.0)}

    def render(self):
        frame = np.full((*_ROWS.shape, 3), (70, 120, 170), np.uint8)
        for place, radius, colour in (
            *((rock, ROCK, (110, 90, 70)) for rock in self.rocks),
            (self.buoy, 0.12, (240, 60, 40)),
            (self.boat, BOAT, (250, 250, 250)),
        ):
            near = (_COLUMNS / PIXELS - place[0]) ** 2 + (_ROWS / PIXELS - place[1]) ** 2 <= radius**2
            frame[near] = colour
        return frame

    def hazard(self):
        """1 at a rock, 0 from one unit away on."""
        return float(np.clip(1.0 - self._gap(), 0.0, 1.0))

    def facts(self):
        """Measures that captions can be written from: gaps in boat lengths, and the contact."""
        gap = self._gap()
        return {"object_gap": max(gap, 0.0) / (2 * BOAT), "hit": float(gap <= 0.0), "hazard": self.hazard()}

    def _gap(self):
        return float(np.linalg.norm(self.rocks - self.boat, axis=1).min()) - ROCK - BOAT

    def _observation(self):
        nearest = self.rocks[np.argsort(np.linalg.norm(self.rocks - self.boat, axis=1))[:2]] - self.boat
        return np.concatenate([self.boat, self.speed, self.buoy - self.boat, *nearest]).astype(np.float32)


gymnasium.register("Harbour-v0", entry_point=Harbour, max_episode_steps=200)
