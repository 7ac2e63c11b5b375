"""The original Safety-Gymnasium behind its adapter: cameras, cost indicators, time limit, goals."""

import dataclasses
import os
import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from vlmsafe.envs.bridge import adapter
from vlmsafe.envs.registry import env_spec, world_name


@dataclasses.dataclass
class RenderParameters:
    mode: str | None
    camera_name: str | None


class Task:
    """As the original's: it draws the markers and the sphere that it is told to."""

    num_steps = 5
    model = SimpleNamespace(ncam=2, camera=lambda number: SimpleNamespace(name=("vision", "track")[number]))

    def __init__(self) -> None:
        self.render_conf = SimpleNamespace(lidar_markers=True)

    def render(self, cost, mode, camera_name):
        shown = [100 * self.render_conf.lidar_markers, 100 * (cost.get("cost_sum", 0) > 0), len(camera_name or "")]
        return np.full((2, 2, 3), shown, np.uint8)


class Builder(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (2,))

    def __init__(self, render_mode=None, camera_name=None):
        self.task, self.render_parameters = Task(), RenderParameters(render_mode, camera_name)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, 1.0, False, False, {"goal_met": True}

    def render(self):
        return self.task.render(cost={"cost_sum": 1.0}, **dataclasses.asdict(self.render_parameters))


@pytest.fixture(autouse=True)
def original(monkeypatch):
    module = SimpleNamespace(make=lambda env_id, **arguments: Builder(**arguments))
    monkeypatch.setitem(sys.modules, "safety_gymnasium", module)


@pytest.mark.parametrize(("indicators", "shown"), [(True, [100, 100, 5]), (False, [0, 0, 5])])
def test_markers_and_sphere_are_drawn_only_if_asked_for_in_the_camera_that_is_named(indicators, shown):
    env = adapter.make_safe("SafetyCarGoal1-v0:track", True, indicators)
    env.reset(0)
    env.step(np.zeros(2))
    assert env.render()[0, 0].tolist() == shown


def test_its_own_limit_is_known_and_goals_are_counted_per_episode():
    env = adapter.make_safe("SafetyCarGoal1-v0", False)
    for _ in range(2):
        env.reset(0)
        ends = [env.step(np.zeros(2))[3] for _ in range(5)]
        assert ends == [False] * 4 + [True]
        assert env.call("progress") == {"stages": 5.0}
    assert env.time_limit == 5


def test_indicators_that_cannot_be_left_out_are_refused(monkeypatch):
    monkeypatch.setattr(Builder, "__init__", lambda self, render_mode=None: setattr(self, "task", object()))
    with pytest.raises(adapter.Unusable, match="pass --frame-indicators"):
        adapter.make_safe("SafetyCarGoal1-v0", True, indicators=False)
    adapter.make_safe("SafetyCarGoal1-v0", False, indicators=False)  # nobody looks


def test_an_environment_without_a_task_draws_no_indicators(monkeypatch):
    monkeypatch.setattr(Builder, "__init__", lambda self, render_mode=None: None)
    monkeypatch.setattr(Builder, "render", lambda self: np.ones((2, 2, 3), np.uint8))
    assert adapter.make_safe("SafetyHopperVelocity-v1", True, indicators=False).render().min() == 1


def test_a_camera_that_it_does_not_have_is_refused():
    with pytest.raises(adapter.Unusable, match="no camera 'trakc'; it has vision, track"):
        adapter.make_safe("SafetyCarGoal1-v0:trakc", True)


@pytest.mark.parametrize("steering", [lambda: 1, np.zeros(2), 7.9, 2, -1, True, "left"])
def test_an_attribute_of_another_meaning_is_not_taken_for_an_index(monkeypatch, steering):
    monkeypatch.setattr(Builder, "steering", steering, raising=False)
    assert adapter.Adapter(Builder()).steering == 0


@pytest.mark.parametrize(
    ("named", "rate", "found"),
    [(0.05, 30, 0.05), (None, 20, 0.05), (np.float32(0.5), None, 0.5), (None, None, None), (-1.0, 0, None),
     (True, "fast", None), (lambda: 0.1, float("nan"), None)],
)  # fmt: skip
def test_the_time_of_a_step_is_the_environments_own_or_by_its_frame_rate(monkeypatch, named, rate, found):
    monkeypatch.setattr(Builder, "step_seconds", named, raising=False)
    monkeypatch.setattr(Builder, "metadata", {"render_fps": rate})
    assert adapter.Adapter(Builder()).step_seconds == found


def test_a_method_of_another_meaning_is_left_alone_and_a_wrong_answer_is_named(monkeypatch):
    monkeypatch.setattr(Builder, "progress", lambda self, share: share, raising=False)
    assert "progress" not in adapter.Adapter(Builder()).has
    monkeypatch.setattr(Builder, "facts", lambda self: 0.5, raising=False)
    with pytest.raises(adapter.Misbehaviour, match=r"facts\(\) returned something of type float; expected numbers by"):
        adapter.Adapter(Builder()).call("facts")
    monkeypatch.setattr(Builder, "hazard", lambda self: None, raising=False)
    with pytest.raises(adapter.Misbehaviour, match=r"hazard\(\) returned something of type NoneType; expected a num"):
        adapter.Adapter(Builder()).call("hazard")


def test_a_long_space_is_one_line_of_moderate_length():
    space = gymnasium.spaces.Box(np.arange(60.0), np.arange(60.0) + 1)
    assert len(str(space).splitlines()) > 1
    text = adapter.short(space)
    assert len(text.splitlines()) == 1
    assert len(text) < 250


def test_formula_one_in_another_interpreter_has_what_the_package_knows_of_it():
    name = "safety-gymnasium:SafetyRacecarFormulaOne2-v0"
    spec = env_spec(f"{name}@original")
    assert (spec.horizon, spec.step_seconds, spec.metrics, spec.prompts) == (1000, 0.04, ("stages",), "formula-one")
    assert (spec.package, spec.fresh_process, spec.indicators) == (None, True, None)
    assert env_spec(f"{name}:track@original").indicators is False
    assert env_spec(f"{name}:track@original", indicators=True).indicators is True
    assert world_name(f"{name}:track@original") == f"{name}:track"


def test_output_falls_silent_when_its_reader_is_gone():
    reading, writing = os.pipe()
    os.close(reading)
    with adapter._Silenced(writing, "w") as output:
        assert output.write(b"a line") == 6
