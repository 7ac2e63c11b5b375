"""The gate against the paper's published values, and what calibration promises."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vlmsafe.errors import InputError
from vlmsafe.signals.gate import Gate, OpenGate, ProbabilityGate
from vlmsafe.signals.rules import Scores

# The paper's table of median margins and the median kappa at (s, c) = (100, 0), per cell. Margins are rounded.
PUBLISHED = [
    (0.011, 0.50), (0.018, 0.72), (0.025, 0.84), (0.046, 0.98), (0.046, 0.98), (0.026, 0.86),
    (0.037, 0.95), (0.044, 0.98), (0.029, 0.89), (0.034, 0.93), (0.046, 0.98), (0.030, 0.90),
]  # fmt: skip
MARGINS = st.floats(-2.0, 2.0)


def scores(positive, negative):
    positive, negative = np.array(positive, float), np.array(negative, float)
    return Scores(positive, negative, positive - negative)


@pytest.mark.parametrize(("margin", "kappa"), PUBLISHED)
def test_prior_symmetric_gate_gives_the_published_values(margin, kappa):
    assert float(Gate().kappa(margin)) == pytest.approx(kappa, abs=0.01)


@pytest.mark.parametrize(("scale", "margin", "kappa"), [(50, 0.011, 0.27), (50, 0.046, 0.82), (10, 0.046, 0.23)])
def test_other_scales_give_the_published_values(scale, margin, kappa):
    assert float(Gate(scale=scale).kappa(margin)) == pytest.approx(kappa, abs=0.01)


@given(MARGINS, st.floats(0.1, 600.0), st.floats(-1.0, 1.0))
def test_kappa_is_a_confidence_symmetric_about_the_centre(margin, scale, centre):
    gate = Gate(scale, centre)
    kappa = float(gate.kappa(margin))
    assert 0.0 <= kappa <= 1.0
    assert float(gate.kappa(2 * centre - margin)) == pytest.approx(kappa, abs=1e-9)
    assert float(gate.kappa(centre)) == 0.0
    with np.errstate(over="ignore"):
        sigmoid = 1.0 / (1.0 + np.exp(-scale * (margin - centre)))
    assert kappa == pytest.approx(abs(2.0 * sigmoid - 1.0), abs=1e-9)


@given(st.lists(MARGINS, min_size=2, max_size=2), st.floats(0.1, 600.0))
def test_kappa_grows_with_the_distance_from_the_centre(margins, scale):
    near, far = sorted(np.abs(margins))
    assert Gate(scale).kappa(near) <= Gate(scale).kappa(far) + 1e-12


@given(hnp.arrays(np.float64, st.integers(4, 60), elements=st.floats(-0.2, 0.2)), st.floats(0.05, 0.95))
def test_calibration_puts_kappa_at_zero_at_the_median_and_at_its_target_one_iqr_away(margins, target):
    low, median, high = np.quantile(margins, [0.25, 0.5, 0.75])
    assume(high - low > 1e-6)
    gate = Gate.calibrated(margins, target)
    assert float(gate.kappa(median)) == pytest.approx(0.0, abs=1e-9)
    assert float(gate.kappa(median + (high - low))) == pytest.approx(target, abs=1e-6)
    assert float(gate.kappa(median - (high - low))) == pytest.approx(target, abs=1e-6)


def test_default_calibration_has_kappa_one_half_at_one_iqr():
    margins = np.random.default_rng(0).normal(0.02, 0.005, 500)
    gate = Gate.calibrated(margins)
    spread = np.subtract(*np.quantile(margins, [0.75, 0.25]))
    assert gate.scale == pytest.approx(np.log(3.0) / spread)
    assert float(gate.kappa(np.median(margins) + spread)) == pytest.approx(0.5)
    assert 109 < gate.scale < 562, "of the size the paper fitted"


def test_a_degenerate_buffer_is_an_error_that_says_so():
    with pytest.raises(InputError, match=r"interquartile range is 0.*prior-symmetric"):
        Gate.calibrated(np.full(500, 0.02))
    with pytest.raises(InputError, match="interquartile range is 0"):
        Gate.calibrated(np.array([0.0] * 10 + [1.0]))


def test_an_open_gate_lets_everything_through():
    np.testing.assert_array_equal(OpenGate()(scores([0.1, 0.9], [0.5, 0.5])), [1.0, 1.0])


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_probability_gate_is_the_distance_of_the_shares(positive, negative):
    kappa = float(ProbabilityGate()(scores([positive], [negative]))[0])
    assert 0.0 <= kappa <= 1.0
    if positive + negative > 0.0:
        assert kappa == pytest.approx(abs(2 * positive / (positive + negative) - 1), abs=1e-12)
    else:
        assert kappa == 0.0
