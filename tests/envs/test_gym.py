"""Any registered Gymnasium environment with a cost can be trained on, and one that cannot says why."""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from vlmsafe import evaluate, train
from vlmsafe.config.yaml import read_yaml
from vlmsafe.envs.api import Scenarios
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import EXIT_BAD_INPUT, EnvironmentFailure, InputError, MissingDependencyError
from vlmsafe.learners.networks import Shape, Stack
from vlmsafe.numerics.normaliser import Normaliser
from vlmsafe.training.collect import CollectTask, Share, collect
from vlmsafe.wrapper import SemanticSignals

Register = Callable[..., str]


class Counter(gymnasium.Env[Any, Any]):
    """Counts its steps; the cost is in `info`, or third of six values, or nowhere."""

    def __init__(self, cost: str = "info", observation_space: Any = None, action_space: Any = None, ends: int = 10**9):
        self.observation_space = observation_space or spaces.Box(-10, 10, (2,), np.float64)
        self.action_space = action_space or spaces.Box(-2.0, 2.0, (1,), np.float32)
        self._cost, self._ends = cost, ends
        self.actions: list[Any] = []
        self.seeds: list[int | None] = []

    def _observation(self) -> Any:
        if isinstance(self.observation_space, spaces.Dict):
            return {"where": np.array([[self._step, 2.0]]), "kind": 1}
        return np.full(self.observation_space.shape, self._step, self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self._step = 0
        return self._observation(), {"start": True}

    def step(self, action: Any) -> tuple[Any, ...]:
        self.actions.append(action)
        self._step += 1
        over = self._step >= self._ends
        if self._cost == "six":
            return self._observation(), 1, 0.25, over, False, {"extra": 1}
        if self._cost == "four":
            return self._observation(), 1, over, {}
        return self._observation(), 1, over, False, {"cost": 0.5} if self._cost == "info" else {}

    def render(self) -> Any:
        return np.zeros((4, 5, 3), np.uint8)


@pytest.fixture
def register() -> Iterator[Register]:
    """Registers `Counter` with the given arguments for one test; returns the name to use here."""
    ids: list[str] = []

    def register_one(name: str = "Counter-v0", max_episode_steps: int | None = None, **arguments: Any) -> str:
        ids.append(name)
        gymnasium.register(name, entry_point=Counter, max_episode_steps=max_episode_steps, kwargs=arguments)
        return f"gym:{name}"

    yield register_one
    for name in ids:
        gymnasium.registry.pop(name, None)


def task(env: Any, steps: int, normaliser: Normaliser | None = None) -> CollectTask:
    stack = Stack(Shape(env.observation_space.shape[0], (4,), env.action_space.shape[0], 1))
    return CollectTask(stack.policy(), normaliser, Scenarios(0, 100), traffic=False, steps=steps, seed=(0,))


def collected(env: Any, steps: int) -> Share:
    return collect(env, task(env, steps))


def test_five_values_pass_through_with_the_cost_of_info(register):
    env = env_spec(register()).make()
    observation, info = env.reset(seed=3)
    assert (observation.dtype, observation.tolist()) == (np.float32, [0.0, 0.0])
    assert info == {"start": True, "scenario": 3}
    observation, reward, terminated, truncated, info = env.step(np.zeros(1, np.float32))
    assert observation.tolist() == [1.0, 1.0]
    assert (reward, terminated, truncated, info["cost"]) == (1.0, False, False, 0.5)
    assert type(reward) is float


def test_the_third_of_six_values_is_the_cost(register):
    env = env_spec(register(cost="six")).make()
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(np.zeros(1, np.float32))
    assert observation.tolist() == [1.0, 1.0]
    assert (reward, terminated, truncated) == (1.0, False, False)
    assert info == {"extra": 1, "cost": 0.25}


@pytest.mark.parametrize("cost", ["info", "six"])
def test_both_kinds_can_be_collected(register, cost):
    share = collected(env_spec(register(cost=cost, ends=4)).make(), 10)
    np.testing.assert_array_equal(share.rollout.costs, 0.5 if cost == "info" else 0.25)
    assert share.rollout.path_ends.tolist() == [4, 8, 10]
    assert share.rollout.terminated.tolist() == [True, True, False]


def test_a_missing_cost_says_where_and_what_to_do(register):
    env = env_spec(register(cost="none")).make()
    with pytest.raises(EnvironmentFailure, match=r"info\['cost'\] is missing at step 1 of scenario \d+; add it"):
        collected(env, 5)


def test_another_number_of_values_is_named(register):
    env = env_spec(register(cost="four")).make()
    env.reset(seed=0)
    with pytest.raises(EnvironmentFailure, match="step returned 4 values; expected Gymnasium's five or"):
        env.step(np.zeros(1, np.float32))


def test_dictionaries_and_images_are_flattened(register):
    space = spaces.Dict({"where": spaces.Box(-10, 10, (1, 2)), "kind": spaces.Discrete(3)})
    env = env_spec(register(observation_space=space)).make()
    observation, _ = env.reset(seed=0)
    env.step(np.zeros(1, np.float32))
    observation = env.step(np.zeros(1, np.float32))[0]
    assert observation.dtype == np.float32
    assert env.observation_space.shape == observation.shape == (5,)
    assert observation.tolist() == [0.0, 1.0, 0.0, 2.0, 2.0], "keys in the space's order: kind, where"

    image = env_spec(register("Image-v0", observation_space=spaces.Box(0, 255, (2, 3, 3), np.uint8))).make()
    observation, _ = image.reset(seed=0)
    assert (observation.dtype, observation.shape) == (np.float32, (18,))
    assert collected(image, 3).rollout.observations.shape == (3, 18)


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(2), spaces.MultiDiscrete([2, 2]), spaces.Box(-1, 1, (2, 2)), spaces.Box(-1, 1, ())],
    ids=str,
)
def test_other_action_spaces_are_refused_with_the_reason(register, space):
    name = register(action_space=space)
    with pytest.raises(InputError, match="the learners need a one-dimensional Box of continuous actions") as caught:
        env_spec(name).make()
    assert name in str(caught.value)
    assert str(space) in str(caught.value)


