import numpy as np
import pytest

pytest.importorskip("mujoco")
from vlmsafe.envs.formula_one.barriers import place
from vlmsafe.envs.formula_one.circuit import GOALS, circuit
from vlmsafe.envs.formula_one.model import BARRIER_RADIUS, BARRIERS


def layouts(level, count=5):
    return [place(level, np.random.default_rng(seed)) for seed in range(count)]


@pytest.mark.parametrize("level", [1, 2])
def test_barriers_are_clear_of_each_other_of_walls_and_of_goals(level):
    walls = circuit().walls
    points = np.concatenate([walls[:, 0] + share * (walls[:, 1] - walls[:, 0]) for share in np.linspace(0, 1, 9)])
    for layout in layouts(level):
        assert layout.shape == (BARRIERS, 2)
        apart = np.hypot(*np.moveaxis(layout[:, None] - layout, -1, 0)) + 9.0 * np.eye(BARRIERS)
        assert apart.min() > 2 * BARRIER_RADIUS
        assert np.hypot(*np.moveaxis(layout[:, None] - points, -1, 0)).min() > BARRIER_RADIUS
        assert np.hypot(*np.moveaxis(layout[:, None] - GOALS, -1, 0)).min() > 0.59


def near_goals(layout):
    return (np.abs(layout[:, None] - GOALS).max(axis=-1) < 3.0).any(axis=1).mean()


def test_level_one_spreads_and_level_two_crowds_around_goals():
    spread, crowded = (np.mean([near_goals(layout) for layout in layouts(level, 10)]) for level in (1, 2))
    assert spread < 0.15
    assert crowded > 0.45


def test_barriers_stay_in_the_area_of_the_circuit():
    for layout in layouts(1):
        main = (layout >= (-12.2, -32.5)).all(axis=1) & (layout <= (27.8, 7.5)).all(axis=1)
        east = (layout >= (26.0, -11.0)).all(axis=1) & (layout <= (38.0, 1.0)).all(axis=1)
        assert (main | east).all()
        # The density is the same in both rectangles, so the small one has about a tenth of them.
        assert 0.02 < east.mean() < 0.25


def test_equal_generators_place_equally():
    assert (place(2, np.random.default_rng(3)) == place(2, np.random.default_rng(3))).all()
    assert (place(2, np.random.default_rng(3)) != place(2, np.random.default_rng(4))).any()
