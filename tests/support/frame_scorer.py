"""A small deterministic scorer for tests: a fixed random projection of each frame, frame by frame.

One frame at a time, so that its numbers cannot depend on how frames are batched. Used as
`python:frame_scorer:FrameScorer`, with this folder on the path.
"""

from typing import ClassVar

import numpy as np

from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import InputKind, Rule, Scorer


class FrameScorer(Scorer):
    """Cosines that lie where CLIP's do, near 0.25, and differ from frame to frame."""

    looks_at: ClassVar[InputKind] = "frame"
    rules: ClassVar[tuple[Rule, ...]] = ("decoupled", "coupled", "clg", "yes-no")

    def __init__(self, prompts: PromptSet) -> None:
        self.groups = prompts.sizes
        self._weights = np.random.default_rng(7).normal(size=(48, len(prompts.texts)))
        self.batches: list[int] = []

    def score(self, inputs: np.ndarray) -> np.ndarray:
        self.batches.append(len(inputs))
        return np.stack([self._one(frame) for frame in inputs])

    def _one(self, frame: np.ndarray) -> np.ndarray:
        height, width, _ = frame.shape
        blocks = frame[: height // 4 * 4, : width // 4 * 4].astype(np.float64)
        means = blocks.reshape(4, height // 4, 4, width // 4, 3).mean(axis=(1, 3)).ravel() / 255.0
        return (0.25 + 0.05 * np.tanh(means @ self._weights)).astype(np.float32)


class MotionScorer(FrameScorer):
    """Judges two frames, and the earlier one otherwise than the later."""

    frames = 2

    def _one(self, frame: np.ndarray) -> np.ndarray:
        return 0.7 * super()._one(frame[..., 3:]) - 0.3 * super()._one(frame[..., :3])


class FailingScorer(FrameScorer):
    """Raises on its third batch, as a GPU that runs out of memory does."""

    error: BaseException = MemoryError("out of memory on the device")

    def score(self, inputs: np.ndarray) -> np.ndarray:
        if len(self.batches) == 2:
            raise self.error
        return super().score(inputs)


class LeavingScorer(FailingScorer):
    """Ends the process, or would."""

    error = SystemExit(3)


class LearningScorer(FrameScorer):
    """Looks at frames and learns."""

    def state(self) -> dict[str, np.ndarray]:
        return {"seen": np.array(self.batches)}


class MisspeltScorer(FrameScorer):
    looks_at = "frames"


class RestlessScorer(FrameScorer):
    """Another scorer each time it is made, as a folder is whose model was replaced."""

    made = 0

    def __init__(self, prompts: PromptSet) -> None:
        super().__init__(prompts)
        RestlessScorer.made += 1
        self._weights *= RestlessScorer.made


class WideScorer(FrameScorer):
    """One column too many."""

    def score(self, inputs: np.ndarray) -> np.ndarray:
        return np.pad(super().score(inputs), ((0, 0), (0, 1)))


class LongScorer(FrameScorer):
    """One row too many."""

    def score(self, inputs: np.ndarray) -> np.ndarray:
        return np.pad(super().score(inputs), ((0, 1), (0, 0)))


class NanScorer(FrameScorer):
    def score(self, inputs: np.ndarray) -> np.ndarray:
        return super().score(inputs) * np.nan


class LoudScorer(FrameScorer):
    """Logits where similarities are expected."""

    def score(self, inputs: np.ndarray) -> np.ndarray:
        return super().score(inputs) * 100.0
