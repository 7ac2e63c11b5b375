"""Settings survive files, mistakes are named, and methods set what they say."""

import dataclasses
import math
import re
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmsafe.config.methods import METHODS, check_method, config_from, config_from_yaml, method, method_defaults
from vlmsafe.config.settings import (
    CheckpointConfig,
    LearnerConfig,
    MultiplierConfig,
    SignalConfig,
    TrainConfig,
    default_run_dir,
)
from vlmsafe.config.yaml import from_dict, read_yaml, to_dict, to_yaml
from vlmsafe.errors import EXIT_BAD_INPUT, InputError

quick = settings(max_examples=40, deadline=None)

_number = st.floats(allow_nan=False, allow_infinity=False)
_count = st.integers(-(2**62), 2**62)
_text = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=12)  # what a name may hold
_path = st.lists(st.text("abcXYZ 0189._-:#é", min_size=1, max_size=8), min_size=1, max_size=3).map(lambda p: Path(*p))


def _part(kind: type, **special: Any) -> Any:
    """A strategy for a configuration, from the types of its fields."""

    def field_strategy(hint: Any) -> Any:
        if get_origin(hint) is Literal:
            return st.sampled_from(get_args(hint))
        if get_origin(hint) in (types.UnionType, Union):
            return st.one_of(field_strategy(option) for option in get_args(hint))
        if dataclasses.is_dataclass(hint):
            return _part(hint)
        if get_origin(hint) is tuple:
            return st.lists(field_strategy(get_args(hint)[0]), max_size=4).map(tuple)
        return {bool: st.booleans(), int: _count, float: _number, str: _text, type(None): st.none()}[hint]

    hints = get_type_hints(kind)
    return st.builds(kind, **{n: special[n] if n in special else field_strategy(hint) for n, hint in hints.items()})


_learners = _part(LearnerConfig)
_multipliers = _part(MultiplierConfig, upper_bound=st.none() | _number | st.just(math.inf))
configs = st.builds(
    TrainConfig,
    env=_text,
    method=_text,
    recipe=st.none(),
    seed=_count,
    total_steps=_count,
    extended_from=st.lists(st.tuples(_count, _count), max_size=2).map(tuple),
    steps_per_epoch=_count,
    num_envs=_count,
    run_dir=st.none() | _path,
    init_from=st.none() | _text,
    init_critics=st.booleans(),
    init_std=st.none() | _number | st.lists(_number, max_size=2).map(tuple),
    init_mean=_number | st.lists(_number, max_size=2).map(tuple),
    budget=st.none() | _number,
    cost_window=st.just("epoch") | _count,
    normalise_observations=st.booleans(),
    observation_clip=_number,
    observation_floor=_number,
    action_repeat=_count,
    observe_changes=_count,
    frame_indicators=st.booleans(),
    fresh_workers=st.sampled_from(["auto", "always", "never"]),
    max_worker_restarts=_count,
    kernels=st.sampled_from(["baseline", "native"]),
    tensorboard=st.booleans(),
    learner=_learners,
    multiplier=_multipliers,
    signal=_part(SignalConfig),
    checkpoint=_part(CheckpointConfig),
)

VALID = TrainConfig(env="speeding", total_steps=4000, steps_per_epoch=1000)


def _replace(config: TrainConfig, changes: dict[str, Any]) -> TrainConfig:
    """`dataclasses.replace` that reaches into parts: {"learner.gamma": 2}."""
    for key, value in changes.items():
        part, _, name = key.rpartition(".")
        if part:
            value = dataclasses.replace(getattr(config, part), **{name: value})
        config = dataclasses.replace(config, **{part or name: value})
    return config


def test_the_strategies_cover_every_setting():
    """A field added to the run's configuration must be added to the round trips here."""
    assert len(dataclasses.fields(TrainConfig)) == 29


@quick
@given(configs, configs)
def test_a_configuration_survives_its_dictionary_whatever_the_defaults(config, defaults):
    assert from_dict(to_dict(config), defaults, "test") == config


@quick
@given(configs)
def test_a_configuration_survives_yaml(config):
    assert from_dict(yaml.safe_load(to_yaml(to_dict(config))), TrainConfig(), "test") == config


