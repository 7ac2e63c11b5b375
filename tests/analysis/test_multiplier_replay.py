"""A replay gives the recorded multiplier, and says what the signal term did to it."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmsafe import train
from vlmsafe.analysis.multiplier_replay import AGREEMENT, SCHEMA, rebuild, replay, summarise
from vlmsafe.config.learning import LearnerConfig, MultiplierConfig
from vlmsafe.config.methods import METHODS, Method
from vlmsafe.config.settings import SignalConfig
from vlmsafe.errors import InputError
from vlmsafe.learners.multipliers import make_multiplier
from vlmsafe.paper.published import published

SMALL = {"env": "speeding", "total_steps": 2400, "steps_per_epoch": 400, "learner": {"update_iters": 1}, "quiet": True}
ADAM = MultiplierConfig(kind="adam", signal_weight=0.01)
GRADIENT = MultiplierConfig(kind="gradient", learning_rate=0.1, initial=50.0, signal_weight=0.02)
PID = MultiplierConfig(kind="pid", signal_weight=0.02, pid_delay=3, pid_smoothing=0.5)
KINDS = {"adam": ADAM, "gradient": GRADIENT, "pid": PID}

costs = st.floats(0.0, 200.0)
scores = st.floats(0.0, 1.0)
epochs = st.lists(st.tuples(costs, scores, st.booleans()), min_size=1, max_size=12)


def recorded(config, sequence, budget=25.0):
    """The rows that a run with these episode costs and mean scores would have written."""
    multiplier, rows = make_multiplier(config), []
    for epoch, (cost, score, finished) in enumerate(sequence, 1):
        if finished:
            multiplier.update(multiplier.bracket(cost, budget, score), cost)
        rows.append({"epoch": epoch, "episodes": 4 if finished else 0, "budget": budget, "episode_cost": cost,
                     "negative_score": score if finished else None, "multiplier": multiplier.value})  # fmt: skip
    return rows


def steady(config, costs, score=0.7):
    return recorded(config, [(cost, score, True) for cost in costs])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Small real runs whose multipliers follow every rule, with control scorers in place of a model."""
    folder = tmp_path_factory.mktemp("runs")
    pid = Method("pid-with-signal", "", "", LearnerConfig(algorithm="cppo-pid"),
                 MultiplierConfig(kind="pid", signal_weight=0.03),
                 SignalConfig(scorer="noise", rule="decoupled", reward_weight=0.1))  # fmt: skip
    arms = {
        "adam": {"method": "vlm-ppo-lag", "signal": {"scorer": "noise"}},
        "constant": {"method": "vlm-ppo-lag", "signal": {"scorer": "constant:0.6,0.624"}},
        "gradient": {"method": "vlm-ppo-lag", "signal": {"scorer": "noise"}, "multiplier": {"kind": "gradient"},
                     "learner": {"variant": "published", "update_iters": 1}},
        "pid": {"method": pid.name},
        "plain": {"method": "ppo-lag"},
        "plain-pid": {"method": "cppo-pid"},
        "none": {"method": "ppo"},
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, pid.name, pid)
        return {
            name: train(**{**SMALL, **arm}, cost_window="epoch", run_dir=str(folder / name))
            for name, arm in arms.items()
        }


@pytest.mark.parametrize("name", ["adam", "constant", "gradient", "pid"])
def test_replay_of_a_real_run_agrees_with_its_record(runs, name):
    run = runs[name]
    rows = run.rows("epochs")
    table = replay(rows, run.config.multiplier)
    assert table.schema == pl.Schema(SCHEMA)
    np.testing.assert_allclose(table["rebuilt"], [row["multiplier"] for row in rows], rtol=0.0, atol=AGREEMENT)
    for column in ("cost_gap", "signal_term"):
        np.testing.assert_allclose(table[column], [row[column] for row in rows], rtol=0.0, atol=1e-12)
    found = summarise(table)
    assert found.agrees
    assert found.epochs == 6
    assert 0.0 < found.largest_change < 0.01, "the term is there and moves lambda by little"
    assert found.largest_term < 0.03 * 0.5 < found.smallest_gap
    assert found.sign_reversals == found.at_budget == 0


@pytest.mark.parametrize("name", ["plain", "plain-pid"])
def test_multiplier_of_a_run_without_signal_is_rebuilt_too(runs, name):
    rows = runs[name].rows("epochs")
    rebuilt = rebuild(rows, runs[name].config.multiplier)
    np.testing.assert_allclose(rebuilt, [row["multiplier"] for row in rows], rtol=0.0, atol=AGREEMENT)
    with pytest.raises(InputError, match="eta_2"):
        replay(rows, runs[name].config.multiplier)
    with pytest.raises(InputError, match="no negative score"):
        replay(rows, replace(runs[name].config.multiplier, signal_weight=0.01))


def test_published_mean_score_gives_the_published_budget_shift(runs):
    """A scorer that always says 0.624, the logged mean of the published runs, tightens the budget by 1.2e-3."""
    found = summarise(replay(runs["constant"].rows("epochs"), runs["constant"].config.multiplier))
    text = dict(published("text-results").select("key", "value").iter_rows())
    assert found.mean_score == pytest.approx(text["mean-c-vlm"], abs=1e-6)
    assert found.budget_shift == pytest.approx(-text["budget-shift"], abs=0.05e-3)
    assert found.largest_change < text["replay-largest-change"]
    assert found.largest_step < text["replay-step-0.035"]


def test_first_adam_step_is_the_learning_rate_as_published():
    """MetaDrive Hard: violations of 45.45 and 150.40 both move lambda from 0.001 to 0.036."""
    violations = published("text-runs").filter(quantity="first_epoch_violation")["value"]
    assert len(violations) == 2
    for violation in violations:
        assert rebuild(steady(ADAM, [25.0 + violation]), ADAM)[0] == pytest.approx(0.036, abs=1e-6)


