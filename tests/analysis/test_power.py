"""Power of tests: in step with the tests that judge claims, and 0 where no difference can be significant."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from scipy import stats

from vlmsafe.analysis import power as module
from vlmsafe.analysis.exact_tests import Alternative, permutation_test, sign_flip_test
from vlmsafe.analysis.power import (
    Design,
    PowerTest,
    detectable_difference,
    power,
    power_of_equivalence,
    power_of_non_inferiority,
    runs_needed,
)
from vlmsafe.analysis.statistics import Pairs, paired_t_test, welch_t_test
from vlmsafe.errors import InputError

TESTS = get_args(PowerTest)


def design(test: PowerTest, runs: int, sides: Alternative = "two-sided", alpha: float = 0.05) -> Design:
    arms = 1 if test in ("sign-flip", "paired-t") else 2
    return Design(test, (runs,) * arms, (1.0, 1.5)[:arms], sides, alpha)


def value_of(computed: module.Computed) -> float:
    assert computed.value is not None
    return computed.value


def p_value(test: PowerTest, first: np.ndarray, second: np.ndarray, sides: Alternative) -> float:
    """The p that a claim with this test gets."""
    if test == "permutation":
        return float(permutation_test(first, second, sides).p)
    pairs = Pairs(first, np.zeros_like(first))
    if test == "sign-flip":
        return float(sign_flip_test(pairs, sides).p)
    result = welch_t_test(first, second) if test == "welch" else paired_t_test(pairs)
    if sides == "two-sided":
        return result.p
    towards = result.statistic < 0 if sides == "less" else result.statistic > 0
    return result.p / 2 if towards else 1 - result.p / 2


@pytest.mark.parametrize("sides", ["less", "two-sided"])
@pytest.mark.parametrize(
    ("test", "runs", "deviations"),
    [
        ("permutation", (5, 5), (1.0, 1.0)),
        ("permutation", (5, 3), (1.0, 3.0)),
        ("sign-flip", (7,), (2.0,)),
        ("welch", (3, 5), (1.0, 3.0)),
        ("paired-t", (4,), (2.0,)),
    ],
)
def test_power_is_the_share_of_experiments_that_the_claimed_test_finds(
    test: PowerTest, runs: tuple[int, ...], deviations: tuple[float, ...], sides: Alternative
) -> None:
    planned = Design(test, runs, deviations, sides)
    rng = np.random.default_rng(7)
    for difference in (0.0, 3.0):
        shift = -difference if sides == "less" else difference
        found = []
        for _ in range(1500):
            first = rng.normal(shift, deviations[0], runs[0])
            second = rng.normal(0.0, deviations[-1], runs[-1])
            found.append(p_value(test, first, second, sides) < planned.alpha)
        share = float(np.mean(found))
        error = np.sqrt(max(share * (1.0 - share), 0.01) / len(found))
        assert abs(value_of(power(planned, difference)) - share) < 4.0 * error


@pytest.mark.parametrize("alpha", [0.05, 0.002])
@pytest.mark.parametrize("runs", [3, 5, 10, 40])
def test_a_paired_t_test_has_the_power_of_the_noncentral_t_distribution(runs: int, alpha: float) -> None:
    limit = stats.t.isf(alpha / 2, runs - 1)
    for difference in (0.0, 0.5, 1.0, 3.0, 10.0):
        centre = difference / 1.5 * np.sqrt(runs)
        wrong = stats.nct.cdf(-limit, runs - 1, centre) if centre < 5.0 else 0.0  # scipy has no number beyond
        expected = stats.nct.sf(limit, runs - 1, centre) + wrong
        planned = Design("paired-t", (runs,), (1.5,), "two-sided", alpha)
        assert value_of(power(planned, difference)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("test", TESTS)
def test_more_runs_and_larger_differences_have_more_power(test: PowerTest) -> None:
    grid = [
        [value_of(power(design(test, runs), difference)) for difference in (0.5, 1.0, 2.0, 4.0)]
        for runs in (6, 7, 10, 20, 40)
    ]
    assert (np.diff(grid, axis=1) >= 0.0).all()
    assert (np.diff(grid, axis=0) >= -0.02).all()  # simulation and approximation meet with this error
    detectable = [value_of(detectable_difference(design(test, runs))) for runs in (6, 7, 10, 20, 40)]
    assert (np.diff(detectable) < 0.0).all()


@pytest.mark.parametrize("sides", get_args(Alternative))
@pytest.mark.parametrize("test", TESTS)
def test_without_a_difference_the_power_is_the_level(test: PowerTest, sides: Alternative) -> None:
    equal = replace(design(test, 6, sides), deviations=(1.0,) if test in ("sign-flip", "paired-t") else (1.0, 1.0))
    found = value_of(power(equal, 0.0))
    assert found == pytest.approx(0.05, abs=0.008) or (test == "sign-flip" and found < 0.05)
    if test == "sign-flip":  # its levels are multiples of 1/64: 3/64 one-sided, 2/64 two-sided
        assert found == pytest.approx(2 / 64 if sides == "two-sided" else 3 / 64, abs=0.006)


def test_a_test_that_cannot_be_significant_detects_nothing() -> None:
    for planned in (
        Design("permutation", (3, 3), (1.0, 1.0), "less"),  # the smallest p is 1/20, which is not below 0.05
        Design("permutation", (5, 5), (1.0, 1.0), "less", 0.05 / 24),
        Design("sign-flip", (5,), (1.0,)),
        Design("welch", (1, 5), (1.0, 1.0)),
        Design("paired-t", (0,), (1.0,)),
    ):
        assert power(planned, 1e6) == module.Computed(0.0, "impossible")
        assert detectable_difference(planned) == module.Computed(None, "impossible")


def test_an_exact_test_that_can_barely_be_significant_detects_large_differences() -> None:
    planned = Design("permutation", (3, 3), (1.0, 1.0), "less", 0.051)
    assert value_of(power(planned, 1e6)) == 1.0
    assert value_of(detectable_difference(planned)) > 2.0
    assert value_of(power(planned, 0.0)) == pytest.approx(0.05, abs=0.005)
    stricter = replace(planned, runs=(5, 5), alpha=1 / 252 + 1e-9)
    assert value_of(power(stricter, 0.0)) == pytest.approx(1 / 252, abs=0.002)


def test_the_detectable_difference_has_the_wanted_power() -> None:
    for test in TESTS:
        for wanted in (0.5, 0.8, 0.95):
            planned = design(test, 6)
            found = detectable_difference(planned, wanted)
            assert value_of(power(planned, value_of(found))) == pytest.approx(wanted, abs=1e-3)
            assert found.basis == planned.basis


def test_power_depends_on_the_difference_in_deviations_only() -> None:
    for test in TESTS:
        planned = design(test, 6)
        large = replace(planned, deviations=tuple(1000.0 * one for one in planned.deviations))
        assert value_of(detectable_difference(large)) == pytest.approx(
            1000.0 * value_of(detectable_difference(planned))
        )


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("difference", [0.8, 2.0, 30.0])
def test_the_needed_runs_are_the_smallest_number_that_is_enough(test: PowerTest, difference: float) -> None:
    found = runs_needed(design(test, 2), difference)
    runs = int(value_of(found))
    assert value_of(power(design(test, runs), difference)) >= 0.8
    assert runs == 2 or value_of(power(design(test, runs - 1), difference)) < 0.8
    assert found.basis == design(test, runs).basis


def test_even_the_largest_difference_needs_enough_runs_for_a_small_p() -> None:
    assert runs_needed(Design("sign-flip", (2,), (1.0,)), 1e6).value == 6
    assert runs_needed(Design("permutation", (2, 2), (1.0, 1.0)), 1e6).value == 4
    assert runs_needed(Design("permutation", (2, 2), (1.0, 1.0), "less", 0.05 / 24), 1e6).value == 6


def test_a_difference_that_needs_too_many_runs_has_no_number() -> None:
    assert runs_needed(design("welch", 2), 0.001).value is None
    assert runs_needed(design("permutation", 2), 0.5, most=20).value is None


@pytest.mark.parametrize("sides", ["less", "two-sided"])
@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_exact_tests_of_many_runs_are_approximated_well(
    sides: Alternative, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest designs that are simulated, by both means: the power differs by less than 0.04."""
    for planned in (
        Design("permutation", (8, 8), (1.0, 2.0), sides, alpha),
        Design("permutation", (9, 6), (2.0, 1.0), sides, alpha),
        Design("sign-flip", (13,), (1.0,), sides, alpha),
    ):
        simulated = detectable_difference(planned)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_LISTED", 10)
            module._curve.cache_clear()
            approximated = power(planned, value_of(simulated))
        module._curve.cache_clear()
        assert (simulated.basis, approximated.basis) == ("simulated", "approximated")
        assert value_of(approximated) == pytest.approx(0.8, abs=0.04)


