"""What planned runs can show: which tests count, where deviations come from, and what is said about it."""

import numpy as np
import pytest

from vlmsafe.analysis.power import Design, detectable_difference
from vlmsafe.comparison.claims import Claim, Claims, ContrastCell, ContrastClaim
from vlmsafe.comparison.power import (
    Deviation,
    KnownArm,
    PlannedArm,
    Spread,
    detectable_sentence,
    planned_tests,
    power_row,
    spread,
)

FIVE = (1, 2, 3, 4, 5)
ARMS = {
    ("easy", "a"): PlannedArm(FIVE, ("held-out", "paper")),
    ("easy", "b"): PlannedArm(FIVE, ("held-out",)),
    ("hard", "a"): PlannedArm(FIVE),
    ("hard", "b"): PlannedArm((4, 5, 6)),
    ("hard", "c"): PlannedArm((1, 2, 3)),
}


def planned(**settings):
    """The only test of one claim on easy."""
    (found,) = planned_tests(Claims((Claim("a", "b", "easy", **settings),)), ARMS)
    return found


def known(name, *values):
    return KnownArm(name, float(np.std(values, ddof=1)), len(values), dict(zip(FIVE, values, strict=False)))


# -- tests and levels ----------------------------------------------------------------------------------------------


def test_a_claim_about_every_environment_is_a_test_on_each():
    found = planned_tests(Claims((Claim("a", "b"), Claim("a", "c"), Claim("a", "b", test="none"))), ARMS)
    assert [(one.env, one.claim.second, one.runs, one.level) for one in found] == [
        ("easy", "b", (5, 5), 0.05), ("hard", "b", (5, 3), 0.05), ("hard", "c", (5, 3), 0.05),
    ]  # fmt: skip


def test_a_paired_test_has_the_seeds_that_both_arms_have():
    found = planned_tests(Claims((Claim("a", "b", test="sign-flip"),)), ARMS)
    assert [one.runs for one in found] == [(5,), (2,)]


@pytest.mark.parametrize("correction", ["holm", "bonferroni"])
def test_a_corrected_level_counts_every_stated_test(correction):
    contrast = ContrastClaim("one", (ContrastCell("a", "easy"),), (ContrastCell("b", "easy"),))
    parts = [Claim("a", "b", "easy", joint="both"), Claim("a", "b", "easy", outcome="env_return", joint="both")]
    claims = Claims((Claim("a", "b"), *parts), correction, (contrast,))
    assert {one.level for one in planned_tests(claims, ARMS)} == {0.05 / 4}  # two, one joint, one contrast


def test_the_source_is_the_evaluation_that_both_arms_will_have():
    assert planned().source == "held-out"
    assert planned(source="training").source == "training"
    assert planned(outcome="shaped_return").source == "training"


# -- deviations ----------------------------------------------------------------------------------------------------


def test_known_arms_give_their_own_deviations():
    found = spread(planned(), [known("a", 1.0, 3.0), known("b", 0.0, 4.0, 8.0), known("c", 0.0, 99.0)], "pilot runs")
    assert found.deviations == (Deviation(pytest.approx(2**0.5), 2), Deviation(4.0, 3))


def test_an_unknown_arm_gets_the_pooled_deviation_of_the_others():
    found = spread(planned(), [known("b", 0.0, 4.0, 8.0), known("c", 1.0, 1.0)], "pilot runs")
    assert found.deviations == (Deviation(pytest.approx((32 / 3) ** 0.5), 5, pooled=2), Deviation(4.0, 3))


def test_nothing_known_or_nothing_different_is_no_deviation():
    assert spread(planned(), [], "pilot runs") is None
    assert spread(planned(), [known("a", 1.0, 1.0), known("b", 2.0, 2.0)], "pilot runs") is None


def test_a_paired_test_takes_the_deviation_of_the_differences():
    arms = [known("a", 1.0, 12.0, 23.0), known("b", 0.0, 10.0, 20.0)]
    test = planned(test="paired-t")
    (found,) = spread(test, arms, "pilot runs").deviations
    assert found == Deviation(pytest.approx(1.0), 3)
    apart = spread(test, [arms[0], KnownArm("b", 10.0, 3, {})], "pilot runs")
    assert apart.design(test).deviations == (pytest.approx(np.hypot(11.0, 10.0)),)
    assert "pairs taken as independent" in str(power_row(test, apart))


# -- rows ----------------------------------------------------------------------------------------------------------


def test_a_row_says_what_can_be_detected_and_what_a_difference_needs():
    found = Spread((Deviation(6.1, 5), Deviation(8.0, 4)), "pilot runs")
    row = power_row(planned(test="welch"), found, difference=20.0)
    expected = detectable_difference(Design("welch", (5, 5), (6.1, 8.0)))
    assert row.detectable == expected
    assert str(row) == (
        f"easy, cost of 'a' against 'b': with 5 seeds per arm, a difference of {expected.value:.1f} can be detected "
        "with 80 % power (Welch's t-test, two-sided, level 0.05; sd 6.1 and 8 from 5 and 4 pilot runs); a difference "
        "of 20 needs 4 seeds per arm."
    )


