"""A simulator that takes its time to start, and leaves a mark when it begins to."""

import os
import time
from pathlib import Path

import gymnasium


class Slow(gymnasium.Env):
    def __init__(self):
        Path(os.environ["SLOW_START_MARK"]).touch()
        time.sleep(60)


gymnasium.register("Slow-v0", entry_point=Slow)
