"""Stacks of frames: the right frames, rendered no more often than needed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmsafe.errors import EnvironmentFailure
from vlmsafe.signals.frame_stack import FrameStack, joint_stack, part_of_stack, stack_shape, steps_back


class Camera:
    """Frames that say at which step they were rendered."""

    def __init__(self) -> None:
        self.step, self.rendered = 0, 0
        self.picture = np.zeros((2, 3, 3), np.uint8)

    def frame(self) -> np.ndarray:
        """Drawn into the same array each time, as some environments do."""
        self.rendered += 1
        self.picture[:] = self.step
        return self.picture


def drive(camera: Camera, stack: FrameStack, steps: int) -> dict[int, list[int]]:
    """The steps of the frames in each stack."""
    found = {}
    for camera.step in range(1, steps + 1):
        if (frames := stack.after(camera.step)) is not None:
            found[camera.step] = frames[0, 0, ::3].tolist()
    return found


@given(st.integers(1, 4), st.integers(1, 7), st.integers(1, 9), st.integers(1, 40))
def test_a_stack_holds_the_frames_some_steps_apart_oldest_first(
    frames: int, distance: int, every: int, steps: int
) -> None:
    camera = Camera()
    found = drive(camera, FrameStack(camera.frame, steps_back(frames, distance), every), steps)
    assert list(found) == list(range(every, steps + 1, every))
    for step, shown in found.items():
        back = [step - distance * number for number in reversed(range(frames))]
        assert shown == [at if at >= 1 else step for at in back]


def test_an_episode_sees_nothing_of_the_one_before_it() -> None:
    camera = Camera()
    stack = FrameStack(camera.frame, steps_back(2), 1)
    drive(camera, stack, 9)
    assert drive(camera, stack, 3) == {1: [1, 1], 2: [2, 2], 3: [3, 3]}


@pytest.mark.parametrize(("frames", "every", "rendered"), [(1, 4, 10), (2, 4, 10), (2, 1, 40), (2, 10, 8), (1, 10, 4)])
def test_no_frame_is_rendered_that_no_stack_needs(frames: int, every: int, rendered: int) -> None:
    camera = Camera()
    drive(camera, FrameStack(camera.frame, steps_back(frames), every), 40)
    assert camera.rendered == rendered


def test_frames_that_change_their_size_are_an_error() -> None:
    camera = Camera()
    stack = FrameStack(camera.frame, steps_back(2), 1)
    stack.after(1)
    camera.picture = np.zeros((4, 4, 3), np.uint8)
    with pytest.raises(EnvironmentFailure, match=r"changed their size within an episode, to \(4, 4, 3\) at step 2"):
        stack.after(2)


def test_a_stack_has_the_shape_that_is_announced() -> None:
    camera = Camera()
    assert FrameStack(camera.frame, steps_back(2), 1).after(1).shape == stack_shape((2, 3, 3), 2) == (2, 3, 6)


STACKS = st.builds(steps_back, st.integers(1, 4), st.integers(1, 6))


@given(st.lists(STACKS, min_size=1, max_size=3), st.integers(1, 5))
def test_each_of_several_scorers_gets_its_own_frames_out_of_a_joint_stack(stacks: list, every: int) -> None:
    def seen(stack: tuple[int, ...]) -> list[np.ndarray]:
        camera = Camera()
        watch, found = FrameStack(camera.frame, stack, every), []
        for camera.step in range(1, 30):
            if (frames := watch.after(camera.step)) is not None:
                found.append(frames.copy())
        return found

    joint = joint_stack(stacks)
    whole = np.stack(seen(joint))
    for stack in stacks:
        np.testing.assert_array_equal(part_of_stack(whole, joint, stack), np.stack(seen(stack)))


def test_stacks_of_one_distance_are_shared_without_a_copy() -> None:
    whole = np.zeros((2, 4, 4, 9), np.uint8)
    assert joint_stack([(4, 0), (8, 4, 0)]) == (8, 4, 0)
    assert np.shares_memory(part_of_stack(whole, (8, 4, 0), (4, 0)), whole)
