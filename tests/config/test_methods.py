"""The table of methods says what the paper's arms are."""

import pytest

from vlmsafe.cli import main
from vlmsafe.config.methods import (
    METHODS,
    OFF_POLICY_METHODS,
    check_method,
    config_from,
    config_from_yaml,
    differences,
    method_defaults,
)
from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import to_dict, to_yaml
from vlmsafe.errors import InputError

ARMS = {
    "PPO", "CPO", "CPO (two-seed control)", "PPOLag (matched)", "PPOLag (unmatched)", "CPPOPID", "FOCOPS", "CUP", "P3O",
    "PPO-CLG", "CPO-CLG", "PPOLag-RND", "CPO-Coupled", "CPO-Decoupled", "CPO-Decoupled+Conf", "PPOLag-Decoupled",
    "VLMPPOLag", "VLMPPOLag (eta_2 = 0)", "VLMPPOLag+Conf (prior-symmetric)", "VLMPPOLag+Conf (calibrated)",
    "Qwen2-VL+Conf",
}  # fmt: skip


def test_every_arm_of_the_paper_is_there_under_its_name():
    assert {method.paper for method in METHODS.values()} == ARMS
    assert all(name == method.name for name, method in METHODS.items())


@pytest.mark.parametrize("name", [*METHODS, *OFF_POLICY_METHODS])
def test_every_method_is_a_valid_configuration(name):
    config = TrainConfig(**{**vars(method_defaults(name)), "env": "speeding"}).resolved()
    check_method(config)


@pytest.mark.parametrize(
    ("one", "other", "settings"),
    [
        ("vlm-ppo-lag", "ppo-lag-decoupled", {"multiplier.signal_weight"}),
        ("vlm-ppo-lag", "vlm-ppo-lag-conf", {"signal.gate"}),
        ("cpo-coupled", "cpo-decoupled", {"signal.rule"}),
        ("cpo-decoupled", "cpo-decoupled-conf", {"signal.gate"}),
        ("ppo-lag-decoupled", "vlm-ppo-lag-eta0", {"signal.every"}),
        ("vlm-ppo-lag-conf", "vlm-ppo-lag-conf-calibrated", {"signal.gate", "signal.every"}),
        ("ppo-lag", "ppo-lag-unmatched", {"learner.update_iters", "multiplier.initial"}),
        ("cpo", "cpo-control", set()),
        ("ppo-lag", "ppo-lag-decoupled", {"signal.scorer", "signal.rule", "signal.reward_weight"}),
    ],
)
def test_compared_methods_differ_in_exactly_what_the_paper_names(one, other, settings):
    changed = differences(one, other)
    assert set(changed) == settings
    assert differences(other, one) == {key: (b, a) for key, (a, b) in changed.items()}


def test_hyper_parameters_are_those_of_the_papers_table():
    passes = {name: method.learner.update_iters for name, method in METHODS.items()}
    forty = {name for name, count in passes.items() if count == 40}
    assert set(passes.values()) == {10, 40}
    assert {"ppo-lag", "cppo-pid", "ppo-clg", "vlm-ppo-lag", "ppo-lag-rnd"} <= forty
    assert not {"ppo", "ppo-lag-unmatched", "focops", "cup", "p3o", "cpo", "cpo-clg"} & forty
    for name, method in METHODS.items():
        cpo = method.learner.algorithm == "cpo"
        assert method.learner.batch_size == (128 if cpo else 64), name
        assert method.learner.target_kl == (0.01 if cpo or name == "cup" else 0.02), name
        assert method.learner.kl_early_stop is not cpo, name
        assert method.learner.critic_lr == (1e-3 if cpo else 3e-4), name
    assert METHODS["focops"].multiplier.upper_bound == METHODS["cup"].multiplier.upper_bound == 2.0
    assert METHODS["ppo-lag-rnd"].signal.reward_weight == 0.0


