"""What a study needs is looked up before anything is trained."""

from pathlib import Path

import pytest

from vlmsafe.cli import main
from vlmsafe.errors import EXIT_BAD_INPUT, InputError
from vlmsafe.studies import preflight
from vlmsafe.studies.api import run_study
from vlmsafe.studies.preflight import require_ready
from vlmsafe.studies.schema import parse_study

MODULE = """
import gymnasium
import numpy as np
import vlmsafe


class Kiln(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"]}
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {"cost": 0.0}

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


class Glow(vlmsafe.Scorer):
    looks_at, rules = "frame", ("decoupled",)

    def __init__(self, prompts):
        self.groups = (1, 1)

    def score(self, inputs):
        return np.zeros((len(inputs), 2), np.float32)


class Silent(Glow):
    rules = ("yes-no",)


class Blind(Kiln):
    metadata = {"render_modes": []}

    def render(self):
        return None


gymnasium.register("Kiln-v0", entry_point=Kiln, max_episode_steps=20)
gymnasium.register("Blind-v0", entry_point=Blind, max_episode_steps=20)
"""
STUDY = """\
name: own
question: Does the glow help?
environments: ['gym:pottery:ENV']
seeds: [1, 2]
total_steps: 40
settings: {steps_per_epoch: 20, budget: 1, signal.prompts: PROMPTS}
arms:
  without: {method: ppo-lag}
  with: {method: vlm-ppo-lag, settings: {signal.scorer: 'SCORER'}}
TRACES
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pottery.py").write_text(MODULE)
    (tmp_path / "kiln.yaml").write_text("positive: [an even glow]\nnegative: [the car is cracking]\n")
    return tmp_path


def text(env="Kiln-v0", prompts="kiln.yaml", scorer="python:pottery:Glow", traces=""):
    pairs = {"ENV": env, "PROMPTS": prompts, "SCORER": scorer, "TRACES": f"traces: [{traces}]" if traces else ""}
    found = STUDY
    for name, value in pairs.items():
        found = found.replace(name, value)
    return found


def problems(elsewhere=False, **changes):
    specs = parse_study(text(**changes), "own.yaml").expand(Path("runs/own"))
    return preflight._problems(specs, elsewhere)


def test_a_study_that_can_run_has_no_problems(here):
    assert problems() == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "Klin-v0"}, "'Klin-v0'; did you mean 'Kiln-v0'?"),
        ({"env": "Blind-v0"}, "rendered NoneType"),
        ({"prompts": "lost.yaml"}, "cannot read prompts from lost.yaml"),
        ({"prompts": "kilns"}, "unknown prompt set 'kilns'"),
        ({"scorer": "python:pottery:Glw"}, "unknown scorer of pottery 'Glw'; did you mean 'Glow'?"),
        ({"scorer": "python:potery:Glow"}, "No module named 'potery'"),
        ({"scorer": "python:pottery:Silent"}, "cannot be used with the rule 'decoupled'"),
        ({"scorer": "embedded"}, "the prompt 'an even glow' has no word that the scorer 'embedded' knows"),
        ({"scorer": "embedded:lost.safetensors"}, "lost.safetensors"),
        ({"scorer": "clip:lost/folder/of/mine"}, "there is no folder 'lost/folder/of/mine'"),
        ({"scorer": "oracle"}, "has no hazard"),
        ({"scorer": "noise', signal.gate: 'python:pottery:Shut"}, "unknown gate of pottery 'Shut'"),
        ({"traces": "{protocol: held-out, prompts: gone.yaml, scorers: [embedded]}"}, "cannot read prompts from gone"),
        ({"traces": "{protocol: held-out, scorers: ['python:pottery:Nothing']}"}, "scorer of pottery 'Nothing'"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_named_once(here, changes, message):
    (problem,) = problems(**changes)
    assert message in problem
    assert "(needed by '" in problem


def test_settings_of_every_arm_are_held_against_the_environment_which_is_made_once(here, monkeypatch):
    made = []
    describe = preflight.describe
    monkeypatch.setattr(preflight, "describe", lambda config, *rest: made.append(config) or describe(config, *rest))
    arm = "  wide: {method: ppo-lag, settings: {learner.initial_std: [0.5, 0.5]}}\n"
    study = parse_study(text(scorer="noise").replace("  with: ", f"{arm}  with: "), "own.yaml")
    (problem,) = preflight._problems(study.expand(Path("runs/own")), False)
    assert "learner.initial_std has 2 values, but 'gym:pottery:Kiln-v0' has 1 actions" in problem
    assert "needed by 'wide' on" in problem
    assert [config.seed for config in made] == [1, 1, 1]  # without, wide, and what the scorer of the third looks at


def test_a_warm_start_and_a_folder_that_are_not_there_are_named(here):
    found = problems(prompts="kiln.yaml, init_from: nowhere/seed-1")
    assert any("nowhere/seed-1" in problem for problem in found)
    (here / "runs").write_text("a file")
    assert any("is a file" in problem for problem in problems())


def test_environments_and_scorers_of_other_machines_are_not_looked_up_here(here):
    assert problems(env="Klin-v0", scorer="python:pottery:Glw", elsewhere=True) == []
    assert len(problems(prompts="lost.yaml", elsewhere=True)) == 1


def test_plan_and_run_say_it_before_anything_starts(here, capsys):
    (here / "own.yaml").write_text(text(prompts="lost.yaml"))
    for verb, mark in (("plan", "problem: "), ("run", "error: nothing was started: ")):
        with pytest.raises(SystemExit) as caught:
            main(["study", verb, "own.yaml"])
        assert caught.value.code == EXIT_BAD_INPUT
        message = capsys.readouterr().err.strip()
        assert message.startswith(f"{mark}cannot read prompts from lost.yaml")
        assert "\n" not in message
    with pytest.raises(InputError, match="nothing was started"):
        run_study("own.yaml")
    assert not (here / "runs").exists()


def test_code_that_ends_its_process_is_an_error_and_not_the_end_of_the_study(here):
    (here / "deadly.py").write_text("import os\nos._exit(3)\n")
    study = parse_study(text(scorer="python:deadly:Glow"), "own.yaml")
    specs = study.expand(Path("runs/own"))
    with pytest.raises(InputError, match="ended with code 3"):
        require_ready(study, specs)