def test_observations_that_are_no_vector_are_refused(register):
    name = register(observation_space=spaces.Sequence(spaces.Box(-1, 1, (2,))))
    with pytest.raises(InputError, match="are not a flat vector"):
        env_spec(name).make()


@pytest.mark.parametrize("cost", ["info", "six"])
def test_the_registered_time_limit_cuts_and_does_not_terminate(register, cost):
    env = env_spec(register(cost=cost, max_episode_steps=3)).make()
    for _ in range(2):  # the count restarts with the episode
        env.reset(seed=0)
        ends = [env.step(np.zeros(1, np.float32))[2:4] for _ in range(3)]
        assert ends == [(False, False), (False, False), (False, True)]
    share = collected(env, 7)
    assert share.rollout.path_ends.tolist() == [3, 6, 7]
    assert not share.rollout.terminated.any()
    assert share.rollout.last[:, 0].tolist() == [3.0, 3.0, 1.0], "the state after the cut, not the next episode's"


def test_an_end_at_the_time_limit_is_an_end(register):
    env = env_spec(register(max_episode_steps=3, ends=3)).make()
    share = collected(env, 3)
    assert share.rollout.terminated.tolist() == [True]
    assert share.episodes[0]["finished"]


def test_the_scenario_is_the_environments_seed_and_unseeded_resets_draw_from_the_pool(register):
    env = env_spec(register()).make(Scenarios(40, 3))
    inner = env.unwrapped.inner.inner.unwrapped
    scenarios = [env.reset(seed=41)[1]["scenario"], *(env.reset()[1]["scenario"] for _ in range(30))]
    assert inner.seeds == scenarios
    assert scenarios[0] == 41
    assert set(scenarios) == {40, 41, 42}


def test_actions_arrive_in_the_spaces_own_type_and_bounds(register):
    env = env_spec(register(action_space=spaces.Box(-2.0, 2.0, (1,), np.float64))).make()
    inner = env.unwrapped.inner.inner.unwrapped
    collected(env, 50)
    assert all(action.dtype == np.float64 for action in inner.actions)
    assert all(inner.action_space.contains(action) for action in inner.actions)
    assert min(inner.actions) < -1.0, "the policy's [-1, 1] is stretched to the bounds"
    assert max(inner.actions) > 1.0