def test_rates_are_in_percentage_points():
    found = Spread((Deviation(0.1, 5, 2), Deviation(0.1, 5, 2)), "pilot runs")
    text = str(power_row(planned(outcome="catastrophe", test="welch", sides="less"), found, difference=0.07))
    assert "a difference of 17.6 pp" in text
    assert "sd 10.0 pp from 5 pilot runs of 2 arms, pooled" in text
    assert "a difference of 7 pp needs 26 seeds per arm" in text


def test_a_difference_that_no_rate_can_have_is_not_planned_for():
    found = Spread((Deviation(0.8, 5), Deviation(0.8, 5)), "pilot runs")
    row = power_row(planned(outcome="catastrophe"), found, difference=20.0)
    assert row.needed is None
    assert "no difference that a rate can have can be detected with 80 % power" in str(row)


def test_too_few_seeds_for_the_test_are_found_without_a_deviation():
    (_, row) = planned_tests(Claims((Claim("a", "b", test="sign-flip"),)), ARMS)
    assert str(power_row(row, None)) == (
        "hard, cost of 'a' against 'b': 2 matched seeds cannot show any difference (sign-flip test, two-sided, level "
        "0.05); at least 6 are needed."
    )


def test_an_unknown_variance_is_said():
    assert "5 seeds per arm can detect is unknown, because no variance between runs is known" in str(
        power_row(planned(), None, difference=3.0)
    )


@pytest.mark.parametrize("kind", ["non-inferiority", "equivalence"])
def test_a_claim_with_a_margin_plans_for_its_margin(kind):
    found = Spread((Deviation(6.1, 5), Deviation(8.0, 4)), "pilot runs")
    row = power_row(planned(kind=kind, margin="10 cost", test="welch"), found, difference=1.0)
    assert row.detectable == detectable_difference(Design("welch", (5, 5), (6.1, 8.0), "less"), goal=kind)
    assert row.distance == 10.0
    assert "one-sided, level 0.05" in str(row)
    assert f"the margin of 10 needs {row.needed.value} seeds per arm" in str(row)
    assert "worse by less than" in str(row) or "differ by less than" in str(row)


# -- reports -------------------------------------------------------------------------------------------------------


def values(*numbers, seeds=FIVE):
    return dict(zip(seeds, numbers, strict=False))


def test_a_report_says_what_the_runs_could_have_detected():
    first, second = values(10.0, 14.0, 18.0, 22.0, 26.0), values(12.0, 15.0, 20.0, 21.0, 30.0)
    claim = Claim("a", "b")
    design = Design("permutation", (5, 5), (float(np.std(list(first.values()), ddof=1)), 6.877499545619945))
    expected = detectable_difference(design).value
    assert detectable_sentence(claim, first, second) == (
        f"Five seeds per arm can detect a difference of {expected:.1f} with 80 % power."
    )
    stricter = detectable_sentence(claim, first, second, level=0.01, wanted=0.9)
    assert stricter.endswith("with 90 % power.")
    assert detectable_sentence(claim, first, second, level=0.001) == (
        "Five seeds per arm cannot show any difference: p cannot fall below the level of 0.001."
    )


def test_a_report_of_a_paired_claim_counts_the_shared_seeds():
    first, second = values(10.0, 14.0, 18.0, 22.0, 26.0), values(12.0, 15.0, 20.0, seeds=(3, 4, 5))
    assert detectable_sentence(Claim("a", "b", test="paired-t"), first, second).startswith("Three matched seeds can")


def test_a_report_of_a_margin_says_which_margin_could_have_been_shown():
    first, second = values(0.1, 0.2, 0.3, 0.4), values(0.1, 0.2, 0.4, 0.5, 0.2)
    claim = Claim("a", "b", outcome="catastrophe", kind="non-inferiority", margin="5 pp")
    text = detectable_sentence(claim, first, second)
    assert text.startswith("Four and five seeds can show non-inferiority within ")
    assert text.endswith(" pp with 80 % power, if the arms do not differ.")


def test_a_report_says_nothing_where_power_has_no_meaning():
    first, second = values(1.0, 2.0, 3.0), values(2.0, 3.0, 4.0)
    assert detectable_sentence(Claim("a", "b", test="bootstrap"), first, second) is None
    assert detectable_sentence(Claim("a", "b", test="none"), first, second) is None
    assert detectable_sentence(Claim("a", "b"), values(1.0), second) is None
    assert detectable_sentence(Claim("a", "b", test="paired-t"), first, second) is None  # all differences are equal
