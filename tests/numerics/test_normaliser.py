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