@given(epochs, st.sampled_from(list(KINDS)))
@settings(max_examples=150, deadline=None)
def test_removing_the_term_equals_a_run_whose_scores_sit_at_the_reference(sequence, kind):
    config = KINDS[kind]
    at_reference = [(cost, config.signal_reference, finished) for cost, _, finished in sequence]
    expected = [row["multiplier"] for row in recorded(config, at_reference)]
    rows = recorded(config, sequence)
    np.testing.assert_array_equal(rebuild(rows, replace(config, signal_weight=0.0)), expected)
    if any(finished for _, _, finished in sequence):
        table = replay(rows, config)
        np.testing.assert_array_equal(table["without_term"], expected)
        np.testing.assert_array_equal(table["change"], table["rebuilt"] - table["without_term"])
        assert summarise(table).error == 0.0


@given(epochs)
@settings(max_examples=100, deadline=None)
def test_plain_gradient_steps_change_by_the_sum_of_the_terms_where_nothing_is_cut_off(sequence):
    config = replace(GRADIENT, initial=1e4)
    finished = [own for own in sequence if own[2]]
    if finished:
        table = replay(recorded(config, finished), config)
        terms = np.cumsum([config.signal_weight * (score - 0.5) for _, score, _ in finished])
        np.testing.assert_allclose(table["change"], config.learning_rate * terms, atol=1e-9)


@given(epochs, st.sampled_from(["gradient", "pid"]))
@settings(max_examples=100, deadline=None)
def test_term_that_is_never_negative_never_lowers_the_multiplier(sequence, kind):
    """Both rules are monotone in the bracket, projections included; Adam is not, for it divides by the past."""
    raised = [(cost, 0.5 + score / 2, True) for cost, score, _ in sequence]
    assert (replay(recorded(KINDS[kind], raised), KINDS[kind])["change"] >= -1e-12).all()


@given(epochs)
@settings(max_examples=100, deadline=None)
def test_summary_counts_and_sizes_are_those_of_the_epochs_that_moved_lambda(sequence):
    moved = [(cost - 25.0, 0.01 * (score - 0.5)) for cost, score, finished in sequence if finished]
    if not moved:
        return
    found = summarise(replay(recorded(ADAM, sequence), ADAM))
    gaps, terms = (np.array(part) for part in zip(*moved, strict=True))
    assert found.epochs == len(moved)
    assert found.at_budget == (gaps == 0).sum()
    assert found.sign_reversals == sum(gap != 0 and np.sign(gap + term) == -np.sign(gap) for gap, term in moved)
    assert (found.mean_term, found.largest_term) == pytest.approx((np.abs(terms).mean(), np.abs(terms).max()))
    assert (found.mean_gap, found.largest_gap) == pytest.approx((np.abs(gaps).mean(), np.abs(gaps).max()))
    assert found.budget_shift == pytest.approx(-terms.mean())


def test_reversals_and_epochs_at_the_budget_are_counted_apart():
    """Costs of 24.999 and 25 with a term of 0.002: one sign turned, one given."""
    found = summarise(replay(steady(ADAM, [24.999, 25.0, 30.0, 20.0]), ADAM))
    assert (found.sign_reversals, found.at_budget) == (1, 1)
    assert found.smallest_gap == 0.0


def test_largest_step_includes_the_first_epoch_and_skips_those_without_a_finished_episode():
    rows = recorded(ADAM, [(80.0, 0.6, True), (80.0, 0.6, False), (80.0, 0.6, True)])
    table = replay(rows, ADAM)
    assert table["step"].to_list() == pytest.approx([0.035, 0.0, 0.035], abs=1e-6)
    assert table["cost_gap"].to_list() == [55.0, None, 55.0]
    assert summarise(table).epochs == 2


def test_several_runs_are_summed_up_together():
    tables = [replay(steady(ADAM, costs), ADAM) for costs in ([30.0, 20.0], [25.0, 90.0, 24.999], [26.0])]
    single, joint = [summarise(table) for table in tables], summarise(*tables)
    assert (joint.runs, joint.epochs, joint.at_budget, joint.sign_reversals) == (3, 6, 1, 1)
    changes = [one.largest_change for one in single]
    assert joint.largest_change == max(changes)
    assert joint.median_largest_change == np.median(changes)
    assert joint.largest_step == max(one.largest_step for one in single)


def test_record_that_another_setting_made_does_not_agree():
    rows = steady(ADAM, [30.0, 40.0, 20.0])
    assert not summarise(replay(rows, replace(ADAM, learning_rate=0.03))).agrees
    assert summarise(replay(rows, ADAM)).agrees


def test_bad_input_is_named(runs):
    rows = steady(ADAM, [30.0, 20.0])
    with pytest.raises(InputError, match="no multiplier"):
        replay(runs["none"].rows("epochs"), runs["none"].config.multiplier)
    with pytest.raises(InputError, match="no finite multiplier"):
        replay(runs["none"].rows("epochs"), ADAM)
    with pytest.raises(InputError, match="no epochs"):
        replay([], ADAM)
    with pytest.raises(InputError, match="row 2 has no negative_score"):
        replay([rows[0], {key: value for key, value in rows[1].items() if key != "negative_score"}], ADAM)
    with pytest.raises(InputError, match="row 1 is of epoch 2"):
        replay(rows[1:], ADAM)
    with pytest.raises(InputError, match="no episode finished"):
        replay(recorded(ADAM, [(30.0, 0.6, False)]), ADAM)
    with pytest.raises(InputError, match="no column 'change'"):
        summarise(replay(rows, ADAM).drop("change"))
    with pytest.raises(InputError, match="at least one run"):
        summarise()
