"""`check-env` finds what is wrong with an environment, says what to do, and leaves good ones alone."""

import json

import pytest
from in_process import call
from odd_envs import GOOD

from vlmsafe import evaluate, train
from vlmsafe.envs import api
from vlmsafe.envs.checking import check_environment
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import EXIT_ERRORS, EXIT_FAILED, EXIT_WARNINGS, EnvironmentFailure, InputError

BROKEN = {
    "NoCost": ("cost", "error", "info['cost'] is missing at step 1 of scenario 0; add it"),
    "NegativeCost": ("cost", "error", "cost -60 at step 5 of scenario 0; a cost is 0 or greater"),
    "NanCost": ("cost", "error", "cost nan at step 7"),
    "WrongShape": ("running", "error", "of shape (2,), but its observation space is Box(-inf, inf, (3,), float32)"),
    "WrongKind": ("space", "warning", "is float32, and its space is uint8"),
    "Endless": ("end", "error", "Register it with max_episode_steps"),
    "Unseeded": ("seeds", "error", "draw from self.np_random only"),
    "CarriesOver": ("seeds", "warning", "--fresh-workers always"),
    "Slow": ("speed", "warning", "--num-envs"),
    "Huge": ("size", "warning", "786,432 values per observation: an epoch of 20,000 steps holds 62.9 GB"),
    "Raises": ("running", "error", "ValueError: the wheel came off ("),
}


@pytest.mark.parametrize("name", [kind.__name__ for kind in GOOD])
def test_a_good_environment_has_no_finding(name):
    findings = check_environment(env_spec(f"gym:odd_envs:{name}-v0"), steps=250, seconds=60.0)
    assert {finding.level for finding in findings} == {"ok"}
    if name == "GoodSix":
        assert findings[-1].text == "it has hazard, expert, progress, facts"


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_environment_has_its_finding_and_no_other(name):
    findings = check_environment(env_spec(f"gym:odd_envs:{name}-v0"), steps=160, seconds=60.0)
    [finding] = [one for one in findings if one.level not in ("ok", "note")]
    part, level, text = BROKEN[name]
    assert (finding.part, finding.level) == (part, level)
    assert text in finding.text
    assert ('odd_envs.py", line' in finding.details) == (name == "Raises")


def test_the_command_prints_the_findings_and_exits_by_the_worst():
    answer = call("check-env", "gym:odd_envs:Good-v0", "--steps", "160")
    assert answer.returncode == 0
    assert "nothing stands in the way of training" in answer.stdout
    assert call("check-env", "gym:odd_envs:CarriesOver-v0", "--steps", "160").returncode == EXIT_WARNINGS
    answer = call("check-env", "gym:odd_envs:Raises-v0", "--steps", "160")
    assert answer.returncode == EXIT_ERRORS
    assert "in cost" in answer.stderr
    assert "1 error" in answer.stdout
    answer = call("check-env", "gym:odd_envs:God-v0")
    assert answer.returncode == EXIT_ERRORS
    assert "did you mean 'Good-v0'" in answer.stdout


@pytest.mark.parametrize("name", ["NoCost", "WrongShape", "NegativeCost"])
def test_training_tries_some_steps_before_it_writes_anything(tmp_path, name):
    with pytest.raises(EnvironmentFailure, match=r"cost|shape"):
        train(env=f"gym:odd_envs:{name}-v0", total_steps=40, steps_per_epoch=40, run_dir=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_first_epoch_that_fails_leaves_no_directory_and_shows_the_traceback(tmp_path):
    settings = ["--total-steps", "80", "--steps-per-epoch", "40", "--num-envs", "1", "--run-dir", tmp_path / "run"]
    answer = call("train", "--env", "gym:odd_envs:Raises-v0", *settings)
    assert answer.returncode == EXIT_FAILED
    assert 'odd_envs.py", line' in answer.stderr
    assert "raised ValueError: the wheel came off" in answer.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()
    assert call("train", "--env", "gym:odd_envs:Good-v0", *settings, "--quiet").returncode == 0


def test_observations_that_do_not_fit_into_memory_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"786,432 values per observation, and .* lower --steps-per-epoch to at most"):
        train(env="gym:odd_envs:Huge-v0", total_steps=10**8, steps_per_epoch=10**8, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_evaluation_cuts_an_episode_without_end_and_says_so(tmp_path, monkeypatch):
    run = train(env="gym:odd_envs:Endless-v0", total_steps=40, steps_per_epoch=40, run_dir=tmp_path / "run", quiet=True)
    notes: list[str] = []
    table = evaluate(run, episodes=1, on_note=notes.append)
    assert table["length"].to_list() == [api.STEP_LIMIT]
    assert any("1 of 1 episodes lasted 10,000 steps" in note for note in notes)
    assert json.dumps(notes).count("max_episode_steps") == 1
