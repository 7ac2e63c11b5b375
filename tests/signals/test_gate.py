"""The gate against the paper's published values, and what calibration promises."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vlmsafe.errors import InputError
from vlmsafe.signals.gate import (
    FITTED,
    GATES,
    Gate,
    OpenGate,
    PlattGate,
    ProbabilityGate,
    SignedGate,
    UserGate,
    gate_levels,
    gate_name,
    gate_source,
    load_gate,
)
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


@given(st.lists(MARGINS, min_size=2, max_size=2), st.floats(0.1, 600.0), st.floats(-1.0, 1.0))
def test_a_signed_gate_grows_with_the_margin_and_pays_nothing_on_the_dangerous_side(margins, scale, centre):
    low, high = sorted(margins)
    gate = SignedGate(scale, centre)
    weak, strong = (float(gate.kappa(np.array(margin))) for margin in (low, high))
    assert 0.0 <= weak <= strong <= 1.0
    for margin, kappa in ((low, weak), (high, strong)):
        if margin <= centre:
            assert kappa == 0.0
        else:
            assert kappa == float(Gate(scale, centre).kappa(margin)), "on the safe side it is Eq. 3"


@given(st.lists(MARGINS, min_size=2, max_size=2), st.floats(-600.0, 600.0), st.floats(-50.0, 50.0))
def test_a_platt_gate_is_a_probability_that_follows_the_sign_of_its_slope(margins, slope, intercept):
    low, high = sorted(margins)
    gate = PlattGate(slope, intercept)
    first, last = (float(gate.kappa(np.array(margin))) for margin in (low, high))
    assert 0.0 <= min(first, last) <= max(first, last) <= 1.0
    assert last >= first if slope <= 0.0 else last <= first
    with np.errstate(over="ignore"):
        assert first == pytest.approx(1.0 / (1.0 + np.exp(slope * low + intercept)), abs=1e-9)
    if slope and abs(gate.centre) < 1e3:
        assert float(gate.kappa(np.array(gate.centre))) == pytest.approx(0.5, abs=1e-6)


def test_every_gate_has_the_name_under_which_a_run_asks_for_it():
    assert {gate_name(gate): gate for gate in GATES.values()} == GATES
    fitted = (Gate(50.0, 0.1), SignedGate(50.0, 0.1), PlattGate(-2.0, 1.0))
    assert tuple(map(gate_name, fitted)) == FITTED
    assert gate_levels(SignedGate(50.0, 0.1)) == {"scale": 50.0, "centre": 0.1}
    assert gate_levels(PlattGate(-2.0, 1.0)) == {"scale": 2.0, "centre": 0.5}
    assert gate_levels(ProbabilityGate()) == gate_levels(OpenGate()) == {"scale": None, "centre": None}
    assert PlattGate(0.0, 1.0).centre is None


GATE_FILE = """
import numpy as np

def half(positive, negative, margin):
    margin *= 0.0  # it may work in place
    return 0.5 * np.ones_like(positive) + 0.5 * (positive > negative)

def wide(positive, negative, margin):
    return np.ones(len(margin) + 1)

def loud(positive, negative, margin):
    return 1.0 + positive

def lost(positive, negative, margin):
    return margin * np.nan

def words(positive, negative, margin):
    return ["open"] * len(margin)

def fails(positive, negative, margin):
    raise ZeroDivisionError("by design")

LEVEL = 0.5
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's with gates, under a name of its own."""
    name = f"gates_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(GATE_FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_gate_of_the_users_weighs_by_its_function_and_changes_no_score(module):
    gate = load_gate(f"python:{module}:half")
    some = scores([0.6, 0.2], [0.4, 0.8])
    np.testing.assert_array_equal(gate(some), [1.0, 0.5])
    np.testing.assert_array_equal(some.margin, some.positive - some.negative)
    assert gate(scores([], [])).shape == (0,)
    assert gate_name(gate) == f"python:{module}:half"
    assert gate.source.files.keys() == {f"{module}.py"}
    assert gate.source.digest == gate_source(gate.name).digest
    assert gate_source("signed") is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wide", r"gave an array of shape \(3,\) for 2 frames; expected one kappa per frame, \(2,\)"),
        ("loud", r"gave kappa from 1.2 to 1.6; every kappa must lie between 0 and 1"),
        ("lost", "gave kappa from nan to nan"),
        ("words", "raised ValueError"),
        ("fails", "raised ZeroDivisionError: by design"),
    ],
)
def test_what_a_gate_of_the_users_returns_is_checked(module, name, message):
    gate = load_gate(f"python:{module}:{name}")
    assert isinstance(gate, UserGate)
    with pytest.raises(InputError, match=message) as caught:
        gate(scores([0.6, 0.2], [0.4, 0.8]))
    assert "\n" not in str(caught.value)


def test_a_gate_that_cannot_be_had_is_named(module):
    with pytest.raises(InputError, match="cannot import the gate 'python:no_such_module:gate'"):
        load_gate("python:no_such_module:gate")
    with pytest.raises(InputError, match=f"unknown gate of {module} 'halves'; did you mean 'half'"):
        load_gate(f"python:{module}:halves")
    with pytest.raises(InputError, match="is a float; expected a class or a function"):
        load_gate(f"python:{module}:LEVEL")