def test_an_unknown_id_names_the_nearest(register):
    register("CarefulCounter-v0")
    with pytest.raises(InputError, match="'CarefulContour-v0'; did you mean 'CarefulCounter-v0'") as caught:
        env_spec("gym:CarefulContour-v0").make()
    assert caught.value.exit_code == EXIT_BAD_INPUT


@pytest.fixture
def counting_module(tmp_path, monkeypatch) -> Iterator[None]:
    """A module that registers an environment of another module."""
    (tmp_path / "counting_module.py").write_text(
        "import gymnasium\n"
        "from test_gym import Counter\n"
        "gymnasium.register('FromModule-v0', entry_point=Counter, max_episode_steps=2)\n"
    )
    (tmp_path / "idle_module.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    gymnasium.registry.pop("FromModule-v0", None)
    for name in ("counting_module", "idle_module"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("counting_module")
def test_an_id_that_its_module_does_not_register_names_those_that_it_does():
    for _ in range(2):  # the module is imported only once
        with pytest.raises(InputError, match=r"of the module 'counting_module': 'Nope'\. Known: FromModule-v0$"):
            env_spec("gym:counting_module:Nope").make()
    with pytest.raises(InputError, match=r"of the module 'odd_envs': 'Goood-v0'; did you mean 'Good-v0'"):
        env_spec("gym:odd_envs:Goood-v0").make()


@pytest.mark.usefixtures("counting_module")
def test_a_module_that_registers_nothing_is_told_to():
    with pytest.raises(InputError, match=r"'idle_module' registers no environment; call gymnasium.register\('Nope-v0'"):
        env_spec("gym:idle_module:Nope-v0").make()


@pytest.mark.usefixtures("counting_module")
def test_a_module_without_an_id_is_told_to_add_one():
    with pytest.raises(InputError, match=r"the name of a module; add the id .*: gym:idle_module:<id>"):
        env_spec("gym:idle_module").make()


def test_an_id_of_a_script_is_told_to_move_to_a_module():
    with pytest.raises(InputError, match=r"in a module that can be imported, and .*: gym:<module>:OnlyInMyScript-v0"):
        env_spec("gym:OnlyInMyScript-v0").make()


@pytest.mark.parametrize("module", ["no_such_module_here", "no_such_package_here.envs"])
def test_a_module_that_is_not_found_is_told_where_it_is_looked_for(module):
    with pytest.raises(InputError, match="run the command in the folder that holds it, or add that folder to PYTHONPA"):
        env_spec(f"gym:{module}:CarefulCounter-v0").make()


def test_a_module_that_lacks_another_one_is_not_told_where_to_run(tmp_path, monkeypatch):
    (tmp_path / "lacking_module.py").write_text("import no_such_part")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="No module named 'no_such_part'") as caught:
        env_spec("gym:lacking_module:CarefulCounter-v0").make()
    assert "PYTHONPATH" not in str(caught.value)


def test_an_id_without_its_version_names_the_one_that_has_it(register):
    register("CarefulCounter-v0")
    with pytest.raises(InputError, match="CarefulCounter-v0"):
        env_spec("gym:CarefulCounter").make()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gym:CarefulCounter-v7", "v0"),
        ("gym:nowhere/CarefulCounter-v0", "nowhere"),
        ("gym:no id at all!", "Malformed"),
        ("gym:no_such_module_here:CarefulCounter-v0", "no_such_module_here"),
        ("gym:.relative:CarefulCounter-v0", "relative"),
    ],
)
def test_an_id_that_cannot_be_made_says_why_in_one_line(register, name, reason):
    register("CarefulCounter-v0")
    with pytest.raises(InputError, match=reason) as caught:
        env_spec(name).make()
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == EXIT_BAD_INPUT


@pytest.mark.usefixtures("counting_module")
def test_a_module_before_the_id_is_imported_to_register_it():
    env = env_spec("gym:counting_module:FromModule-v0").make()
    assert collected(env, 4).rollout.path_ends.tolist() == [2, 4]


def test_making_an_environment_leaves_its_registration_alone(register):
    name = register(max_episode_steps=3)
    before = str(gymnasium.spec("Counter-v0"))
    env_spec(name).make()
    assert str(gymnasium.spec("Counter-v0")) == before
    assert gymnasium.spec("Counter-v0").max_episode_steps == 3


