"""Teachers of a user's own, for distillation."""

import numpy as np

import vlmsafe


class Light(vlmsafe.Scorer):
    """Probabilities: how bright the newest of two frames is, and how much it changed."""

    looks_at, rules, bounds, frames = "frame", ("decoupled",), (0.0, 1.0), 2

    def __init__(self, prompts):
        self.groups = (1, 1)

    def score(self, inputs):
        pixels = inputs.astype(np.float32) / 255.0
        light, change = (
            pixels[..., 3:].mean(axis=(1, 2, 3)),
            np.abs(pixels[..., 3:] - pixels[..., :3]).mean(axis=(1, 2, 3)),
        )
        return np.stack([light, change], axis=1)


class Still(Light):
    def score(self, inputs):
        return np.full((len(inputs), 2), 0.5, np.float32)


class Three(Light):
    def __init__(self, prompts):
        self.groups = (3, 1)
