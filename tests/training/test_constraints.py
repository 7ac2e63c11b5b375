"""The constraints of a run enter its advantages as the documents say."""

import numpy as np
import pytest

from vlmsafe.config.learning import MultiplierConfig
from vlmsafe.config.settings import SignalConfig, SignalMultiplierConfig, TrainConfig
from vlmsafe.training.constraints import Constraints


def constrained(multiplier: float, signal_multiplier: float) -> Constraints:
    own = SignalMultiplierConfig(kind="adam", initial=signal_multiplier)
    config = TrainConfig(
        budget=25.0, multiplier=MultiplierConfig(initial=multiplier), signal=SignalConfig(multiplier=own)
    )
    return Constraints(config)


@pytest.mark.parametrize(("lam", "mu"), [(0.5, 0.0), (0.0, 0.3), (0.7, 1.2)])
def test_both_multipliers_weigh_and_normalise(lam, mu):
    """(A_r - lambda A_c - mu A_s) / (1 + lambda + mu), formed as every learner forms it."""
    constraints = constrained(lam, mu)
    reward, cost, signal = np.random.default_rng(0).normal(size=(3, 9)).astype(np.float32)
    combined = constraints.combine(cost, signal)
    formed = (reward - constraints.total * combined) / (1.0 + constraints.total)
    np.testing.assert_allclose(formed, (reward - lam * cost - mu * signal) / (1.0 + lam + mu), atol=1e-6)


def test_without_a_finished_episode_nothing_moves():
    constraints = constrained(0.5, 0.2)
    constraints.update(40.0, [], 0.1)
    assert constraints.total == pytest.approx(0.7)
    assert constraints.cost_gap == 0.0
    assert constraints.figures()["bracket"] is None


def test_each_multiplier_moves_by_its_own_gap():
    constraints = constrained(0.5, 0.2)
    constraints.update(
        40.0, [{"negative_score": 0.6, "signal_excess": 0.3}, {"negative_score": 0.6, "signal_excess": 0.1}], 0.25
    )
    figures = constraints.figures()
    assert figures["cost_gap"] == 15.0
    assert figures["signal_gap"] == pytest.approx(-0.05)
    assert figures["multiplier"] == pytest.approx(0.535)
    assert figures["signal_multiplier"] == pytest.approx(0.165)
