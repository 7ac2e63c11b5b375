"""What every environment's output is checked for, and how environments are named."""

import re

import numpy as np
import pytest

from vlmsafe.envs.api import as_frame
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import EnvironmentFailure, InputError


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


def test_variants_are_chosen_by_name_and_can_be_joined():
    spec = env_spec("formula-one-l2:long+sighted")
    assert (spec.name, spec.horizon) == ("formula-one-l2:long+sighted", 6000)
    assert spec.settings == {"level": 2, "sighted": True}
    assert env_spec("formula-one-l2").horizon == 1000


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("formula-one-l2:lnog", "unknown variant of formula-one-l2 'lnog'; did you mean 'long'"),
        ("formula-one-l2:", "unknown variant of formula-one-l2 ''"),
        ("formula-one-l2:long+long", "names a variant twice"),
        ("metadrive-easy:long", "unknown variant of metadrive-easy 'long'"),
        ("braking:long", "unknown environment 'braking:long'; braking has no variants"),
        ("formula-two", "unknown environment 'formula-two'"),
    ],
)
def test_variants_that_do_not_exist_are_refused(name, error):
    with pytest.raises(InputError, match=re.escape(error)):
        env_spec(name)
