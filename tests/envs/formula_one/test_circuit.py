import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.spatial import ConvexHull

from vlmsafe.envs.formula_one.circuit import GOALS, LONGEST, circuit, distances, exits
from vlmsafe.envs.formula_one.lidar import ray_lengths

ORIGINAL = json.loads((Path(__file__).parents[3] / "benchmarks/original/formula_one.json").read_text())["circuit"]

somewhere = st.tuples(st.floats(-14.0, 40.0), st.floats(-34.0, 13.0))


def left_of(directions):
    return np.stack([-directions[:, 1], directions[:, 0]], axis=1)


@functools.cache
def hulls():
    return [ConvexHull(piece).equations for piece in circuit().pieces]


def in_a_piece(points):
    """Whether each point lies in the convex hull of a piece, which is what MuJoCo makes of it."""
    found = np.zeros(len(points), bool)
    for equations in hulls():
        found |= (points @ equations[:, :2].T + equations[:, 2] <= 0.0).all(axis=1)
    return found


@functools.cache
def faces():
    """Points on the outline, at most a centimetre apart."""
    starts, ends = circuit().walls[:, 0], circuit().walls[:, 1]
    return np.concatenate([starts + share * (ends - starts) for share in np.linspace(0.0, 1.0, 101)])


def test_the_middle_of_the_road_is_a_closed_evenly_spaced_line_as_long_as_the_original_s():
    world = circuit()
    steps = np.roll(world.points, -1, axis=0) - world.points
    np.testing.assert_allclose(np.hypot(*steps.T), world.spacing, rtol=0.01)
    assert world.spacing == pytest.approx(0.25, rel=0.001)
    np.testing.assert_allclose(np.hypot(*world.directions.T), 1.0)
    assert ((steps * world.directions).sum(axis=1) > 0.95 * world.spacing).all()
    assert world.length == pytest.approx(ORIGINAL["lap_length"], rel=0.001)


def test_the_middle_passes_every_goal_in_order():
    world = circuit()
    assert np.hypot(*(world.points[world.goal_indices] - GOALS).T).max() < 1.1
    # The lap begins shortly after the first goal.
    assert (np.diff(np.roll(world.goal_indices, -1)) > 0).all()


def test_the_road_is_as_wide_as_measured_and_its_wall_has_openings_on_the_right_only():
    world, openings = circuit(), []
    widths = world.left + world.right
    for measure, value in (("min", widths.min()), ("median", np.median(widths)), ("max", widths.max())):
        assert value == pytest.approx(ORIGINAL["width"][measure], rel=0.001)
    left = left_of(world.directions)
    for sides, direction in ((world.left, left), (world.right, -left)):
        seen = ray_lengths(world.points, direction, world.walls[:, 0], world.walls[:, 1])
        openings.append(np.mean(seen > sides + 0.1))
        np.testing.assert_allclose(seen[seen < sides + 0.1], sides[seen < sides + 0.1], atol=0.02)
    assert openings[0] == 0.0
    assert 0.02 < openings[1] < 0.08


def test_goals_are_as_far_from_walls_as_in_the_original():
    clearances, _ = exits(GOALS)
    np.testing.assert_allclose(clearances, ORIGINAL["clearance_at_starts"], atol=0.005)


def test_outlines_are_closed_lines_of_short_segments():
    walls = circuit().walls
    lengths = np.hypot(*(walls[:, 1] - walls[:, 0]).T)
    assert lengths.max() <= LONGEST + 1e-9
    ends = {tuple(end) for end in walls[:, 1].round(9)}
    assert {tuple(start) for start in walls[:, 0].round(9)} == ends


def test_the_pieces_that_things_collide_with_fill_the_outline():
    points = np.random.default_rng(0).uniform((-14.0, -34.0), (40.0, 13.0), (5000, 2))
    depths, _ = exits(points)
    solid = in_a_piece(points)
    assert depths[solid].max() < 0.01  # nothing sticks out of the outline
    assert solid[depths < 0.0].mean() > 0.97  # and there are only cracks within it
    assert not solid[depths > 0.01].any()
    assert len(circuit().pieces) == 301


def test_offsets_are_to_the_left_and_lanes_reach_one_at_the_wall():
    world = circuit()
    place = world.points[200] + 0.7 * left_of(world.directions)[200]
    assert world.offset(place, 200) == pytest.approx(0.7)
    assert world.nearest(place) == 200
    assert world.lane(place) == pytest.approx(0.7 / world.left[200])
    other = world.points[200] - world.right[200] * left_of(world.directions)[200]
    assert world.lane(other) == pytest.approx(1.0, abs=0.01)
    assert world.lane(world.points[200]) == pytest.approx(0.0, abs=1e-9)


def slowly(point, start, end):
    """The distance to a segment, by trigonometry."""
    along, away = np.subtract(end, start), np.subtract(point, start)
    length, far = math.hypot(*along), math.hypot(*away)
    if length < 1e-6:
        return far
    ahead = float(along @ away) / length
    if ahead <= 0.0:
        return far
    if ahead >= length:
        return math.hypot(*np.subtract(point, end))
    return abs(float(along[0] * away[1] - along[1] * away[0])) / length


@given(st.lists(somewhere, min_size=1, max_size=4), st.lists(st.tuples(somewhere, somewhere), min_size=1, max_size=4))
def test_distances_are_those_to_the_nearest_place_on_each_segment(points, segments):
    expected = [[slowly(point, *segment) for segment in segments] for point in points]
    np.testing.assert_allclose(distances(np.array(points), np.array(segments)), expected, atol=1e-5)


@given(somewhere)
def test_the_way_out_is_the_shortest_to_a_face_and_its_sign_says_inside(point):
    place = np.array([point])
    (depth,), ways = exits(place)
    assert abs(depth) == pytest.approx(np.hypot(*(faces() - point).T).min(), abs=0.005)
    assume(abs(depth) > 1e-3)
    assert np.hypot(*ways[0]) == pytest.approx(1.0)
    assert distances(place - depth * ways, circuit().walls).min() < 1e-6  # back along the way lies the face
    if depth > 0.01:
        assert not in_a_piece(place)[0]
    if in_a_piece(place)[0]:
        assert depth < 0.01


def test_depth_changes_its_sign_at_a_face():
    walls = circuit().walls
    middles, along = walls.mean(axis=1), walls[:, 1] - walls[:, 0]
    middles, along = middles[np.hypot(*along.T) > 0.1], along[np.hypot(*along.T) > 0.1]
    across = left_of(along / np.hypot(*along.T)[:, None])
    one, other = (exits(middles + side * across)[0] for side in (0.003, -0.003))
    assert (one * other < 0.0).mean() > 0.99
    np.testing.assert_allclose(np.abs(one), 0.003, atol=0.001)


def test_many_points_have_the_exits_of_each_one():
    points = np.random.default_rng(1).uniform((-14.0, -34.0), (40.0, 13.0), (130, 2))
    depths, ways = exits(points)
    for number in (0, 49, 50, 51, 129):
        depth, way = exits(points[number : number + 1])
        assert depths[number] == depth[0]
        assert (ways[number] == way[0]).all()
