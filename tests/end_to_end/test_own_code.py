"""A run sees changes of the user's own environment, scorer and helper modules wherever it is used again."""

import importlib
import json
import sys
from pathlib import Path

import polars as pl
import pytest
from recorded_versions import edit_recorded

from vlmsafe import audit, evaluate, load_study, resume, run_study, train, verify
from vlmsafe.audit.kinds import Severity
from vlmsafe.cli import main
from vlmsafe.config.yaml import read_yaml
from vlmsafe.errors import EnvironmentFailure, InputError, RunError
from vlmsafe.runs.checkpoint import path_of
from vlmsafe.runs.run import Run
from vlmsafe.studies.reuse import equal_run

ENVIRONMENT = """
import gymnasium
import numpy as np
from reef_rules import on_reef


class Reef(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"]}
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(0, 1)
        return np.array([self.x], np.float32), {}

    def step(self, action):
        self.x += 0.5 * float(action[0])
        return np.array([self.x], np.float32), float(action[0]), False, False, {"cost": on_reef(self.x)}

    def render(self):
        return np.full((8, 8, 3), 200 if on_reef(self.x) else 40, np.uint8)


gymnasium.register("Reef-v0", entry_point="reef:Reef", max_episode_steps=10)
"""
HELPER = """
def on_reef(x):
    return float(-1.0 < x < 1.0)
"""
SCORER = """
import numpy as np
import vlmsafe


class Glare(vlmsafe.Scorer):
    looks_at = "frame"
    rules = ("decoupled",)

    def __init__(self, prompts):
        self.groups = (1, 1)

    def score(self, inputs):
        light = inputs.mean(axis=(1, 2, 3)) / 255.0
        return np.stack([1 - light, light], axis=1).astype(np.float32)
"""
STUDY = """
name: first
question: What does it cost?
environments: ["gym:reef:Reef-v0"]
seeds: [0]
total_steps: 40
settings: {steps_per_epoch: 20, num_envs: 1, budget: 3, learner.update_iters: 1}
arms: {scored: {method: vlm-ppo-lag, settings: {signal.scorer: "python:reef_scorer:Glare"}}}
"""
FILES = {"reef.py": "environment", "reef_rules.py": "environment", "reef_scorer.py": "scorer"}


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A folder with the user's code, a study and a run of it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "reef_scorer", raising=False)  # that of another test
    for name, text in zip((*FILES, "study.yaml"), (ENVIRONMENT, HELPER, SCORER, STUDY), strict=True):
        (tmp_path / name).write_text(text)
    train(_specs("first")[0].config, quiet=True)
    return tmp_path


def _specs(name: str):
    """The runs of a study that differs from the first in its name alone."""
    Path(f"{name}.yaml").write_text(STUDY.replace("name: first", f"name: {name}"))
    return load_study(f"{name}.yaml").expand(Path("runs") / name)


def _run() -> Run:
    return Run.open(_specs("first")[0].path)


def _edit(name: str = "reef_rules.py", before: str = "1.0 < x", after: str = "1.5 < x") -> None:
    path = Path(name)
    changed = path.read_text().replace(before, after)
    path.write_text(changed if changed != path.read_text() else changed + "\nMORE = 1\n")


def _code_differs(*paths: Path):
    findings = audit(list(paths) or [_run().path.parent]).findings
    return [(one.severity, one.evidence) for one in findings if one.code == "code-differs"]


def test_a_run_records_its_source_and_a_study_of_another_name_copies_it_while_it_is_the_same(project):
    source = read_yaml(_run().path / "config.yaml")["recorded"]["source"]
    assert {part: list(one["files"]) for part, one in source.items()} == {
        "environment": ["reef.py", "reef_rules.py"],
        "scorer": ["reef_scorer.py"],
    }
    assert equal_run(_specs("second")[0], Path("runs")) is not None
    assert resume(_run().path, total_steps=60, quiet=True).epochs_done() == 3
    assert _code_differs() == []


