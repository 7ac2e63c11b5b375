"""A second interpreter with another Gymnasium, and environments for it."""

import fcntl
import subprocess
import sys
from pathlib import Path

GYMNASIUM = "0.29.1"
_PACKAGES = (f"gymnasium=={GYMNASIUM}", "numpy>=1.26,<2.3")


def made_python(cache: Path) -> Path:
    """The python of a virtual environment in `cache`, which is made by the first test that needs it and then kept."""
    place = cache / f"gymnasium-{GYMNASIUM}-python-{sys.version_info.major}.{sys.version_info.minor}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "installed").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", place], check=True)
            pip = [sys.executable, "-m", "pip", "--python", str(place), "install", "--quiet", *_PACKAGES]
            subprocess.run(pip, check=True)
            (place / "installed").touch()
    return place / "bin" / "python"


MODULE = '''
import gymnasium, numpy as np, os, sys, time

print("printed at import")


class Walk(gymnasium.Env):
    """Walks along a line. Its own `frame`, `hazard` and so on depend on the state only."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    steering = 0

    def __init__(self, render_mode=None, fault=None):
        self.render_mode, self.fault = render_mode, fault

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = self.np_random.normal(), 0
        return self._seen(), {"gymnasium": gymnasium.__version__, "kept back": object()}

    def step(self, action):
        self.x, self.t = self.x + float(action[0]) + self.np_random.normal() / 10, self.t + 1
        print("printed in step", self.t)
        if self.fault and self.t == 8:
            self.break_down()
        info = {"cost": np.float32(abs(self.x) > 1), "arrived": bool(self.x > 3), "pid": os.getpid()}
        return self._seen(), np.float32(self.x), self.x > 3, False, info

    def break_down(self):
        if self.fault == "raise":
            raise ValueError("the wheel came off")
        if self.fault == "hang":
            open("hanging", "w").close()
            time.sleep(600)
        if self.fault == "once":
            try:
                open("died", "x").close()
            except FileExistsError:
                return
        os._exit(7)

    def _seen(self):
        return np.array([self.x, self.t % 5])

    def render(self):
        return np.full((8, 12, 3), min(255, int(abs(self.x) * 50)), np.uint8)

    def hazard(self):
        return min(1.0, abs(self.x))

    def progress(self):
        return {"far": abs(self.x)}

    def facts(self):
        return {"speed": np.float64(self.x)}

    def expert(self):
        return lambda: np.array([-np.sign(self.x)])


for fault in (None, "raise", "die", "once", "hang"):
    gymnasium.register(f"Walk{fault or ''}-v0", Walk, max_episode_steps=20, kwargs={"fault": fault})
'''


def write_module(folder: Path, name: str = "walking", text: str = MODULE) -> str:
    """Write the environments; returns what stands before an id of one of them."""
    (folder / f"{name}.py").write_text(text)
    return f"gym:{name}:"
