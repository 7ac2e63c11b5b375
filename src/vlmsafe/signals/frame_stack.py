"""Stacks of frames: the newest frame and, for scorers that need to see motion, earlier ones with it.

A single frame shows no speed. A scorer says how many frames it wants (`Scorer.frames`). They are `STEPS_APART` steps
apart and stacked along the last axis, the oldest first. Where an episode is too short for an earlier frame, the newest
frame is repeated, as if nothing had moved.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import EnvironmentFailure
from vlmsafe.signals.shaping import due

Frame = NDArray[np.uint8]

STEPS_APART = 4
"""The paper scores every fourth step, so with its setting the earlier frame has been rendered already."""


def stack_shape(frame: tuple[int, ...], frames: int) -> tuple[int, ...]:
    """The shape of a stack of so many frames."""
    return (*frame[:-1], frame[-1] * frames)


class FrameStack:
    """Renders the frames that are needed, and no others, and stacks them."""

    def __init__(self, render: Callable[[], Frame], frames: int, every: int) -> None:
        self._render, self._every = render, every
        self._steps_back = [STEPS_APART * number for number in range(frames)]  # of each frame in a stack
        self._frames: dict[int, Frame] = {}  # by step

    def after(self, step: int) -> Frame | None:
        """The stack after a step that is scored, None after others. Call it after every step, numbered from 1."""
        if step == 1:
            self._frames.clear()
        if not any(due(step + back, self._every) for back in self._steps_back):
            return None
        newest = self._render()
        if len(self._steps_back) == 1:
            return newest
        self._frames = {at: frame for at, frame in self._frames.items() if at >= step - self._steps_back[-1]}
        self._frames[step] = newest = newest.copy()  # an environment may draw its next frame into the same array
        if any(frame.shape != newest.shape for frame in self._frames.values()):
            raise EnvironmentFailure(
                f"the environment's frames changed their size within an episode, to {newest.shape} at step {step}; "
                "scoring needs frames of one size"
            )
        if not due(step, self._every):
            return None
        return np.concatenate([self._frames.get(step - back, newest) for back in reversed(self._steps_back)], axis=-1)