@pytest.mark.parametrize("name", FILES)
def test_a_change_of_any_file_refuses_resume_and_copies(project, name, capsys):
    _edit(name)
    changed = f"the source of its {FILES[name]} has changed: {name}"
    run = _run()
    files = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(
        RunError, match=f"cannot be continued: {changed}; undo the change, start a new run, or pass --acc"
    ):
        resume(run.path, total_steps=60, quiet=True)
    with pytest.raises(SystemExit, match="1"):
        main(["train", "--resume", str(run.path), "--total-steps", "60"])
    assert changed in " ".join(capsys.readouterr().err.split())
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == files
    heard: list[str] = []
    assert equal_run(_specs("second")[0], Path("runs"), heard.append) is None
    assert [line.partition(": ")[2] for line in heard] == [changed]


def test_a_run_that_is_continued_with_accepted_changes_records_them_and_the_audit_finds_them(project, capsys):
    _edit()
    changed = "the source of its environment has changed: reef_rules.py"
    main(["train", "--resume", str(_run().path), "--total-steps", "60", "--accept-changed-code", "--quiet"])
    run = _run()
    (event,) = [one for one in run.events() if one["event"] == "code changed"]
    assert (event["reason"], event["accepted"], event["epoch"]) == (changed, True, 2)
    assert equal_run(_specs("second")[0], Path("runs")) is None  # a part of it remains of the earlier code
    line = "scored seed-0 was continued with other source of its environment: reef_rules.py"
    assert _code_differs() == [(Severity.WARNING, (line,))]
    path_of(run.checkpoints, 3).unlink()
    assert resume(run.path, quiet=True).epochs_done() == 3  # it is accepted once
    (source,) = [one for one in verify(run, epochs=0).surroundings if one.name == "source of the environment"]
    assert ", then " in source.in_run


def test_a_study_resumes_with_changed_code_only_if_that_is_accepted(project):
    path_of(_run().checkpoints, 2).unlink()
    _edit()
    with pytest.raises(RunError, match=r"scored/seed-0 failed: resume: .* has changed: reef_rules\.py"):
        run_study("first.yaml", jobs=1)
    run_study("first.yaml", jobs=1, accept_changed_code=True)
    assert [one["accepted"] for one in _run().events() if one["event"] == "code changed"] == [True]


def test_episodes_of_two_versions_of_the_code_never_share_a_table(project):
    run, notes = _run(), []
    before = evaluate(run, episodes=3, processes=1)
    assert (
        evaluate(run, episodes=4, processes=1, on_note=notes.append)["cost"][:3].to_list() == before["cost"].to_list()
    )
    assert notes == ["3 of 4 episodes are already done"]
    _edit(before="x < 1.0", after="x < 9.0")
    after = evaluate(run, episodes=5, processes=1, on_note=notes.append)
    assert len(set(after["env_source"])) == 1
    assert set(after["env_source"]) != set(before["env_source"])
    assert after["cost"][:3].to_list() != before["cost"].to_list()
    assert notes[1:] == [
        f"{run.path} was trained with other code: the source of its environment has changed: reef_rules.py",
        f"{run.evaluation_path('held-out')} was made with other source of 'gym:reef:Reef-v0'; its episodes are run "
        "again",
    ]
    line = "scored seed-0 was evaluated under 'held-out' with other source of its environment than in training"
    assert _code_differs() == [(Severity.WARNING, (line,))]


def test_a_change_while_an_evaluation_runs_ends_it_and_keeps_the_episodes_apart(project):
    run = _run()
    with pytest.raises(EnvironmentFailure, match=r"the source of environment 'gym:reef:Reef-v0' was changed while"):
        evaluate(run, episodes=5, processes=1, on_episode=lambda done: _edit() if done == 1 else None)
    assert not run.evaluation_path("held-out").exists()
    notes: list[str] = []
    evaluate(run, episodes=2, processes=1, on_note=notes.append)
    assert not any("already done" in note for note in notes)


