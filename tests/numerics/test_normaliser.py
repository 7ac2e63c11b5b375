"""The limit of standardised observations is a choice, and travels with the statistics."""

import numpy as np
import pytest

from vlmsafe.numerics.normaliser import CLIP, Normaliser, RunningNormaliser


def filled(clip):
    normaliser = Normaliser.empty(3, clip)
    for row in np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32):
        normaliser.update(row)
    return normaliser


@pytest.mark.parametrize("clip", [CLIP, 1.5, 100.0])
def test_observations_are_cut_at_the_limit_while_acting_and_afterwards(clip):
    far = np.array([1e3, -1e3, 0.0], np.float32)
    out = np.empty(3, np.float32)
    RunningNormaliser(filled(clip)).see(far, out)
    for seen in (out, filled(clip).normalise(far)):
        assert np.abs(seen).max() <= clip
        assert np.abs(seen).max() == pytest.approx(clip) or clip == 100.0


def test_the_limit_is_saved_where_it_is_not_the_usual_one():
    assert set(filled(CLIP).arrays()) == {"normaliser.count", "normaliser.mean", "normaliser.m2"}
    for clip in (CLIP, 9.0):
        assert Normaliser.from_arrays(filled(clip).arrays()).clip == clip
        assert filled(clip).copy().clip == clip


def test_a_floor_keeps_apart_what_a_small_deviation_would_cut_to_the_same_number():
    """A ray that sees nothing nearly always, and two cars at different distances."""
    seen = np.ones((1000, 1), np.float32)
    seen[0] = 0.9
    near, far = np.array([0.1], np.float32), np.array([0.8], np.float32)
    for floor, apart in ((0.01, False), (0.2, True)):
        normaliser = Normaliser.empty(1, floor=floor)
        normaliser.merge(Normaliser.of(seen))
        assert (normaliser.normalise(near) != normaliser.normalise(far)) == apart
        again = Normaliser.from_arrays(normaliser.arrays())
        assert (again.floor, again.copy().floor) == (floor, floor)
        running, out = RunningNormaliser(normaliser), np.empty(1, np.float32)
        running.see(near, out)
        normaliser.update(near)
        np.testing.assert_array_equal(out, normaliser.normalise(near))
        rows = np.stack([near, far])
        expected = np.stack([normaliser.normalise(row) for row in rows])
        np.testing.assert_allclose(normaliser.standardiser()(rows), expected, rtol=1e-5)


def test_statistics_of_rows_are_those_of_one_row_after_another():
    rows = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    one = Normaliser.empty(3)
    for row in rows:
        one.update(row)
    whole = Normaliser.of(rows)
    np.testing.assert_allclose(whole.mean, one.mean, rtol=1e-9)
    np.testing.assert_allclose(whole.m2, one.m2, rtol=1e-9)
    assert whole.count == one.count
