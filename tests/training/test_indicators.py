"""Cost indicators are in frames only where they were asked for, all the way to the worker processes."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from frame_scorer import FrameScorer

from vlmsafe import resume, train
from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import read_yaml
from vlmsafe.envs.registry import ENVS, env_spec
from vlmsafe.errors import InputError
from vlmsafe.evaluation.trace.record import trace
from vlmsafe.io.interrupts import StopRequest
from vlmsafe.runs import run as runs
from vlmsafe.runs.run import Run
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.training.setup import describe

SMALL = {"total_steps": 400, "steps_per_epoch": 400, "learner": {"update_iters": 1}, "quiet": True}
PROMPTS = PromptSet(("clear road",), ("a bump ahead", "too fast"))


class Redness(FrameScorer):
    """How red a frame's first row is, whatever the prompt."""

    def _one(self, frame):
        red, green, blue = (frame[0, :, channel].astype(np.float32).mean() for channel in range(3))
        return np.full(3, (red - green / 2 - blue / 2) / 255, np.float32)


BANNERED = """
import numpy as np
from vlmsafe.envs.small.braking import Braking

class Bannered(Braking):
    '''Braking with a red row above its frames where cost indicators are drawn.'''

    indicators = False

    def frame(self):
        own = super().frame()
        banner = np.full((1, *own.shape[1:]), (255, 0, 0), np.uint8)
        return np.concatenate([banner, own]) if self.indicators else own

def make(spec, scenarios, randomise):
    env = Bannered(scenarios, spec.horizon)
    env.indicators = spec.indicators
    return env
"""


@pytest.fixture(autouse=True)
def bannered(tmp_path, monkeypatch):
    """An environment that can draw indicators, in a module that workers can import."""
    (tmp_path / "bannered.py").write_text(BANNERED)
    monkeypatch.syspath_prepend(tmp_path)
    spec = dataclasses.replace(ENVS["braking"], name="bannered", module="bannered", indicators=False)
    monkeypatch.setitem(ENVS, "bannered", spec)


@pytest.mark.parametrize("drawn", [False, True])
def test_a_run_with_indicators_has_them_in_the_frames_of_its_workers(drawn):
    config = TrainConfig(env="bannered", frame_indicators=drawn).resolved()
    spec, dimensions = describe(config, "frame", StopRequest())
    assert spec.indicators is drawn
    plain = ENVS["braking"].make()
    plain.reset(seed=0)
    assert dimensions.frame == (plain.frame().shape[0] + drawn, *plain.frame().shape[1:])


def test_a_trace_shows_frames_as_the_run_had_them_unless_told_otherwise(tmp_path):
    runs = {
        drawn: train(env="bannered", frame_indicators=drawn, run_dir=str(tmp_path / f"run-{drawn}"), **SMALL)
        for drawn in (False, True)
    }
    for drawn, run in runs.items():
        for told in (None, False, True):
            table = trace(run, Redness(PROMPTS), episodes=1, every=50, indicators=told)
            shown = drawn if told is None else told
            assert (table["similarity_0"].drop_nulls() > 0.9).to_list() == [shown] * 4, (drawn, told)


def test_a_trace_that_departs_from_its_run_does_not_replace_the_runs_own(tmp_path):
    run = train(env="bannered", run_dir=str(tmp_path / "run"), **SMALL)
    own = trace(run, Redness(PROMPTS), episodes=1, every=50, write=True)
    other = trace(run, Redness(PROMPTS), episodes=1, every=50, indicators=True, write=True)
    assert pl.read_parquet(run.path / "traces" / "held-out.parquet").equals(own)
    assert pl.read_parquet(run.path / "traces" / "held-out-indicators.parquet").equals(other)
    again = trace(run, Redness(PROMPTS), episodes=1, every=100, indicators=False, write=True)
    assert pl.read_parquet(run.path / "traces" / "held-out.parquet").equals(again)


def test_a_trace_with_indicators_drives_as_the_run_does(tmp_path):
    run = train(env="bannered", action_repeat=4, run_dir=str(tmp_path / "run"), **SMALL)
    own, other = (trace(run, Redness(PROMPTS), episodes=1, indicators=drawn) for drawn in (False, True))
    assert other.select("step", "reward", "cost").equals(own.select("step", "reward", "cost"))
    assert len(own) == ENVS["bannered"].horizon / 4


def test_where_there_are_none_asking_for_them_is_one_line():
    for env in ("speeding", "formula-one-l2", "formula-one-l2:long"):
        with pytest.raises(InputError, match=f"frames of environment '{env}' show no cost indicators") as caught:
            TrainConfig(env=env, frame_indicators=True).resolved()
        told = "bullet-car-reach, formula-one-l0:track, formula-one-l1:track, formula-one-l2:track, bannered"
        assert str(caught.value).endswith(f"choose one whose frames can show them: {told}")
        assert "\n" not in str(caught.value)
    assert env_spec("speeding", indicators=False) is ENVS["speeding"]


def test_where_they_cannot_be_left_out_it_is_recorded_and_leaving_them_out_refused():
    config = TrainConfig(env="safety-gymnasium:SafetyCarGoal1-v0").resolved()
    assert config.frame_indicators is True
    assert config.resolved() == config
    with pytest.raises(InputError, match="always show"):
        env_spec(config.env, indicators=False)


def test_variants_keep_what_was_asked_for():
    long = env_spec("formula-one-l2:track+long", indicators=True)
    assert (long.name, long.horizon, long.indicators) == ("formula-one-l2:track+long", 6000, True)


def test_only_the_camera_track_of_formula_one_can_show_them():
    assert [env_spec(f"formula-one-l2{variant}").indicators for variant in ("", ":long", ":track")] == [
        None,
        None,
        False,
    ]
    assert TrainConfig(env="formula-one-l1:track", frame_indicators=True).resolved().spec.indicators is True


def test_a_run_from_before_the_setting_is_one_without_indicators(tmp_path):
    run = train(env="bannered", run_dir=str(tmp_path / "run"), **SMALL)
    path = run.path / "config.yaml"
    assert read_yaml(path)["frame_indicators"] is False
    path.write_text("".join(line for line in path.open() if "frame_indicators" not in line))
    assert Run.open(run.path).config == run.config


def test_a_run_from_before_the_setting_can_be_continued(tmp_path, monkeypatch):
    """Neither its file nor its checkpoints know the setting."""
    before = runs._settings
    monkeypatch.setattr(
        runs, "_settings", lambda own: {k: v for k, v in before(own).items() if k != "frame_indicators"}
    )
    run = train(env="bannered", run_dir=str(tmp_path / "run"), **SMALL)
    monkeypatch.setattr(runs, "_settings", before)
    assert resume(run.path, quiet=True).status() == "finished"
