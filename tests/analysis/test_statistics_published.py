"""The published per-seed tables, put through our functions, give the published results."""

from pathlib import Path

import numpy as np
import pytest
from published_results import DOCUMENTED, interval_cases, limit, p_value_cases, replications, summary_cases
from published_runs import BASELINE, LEVELS, SIGNAL, agrees, bullet, cells, column, half_unit, metadrive

from vlmsafe.analysis.exact_tests import permutation_test
from vlmsafe.analysis.resampling import bootstrap_paired_difference
from vlmsafe.analysis.statistics import pair_by_seed

DOCUMENT = Path(__file__).parents[2] / "docs" / "explanation" / "statistics.md"


@pytest.mark.parametrize("case", interval_cases(), ids=lambda case: case.name)
def test_published_ends_are_what_10000_resamples_of_runs_may_give(case):
    grid = limit(case.first, case.second, case.unit)
    estimate, low, high = case.computed()
    assert not case.published[0] or agrees(case.published[0], estimate, case.rounding)
    for end, ours, share in ((case.published[1], low, 0.025), (case.published[2], high, 0.975)):
        assert abs(grid.values[grid.nearest(float(end))] - float(end)) <= half_unit(end) + case.rounding + 1e-9
        assert grid.may_give(float(end), share)
        assert grid.may_give(ours, share)


@pytest.mark.parametrize("case", interval_cases(), ids=lambda case: case.name)
def test_published_ends_are_within_one_step_of_the_limit(case):
    assert max(case.steps()) <= 1


def test_our_rate_intervals_are_within_one_step_of_the_published_ones():
    for case in interval_cases()[:5]:
        for end, ours in zip(case.published[1:], case.computed()[1:], strict=True):
            assert abs(float(end) - ours) <= case.unit / len(case.first) + half_unit(end)


@pytest.mark.parametrize(("level", "ends"), [("easy", (8.0, 38.0)), ("hard", (-22.2, -1.2))])
def test_matched_seeds_would_have_given_other_intervals(level, ends):
    """So the published intervals are unpaired: these ends are more than one step away from them."""
    seeds = metadrive(level, SIGNAL, "seed")
    paired = bootstrap_paired_difference(
        pair_by_seed(seeds, metadrive(level, SIGNAL), seeds, metadrive(level, BASELINE))
    )
    assert (paired.low, paired.high) == pytest.approx(ends, abs=0.05)
    published = next(case for case in interval_cases() if level in case.name).published
    assert abs(paired.high - float(published[2])) > 2 * 2.0 / len(seeds)


@pytest.mark.parametrize("case", p_value_cases(), ids=lambda case: f"{case.name}: {case.call}")
def test_published_p_values_follow_from_the_published_runs(case):
    if "/" in case.computed and "/" not in case.published:
        for fraction in case.computed.split(" or "):
            above, below = map(int, fraction.split("/"))
            assert agrees(case.published, above / below)
    else:
        assert case.computed == case.published


def test_seven_of_56_does_not_depend_on_the_stand_ins():
    """Any three returns of CPO-Coupled with the published mean, none more than two from it, give 7/56."""
    returns = column("phaseb-conf", "logged_return", environment="formula-one-l2", kind="seed")
    for spread in np.random.default_rng(0).normal(size=(50, 3)):
        spread -= spread.mean()
        coupled = 21.51 + 2 * spread / np.abs(spread).max()
        assert str(permutation_test(returns, coupled, "greater")) == "7/56"


def test_one_of_56_holds_for_all_returns_below_those_of_family_a():
    returns = column("phaseb-conf", "logged_return", environment="formula-one-l2", kind="seed")
    assert str(permutation_test(returns, [15.7, 15.7, -3.0], "greater")) == "1/56"
    assert str(permutation_test(returns, [15.9, 0.0, 0.0], "greater")) != "1/56"


def test_unpublished_p_values_are_as_documented():
    arms = [(metadrive(level, SIGNAL), metadrive(level, BASELINE)) for level in LEVELS]
    arms.append((bullet(SIGNAL), bullet(BASELINE)))
    found = [
        str(permutation_test(*arm, side))
        for arm, side in zip(arms, ("greater", "greater", "less", "less"), strict=True)
    ]
    assert found == ["2/20", "103/252", "2343/184756", "359/924"]
    for p in found:
        assert p in DOCUMENT.read_text()


def test_only_the_absolute_difference_gives_the_published_two_sided_p_on_hard():
    for rates in replications("hard"):
        less, greater = (permutation_test(metadrive("hard", SIGNAL), rates, side).p for side in ("less", "greater"))
        assert not agrees("0.29", float(2 * min(less, greater)))


@pytest.mark.parametrize("case", summary_cases(), ids=lambda case: f"{case.name}: {case.call}")
def test_published_summaries_follow_from_the_published_runs(case):
    assert case.computed == case.published


def test_no_printed_mean_or_deviation_contradicts_the_printed_runs():
    checked = cells()
    assert len(checked) > 150
    assert [cell for cell in checked if not agrees(cell.published, cell.computed, cell.rounding)] == []


@pytest.mark.parametrize("render", DOCUMENTED, ids=lambda render: render.__name__)
def test_document_shows_what_is_computed(render):
    assert render() in DOCUMENT.read_text()
