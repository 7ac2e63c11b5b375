"""The names under which recordings of a source lie."""

from dataclasses import replace

import pytest

from vlmsafe.distillation.sources import Source
from vlmsafe.envs.registry import env_spec


def test_recordings_of_one_world_that_show_something_else_have_other_names():
    plain = env_spec("bullet-car-reach")
    assert plain.indicators is not None, "its simulator can draw the cost into frames"
    specs = [plain, replace(plain, indicators=True), replace(plain, repeat=2), replace(plain, changes=2)]
    names = [Source(spec).file_name for spec in specs]
    assert len(set(names)) == len(names)
    assert names[0] == "bullet-car-reach"
    assert names[1] == "bullet-car-reach-indicators"


@pytest.mark.parametrize("field", ["indicators", "repeat", "changes"])
def test_what_frames_depend_on_is_part_of_the_identity_of_a_source(field):
    assert field in Source(env_spec("bullet-car-reach")).identity()