def test_arms_and_runs_of_different_code_are_not_compared_without_a_finding(project):
    _edit("reef.py")
    settings = {**_settings(), "seed": 1, "signal": {"scorer": "none"}, "method": "ppo-lag"}
    new = train(**settings, init_from=str(_run().path), run_dir="runs/new/seed-1", quiet=True)
    assert new.recorded()["start"]["world"] == "the source of its environment has changed: reef.py"
    ((severity, evidence),) = _code_differs(_run().path.parent, Path("runs/new"))
    assert severity == Severity.WARNING
    assert evidence == (
        "source of the environment, scored seed-0 against new seed-1: reef.py (revision none against none)",
    )


def _settings() -> dict:
    return {
        "env": "gym:reef:Reef-v0", "total_steps": 40, "steps_per_epoch": 20, "num_envs": 1, "budget": 3.0,
        "learner": {"update_iters": 1},
    }  # fmt: skip


def test_source_that_cannot_be_known_is_said_and_never_copied_or_joined(project, capsys):
    Path("hidden.py").write_text("import importlib\nimportlib.import_module('re' + 'ef')\n")
    run = train(**_settings() | {"env": "gym:hidden:Reef-v0"}, run_dir="runs/hidden/seed-0", method="ppo-lag")
    why = "it is made of reef.py, reef_rules.py, which the module on its id does not import"
    said = " ".join(capsys.readouterr().err.split())
    assert f"no study will copy this run: the source of its environment is not known: {why}" in said
    assert run.recorded()["source"]["environment"] == {"unknown": why, "revision": None}
    notes: list[str] = []
    for episodes in (1, 2):
        evaluate(run, episodes=episodes, processes=1, on_note=notes.append)
    assert notes[0] == f"the source of 'gym:hidden:Reef-v0' is not known, so no episodes are kept: {why}"
    assert not any("already done" in note for note in notes)
    line = f"hidden seed-0: the source of its environment is not known: {why}"
    assert _code_differs(Path("runs/hidden")) == [(Severity.NOTE, (line,))]


def test_a_run_from_before_source_was_recorded_continues_and_is_not_copied(project):
    run = _run()
    edit_recorded(run.path, source=None)
    assert equal_run(_specs("second")[0], Path("runs")) is None
    resume(run.path, total_steps=60, quiet=True)
    (event,) = [one for one in run.events() if one["event"] == "code changed"]
    assert event["reason"] == "it does not record the source of its environment"
    assert "accepted" not in event
    (note, _) = _code_differs()[0][1]
    assert _code_differs()[0][0] == Severity.NOTE
    assert note == "scored seed-0: the source of its environment is not known: it was not recorded"


def test_a_process_that_has_loaded_a_scorer_does_not_use_its_changed_source(project):
    _edit("reef_scorer.py")
    with pytest.raises(
        InputError, match=r"'python:reef_scorer' was changed after this process had loaded it \(reef_sc"
    ):
        train(_specs("second")[0].config, quiet=True)
    assert not list(Path("runs").rglob("second/**/config.yaml"))
    importlib.reload(sys.modules["reef_scorer"])
    assert train(_specs("second")[0].config, quiet=True).status() == "finished"


def test_accepting_changed_code_is_for_runs_that_are_continued(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["train", "--accept-changed-code"])
    assert "name the run with --resume, or drop it" in " ".join(capsys.readouterr().err.split())


def test_evaluations_of_environments_of_this_package_keep_their_columns(tmp_path):
    run = train(env="speeding", total_steps=40, steps_per_epoch=40, run_dir=str(tmp_path / "run"), quiet=True)
    assert "env_source" not in evaluate(run, episodes=1, processes=1).columns
    assert "source" not in json.loads(json.dumps(run.recorded(), default=str))
    assert "env_source" not in pl.read_parquet(run.evaluation_path("held-out")).columns