def test_frames_are_what_the_environment_renders(register, monkeypatch):
    env = env_spec(register()).make()
    env.reset(seed=0)
    frame = env.frame()
    assert (frame.shape, frame.dtype) == ((4, 5, 3), np.uint8)
    monkeypatch.setattr(Counter, "render", lambda self: None)
    with pytest.raises(EnvironmentFailure, match="render_mode='rgb_array'"):
        env.frame()


def test_an_expert_that_is_no_function_is_named(register, monkeypatch):
    monkeypatch.setattr(Counter, "expert", lambda self: np.zeros(1), raising=False)
    env = env_spec(register()).make()
    env.reset(seed=0)
    with pytest.raises(EnvironmentFailure, match=r"expert\(\) returned ndarray; it must return a function"):
        env.expert()
    monkeypatch.setattr(Counter, "expert", lambda self: None)
    assert env.expert() is None


class Framed(Counter):
    """Shows the cost to people, and not to scorers."""

    steering = 1

    def __init__(self) -> None:
        super().__init__(action_space=spaces.Box(-1.0, 1.0, (2,), np.float32))

    def render(self) -> Any:
        return np.full((4, 5, 3), 255, np.uint8)

    def frame(self) -> Any:
        return np.full((4, 5, 3), self._step, np.uint8)

    def progress(self) -> dict[str, Any]:
        return {"steps": np.int64(self._step)}


def test_a_scorer_sees_the_same_picture_in_training_and_in_the_wrapper():
    gymnasium.register("Framed-v0", entry_point=Framed)
    try:
        env = env_spec("gym:Framed-v0").make()
        wrapper = SemanticSignals(gymnasium.make("Framed-v0", disable_env_checker=True), "constant:1,0")
        for one in (env, wrapper):
            one.reset(seed=0)
            one.step(np.zeros(2, np.float32))
        np.testing.assert_array_equal(env.frame(), np.full((4, 5, 3), 1))
        np.testing.assert_array_equal(env.frame(), wrapper._frame())
        assert (env.steering, env.progress(), env.facts()) == (1, {"steps": 1.0}, {})
    finally:
        gymnasium.registry.pop("Framed-v0", None)


class Hazardous(Counter):
    def __init__(self, hazard: float) -> None:
        super().__init__()
        self._hazard = hazard

    def hazard(self) -> float:
        return self._hazard * self._step


def test_the_hazard_is_the_environments_own_through_any_wrapper():
    gymnasium.register(
        "Hazardous-v0",
        entry_point=Hazardous,
        kwargs={"hazard": 0.25},
        additional_wrappers=(gymnasium.wrappers.RecordEpisodeStatistics.wrapper_spec(),),
    )
    try:
        env = env_spec("gym:Hazardous-v0").make()
        assert not isinstance(env.inner.inner, Hazardous)
        env.reset(seed=0)
        assert env.hazard() == 0.0
        env.step(np.zeros(1, np.float32))
        assert env.hazard() == 0.25
    finally:
        gymnasium.registry.pop("Hazardous-v0", None)


def test_an_environment_without_a_hazard_is_named_with_what_to_define(register):
    name = register()
    env = env_spec(name).make()
    env.reset(seed=0)
    with pytest.raises(InputError, match=r"has no hazard.* define hazard\(\) on it") as caught:
        env.hazard()
    assert f"'{name}'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("hazard", [1.5, -0.5, float("nan")])
def test_a_hazard_that_is_no_share_is_refused(monkeypatch, register, hazard):
    monkeypatch.setattr(Counter, "hazard", lambda self: hazard, raising=False)
    env = env_spec(register()).make()
    env.reset(seed=0)
    with pytest.raises(EnvironmentFailure, match=f"returned {hazard}; it must lie from 0 to 1"):
        env.hazard()


def test_seeds_of_training_and_evaluation_are_kept_apart():
    spec = env_spec("gym:Pendulum-v1")
    assert spec.name == "gym:Pendulum-v1"
    assert spec.training.start + spec.training.size <= spec.held_out.start


