"""The frames of a moment: the one just rendered and, for scorers that want to see motion, some from before it.

A single frame shows no speed. A scorer says how many it wants (`Scorer.frames`); they are `APART` steps apart and
stacked along the last axis, the oldest first. Where an episode has not lasted that long, its frame stands for the
earlier one too, as if nothing had moved.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import EnvironmentFailure
from vlmsafe.signals.shaping import due

Frame = NDArray[np.uint8]

APART = 4
"""Steps. With every fourth step scored, as the paper does, the earlier frame is one that was rendered anyway."""


def stacked(frame: tuple[int, ...], frames: int) -> tuple[int, ...]:
    """The shape of a moment, from that of a frame."""
    return (*frame[:-1], frame[-1] * frames)


class Moments:
    """Renders the frames that are needed, and no others, and puts moments together."""

    def __init__(self, render: Callable[[], Frame], frames: int, every: int) -> None:
        self._render, self._every = render, every
        self._back = [APART * number for number in range(frames)]  # steps back, of each frame of a moment
        self._held: dict[int, Frame] = {}

    def after(self, step: int) -> Frame | None:
        """To be called after every step of an episode, with its number from 1: the moment, where it is to be scored."""
        if step == 1:
            self._held.clear()
        if not any(due(step + back, self._every) for back in self._back):
            return None
        now = self._render()
        if len(self._back) == 1:
            return now
        self._held = {at: frame for at, frame in self._held.items() if at >= step - self._back[-1]}
        self._held[step] = now = now.copy()  # an environment may draw its next frame into the same array
        if any(frame.shape != now.shape for frame in self._held.values()):
            raise EnvironmentFailure(
                f"the environment's frames changed their size within an episode, to {now.shape} at step {step}; "
                "scoring needs frames of one size"
            )
        if not due(step, self._every):
            return None
        return np.concatenate([self._held.get(step - back, now) for back in reversed(self._back)], axis=-1)
