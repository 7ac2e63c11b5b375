"""A simulator that takes its time to start."""

import time

import gymnasium


class Slow(gymnasium.Env):
    def __init__(self):
        time.sleep(60)


gymnasium.register("Slow-v0", entry_point=Slow)