@quick
@given(configs)
def test_a_configuration_survives_a_file(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(to_yaml(to_dict(config)), encoding="utf-8")
    assert from_dict(read_yaml(path), TrainConfig(), str(path)) == config


@quick
@given(configs)
def test_plain_values_come_back_equal(config):
    """to_dict(from_dict(x)) == x for the plain values x that a YAML file holds."""
    plain = yaml.safe_load(to_yaml(to_dict(config)))
    assert to_dict(from_dict(plain, TrainConfig(), "test")) == plain


@quick
@given(configs, st.sampled_from(["seed", "budget", "num_envs"]), st.integers(0, 1000))
def test_one_setting_changes_only_itself(config, name, value):
    changed = from_dict({name: value}, config, "test")
    assert changed == dataclasses.replace(config, **{name: value})


def test_a_nested_setting_leaves_its_neighbours_alone():
    changed = from_dict({"learner": {"gamma": 0.5}}, TrainConfig(), "test")
    assert changed == _replace(TrainConfig(), {"learner.gamma": 0.5})


def test_integers_serve_as_numbers_and_lists_as_layers():
    config = from_dict({"budget": 3, "learner": {"gamma": 1, "hidden": [8, 4]}}, TrainConfig(), "test")
    assert (config.budget, config.learner.gamma, config.learner.hidden) == (3.0, 1.0, (8, 4))


@pytest.mark.parametrize(
    ("data", "unknown", "nearest"),
    [
        ({"bugdet": 3}, "bugdet", "budget"),
        ({"learnr": {}}, "learnr", "learner"),
        ({"learner": {"gama": 0.9}}, "learner.gama", "learner.gamma"),
        ({"multiplier": {"upper_bond": 1.0}}, "multiplier.upper_bond", "multiplier.upper_bound"),
        ({"checkpoint": {"evry": 1}}, "checkpoint.evry", "checkpoint.every"),
    ],
)
def test_an_unknown_setting_names_the_nearest_one_and_its_source(data, unknown, nearest):
    with pytest.raises(InputError, match=rf"^my.yaml: .*'{unknown}'; did you mean '{nearest}'\?") as caught:
        from_dict(data, TrainConfig(), "my.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", [1, None, True, "nothing of the kind"])
def test_a_key_that_resembles_nothing_lists_what_is_known(key):
    with pytest.raises(InputError, match=r"unknown setting .* Known: env, method, recipe, seed"):
        from_dict({key: 1}, TrainConfig(), "test")


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ({"seed": "one"}, "seed"),
        ({"seed": True}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"env": 5}, "env"),
        ({"env": None}, "env"),
        ({"run_dir": 5}, "run_dir"),
        ({"budget": "large"}, "budget"),
        ({"tensorboard": "no"}, "tensorboard"),
        ({"normalise_observations": 1}, "normalise_observations"),
        ({"cost_window": "epochs"}, "cost_window"),
        ({"cost_window": 1.5}, "cost_window"),
        ({"fresh_workers": "sometimes"}, "fresh_workers"),
        ({"learner": 3}, "learner"),
        ({"learner": None}, "learner"),
        ({"learner": [1]}, "learner"),
        ({"learner": {"hidden": 64}}, "learner.hidden"),
        ({"learner": {"hidden": [64, "x"]}}, "learner.hidden"),
        ({"learner": {"algorithm": "dqn"}}, "learner.algorithm"),
        ({"multiplier": {"initial": None}}, "multiplier.initial"),
    ],
)
def test_a_wrong_type_is_one_line_that_names_the_setting(data, where):
    with pytest.raises(InputError) as caught:
        from_dict(data, TrainConfig(), "my.yaml")
    message = str(caught.value)
    assert message.startswith("my.yaml: ")
    assert where in message
    assert "\n" not in message
    assert caught.value.exit_code == EXIT_BAD_INPUT


@pytest.mark.parametrize(
    ("written", "recommended", "value"),
    [
        ("total_steps: 1e6", r"such as (\d+)", 1_000_000),
        ("total_steps: 1.0e+6", r"such as (\d+)", 1_000_000),
        ("budget: 1e-3", r"write ([\de.+-]+)", 0.001),
    ],
)
def test_the_hint_about_numbers_gives_a_spelling_that_works(tmp_path, written, recommended, value):
    """YAML 1.1 reads 1e6 as text; what the message recommends instead must be accepted in its place."""
    path = tmp_path / "config.yaml"
    path.write_text(written)
    with pytest.raises(InputError) as caught:
        config_from_yaml(path)
    spelling = re.search(recommended, str(caught.value))
    assert spelling is not None, str(caught.value)
    name = written.partition(":")[0]
    path.write_text(f"{name}: {spelling[1]}\n")
    assert getattr(config_from_yaml(path), name) == value


