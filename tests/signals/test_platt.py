"""Platt scaling: what counts as danger, and the fit against an independent optimiser and known answers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from vlmsafe.errors import InputError
from vlmsafe.signals.platt import Danger, cost_ahead, fit_platt


def danger(labels, known=None):
    labels = np.asarray(labels, np.bool_)
    return Danger(labels, np.ones_like(labels) if known is None else np.asarray(known, np.bool_), "cost in the step")


def drawn(count, slope, intercept, seed=0, spread=0.03):
    """Margins, and danger drawn with the probability sigma(slope m + intercept)."""
    rng = np.random.default_rng(seed)
    margins = rng.normal(0.02, spread, count)
    return margins, rng.random(count) < 1.0 / (1.0 + np.exp(-(slope * margins + intercept)))


def smoothed(labels):
    positives, negatives = labels.sum(), (~labels).sum()
    return np.where(labels, (positives + 1) / (positives + 2), 1 / (negatives + 2))


@given(
    st.integers(0, 10_000), st.integers(6, 200), st.floats(0.001, 30.0), st.floats(-60.0, 60.0), st.floats(-2.0, 2.0)
)
@settings(max_examples=60, deadline=None)
def test_the_fit_is_the_minimum_of_the_smoothed_loss(seed, count, spread, slope, intercept):
    margins, labels = drawn(count, slope / spread, intercept, seed, spread)
    labels[0], labels[1] = True, False
    gate, targets = fit_platt(margins, danger(labels)), smoothed(labels)
    centre, scale = margins.mean(), margins.std()
    x = (margins - centre) / scale

    def loss(found):
        odds = found[0] * x + found[1]
        return float((np.logaddexp(0.0, odds) - targets * odds).mean())

    ours = loss([gate.slope * scale, gate.intercept + gate.slope * centre])
    other = minimize(loss, [0.0, 0.0], method="BFGS")
    assert ours <= other.fun + 1e-9


def test_many_frames_give_the_curve_they_were_drawn_from():
    margins, labels = drawn(200_000, -80.0, 1.0)
    gate = fit_platt(margins, danger(labels))
    assert gate.slope == pytest.approx(-80.0, rel=0.03)
    assert gate.intercept == pytest.approx(1.0, abs=0.05)
    likely = gate.kappa(margins)
    assert likely.mean() == pytest.approx((~labels).mean(), abs=1e-3), "probabilities are calibrated on the whole"
    for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 1.0)):
        inside = (likely >= low) & (likely < high)
        assert (~labels)[inside].mean() == pytest.approx(likely[inside].mean(), abs=0.02)


def test_classes_that_a_margin_separates_without_error_have_a_finite_fit():
    margins = np.concatenate([np.linspace(-0.2, -0.1, 20), np.linspace(0.1, 0.2, 30)])
    gate = fit_platt(margins, danger(margins < 0.0))
    assert np.isfinite([gate.slope, gate.intercept]).all()
    kappa = gate.kappa(margins)
    assert kappa[margins < 0.0].max() < 0.2 < 0.8 < kappa[margins > 0.0].min()
    # Platt's targets: the extremes are no more certain than as many frames allow.
    assert kappa.max() < 1.0


@given(st.floats(0.01, 100.0), st.floats(-10.0, 10.0))
def test_the_unit_of_the_margin_does_not_matter(factor, shift):
    margins, labels = drawn(300, -60.0, 0.5)
    one, other = fit_platt(margins, danger(labels)), fit_platt(factor * margins + shift, danger(labels))
    np.testing.assert_allclose(other.kappa(factor * margins + shift), one.kappa(margins), atol=1e-6)


def test_frames_of_which_danger_is_not_known_do_not_count():
    margins, labels = drawn(400, -60.0, 0.5)
    known = np.arange(400) % 3 > 0
    wrong = np.where(known, labels, True)
    assert fit_platt(margins, danger(wrong, known)) == fit_platt(margins[known], danger(labels[known]))


@pytest.mark.parametrize(("labels", "message"), [([False] * 9, "none of 9 frames"), ([True] * 9, "each of 9 frames")])
def test_one_class_alone_is_an_error_that_says_what_to_do(labels, message):
    with pytest.raises(InputError, match=rf"{message} is dangerous \(cost in the step\).*--signal.calibration.label"):
        fit_platt(np.linspace(-1, 1, 9), danger(labels))


def test_margins_that_are_all_equal_are_an_error():
    with pytest.raises(InputError, match=r"all 6 margins are 0\.02"):
        fit_platt(np.full(6, 0.02), danger([True, False] * 3))


@given(st.data())
def test_cost_ahead_is_cost_in_the_same_episode_within_the_horizon(data):
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    costs = np.array(
        data.draw(st.lists(st.sampled_from([0.0, 0.0, 1.5]), min_size=sum(lengths), max_size=sum(lengths)))
    )
    finished = np.array(data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths))))
    horizon = data.draw(st.integers(0, 6))
    dangerous, known = cost_ahead(costs, np.cumsum(lengths), finished, horizon)
    start = 0
    for length, ended in zip(lengths, finished, strict=True):
        own = costs[start : start + length]
        for at in range(length):
            within = own[at : at + horizon + 1]
            assert dangerous[start + at] == (within > 0.0).any()
            assert known[start + at] == ((within > 0.0).any() or ended or len(within) == horizon + 1)
        start += length
