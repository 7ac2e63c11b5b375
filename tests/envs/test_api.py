"""What every environment's output is checked for."""

import numpy as np
import pytest

from vlmsafe.envs.api import as_frame
from vlmsafe.errors import EnvironmentFailure


@pytest.mark.parametrize(
    ("image", "what"),
    [
        (None, "NoneType"),
        (np.zeros((4, 5, 4), np.uint8), r"uint8 \(4, 5, 4\)"),
        (np.zeros((4, 5), np.uint8), r"uint8 \(4, 5\)"),
        (np.zeros((4, 5, 3), np.float32), r"float32 \(4, 5, 3\)"),
    ],
)
def test_what_is_no_frame_is_named(image, what):
    with pytest.raises(EnvironmentFailure, match=f"a camera rendered {what}; scoring needs uint8 arrays"):
        as_frame(image, "a camera")


def test_a_frame_passes_as_it_is():
    frame = np.zeros((4, 5, 3), np.uint8)
    assert as_frame(frame, "a camera") is frame
