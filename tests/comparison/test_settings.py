"""What two arms differ in, and what of it a comparison names."""

import pytest

from vlmsafe.comparison.settings import ABSENT, differences, effective, infer_about, named_pattern, unnamed
from vlmsafe.config.methods import METHODS, method_defaults
from vlmsafe.config.yaml import flatten, to_dict
from vlmsafe.errors import InputError


def settings(method, **changes):
    return flatten(to_dict(method_defaults(method))) | {
        name.replace("__", "."): value for name, value in changes.items()
    }


@pytest.mark.parametrize("method", METHODS)
def test_an_arm_does_not_differ_from_itself_in_another_place_with_another_seed(method):
    one = settings(method)
    assert (
        differences(one, one | {"seed": 7, "run_dir": "elsewhere", "signal.device": "cuda", "tensorboard": True}) == []
    )


def test_settings_of_other_learners_do_not_count():
    one = settings("ppo-lag")
    assert differences(one, one | {"learner.focops_eta": 9.0, "learner.cg_iters": 3, "multiplier.pid_kp": 4.0}) == []
    other = settings("focops")
    assert [d.setting for d in differences(other, other | {"learner.focops_eta": 9.0})] == ["learner.focops_eta"]


def test_a_start_counts_and_its_seed_does_not():
    one = settings("ppo-lag") | {"init_from": "clones/seed-1", "seed": 1}
    assert differences(one, one | {"init_from": "clones/seed-12", "seed": 12}) == []
    assert [d.setting for d in differences(one, one | {"init_from": "others/seed-1"})] == ["init_from"]
    assert [d.setting for d in differences(one, settings("ppo-lag"))] == ["init_from"]


def test_a_schedule_counts_where_a_rate_falls():
    one, constant = settings("ppo-lag"), settings("ppo-lag", learner__lr_decay=False)
    changed = {"learner.lr_schedule": "cosine", "learner.lr_floor": 0.1}
    assert {d.setting for d in differences(one, one | changed)} == set(changed)
    assert differences(constant, constant | changed) == []
    cpo = settings("cpo")
    assert differences(cpo, cpo | changed) == []


def test_settings_of_a_signal_that_is_not_there_do_not_count():
    one = settings("ppo-lag")
    changed = {"signal.every": 9, "multiplier.signal_weight": 5.0, "signal.gate": "calibrated"}
    assert differences(one, one | changed) == []
    other = settings("vlm-ppo-lag-conf")
    assert {d.setting for d in differences(other, other | changed)} >= set(changed)


def test_the_form_of_the_cost_counts_where_the_cost_critic_sees_the_signal():
    one, changed = settings("vlm-ppo-lag"), {"signal.cost_form": "change"}
    assert differences(one, one | changed) == []
    weighted = one | {"signal.cost_weight": 1.0}
    assert [d.setting for d in differences(weighted, weighted | changed)] == ["signal.cost_form"]


def test_the_published_baseline_of_formula_one_is_not_matched_and_the_other_is():
    signal = settings("vlm-ppo-lag-conf")
    found = differences(signal, settings("ppo-lag-unmatched"))
    assert infer_about(found) == ["signal"]
    assert {d.setting for d in unnamed(found, ["signal"])} == {"learner.update_iters", "multiplier.initial"}
    matched = differences(signal, settings("ppo-lag"))
    assert infer_about(matched) == ["signal"]
    assert unnamed(matched, ["signal"]) == []
    assert any(d.second == ABSENT for d in matched)


def test_gate_and_query_period_together_are_more_than_one_thing():
    found = differences(
        settings("vlm-ppo-lag-conf", signal__gate="prior-symmetric"), settings("vlm-ppo-lag-conf-calibrated")
    )
    assert infer_about(found) == ["gate"]
    assert [d.setting for d in unnamed(found, ["gate"])] == ["signal.every"]


def test_a_comparison_of_learners_still_needs_equal_passes():
    found = differences(settings("ppo-lag"), settings("cpo"))
    assert infer_about(found) == ["learner"]
    assert "learner.update_iters" in {d.setting for d in unnamed(found, ["learner"])}
    pid = differences(settings("ppo-lag"), settings("cppo-pid"))
    assert unnamed(pid, infer_about(pid)) == []


@pytest.mark.parametrize(
    "condition", ["total_steps", "steps_per_epoch", "num_envs", "budget", "cost_window", "normalise_observations"]
)
def test_the_conditions_of_training_are_never_what_a_comparison_is_about(condition):
    one = settings("ppo-lag", budget=25.0)
    found = differences(one, one | {condition: 3})
    assert infer_about(found) == []
    assert [d.setting for d in unnamed(found, [])] == [condition]
    assert unnamed(found, [condition]) == []


def test_a_single_setting_that_differs_is_what_the_comparison_is_about():
    one = settings("ppo-lag")
    found = differences(one, one | {"learner.gamma": 0.9})
    assert infer_about(found) == ["learner.gamma"]
    assert unnamed(found, ["learner.gamma"]) == []


def test_a_comparison_may_name_a_group_of_settings():
    one = settings("ppo-lag")
    found = differences(one, one | {"learner.gamma": 0.9, "learner.batch_size": 8})
    assert [d.setting for d in unnamed(found, ["learner.gamma"])] == ["learner.batch_size"]
    assert unnamed(found, ["learner.gamma", "learner.batch_size"]) == []


def test_what_a_comparison_cannot_be_about_is_said():
    with pytest.raises(InputError, match=r"cannot be about 'the car'.*expected signal"):
        named_pattern(["the car"])


def test_effective_settings_keep_what_every_run_has():
    assert {"learner.gamma", "total_steps", "budget", "cost_window"} <= effective(settings("ppo")).keys()