def test_a_part_of_another_method_is_refused():
    with pytest.raises(InputError, match=r"multiplier.kind is 'pid', but the method 'ppo-lag' has 'adam'"):
        check_method(config_from({"method": "ppo-lag", "multiplier": {"kind": "pid"}}))
    with pytest.raises(InputError, match=r"signal.scorer is set, but the method 'ppo-lag' has no signal"):
        check_method(config_from({"method": "ppo-lag", "signal": {"scorer": "clip"}}))
    check_method(
        config_from({"method": "cup", "learner": {"variant": "published"}, "multiplier": {"kind": "gradient"}})
    )


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("ppo", {"multiplier": {"signal_weight": 0.1}}, "multiplier.signal_weight is set, but the method 'ppo' has no"),
        ("cpo", {"signal": {"reward_weight": 0.1}}, "signal.reward_weight is set, but the method 'cpo' has no signal"),
        ("vlm-ppo-lag", {"signal": {"scorer": "none"}}, "signal.scorer is 'none', but the method 'vlm-ppo-lag' has a"),
        ("vlm-ppo-lag", {"signal": {"rule": "coupled"}}, "signal.rule is 'coupled', but"),
        ("ppo-clg", {"signal": {"cost_weight": 0.5, "prompts": "metadrive"}}, "PPO has none"),
        ("cpo-clg", {"signal": {"multiplier": {"kind": "adam"}, "prompts": "metadrive"}}, "has no multiplier "),
        ("vlm-ppo-lag", {"env": "gym:Pendulum-v1"}, "has no prompts of its own; pass --prompts"),
        ("ppo-lag", {"signal": {"every": 4}}, "signal.every is set, but the method 'ppo-lag' has no signal"),
        ("ppo-lag", {"signal": {"calibration": {"frames": 50}}}, "signal.calibration.frames is set, but"),
        (
            "cpo-decoupled",
            {"multiplier": {"signal_weight": 0.5}},
            "multiplier.signal_weight is set, but .* no multiplier",
        ),
        ("ppo-lag-rnd", {"signal": {"reward_weight": 0.1}}, "novelty has no positive score"),
        ("vlm-ppo-lag", {"signal": {"calibration": {"frames": 0}}}, "signal.calibration.frames is 0"),
        ("vlm-ppo-lag", {"signal": {"calibration": {"frames": 4, "episodes": 9}}}, "number of episodes, 9"),
        ("vlm-ppo-lag", {"signal": {"reference": float("nan")}}, "reference is nan; it must lie between 0 and 1"),
        ("vlm-ppo-lag", {"signal": {"multiplier": {"budget": -5.0}}}, "budget is -5.0; it must lie between 0 and 1"),
        ("vlm-ppo-lag", {"signal": {"device": "foo"}}, "signal.device is 'foo'; expected auto, cpu"),
        ("vlm-ppo-lag", {"signal": {"device": "mps"}}, "signal.device is 'mps'; expected auto, cpu"),
    ],
)
def test_a_signal_that_does_not_fit_its_method_is_refused(method, settings, message):
    with pytest.raises(InputError, match=message):
        check_method(config_from({"method": method, **settings}).resolved())


@pytest.mark.parametrize(("workers", "repeat"), [(1, 1), (10, 1), (20, 1), (40, 2)])
def test_workers_whose_shares_hold_a_whole_episode_are_taken(workers, repeat):
    check_method(config_from({"env": "metadrive-easy", "num_envs": workers, "action_repeat": repeat}).resolved())


def test_so_many_workers_that_only_short_episodes_would_count_are_refused_with_the_numbers():
    message = (
        r"num_envs is 25, so a worker's share of an epoch is 800 steps, but an episode of metadrive-easy has up to "
        r"1,000: .*; use at most 20 workers, or at least 25,000 steps per epoch"
    )
    with pytest.raises(InputError, match=message):
        check_method(config_from({"env": "metadrive-easy", "num_envs": 25}).resolved())


@pytest.mark.parametrize("size", [{"env": "metadrive-easy", "steps_per_epoch": 500}, {"env": "gym:CartPole-v1"}])
def test_an_epoch_shorter_than_an_episode_or_of_unknown_episodes_is_taken(size):
    check_method(config_from({"total_steps": 20_000, "num_envs": 10, **size}).resolved())


def test_the_default_scorer_is_the_packages_own_wherever_the_paper_has_clip():
    scorers = {name: method.signal.scorer for name, method in METHODS.items() if method.signal.scorer != "none"}
    others = {"ppo-lag-rnd": "rnd", "qwen2-vl-conf": "qwen2-vl"}
    assert scorers == {name: others.get(name, "embedded") for name in scorers}
    assert {METHODS[name].signal.rule for name in scorers if name not in others} == {"decoupled", "coupled", "clg"}


def resolved_gate(method, **signal):
    return config_from({"method": method, "env": "speeding", "signal": signal}).resolved().signal.gate


@pytest.mark.parametrize("method", ["cpo-decoupled-conf", "vlm-ppo-lag-conf"])
def test_a_gate_that_nobody_set_is_the_papers_with_clip_and_calibrated_with_the_packages_own_model(method):
    assert resolved_gate(method) == "calibrated"
    assert resolved_gate(method, scorer="embedded:mine.safetensors") == "calibrated"
    for scorer in ("clip", "oracle", "python:module:name"):
        assert resolved_gate(method, scorer=scorer) == "prior-symmetric"


def resolved(env, method="vlm-ppo-lag-conf", **signal):
    return config_from({"method": method, "env": env, "signal": signal}).resolved().signal


def test_a_yes_no_model_has_its_own_gate_and_precision_in_every_method():
    rule = {"scorer": "qwen2-vl"}
    for method in ("qwen2-vl-conf", "vlm-ppo-lag-conf", "cpo-decoupled-conf"):
        signal = resolved("speeding", method, **rule)
        assert (signal.gate, signal.precision, signal.batch) == ("probability", "bfloat16", 16)
    signal = resolved("speeding", **rule, gate="calibrated", precision="float32", batch=3)
    assert (signal.gate, signal.precision, signal.batch) == ("calibrated", "float32", 3), "what was set stays"
    for scorer in ("embedded", "clip", "oracle"):
        signal = resolved("speeding", scorer=scorer)
        assert (signal.precision, signal.batch) == ("float32", 64)


