"""A contrast asks whether two differences differ."""

import numpy as np
import pytest

from vlmsafe.comparison.claims import ContrastCell, ContrastClaim, claims_of
from vlmsafe.comparison.contrasts import judge_cells
from vlmsafe.errors import InputError

A, B, C, D = (ContrastCell(name, "easy") for name in ("bonus-gate", "gate", "bonus", "none"))


def claim(**options):
    return ContrastClaim("does the gate change the bonus", plus=(A, D), minus=(B, C), **options)


def cells(effect_with, effect_without, runs=6, seed=3):
    """Outcomes in which the bonus has one effect with the gate and another without; seeds move all arms alike."""
    rng = np.random.default_rng(seed)
    common, noise = rng.normal(0.0, 5.0, runs), rng.normal(0.0, 0.5, (4, runs))
    means = {A: 20 + effect_with, B: 20, C: 30 + effect_without, D: 30}
    return {
        cell: dict(enumerate(mean + common + noise[place])) for place, (cell, mean) in enumerate(means.items())
    }  # fmt: skip


@pytest.mark.parametrize("test", ["welch", "paired-t", "sign-flip"])
def test_equal_effects_are_no_interaction_and_different_ones_are(test):
    assert judge_cells(claim(test=test), cells(-8.0, -8.0)).p > 0.05
    found = judge_cells(claim(test=test), cells(-30.0, 0.0))
    assert found.p < 0.05
    assert found.estimate == pytest.approx(-30.0, abs=1.5)
    assert found.interval.high < 0


def test_matched_seeds_show_what_independent_arms_hide():
    both = {test: judge_cells(claim(test=test), cells(-3.0, 0.0)) for test in ("welch", "paired-t")}
    assert both["welch"].p > 0.05 > both["paired-t"].p
    assert both["welch"].estimate == pytest.approx(both["paired-t"].estimate)


def test_a_mean_over_several_interactions_is_divided():
    whole, half = judge_cells(claim(), cells(-30.0, 0.0)), judge_cells(claim(divide=2.0), cells(-30.0, 0.0))
    assert half.estimate == pytest.approx(whole.estimate / 2)
    assert half.p == pytest.approx(whole.p)


def test_an_arm_without_runs_is_named_and_nothing_is_decided():
    found = judge_cells(claim(), {**cells(0.0, 0.0), B: {}})
    assert (found.missing, found.p, found.tested_unless("").p) == ((B,), None, None)


def entry(**changes):
    side = {"plus": [{"arm": "a", "env": "x"}], "minus": [{"arm": "b", "env": "x"}]}
    return {"comparisons": [], "contrasts": [{"name": "n", **side, **changes}]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"plus": "a"}, "'plus' is 'a'; expected a list of {arm: ..., env: ...}, or a list of arms"),
        ({"plus": [{"arm": "a", "env": "x"}, {"arm": "c", "env": "x"}]}, "2 cells under 'plus' and 1 under 'minus'"),
        ({"plus": [{"arm": "b", "env": "x"}]}, "appears twice"),
        ({"divide": 0}, "'divide' is 0"),
        ({"divide": float("nan")}, "'divide' is nan"),
        ({"divide": float("inf")}, "'divide' is inf"),
        ({"test": "permutation"}, "unknown test 'permutation'"),
        ({"first": "a"}, "unknown entry 'first'"),
    ],
)
def test_a_contrast_that_cannot_be_meant_is_refused_with_the_reason(changes, message):
    with pytest.raises(InputError) as error:
        claims_of(entry(**changes), "claims.yaml")
    assert message in str(error.value)


def test_an_environment_can_be_given_once_for_all_cells():
    spelled = claims_of(entry(), "claims.yaml").contrasts
    assert claims_of(entry(plus=["a"], minus=["b"], env="x"), "claims.yaml").contrasts == spelled
