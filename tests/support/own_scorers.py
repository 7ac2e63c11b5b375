"""A scorer of a user's own that looks at no frames."""

import numpy as np

from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import Scorer


class Blind(Scorer):
    looks_at = "observation"
    rules = ("decoupled",)
    groups = (1, 1)

    def __init__(self, prompts: PromptSet) -> None:
        pass

    def score(self, inputs: np.ndarray) -> np.ndarray:
        return np.zeros((len(inputs), 2), np.float32)