# A stand-in for the original safety_gymnasium, which is not installed for tests: a registry of its own behind `make`,
# six values per step, a time limit inside, and frames that show the cost.
STAND_IN = """
import gymnasium
import numpy as np

class SafeEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float64)

    def __init__(self, render_mode):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.cost = 0, 0.0
        return self.np_random.normal(size=3), {}

    def step(self, action):
        self.steps += 1
        self.cost = float(action[0] > 0)
        return self.np_random.normal(size=3), 0.5, self.cost, False, self.steps >= 4, {}

    def render(self):
        assert self.render_mode == "rgb_array"
        return np.full((6, 6, 3), (255 * self.cost, 0, 0), np.uint8)

def make(id, render_mode=None):
    if id != "SafetyCarGoal1-v0":
        raise gymnasium.error.NameNotFound(f"Environment `{id}` doesn't exist.")
    return SafeEnv(render_mode)
"""
SAFE = "safety-gymnasium:SafetyCarGoal1-v0"


@pytest.fixture
def stand_in(tmp_path, monkeypatch) -> Iterator[None]:
    (tmp_path / "safety_gymnasium.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "safety_gymnasium", raising=False)
    yield
    sys.modules.pop("safety_gymnasium", None)


@pytest.mark.usefixtures("stand_in")
def test_an_environment_of_safety_gymnasium_has_its_cost_its_limit_and_its_seeds():
    env = env_spec(SAFE).make()
    first, info = env.reset(seed=7)
    assert (first.dtype, first.shape, info["scenario"]) == (np.float32, (3,), 7)
    costs, ends = [], []
    for push in (1.0, -1.0, 1.0, -1.0):
        observation, reward, terminated, truncated, info = env.step(np.array([push, 0.0], np.float32))
        assert (observation.dtype, reward, terminated) == (np.float32, 0.5, False)
        costs.append(info["cost"])
        ends.append(truncated)
    assert (costs, ends) == ([1.0, 0.0, 1.0, 0.0], [False, False, False, True])
    np.testing.assert_array_equal(env.reset(seed=7)[0], first)


@pytest.mark.usefixtures("stand_in")
def test_frames_of_safety_gymnasium_are_its_own_with_the_indicators_it_draws():
    spec = env_spec(SAFE)
    assert spec.indicators is True
    assert env_spec("safety-gymnasium:SafetyRacecarFormulaOne1-v0").indicators is None, "its camera sees none"
    env = dataclasses.replace(spec, frames=True).make()
    env.reset(seed=0)
    env.step(np.array([1.0, 0.0], np.float32))
    assert env.frame()[0, 0].tolist() == [255, 0, 0]


@pytest.mark.usefixtures("stand_in")
def test_a_run_in_safety_gymnasium_records_that_its_frames_show_the_cost(tmp_path):
    run = train(env=SAFE, total_steps=16, steps_per_epoch=8, learner={"update_iters": 1}, run_dir=str(tmp_path / "run"),
                quiet=True)  # fmt: skip
    assert read_yaml(run.path / "config.yaml")["frame_indicators"] is True
    assert evaluate(run, episodes=1)["length"].to_list() == [4]


@pytest.mark.usefixtures("stand_in")
def test_an_id_that_safety_gymnasium_does_not_know_is_one_line():
    with pytest.raises(InputError, match=r"'safety-gymnasium:Nothing-v0' cannot be made: NameNotFound") as caught:
        env_spec("safety-gymnasium:Nothing-v0").make()
    assert "\n" not in str(caught.value)


def test_without_safety_gymnasium_the_error_holds_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    monkeypatch.delitem(sys.modules, "safety_gymnasium", raising=False)
    with pytest.raises(MissingDependencyError, match=r"python3\.10 -m venv original && original/bin/pip install"):
        env_spec(SAFE).make()


@pytest.mark.parametrize("broken", ["raise TypeError('unhashable array')", "import no_such_part"])
def test_a_safety_gymnasium_that_cannot_be_imported_is_one_line(tmp_path, monkeypatch, broken):
    (tmp_path / "safety_gymnasium.py").write_text(broken)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "safety_gymnasium", raising=False)
    with pytest.raises(InputError, match="the module 'safety_gymnasium', which cannot be imported"):
        env_spec(SAFE).make()


def test_the_prefix_alone_is_no_environment():
    with pytest.raises(InputError, match=r"unknown environment 'safety-gymnasium:'"):
        env_spec("safety-gymnasium:")
