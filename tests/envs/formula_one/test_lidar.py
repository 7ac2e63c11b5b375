import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmsafe.envs.formula_one import lidar
from vlmsafe.envs.formula_one.lidar import BINS, RANGE

angles = st.floats(0.0, 2 * math.pi, exclude_max=True)


def at(angle, distance):
    return np.array([[distance * math.cos(angle), distance * math.sin(angle)]])


@given(angles, st.floats(0.01, 2.99))
def test_the_largest_reading_is_the_nearness_of_the_nearest_object(angle, distance):
    readings = lidar.objects(np.concatenate([at(angle, distance), at(angle + 1.0, 2.99)]))
    assert readings.max() == pytest.approx(1.0 - distance / RANGE, abs=1e-9)


@given(angles, st.floats(3.0, 100.0))
def test_beyond_its_range_it_sees_nothing(angle, distance):
    assert not lidar.objects(at(angle, distance + 1e-6)).any()


@given(angles, st.floats(0.1, 2.9), st.integers(0, BINS - 1))
def test_turning_by_a_bin_moves_the_readings_by_a_bin(angle, distance, turn):
    turned = lidar.objects(at(angle + turn * 2 * math.pi / BINS, distance))
    # An angle on the border of two bins may fall to either side.
    if abs(angle * BINS / (2 * math.pi) - round(angle * BINS / (2 * math.pi))) > 1e-6:
        np.testing.assert_allclose(turned, np.roll(lidar.objects(at(angle, distance)), turn), atol=1e-9)


def test_what_is_ahead_to_the_left_is_in_the_first_bin():
    assert lidar.objects(at(0.01, 1.0)).argmax() == 0
    assert lidar.objects(at(math.pi / 2 + 0.01, 1.0)).argmax() == BINS // 4


def test_readings_change_smoothly_between_bins():
    around = [lidar.objects(at(angle, 1.0)) for angle in np.linspace(0.0, 2 * math.pi, 2000)]
    neighbours = np.abs(np.diff(around, axis=0)).max(axis=1)
    assert np.median(neighbours) < 0.01


@given(angles, angles, st.floats(-5, 5), st.floats(-5, 5))
def test_the_car_s_coordinates_keep_distances_and_put_ahead_first(heading, direction, x, y):
    point = np.array([x, y]) + at(direction, 2.0)
    ahead, left = lidar.to_car(point, np.array([x, y]), heading)[0]
    assert math.hypot(ahead, left) == pytest.approx(2.0)
    assert ahead == pytest.approx(2.0 * math.cos(direction - heading), abs=1e-9)
    assert left == pytest.approx(2.0 * math.sin(direction - heading), abs=1e-9)


def test_rays_end_at_the_first_wall():
    starts, ends = np.array([(2.0, -1.0), (3.0, -1.0), (0.0, 4.0)]), np.array([(2.0, 1.0), (3.0, 1.0), (1.0, 4.0)])
    rays = np.array([(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)])
    lengths = lidar.ray_lengths(np.zeros((3, 2)), rays, starts, ends)
    assert lengths.tolist() == [2.0, 4.0, math.inf]
    assert lidar.ray_lengths(np.zeros((3, 2)), rays, starts[:0], ends[:0]).tolist() == [math.inf] * 3


def test_a_wall_all_around_fills_every_bin_alike():
    corners = np.stack([np.cos(np.linspace(0, 2 * np.pi, 500)), np.sin(np.linspace(0, 2 * np.pi, 500))], axis=1)
    np.testing.assert_allclose(lidar.walls(corners[:-1], corners[1:]), 2 / 3, atol=1e-4)