def test_a_file_that_cannot_be_used_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*missing.yaml: No such file"):
        read_yaml(tmp_path / "missing.yaml")
    with pytest.raises(InputError, match=r"cannot read .*: Is a directory"):
        read_yaml(tmp_path)
    path = tmp_path / "broken.yaml"
    for content in (b"a: [1,\n b: }", b"\xff\xfe\x00", b"a: 1\n a: 2"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"broken.yaml is not valid YAML") as caught:
            read_yaml(path)
        assert "\n" not in str(caught.value)
    path.write_text("- a\n- b\n")
    with pytest.raises(InputError, match=r"expected a mapping of settings, got list"):
        read_yaml(path)
    path.write_text("")
    assert read_yaml(path) == {}


PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"seed": -1}, "seed is -1; it must be finite and 0 or greater"),
    ({"budget": -0.5}, "budget is -0.5; it must be finite and 0 or greater"),
    ({"budget": math.nan}, "budget is nan"),
    ({"budget": math.inf}, "budget is inf"),
    ({"max_worker_restarts": -1}, "max_worker_restarts is -1"),
    ({"learner.entropy_coef": -0.1}, "entropy_coef is -0.1"),
    ({"learner.critic_penalty": -0.1}, "critic_penalty is -0.1"),
    ({"multiplier.initial": -0.1}, "multiplier.initial is -0.1"),
    ({"multiplier.initial": math.nan}, "multiplier.initial is nan"),
    ({"steps_per_epoch": 0}, "steps_per_epoch is 0; it must be finite and greater than 0"),
    ({"steps_per_epoch": -5}, "steps_per_epoch is -5"),
    ({"num_envs": 0}, "num_envs is 0; it must be finite and greater than 0"),
    ({"num_envs": -2}, "num_envs is -2"),
    ({"checkpoint.every": 0}, "checkpoint.every is 0"),
    ({"checkpoint.keep": 0}, "checkpoint.keep is 0"),
    ({"cost_window": 0}, "cost_window is 0"),
    ({"learner.update_iters": 0}, "update_iters is 0"),
    ({"learner.batch_size": 0}, "batch_size is 0"),
    ({"learner.target_kl": 0.0}, "target_kl is 0.0"),
    ({"learner.target_kl": math.nan}, "target_kl is nan"),
    ({"learner.actor_lr": 0.0}, "actor_lr is 0.0"),
    ({"learner.actor_lr": math.inf}, "actor_lr is inf"),
    ({"learner.critic_lr": -1.0}, "critic_lr is -1.0"),
    ({"learner.clip_ratio": 0.0}, "clip_ratio is 0.0"),
    ({"learner.max_grad_norm": 0.0}, "max_grad_norm is 0.0"),
    ({"multiplier.learning_rate": 0.0}, "multiplier.learning_rate is 0.0"),
    ({"learner.gamma": 1.01}, "gamma is 1.01; it must lie between 0 and 1"),
    ({"learner.gamma": math.nan}, "gamma is nan"),
    ({"learner.gae_lambda": -0.01}, "gae_lambda is -0.01"),
    ({"learner.cost_gae_lambda": 2.0}, "cost_gae_lambda is 2.0"),
    ({"learner.hidden": ()}, "learner.hidden is (); it must name at least one value"),
    ({"learner.hidden": (64, 0)}, "learner.hidden is (64, 0); it must be finite and greater than 0"),
    ({"multiplier.upper_bound": 0.0001}, "upper_bound is 0.0001; it must be at least multiplier.initial, 0.001"),
    ({"multiplier.upper_bound": -1.0}, "upper_bound is -1.0"),
    ({"multiplier.upper_bound": math.nan}, "upper_bound is nan"),
    ({"num_envs": 3}, "num_envs is 3, which does not divide steps_per_epoch 1000; choose a divisor such as 2"),
    ({"num_envs": 2000}, "choose a divisor such as 1000"),
    ({"total_steps": 0}, "total_steps is 0; it must be a positive multiple of steps_per_epoch 1000"),
    ({"total_steps": 1500}, "total_steps is 1500"),
    ({"total_steps": -1000}, "total_steps is -1000"),
]