def test_nine_against_nine_runs_are_approximated_within_the_error_of_a_simulation() -> None:
    planned = Design("permutation", (9, 9), (1.0, 1.3))
    found = detectable_difference(planned)
    assert found.basis == "approximated"
    rng = np.random.default_rng(3)
    share = np.mean(
        [
            float(permutation_test(rng.normal(value_of(found), 1.0, 9), rng.normal(0.0, 1.3, 9), "two-sided").p) < 0.05
            for _ in range(1000)
        ]
    )
    assert share == pytest.approx(0.8, abs=4.0 * np.sqrt(0.16 / 1000))


def test_the_same_design_always_has_the_same_power() -> None:
    planned = design("permutation", 6)
    found = detectable_difference(planned)
    module._curve.cache_clear()
    assert detectable_difference(planned) == found


# -- margins --------------------------------------------------------------------------------------------------------


def test_non_inferiority_is_a_one_sided_test_of_what_the_margin_leaves() -> None:
    planned = design("welch", 8, "less")
    assert power_of_non_inferiority(planned, 2.0, 0.5) == power(planned, 1.5)
    assert power_of_non_inferiority(design("welch", 8), 2.0) == power(planned, 2.0)  # never two-sided
    assert value_of(power_of_non_inferiority(planned, 2.0, 2.0)) == pytest.approx(0.05, abs=0.002)
    assert value_of(power_of_non_inferiority(planned, 2.0, 3.0)) < 0.01
    assert detectable_difference(planned, goal="non-inferiority") == detectable_difference(planned)


