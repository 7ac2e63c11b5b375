import numpy as np

from vlmsafe.envs.formula_one.circuit import GOALS, HALF_WIDTH, circuit


def test_the_centre_line_passes_every_goal_in_order():
    world = circuit()
    gaps = np.hypot(*(world.points[world.goal_indices] - GOALS).T)
    assert gaps.max() < 0.06  # half the spacing of its points
    assert (np.diff(world.goal_indices) > 0).all()


def test_the_centre_line_is_closed_and_evenly_spaced():
    world = circuit()
    gaps = np.hypot(*(np.roll(world.points, -1, axis=0) - world.points).T)
    np.testing.assert_allclose(gaps, world.spacing, rtol=0.01)
    np.testing.assert_allclose(np.hypot(*world.directions.T), 1.0)
    assert (np.roll(world.points, -1, axis=0) - world.points)[0] @ world.directions[0] > 0.99 * world.spacing


def test_bends_are_wide_enough_for_an_inner_wall():
    headings = np.arctan2(*circuit().directions.T[::-1])
    turns = np.abs((np.roll(headings, -1) - headings + np.pi) % (2 * np.pi) - np.pi)
    assert circuit().spacing / turns.max() > HALF_WIDTH


def test_walls_keep_their_distance_from_every_part_of_the_centre_line():
    middles = circuit().walls.mean(axis=1)
    nearest = np.hypot(*np.moveaxis(middles[:, None] - circuit().points, -1, 0)).min(axis=1)
    assert nearest.min() > HALF_WIDTH - 0.12  # a straight piece cuts a bend
    assert nearest.max() < HALF_WIDTH + 0.25  # and the inside of a hairpin, which is nearly a point


def test_each_side_is_one_closed_wall():
    walls = circuit().walls
    follows = np.hypot(*(walls[1:, 0] - walls[:-1, 1]).T) < 1e-9
    (seam,) = np.flatnonzero(~follows)
    np.testing.assert_allclose(walls[seam, 1], walls[0, 0])
    np.testing.assert_allclose(walls[-1, 1], walls[seam + 1, 0])


def test_offsets_are_to_the_left():
    world = circuit()
    left = np.array([-world.directions[40, 1], world.directions[40, 0]])
    assert np.isclose(world.offset(world.points[40] + 0.7 * left, 40), 0.7)
    assert world.nearest(world.points[40] + 0.7 * left) == 40