@pytest.mark.parametrize(("changes", "problem"), PROBLEMS, ids=[str(changes) for changes, _ in PROBLEMS])
def test_every_problem_says_what_came_and_what_was_expected(changes, problem):
    with pytest.raises(InputError) as caught:
        _replace(VALID, changes).resolved()
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_number_has_bounds_or_a_rule_with_another_setting():
    def unbounded(kind: type, prefix: str = "") -> set[str]:
        names: set[str] = set()
        for name, hint in get_type_hints(kind, include_extras=True).items():
            if dataclasses.is_dataclass(hint):
                names |= unbounded(hint, f"{prefix}{name}.")
            elif re.search(r"\b(int|float)\b", str(hint)) and "Bounds" not in str(hint):
                names.add(prefix + name)
        return names

    ruled = {"total_steps", "multiplier.upper_bound", "signal.calibration.frames"}
    # Those of an endpoint are checked by `EndpointOptions.problems`: the room of signals knows no bounds.
    found = {name for name in unbounded(TrainConfig) if not name.startswith("signal.endpoint.")}
    assert found == ruled | {"extended_from"}, "only the package writes the last one"


def test_several_problems_are_reported_together():
    with pytest.raises(InputError, match=r"seed is -1.*; .*batch_size is 0"):
        _replace(VALID, {"seed": -1, "learner.batch_size": 0}).resolved()


@pytest.mark.parametrize(
    "changes",
    [
        {"cost_window": "epoch"},
        {"budget": 0.0},
        {"multiplier.initial": 0.0},
        {"multiplier.upper_bound": 0.001},
        {"multiplier.upper_bound": math.inf},
        {"learner.gamma": 1.0, "learner.gae_lambda": 0.0},
        {"max_worker_restarts": 0},
        {"num_envs": 1000},
        {"learner.hidden": (1,)},
    ],
    ids=str,
)
def test_settings_at_the_edge_are_accepted(changes):
    config = _replace(VALID, changes).resolved()
    assert config.resolved() == config


@quick
@given(st.integers(1, 500), st.integers(1, 600))
def test_the_suggested_number_of_workers_divides_and_is_the_nearest(steps, workers):
    config = dataclasses.replace(VALID, steps_per_epoch=steps, total_steps=steps, num_envs=workers)
    if steps % workers == 0:
        assert config.resolved().steps_per_worker * workers == steps
        return
    with pytest.raises(InputError) as caught:
        config.resolved()
    suggested = int(str(caught.value).rpartition("such as ")[2])
    divisors = [n for n in range(1, steps + 1) if steps % n == 0]
    assert suggested in divisors
    assert abs(suggested - workers) == min(abs(n - workers) for n in divisors)


def test_resolving_fills_in_the_environments_budget_and_the_run_directory():
    config = VALID.resolved()
    assert config.budget == 30.0
    assert config.run_dir == Path("runs/speeding/ppo-lag/seed-0")
    given_ones = dataclasses.replace(VALID, budget=0.0, run_dir=Path("elsewhere")).resolved()
    assert (given_ones.budget, given_ones.run_dir) == (0.0, Path("elsewhere"))


def test_the_default_directory_tells_runs_apart_and_stays_below_runs():
    config = TrainConfig(env="gym:some.module:Space/Env-v0", method="ppo", seed=7)
    assert default_run_dir(config) == Path("runs/gym-some.module-Space-Env-v0/ppo/seed-7")
    assert default_run_dir(TrainConfig(env="formula-one-l2:track", frame_indicators=True)) == Path(
        "runs/formula-one-l2-track-indicators/ppo-lag/seed-0"
    )
    assert ".." not in default_run_dir(TrainConfig(env="gym:../../x")).parts


def test_an_unknown_environment_is_named_before_anything_else():
    with pytest.raises(InputError, match=r"unknown environment 'speedin'; did you mean 'speeding'"):
        dataclasses.replace(VALID, env="speedin", seed=-1).resolved()
    with pytest.raises(InputError, match=r"unknown environment 'gym:'"):
        dataclasses.replace(VALID, env="gym:").resolved()


