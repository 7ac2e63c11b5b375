"""Budgets and progress: what is a warning, what is a note, and what is not said twice."""

import polars as pl
import pytest
from designs.clean_design import write_clean_design
from designs.editing import HELD_OUT, edit_claims, edit_table, judged, run_paths, set_up_with, with_costs
from designs.planting import BASELINE, FIRST

from vlmsafe.audit import audit
from vlmsafe.audit.kinds import Severity


@pytest.fixture
def design(tmp_path):
    return write_clean_design(tmp_path / "design", seeds=4)


def found(folder, code):
    return [one for one in audit([folder]).findings if one.code == code]


def set_costs(folder, arm, means):
    """Costs of an arm's runs with these means, the deviations of episodes as they were."""
    for path, mean in zip(run_paths(folder, arm), means, strict=True):
        old = pl.read_parquet(path / "evaluations" / f"{HELD_OUT}.parquet")["cost"].mean()
        edit_table(path, with_costs(lambda cost, by=mean / old: cost * by))


def test_an_arm_over_its_budget_beyond_chance_is_a_warning_and_by_chance_a_note(design):
    set_costs(design, BASELINE, [30.0, 31.0, 29.0, 30.0])
    (one,) = found(design, "over-budget")
    assert (one.severity, one.subject.arms, one.subject.protocol) == (Severity.WARNING, (BASELINE,), HELD_OUT)
    assert "mean cost 30, budget 25; 4 of 4 runs above it" in one.evidence
    assert one.data["bound"] == pytest.approx(5.0 - 2.3534 * 0.8165 / 2, abs=1e-3)
    set_costs(design, BASELINE, [60.0, 20.0, 20.0, 20.0])
    (one,) = found(design, "over-budget")
    assert one.severity is Severity.NOTE
    assert "1 of 4 runs above it" in one.evidence[0]
    assert "it may be chance" in one.evidence[1]
    set_costs(design, BASELINE, [25.0, 25.0, 25.0, 24.0])
    assert not found(design, "over-budget")


def test_several_claims_about_an_arm_say_once_that_it_is_over_its_budget(design):
    set_costs(design, FIRST, [40.0, 41.0, 42.0, 43.0])
    assert len(found(design, "over-budget")) == 1


def test_an_arm_that_ignores_cost_has_no_budget_to_miss(design):
    for path in run_paths(design, BASELINE):
        set_up_with(path, {"learner.algorithm": "ppo", "multiplier.kind": "none"})
    set_costs(design, BASELINE, [90.0, 91.0, 92.0, 93.0])
    assert not found(design, "over-budget")


def set_way(folder, arm, share):
    for path in run_paths(folder, arm):
        edit_table(path, lambda table: table.with_columns(pl.col("route_completion") * share))


def test_arms_that_get_unequally_far_are_shown_with_their_cost_per_distance(design):
    set_way(design, FIRST, 0.5)
    (one,) = found(design, "progress-differs")
    assert (one.severity, one.subject.arms) == (Severity.WARNING, (FIRST, BASELINE))
    first, second = one.data["progress"]["route_completion"]
    assert second / first == pytest.approx(2.0, abs=0.1)
    assert one.evidence[-1].startswith("cost per whole route: ")


@pytest.mark.parametrize(("arm", "share"), [(FIRST, 0.75), (BASELINE, 0.5)])
def test_a_little_less_way_or_a_longer_one_at_less_cost_is_no_finding(design, arm, share):
    set_way(design, arm, share)
    assert not found(design, "progress-differs")


def test_progress_does_not_matter_to_a_claim_about_returns(design):
    set_way(design, FIRST, 0.5)
    edit_claims(design, lambda claims: [claims[2]])
    assert not found(design, "progress-differs")


def test_an_arm_that_stands_still_is_called_passive_and_nothing_else(design):
    still = {"cost": 0.0, "env_return": 1.0, "route_completion": 0.02}
    for path in run_paths(design, FIRST):
        edit_table(path, lambda table: judged(table.with_columns(pl.lit(v).alias(k) for k, v in still.items())))
    assert found(design, "passive-policy")
    assert not found(design, "progress-differs")