@pytest.mark.parametrize(
    ("env", "every"),
    [
        ("metadrive-easy", 4), ("metadrive-hard", 4), ("metadrive-easy:ends+mended", 4), ("bullet-car-reach", 4),
        ("formula-one-l0", 1), ("formula-one-l2", 1), ("safety-gymnasium:SafetyRacecarFormulaOne2-v0", 1),
        ("speeding", 1), ("braking", 1),
    ],
)  # fmt: skip
def test_an_arm_by_name_scores_as_often_as_the_papers_on_each_environment(env, every):
    open_ones = [
        name for name, method in METHODS.items() if method.signal.scorer == "embedded" and not method.signal.every
    ]
    assert {"vlm-ppo-lag-conf", "vlm-ppo-lag", "cpo-coupled", "cpo-decoupled", "ppo-lag-decoupled"} <= set(open_ones)
    assert {resolved(env, name).every for name in open_ones} == {every}
    assert resolved(env, "vlm-ppo-lag-conf-calibrated").every == resolved(env, "vlm-ppo-lag-eta0").every == 4
    assert resolved(env, "qwen2-vl-conf").every == 8
    assert resolved(env, every=3).every == 3
    assert resolved(env, "ppo-lag-rnd").every == resolved(env, "ppo-lag").every == 1


def test_a_recorded_run_keeps_its_period(tmp_path):
    """Runs of earlier versions scored every step on MetaDrive, and their configuration says so."""
    config = config_from({"method": "vlm-ppo-lag-conf", "env": "metadrive-easy", "signal": {"every": 1}}).resolved()
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(to_dict(config)))
    assert config_from_yaml(path).resolved() == config


@pytest.mark.parametrize("method", METHODS)
def test_the_resolved_settings_of_a_method_are_settings_of_that_method(method):
    config = config_from({"method": method, "env": "metadrive-easy"}).resolved()
    assert config.resolved() == config
    again = config_from(to_dict(config))
    check_method(again)
    assert again == config


def test_the_full_weights_of_the_contrasting_goal_are_for_its_rule_alone():
    check_method(config_from({"method": "cpo-clg", "signal": {"clg_weights": "full"}}).resolved())
    with pytest.raises(InputError, match=r"signal.clg_weights is set, but the method 'vlm-ppo-lag' has the rule"):
        check_method(config_from({"method": "vlm-ppo-lag", "signal": {"clg_weights": "full"}}).resolved())


@pytest.mark.parametrize("gate", ["off", "prior-symmetric", "calibrated"])
@pytest.mark.parametrize("scorer", ["embedded", "clip"])
def test_a_gate_that_was_set_stays(gate, scorer):
    assert resolved_gate("vlm-ppo-lag-conf", scorer=scorer, gate=gate) == gate


def test_methods_without_a_gate_get_none_from_their_scorer():
    assert resolved_gate("vlm-ppo-lag") == "off"
    assert resolved_gate("qwen2-vl-conf") == "probability"


@pytest.mark.parametrize(
    "scorer", ["embedded", "oracle", "noise", "constant:0.6", "clip:some/model", "python:module:name"]
)
def test_a_method_with_a_signal_takes_any_scorer(scorer):
    settings = {"method": "vlm-ppo-lag", "env": "metadrive-easy", "signal": {"scorer": scorer}}
    check_method(config_from(settings).resolved())


def test_unknown_methods_name_the_nearest():
    with pytest.raises(InputError, match=r"did you mean 'vlm-ppo-lag'"):
        differences("ppo", "vlm-ppolag")


def test_the_listing_says_what_an_auto_gate_is_and_how_to_get_the_papers_arms(capsys):
    main(["methods"])
    listing = " ".join(capsys.readouterr().out.split())
    assert "--scorer clip gives them" in listing
    assert "An auto gate is prior-symmetric with CLIP, as in the paper, calibrated with embedded" in listing
    assert "How often a frame is scored follows the paper where a method does not say" in listing
    assert "(4 on metadrive and bullet)" in listing
    main(["methods", "diff", "vlm-ppo-lag", "vlm-ppo-lag-conf"])
    assert "An auto gate is" in capsys.readouterr().out
    main(["methods", "diff", "vlm-ppo-lag-conf", "vlm-ppo-lag-conf-calibrated"])
    said = " ".join(capsys.readouterr().out.split())
    assert "every 1 (4 on metadrive and bullet)" in said
    assert "None" not in said
    main(["methods", "diff", "ppo", "ppo-lag"])
    assert "An auto gate is" not in capsys.readouterr().out
