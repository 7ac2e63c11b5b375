"""Learning rates fall as a schedule says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmsafe.learners.schedules import falling_share

shares = st.floats(0.0, 1.0)
kinds = st.sampled_from(["linear", "cosine"])


@given(kinds, shares)
def test_a_schedule_begins_at_one_and_ends_at_its_floor(kind, floor):
    assert falling_share(0.0, kind, floor) == pytest.approx(1.0)
    assert falling_share(1.0, kind, floor) == pytest.approx(floor)


@given(kinds, shares, shares, shares)
def test_a_schedule_never_rises_and_never_falls_below_its_floor(kind, floor, one, other):
    earlier, later = (falling_share(at, kind, floor) for at in sorted((one, other)))
    assert 1.0 + 1e-12 >= earlier >= later - 1e-12
    assert later >= floor - 1e-12


@given(st.integers(1, 500), st.data())
def test_the_papers_schedule_is_unchanged_to_the_last_bit(epochs, data):
    epoch = data.draw(st.integers(0, epochs - 1))
    assert falling_share(epoch / epochs, "linear", 0.0) == 1.0 - epoch / epochs


def test_a_cosine_falls_slowly_at_both_ends():
    early, middle, late = (
        falling_share(at, "cosine", 0.0) - falling_share(at + 0.1, "cosine", 0.0) for at in (0.0, 0.45, 0.9)
    )
    assert middle > 5 * max(early, late)
