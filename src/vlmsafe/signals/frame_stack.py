"""Stacks of frames: the newest frame and, for scorers that need to see motion, earlier ones with it.

A single frame shows no speed. A scorer says how many frames it wants (`Scorer.frames`) and how many steps lie between
two of them (`Scorer.frame_distance`). They are stacked along the last axis, the oldest first. Where an episode is too
short for an earlier frame, the newest frame is repeated, as if nothing had moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import EnvironmentFailure
from vlmsafe.signals.scorers.api import Inputs, Scorer
from vlmsafe.signals.shaping import due

Frame = NDArray[np.uint8]
StepsBack = tuple[int, ...]
"""How many steps before the newest frame each frame of a stack was rendered, the oldest first; the last is 0."""

STEPS_APART = Scorer.frame_distance
NEWEST: StepsBack = (0,)
"""A stack of one frame."""


def steps_back(frames: int, distance: int = STEPS_APART) -> StepsBack:
    """The stack of so many frames that are `distance` steps apart.

    >>> steps_back(3, 2)
    (4, 2, 0)
    """
    return tuple(distance * number for number in reversed(range(frames)))


def stack_of(scorer: Scorer) -> StepsBack:
    """The stack that a scorer looks at."""
    return steps_back(scorer.frames, scorer.frame_distance)


def joint_stack(stacks: Iterable[StepsBack]) -> StepsBack:
    """The smallest stack that holds all frames of several stacks.

    >>> joint_stack([(4, 0), (6, 3, 0)])
    (6, 4, 3, 0)
    """
    return tuple(sorted({0}.union(*stacks), reverse=True))


def part_of_stack(inputs: Inputs, stack: StepsBack, wanted: StepsBack) -> Inputs:
    """The frames of a smaller stack, from a batch of a larger one."""
    if stack[-len(wanted) :] == wanted:
        return inputs[..., -3 * len(wanted) :]  # the newest frames, without a copy
    places = [3 * stack.index(back) for back in wanted]
    return np.concatenate([inputs[..., place : place + 3] for place in places], axis=-1)


def stack_shape(frame: tuple[int, ...], frames: int) -> tuple[int, ...]:
    """The shape of a stack of so many frames."""
    return (*frame[:-1], frame[-1] * frames)


class FrameStack:
    """Renders the frames that are needed, and no others, and stacks them."""

    def __init__(self, render: Callable[[], Frame], stack: StepsBack, every: int) -> None:
        self._render, self._stack, self._every = render, stack, every
        self._frames: dict[int, Frame] = {}  # by step

    def after(self, step: int) -> Frame | None:
        """The stack after a step that is scored, None after others. Call it after every step, numbered from 1."""
        if step == 1:
            self._frames.clear()
        if not any(due(step + back, self._every) for back in self._stack):
            return None
        newest = self._render()
        if len(self._stack) == 1:
            return newest
        self._frames = {at: frame for at, frame in self._frames.items() if at >= step - self._stack[0]}
        self._frames[step] = newest = newest.copy()  # an environment may draw its next frame into the same array
        if any(frame.shape != newest.shape for frame in self._frames.values()):
            raise EnvironmentFailure(
                f"the environment's frames changed their size within an episode, to {newest.shape} at step {step}; "
                "scoring needs frames of one size"
            )
        if not due(step, self._every):
            return None
        return np.concatenate([self._frames.get(step - back, newest) for back in self._stack], axis=-1)