def test_epochs_and_shares_follow_from_the_steps():
    config = TrainConfig(total_steps=1_000_000, steps_per_epoch=20_000, num_envs=4)
    assert (config.epochs, config.steps_per_worker) == (50, 5_000)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_sets_its_learner_and_multiplier(name):
    config = config_from({"method": name})
    assert config == method_defaults(name) == config_from({}, method_name=name)
    assert (config.method, config.learner, config.multiplier) == (name, METHODS[name].learner, METHODS[name].multiplier)
    check_method(config)


def test_the_methods_are_those_of_the_paper():
    """Decision 4: the matched baseline has 40 passes and 0.001, FormulaOne's has 10 and 0."""
    settings = {
        name: (m.learner.algorithm, m.learner.update_iters, m.multiplier.initial) for name, m in METHODS.items()
    }
    assert settings["ppo-lag"] == ("ppo-lag", 40, 0.001)
    assert settings["ppo-lag-unmatched"] == ("ppo-lag", 10, 0.0)
    assert settings["ppo"][:2] == ("ppo", 10)


def test_the_default_configuration_is_that_of_its_method():
    assert TrainConfig() == method_defaults(TrainConfig.method)


def test_settings_win_over_the_methods_and_keep_the_rest():
    config = config_from({"method": "ppo-lag-unmatched", "learner": {"gamma": 0.5}})
    assert config.learner == dataclasses.replace(METHODS["ppo-lag-unmatched"].learner, gamma=0.5)
    assert config.multiplier.initial == 0.0


def test_an_unknown_method_names_the_nearest():
    for call in (lambda: method("ppolag"), lambda: config_from({"method": "ppolag"})):
        with pytest.raises(InputError, match=r"unknown method 'ppolag'; did you mean 'ppo-lag'"):
            call()
    with pytest.raises(InputError, match=r"my.yaml: method must be a name, got list"):
        config_from({"method": ["ppo"]}, "my.yaml")


def test_a_method_that_contradicts_the_file_is_refused(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(to_dict(method_defaults("ppo-lag-unmatched"))))
    assert config_from_yaml(path, "ppo-lag-unmatched").method == "ppo-lag-unmatched"
    with pytest.raises(InputError, match=r"holds settings of the method 'ppo-lag-unmatched', not of 'ppo'"):
        config_from_yaml(path, "ppo")


def test_a_runs_own_file_gives_its_settings_but_not_its_place(tmp_path):
    original = dataclasses.replace(VALID, seed=3).resolved()
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml({**to_dict(original), "recorded": {"python": "3.11"}}))
    again = config_from_yaml(path)
    assert again.run_dir is None
    assert again.resolved() == original
    path.write_text(to_yaml(to_dict(dataclasses.replace(original, run_dir=Path("mine")))))
    assert config_from_yaml(path).run_dir == Path("mine"), "a file without a record is the user's own"


def test_a_learner_that_is_not_the_methods_is_refused():
    config = config_from({"method": "ppo-lag", "learner": {"algorithm": "ppo"}})
    with pytest.raises(InputError, match=r"learner.algorithm is 'ppo', but the method 'ppo-lag' has 'ppo-lag'"):
        check_method(config)
    with pytest.raises(InputError, match=r"unknown method"):
        check_method(dataclasses.replace(config, method="dqn"))


@pytest.mark.parametrize(
    ("total", "workers", "hint"),
    [
        (1_000, 1, "pass --steps-per-epoch 500, or --total-steps 20000"),
        (30_000, 4, "pass --steps-per-epoch 15000, or --total-steps 40000"),
        (1_009, 1, "pass --total-steps 20000"),
        (0, 1, "pass --total-steps 20000"),
    ],
)
def test_steps_that_are_no_whole_epochs_name_the_flag_to_change(total, workers, hint):
    with pytest.raises(InputError, match=f"total_steps is {total};.*; {hint}"):
        TrainConfig(env="speeding", total_steps=total, num_envs=workers).resolved()


def test_a_budget_that_nobody_gave_is_said_for_environments_that_have_none_of_their_own():
    assert TrainConfig(env="speeding").assumptions == []
    assert TrainConfig(env="gym:Pendulum-v1", budget=1.0).assumptions == []
    (note,) = TrainConfig(env="gym:Pendulum-v1").assumptions
    assert note.startswith("NO BUDGET WAS GIVEN for 'gym:Pendulum-v1'")
