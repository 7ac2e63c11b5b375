"""Recipes are configuration files with a name: everything a user sets wins over them, and a run records them."""

import pytest
from in_process import call

import vlmsafe.config.recipes as recipes
from vlmsafe import Run, train
from vlmsafe.config.methods import METHODS, check_method, config_from, config_from_yaml, differences, method_defaults
from vlmsafe.config.recipes import is_path, recipe_settings, shipped_recipes
from vlmsafe.config.yaml import flatten, to_dict
from vlmsafe.errors import InputError

SMALL = {"env": "speeding", "total_steps": 400, "steps_per_epoch": 200, "quiet": True}


@pytest.mark.parametrize("name", shipped_recipes())
@pytest.mark.parametrize("method", ["ppo", "ppo-lag"])
def test_every_shipped_recipe_is_a_valid_configuration_with_a_summary(name, method):
    method = recipe_settings(name).get("method", method)
    assert shipped_recipes()[name].endswith(".")
    assert name not in METHODS, "methods diff takes both"
    config = config_from({"recipe": name, "method": method})
    start = {} if config.init_std is None else {"init_from": "somewhere"}
    config = config_from({"recipe": name, "method": method, **start}).resolved()
    check_method(config)
    assert config.recipe == name
    given = flatten(recipe_settings(name))
    assert {key: flatten(to_dict(config))[key] for key in given} == given


def test_what_a_user_sets_wins_and_the_rest_is_the_recipes_then_the_methods():
    config = config_from({"recipe": "driver", "method": "ppo", "learner": {"batch_size": 32}})
    assert (config.learner.batch_size, config.learner.hidden, config.cost_window) == (32, (128, 128), "epoch")
    assert config.learner.clip_ratio == METHODS["ppo"].learner.clip_ratio


def test_a_run_of_a_recipe_records_it_and_opens_when_the_recipe_has_changed(tmp_path, monkeypatch):
    settings = {**SMALL, "learner": {"hidden": (8,), "update_iters": 1}}
    run = train(recipe="driver", **settings, run_dir=str(tmp_path / "run"))
    assert run.config.recipe == "driver"
    assert run.config.learner.initial_std == 0.5
    assert "recipe: driver" in (run.path / "config.yaml").read_text()
    monkeypatch.setattr(recipes, "_text", lambda name: "# Other.\nlearner: {initial_std: 0.9, gamma: 0.5}\n")
    assert Run.open(run.path).config == run.config
    again = config_from_yaml(run.path / "config.yaml")
    assert (again.recipe, again.learner) == ("driver", run.config.learner)


def test_runs_of_a_recipe_have_a_folder_of_their_own():
    assert config_from({"recipe": "driver", "method": "ppo"}).resolved().run_dir.parts[-2:] == ("ppo-driver", "seed-0")
    assert config_from({"method": "ppo"}).resolved().run_dir.parts[-2:] == ("ppo", "seed-0")


def test_a_recipe_is_compared_with_a_method_as_two_methods_are():
    changed = differences("ppo", "driver")
    assert changed["learner.initial_std"] == (1.0, 0.5)
    assert "learner.algorithm" not in changed, "a recipe without a method of its own takes the one beside it"
    assert differences("driver", "ppo") == {key: (b, a) for key, (a, b) in changed.items()}
    assert "learner.critic_warmup_epochs" in differences("driver", "driver-warm")
    assert "initial_std" in call("methods", "diff", "ppo-lag", "driver").stdout
    assert "learner.sac.round_steps" in differences("sac", "driver-sac")
    assert "multiplier.kind" in differences("sac", "sac-lag")
    with pytest.raises(InputError, match=r"unknown method or recipe 'drivr'; did you mean 'driver'"):
        differences("ppo", "drivr")


def test_the_command_takes_a_name_and_settings_over_it(tmp_path):
    words = ("--env", "speeding", "--total-steps", "400", "--steps-per-epoch", "200", "--learner.update-iters", "1")
    answer = call("train", "--config", "driver", "--method", "ppo", *words, "--run-dir", tmp_path / "run", "--quiet")
    assert answer.returncode == 0, answer.stderr
    config = Run.open(tmp_path / "run").config
    assert (config.recipe, config.method, config.env) == ("driver", "ppo", "speeding")
    assert (config.learner.hidden, config.learner.update_iters) == ((128, 128), 1)


def test_the_method_of_a_recipe_is_used_where_the_user_names_none():
    assert config_from({"recipe": "driver-sac"}, "driver-sac.yaml").method == "sac"
    config = config_from({"recipe": "driver-sac"}, "driver-sac.yaml", "sac-lag").resolved()
    check_method(config)
    assert (config.method, config.multiplier.kind, config.learner.sac.round_steps) == ("sac-lag", "adam", 50)
    assert call("train", "--config", "driver-sac", "--method", "sac-lag", "--help").returncode == 0


def test_without_a_value_the_recipes_are_listed():
    answer = call("train", "--config")
    assert answer.returncode == 0
    assert all(name in answer.stdout for name in shipped_recipes())


def test_a_recipe_that_needs_a_start_says_so(tmp_path):
    answer = call("train", "--config", "driver-warm", "--run-dir", tmp_path / "run")
    assert answer.returncode == 2
    assert "init_std is set, but init_from is not; name a run to start from" in " ".join(answer.stderr.split())
    assert not (tmp_path / "run").exists()


def test_an_unknown_key_in_a_recipe_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "_text", lambda name: "# Wrong.\nlearner: {initial_sdt: 0.5}\n")
    answer = call("train", "--config", "driver", "--run-dir", tmp_path / "run")
    assert answer.returncode == 2
    (line,) = answer.stderr.strip().splitlines()
    assert "driver.yaml: unknown setting 'learner.initial_sdt'; did you mean 'learner.initial_std'?" in line


def test_a_users_file_may_build_on_a_recipe(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("recipe: driver\nmethod: ppo\nlearner:\n  initial_std: 0.3\n")
    config = config_from_yaml(path)
    assert (config.recipe, config.learner.initial_std, config.learner.hidden) == ("driver", 0.3, (128, 128))
    assert is_path(str(path))
    assert is_path("mine.yaml")
    assert not is_path("driver")


@pytest.mark.parametrize("name", METHODS)
def test_no_method_has_a_recipe(name):
    assert method_defaults(name).recipe is None