@pytest.mark.parametrize("difference", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("test", ["permutation", "welch", "paired-t", "sign-flip"])
def test_equivalence_is_shown_as_often_as_both_one_sided_tests_are_significant(
    test: PowerTest, difference: float
) -> None:
    planned, margin = design(test, 6), 2.0
    rng = np.random.default_rng(5)
    found = []
    for _ in range(600):
        first = rng.normal(difference, planned.deviations[0], 6)
        second = rng.normal(0.0, planned.deviations[-1], 6)
        above, below = (
            p_value(test, first + up, second, side) for up, side in ((margin, "greater"), (-margin, "less"))
        )
        found.append(max(above, below) < planned.alpha)
    share = float(np.mean(found))
    error = np.sqrt(max(share * (1.0 - share), 0.02) / len(found))
    assert abs(value_of(power_of_equivalence(planned, margin, difference)) - share) < 4.0 * error


def test_the_smallest_margin_of_equivalence_is_wider_than_that_of_non_inferiority() -> None:
    planned = design("permutation", 6)
    margins = [value_of(detectable_difference(planned, goal=goal)) for goal in ("non-inferiority", "equivalence")]
    assert margins[0] < margins[1]
    assert value_of(power_of_equivalence(planned, margins[1])) == pytest.approx(0.8, abs=1e-3)
    runs = int(value_of(runs_needed(planned, margins[1], goal="equivalence")))
    assert runs == 6


# -- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": (5,)}, "expected 2 numbers of runs"),
        ({"runs": (5, -1)}, "number of runs is -1"),
        ({"deviations": (0.0, 0.0)}, "standard deviation is 0 and 0"),
        ({"deviations": (1.0, float("nan"))}, "standard deviation is 1 and nan"),
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"sides": "both"}, "alternative 'both'"),
        ({"test": "wilcoxon"}, "test 'wilcoxon'"),
    ],
)
def test_an_impossible_design_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(design("welch", 5), **change)  # type: ignore[arg-type]


def test_impossible_questions_are_refused() -> None:
    planned = design("welch", 5)
    with pytest.raises(InputError, match="the difference is -1; expected"):
        power(planned, -1.0)
    with pytest.raises(InputError, match="the margin is -1; expected"):
        power_of_equivalence(planned, -1.0)
    with pytest.raises(InputError, match="a difference of 0"):
        runs_needed(planned, 0.0)
    for wanted in (0.0, 1.0, 80.0):
        with pytest.raises(InputError, match="the wanted power is"):
            detectable_difference(planned, wanted)
        with pytest.raises(InputError, match="the wanted power is"):
            runs_needed(planned, 1.0, wanted)
    with pytest.raises(InputError, match="goal of a test 'better'"):
        detectable_difference(planned, goal="better")  # type: ignore[arg-type]
