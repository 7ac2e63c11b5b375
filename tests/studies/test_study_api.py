"""What `run_study` says to who calls it from Python."""

import warnings
from pathlib import Path

import pytest
import yaml
from in_process import InProcess

from vlmsafe.config.yaml import to_yaml
from vlmsafe.studies import api
from vlmsafe.studies.api import run_study
from vlmsafe.studies.execute import StudyResult, execute
from vlmsafe.studies.schema import parse_study

ONE = """\
name: one
question: Does it run?
environments: [speeding]
seeds: [1]
total_steps: 40
settings: {steps_per_epoch: 40, learner.update_iters: 1}
arms: {ppo-lag: {method: ppo-lag}}
"""


def test_a_run_that_other_code_computed_is_a_warning_or_an_event(tmp_path):
    folder = tmp_path / "runs" / "one"
    execute(parse_study(ONE, "one.yaml"), folder, InProcess())
    config = folder / "speeding" / "ppo-lag" / "seed-1" / "config.yaml"
    document = yaml.safe_load(config.read_text())
    document["recorded"]["packages"]["vlmsafe"] = "0.0.1"
    config.write_text(to_yaml(document))
    with pytest.warns(UserWarning, match=r"speeding/ppo-lag/seed-1: kept: .*vlmsafe 0\.0\.1") as caught:
        run_study(folder)
    assert [one.filename for one in caught] == [__file__]
    events = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_study(folder, on_event=events.append)
    assert [event.what for event in events] == ["kept"]


def test_a_budget_that_nobody_gave_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "end_to_end")
    monkeypatch.setattr(api, "execute", lambda *words, **options: StudyResult())
    study = ONE.replace("[speeding]", "['gym:broken_envs:Walk-v0']")
    with pytest.warns(UserWarning, match="NO BUDGET WAS GIVEN for 'gym:broken_envs:Walk-v0'"):
        run_study(parse_study(study, "one.yaml"))
    given = study.replace("steps_per_epoch", "budget: 3, steps_per_epoch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_study(parse_study(given, "one.yaml"))
