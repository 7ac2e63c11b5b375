"""The table of methods says what the paper's arms are."""

import pytest

from vlmsafe.cli import main
from vlmsafe.config.methods import METHODS, check_method, config_from, differences, method_defaults
from vlmsafe.config.settings import TrainConfig
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


@pytest.mark.parametrize("name", METHODS)
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
    assert "An auto gate is prior-symmetric with CLIP, as in the paper, and calibrated with embedded" in listing
    main(["methods", "diff", "vlm-ppo-lag", "vlm-ppo-lag-conf"])
    assert "An auto gate is" in capsys.readouterr().out
    main(["methods", "diff", "ppo", "ppo-lag"])
    assert "An auto gate is" not in capsys.readouterr().out
