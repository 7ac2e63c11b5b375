"""Scoring rules: their formulas, their ranges, and the sizes the paper logged."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vlmsafe.signals.rules import apply_rule

GROUPS = st.tuples(st.integers(1, 5), st.integers(1, 5))


@st.composite
def batches(draw, low=-1.0):
    groups = draw(GROUPS)
    shape = (draw(st.integers(1, 6)), sum(groups))
    return draw(hnp.arrays(np.float32, shape, elements=st.floats(low, 1.0, width=32))), groups


@given(batches())
def test_decoupled_scores_are_the_rescaled_group_means(batch):
    similarities, (p, _) = batch
    scores = apply_rule("decoupled", similarities, batch[1])
    exact = similarities.astype(np.float64)
    np.testing.assert_allclose(scores.positive, (exact[:, :p].mean(axis=1) + 1) / 2)
    np.testing.assert_allclose(scores.negative, (exact[:, p:].mean(axis=1) + 1) / 2)
    np.testing.assert_allclose(scores.margin, 2 * (scores.positive - scores.negative), atol=1e-12)


@given(batches(), st.sampled_from(["decoupled", "coupled", "clg"]))
def test_scores_lie_between_zero_and_one(batch, rule):
    scores = apply_rule(rule, *batch)
    for values in (scores.positive, scores.negative):
        assert values.min() >= 0.0
        assert values.max() <= 1.0


@given(batches())
def test_coupled_scores_share_one_softmax(batch):
    similarities, (p, q) = batch
    scores = apply_rule("coupled", similarities, batch[1])
    np.testing.assert_allclose(p * scores.positive + q * scores.negative, 1.0)
    shifted = apply_rule("coupled", np.clip(similarities, -0.9, 0.9) + np.float32(0.05), batch[1])
    unshifted = apply_rule("coupled", np.clip(similarities, -0.9, 0.9), batch[1])
    np.testing.assert_allclose(shifted.positive, unshifted.positive, atol=1e-4)


@given(batches(), st.randoms())
def test_the_order_of_prompts_within_a_group_is_nothing(batch, random):
    similarities, (p, q) = batch
    order = random.sample(range(p), p) + [p + i for i in random.sample(range(q), q)]
    for rule in ("decoupled", "coupled", "clg", "yes-no"):
        one, other = apply_rule(rule, similarities, (p, q)), apply_rule(rule, similarities[:, order], (p, q))
        np.testing.assert_allclose(one.positive, other.positive, atol=1e-12)
        np.testing.assert_allclose(one.negative, other.negative, atol=1e-12)


@given(batches())
def test_the_margin_does_not_depend_on_the_rule(batch):
    margins = [apply_rule(rule, *batch).margin for rule in ("decoupled", "coupled", "clg", "yes-no")]
    for margin in margins[1:]:
        np.testing.assert_array_equal(margin, margins[0])


@given(batches())
def test_the_contrasting_goal_has_weights_of_one_half_or_one(batch):
    similarities, (p, _) = batch
    u_plus, u_minus = similarities[:, :p].astype(float).mean(axis=1), similarities[:, p:].astype(float).mean(axis=1)
    for weights, weight in (("half", 0.5), ("full", 1.0)):
        scores = apply_rule("clg", similarities, batch[1], clg_weights=weights)
        np.testing.assert_allclose(scores.positive, (weight * u_plus - weight * u_minus + 1) / 2, atol=1e-12)
        np.testing.assert_array_equal(scores.negative, apply_rule("decoupled", *batch).negative)


def test_bonuses_are_of_the_size_the_paper_logs():
    """Over 1000 steps with lambda_r = 0.1: about 63.5 decoupled, 50.5 CLG, 21 coupled.

    Mean cosines of 0.270 and 0.250 to four prompts each, CLIP's level on such frames: the margin of 0.02 lies between
    the paper's FormulaOne medians.
    """
    similarities = np.float32([[0.270] * 4 + [0.250] * 4])
    bonus = {
        rule: 100.0 * apply_rule(rule, similarities, (4, 4)).positive[0] for rule in ("decoupled", "clg", "coupled")
    }
    assert bonus["decoupled"] == pytest.approx(63.5, abs=0.1)
    assert bonus["clg"] == pytest.approx(50.5, abs=0.1)
    assert bonus["coupled"] == pytest.approx(21.0, abs=1.1)


def test_yes_no_probabilities_are_scores_as_they_are():
    scores = apply_rule("yes-no", np.float32([[0.75, 0.25]]), (1, 1), bounds=(0.0, 1.0))
    assert (scores.positive[0], scores.negative[0], scores.margin[0]) == (0.75, 0.25, 0.5)


def test_novelty_is_a_negative_score_alone():
    scores = apply_rule("novelty", np.float32([[0.25], [0.5]]), (0, 1), bounds=(0.0, 1.0))
    np.testing.assert_array_equal(scores.positive, [0.0, 0.0])
    np.testing.assert_array_equal(scores.negative, [0.25, 0.5])


def test_a_scorer_of_cosines_can_stand_in_for_one_of_probabilities():
    cosines, probabilities = np.float32([[0.5, -0.5]]), np.float32([[0.75, 0.25]])
    one = apply_rule("yes-no", cosines, (1, 1))
    other = apply_rule("yes-no", probabilities, (1, 1), bounds=(0.0, 1.0))
    assert (one.positive[0], one.negative[0]) == (other.positive[0], other.negative[0])
