"""`check-env` finds what is wrong with an environment, says what to do, and leaves good ones alone."""

import dataclasses
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import odd_envs
import pytest
from in_process import call
from odd_envs import GOOD

from vlmsafe import evaluate, train
from vlmsafe.envs import api, examination
from vlmsafe.envs.checking import EnvFinding, check_environment, judge
from vlmsafe.envs.examination import ExamineTask
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
    "TextCost": ("cost", "error", "cost of type str at step 1 of scenario 0; info['cost'] must be one number"),
    "AlwaysCost": ("cost", "warning", "all of 160 steps with random actions cost, so a budget cannot tell"),
    "NanObservation": ("observation", "error", "an observation with NaN or infinity at step 1 of scenario 0"),
    "FixedAction": ("actions", "warning", "low equals high for action 1, so there is nothing to choose; leave it out"),
    "WholeActions": ("actions", "warning", "(int64), and the learners need a one-dimensional Box of continuous"),
    "OneStep": ("end", "warning", "each of 160 episodes ended with its first step"),
    "OwnUnits": ("expert", "error", "expert() gave the action [0.5, 2.0]; expected 2 finite numbers from -1 to 1: -1"),
    "NoFunction": ("expert", "error", "expert() returned ndarray; it must return a function without arguments"),
    "Dies": ("running", "error", "its process ended with exit code 3 during step(); do the same"),
    "DiesAtOnce": ("running", "error", "its process ended with exit code 3 during its import or __init__(); do"),
    "FloatFrame": ("rendering", "warning", "return uint8 from 0 to 255, such as (255 * image).astype(np.uint8)"),
    "WideFrame": ("rendering", "warning", "return uint8 from 0 to 255, such as image.astype(np.uint8)"),
    "GreyFrame": ("rendering", "warning", "return three channels, such as np.stack([image] * 3, axis=-1)"),
    "AlphaFrame": ("rendering", "warning", "leave out the fourth channel, such as image[:, :, :3]"),
    "NoFrame": ("rendering", "warning", "return the picture from render(), and keep render_mode"),
    "ListFrame": ("rendering", "warning", "return one array, and not several in a list"),
    "RaisingFrame": ("rendering", "warning", "in render). Correct render(), or take 'rgb_array' out of"),
    "GrowingFrame": ("rendering", "warning", "all must be alike, so render a fixed size"),
    "NoMode": ("rendering", "warning", "accept render_mode=None in __init__"),
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
    assert ('odd_envs.py", line' in finding.details) == (name in ("Raises", "RaisingFrame"))


def test_an_environment_that_always_gets_a_fresh_process_may_carry_over():
    spec = dataclasses.replace(env_spec("gym:odd_envs:CarriesOver-v0"), fresh_process=True)
    [finding] = [one for one in check_environment(spec, steps=160, seconds=60.0) if one.part == "seeds"]
    assert (finding.level, finding.text) == (
        "ok",
        "the same seed and actions repeat exactly in a new process, which it gets",
    )


def test_an_environment_that_declares_no_rendering_is_told_how_it_could():
    findings = check_environment(env_spec("gym:odd_envs:Undeclared-v0"), steps=80, seconds=60.0)
    [finding] = [one for one in findings if one.level != "ok"]
    assert (finding.part, finding.level) == ("rendering", "note")
    assert "To have them, put 'rgb_array' into metadata['render_modes']" in finding.text


def test_a_step_that_does_not_return_ends_the_check_and_its_process():
    before = set(multiprocessing.active_children())
    [finding] = check_environment(env_spec("gym:odd_envs:Hangs-v0"), seconds=60.0, patience=3.0)
    assert (finding.part, finding.level) == ("running", "error")
    assert "did not return from step() within 3 seconds; look for a loop or a wait" in finding.text
    assert set(multiprocessing.active_children()) <= before


class Clock:
    """A clock that only steps of `Good` move on."""

    def __init__(self, monkeypatch):
        self.now, self.seconds_per_step, step = 0.0, 1.0, odd_envs.Good.step

        def timed(env, action):
            self.now += self.seconds_per_step
            return step(env, action)

        monkeypatch.setattr(examination.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(odd_envs.Good, "step", timed)


def test_a_slow_environment_is_driven_hardly_longer_than_asked(monkeypatch):
    clock, env = Clock(monkeypatch), env_spec("gym:odd_envs:GoodSix-v0").make()
    found = ExamineTask(0, 2000, 20.0).run(env, lambda steps: None)
    assert 20.0 <= clock.now <= 22.0
    assert len(found.digests) >= 3, "a seed was repeated and compared with another one"
    ExamineTask(0, 2000, 20.0, once=True).run(env, lambda steps: None)
    assert clock.now <= 28.0


def test_rollouts_that_time_cut_at_different_steps_are_compared_as_far_as_both_went(monkeypatch):
    spec = env_spec("gym:odd_envs:Good-v0")
    clock, env, other = Clock(monkeypatch), spec.make(), env_spec("gym:odd_envs:Unseeded-v0").make()
    found = ExamineTask(0, 60, 40.0).run(env, lambda steps: None)
    clock.seconds_per_step = 2.0
    again, unlike = (ExamineTask(0, 60, 40.0, once=True).run(one, lambda steps: None) for one in (env, other))
    assert 1 < len(again.digests[0]) < len(found.digests[0])
    rendering = EnvFinding("rendering", "ok", "")
    for second, level in ((again, "ok"), (unlike, "error")):
        findings = judge(spec, found, second, rendering, 20_000)
        assert [one.level for one in findings if one.part == "seeds"] == [level]


@pytest.mark.parametrize(("name", "chatter"), [("Prints", "from Python"), ("PrintsBelow", "from below")])
def test_what_an_environment_prints_stays_out_of_the_findings(name, chatter):
    answer = call("check-env", f"gym:odd_envs:{name}-v0", "--steps", "160")
    assert answer.returncode == 0
    assert f"chatter {chatter}" in answer.stderr
    assert "chatter" not in answer.stdout
    assert [line.split()[1] for line in answer.stdout.splitlines() if line.startswith("note")] == ["prints"]


def test_a_reader_that_goes_away_is_not_blamed_on_the_environment():
    support = str(Path(odd_envs.__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-m", "vlmsafe", "check-env", "gym:odd_envs:PrintsBelow-v0", "--steps", "160"],
        env={**os.environ, "PYTHONPATH": support}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 0, said
    assert "BrokenPipe" not in said


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
