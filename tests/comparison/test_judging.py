"""Margins are judged by the claimed test, and intervals belong to it."""

import numpy as np
import pytest

from vlmsafe.comparison.claims import Claim
from vlmsafe.comparison.judging import interval_of, judge, smallest_p

TESTS = ("permutation", "sign-flip", "welch", "paired-t")


def seeds(values):
    return dict(enumerate(values))


LOW = seeds([10.0, 11.0, 9.5, 10.4, 10.8, 9.9])
CLOSE = seeds([10.2, 10.9, 9.8, 10.3, 10.9, 9.7])


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize(
    ("outcome", "margin", "shift", "shown"),
    [
        ("cost", "2 cost", 0.0, True),
        ("cost", "2 cost", 1.9, False),
        ("cost", "2 cost", -30.0, True),  # far better is not worse
        ("env_return", "2 return", 0.0, True),
        ("env_return", "2 return", -1.9, False),
        ("env_return", "2 return", 30.0, True),
    ],
)
def test_an_arm_is_not_worse_where_its_direction_and_margin_say_so(test, outcome, margin, shift, shown):
    claim = Claim("a", "b", outcome=outcome, kind="non-inferiority", margin=margin, test=test)
    found = judge(claim, {key: value + shift for key, value in LOW.items()}, CLOSE)
    assert found.word == ("not worse" if shown else "undecided")


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize(("shift", "shown"), [(0.0, True), (3.0, False), (-3.0, False)])
def test_arms_are_the_same_only_within_both_sides_of_the_margin(test, shift, shown):
    claim = Claim("a", "b", kind="equivalence", margin="2 cost", test=test)
    found = judge(claim, {key: value + shift for key, value in LOW.items()}, CLOSE)
    assert found.word == ("the same" if shown else "undecided")


def test_margins_of_rates_are_percentage_points():
    rates = seeds([0.90, 0.92, 0.88, 0.91, 0.90])
    lower = {key: value - 0.03 for key, value in rates.items()}
    for margin, shown in (("5 pp", 1), ("2 pp", 0)):
        claim = Claim("a", "b", outcome="arrived", kind="non-inferiority", margin=margin, test="paired-t")
        varied = {key: value + 0.001 * (key % 2) for key, value in lower.items()}
        assert judge(claim, varied, rates).decided == shown


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("sides", ["two-sided", "less", "greater"])
def test_an_interval_excludes_zero_exactly_where_its_test_is_significant(test, sides):
    rng = np.random.default_rng(7)
    claim = Claim("a", "b", test=test, sides=sides)
    for _ in range(60):
        first, second = seeds(rng.normal(0.0, 1.0, 6)), seeds(rng.normal(rng.choice([-1.5, 0.0, 1.5]), 1.0, 6))
        interval, verdict = interval_of(claim, first, second), judge(claim, first, second)
        assert interval.level == pytest.approx(0.95 if sides == "two-sided" else 0.9)
        excludes = {
            "two-sided": interval.excludes_zero, "less": interval.high < 0, "greater": interval.low > 0
        }[sides]  # fmt: skip
        assert excludes == bool(verdict.decided)


def test_margins_are_judged_by_one_sided_tests_so_fewer_runs_suffice():
    claim = Claim("a", "b", kind="non-inferiority", margin="1 cost")
    assert smallest_p(claim, 4, 4, 4) == pytest.approx(1 / 70)
    assert smallest_p(Claim("a", "b"), 4, 4, 4) == pytest.approx(2 / 70)


@pytest.mark.parametrize("test", [*TESTS, "none"])
def test_arms_without_any_variation_have_no_interval(test):
    assert interval_of(Claim("a", "b", test=test), seeds([1.0] * 6), seeds([1.0] * 6)) is None
