"""A worker's share is what happened: what the policy saw, what it did, how each path ended."""

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from vlmsafe.envs.api import Env, Scenarios
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import EnvironmentFailure
from vlmsafe.learners.advantages import Rollout
from vlmsafe.learners.networks import Shape, Stack
from vlmsafe.learners.policy import ActionMap
from vlmsafe.numerics.normaliser import Normaliser
from vlmsafe.training.collect import CollectTask, DescribeTask, Dimensions, RandomPolicy, Share, collect

SPEEDING = env_spec("speeding")
POOL = Scenarios(100, 50)


class Scripted(Env):
    """Episodes of a set length; observations tell scenario and step. Keeps a diary of all that passed."""

    def __init__(self, length: int = 5, *, terminates: bool = False, reuse_buffer: bool = False) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(np.float32(0.0), np.float32(4.0), (1,), np.float32)
        self.length, self.terminates = length, terminates
        self.buffer = np.zeros(2, np.float32) if reuse_buffer else None
        self.raw: list[np.ndarray] = []
        self.actions: list[np.ndarray] = []
        self.options: list[dict[str, Any] | None] = []
        self.at = 0
        self.spoil: Callable[[int, dict[str, Any]], None] = lambda step, values: None

    def _observe(self) -> np.ndarray:
        values = np.array([self.scenario, self.at], np.float32)
        values_or_spoilt = {"observation": values}
        self.spoil(self.at, values_or_spoilt)
        values = values_or_spoilt["observation"]
        self.raw.append(values.copy())
        if self.buffer is None:
            return values
        self.buffer[:] = values
        return self.buffer

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        self.scenario, self.at = seed, 0
        self.options.append(options)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(action.copy())
        self.at += 1
        over = self.at >= self.length
        values = {"reward": float(self.at), "cost": 0.5}
        self.spoil(self.at, values)
        info = {"cost": values["cost"]} | ({"arrived": self.terminates} if over else {})
        return self._observe(), values["reward"], over and self.terminates, over and not self.terminates, info

    def frame(self) -> Any:
        raise NotImplementedError


def make_task(
    steps: int, normaliser: Normaliser | None = None, *, seed: int = 0, traffic: bool = False, pool: Scenarios = POOL
) -> CollectTask:
    stack = Stack(Shape(observation=2, hidden=(6,), action=1, critics=1))
    stack.initialise(np.random.default_rng(1))
    stack.log_std[:] = -0.3
    return CollectTask(stack.policy(), normaliser, pool, traffic, steps, (seed, 2, 0))


def experienced() -> Normaliser:
    normaliser = Normaliser.empty(2)
    for row in np.random.default_rng(0).normal(size=(30, 2)) * (20, 2) + (120, 2):
        normaliser.update(row.astype(np.float32))
    return normaliser


def assert_equal_shares(first: Share, second: Share) -> None:
    for field in dataclasses.fields(Rollout):
        np.testing.assert_array_equal(
            getattr(first.rollout, field.name), getattr(second.rollout, field.name), err_msg=field.name
        )
    assert first.episodes == second.episodes
    assert first.seen.count == second.seen.count
    np.testing.assert_array_equal(first.seen.mean, second.seen.mean)
    np.testing.assert_array_equal(first.seen.m2, second.seen.m2)


@pytest.mark.parametrize("normaliser", [None, Normaliser.empty(2), experienced()], ids=["raw", "empty", "experienced"])
def test_equal_tasks_give_equal_shares(normaliser):
    task = make_task(70, normaliser, pool=SPEEDING.training)
    env = SPEEDING.make()
    first = collect(env, task)
    assert_equal_shares(first, collect(env, task))
    assert_equal_shares(first, collect(SPEEDING.make(), task))
    other = collect(env, dataclasses.replace(task, seed=(1, 2, 0)))
    assert not np.array_equal(first.rollout.actions, other.rollout.actions)
    assert [row["scenario"] for row in first.episodes] != [row["scenario"] for row in other.episodes]


def test_a_task_is_not_changed_by_collecting():
    normaliser = experienced()
    before = normaliser.copy()
    collect(Scripted(), make_task(23, normaliser))
    assert normaliser.count == before.count
    np.testing.assert_array_equal(normaliser.mean, before.mean)
    np.testing.assert_array_equal(normaliser.m2, before.m2)


@pytest.mark.parametrize("normaliser", [None, Normaliser.empty(2), experienced()], ids=["raw", "empty", "experienced"])
def test_stored_observations_are_those_acted_upon(normaliser):
    """The density of every stored action under the policy at its stored observation is the stored one."""
    task = make_task(63, normaliser)
    rollout = collect(Scripted(), task).rollout
    means = np.stack([task.policy.mean(row) for row in rollout.observations])
    normal = torch.distributions.Normal(torch.tensor(means), torch.tensor(task.policy.log_std).exp())
    np.testing.assert_allclose(
        rollout.log_probs, normal.log_prob(torch.tensor(rollout.actions)).sum(dim=1), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("length", [5, 300])
@pytest.mark.parametrize("dice", [False, True], ids=["policy", "dice"])
def test_noise_drawn_in_blocks_is_that_of_single_draws(length, dice):
    """Episodes and actions draw from one generator in turn, whether an episode is shorter than a block or longer."""
    task = make_task(700, traffic=True)
    if dice:
        task = dataclasses.replace(task, policy=RandomPolicy(1))
    share, rng, scenarios, actions = collect(Scripted(length=length), task), np.random.default_rng(task.seed), [], []
    for t, observation in enumerate(share.rollout.observations):
        if t % length == 0:
            scenarios.append((POOL.draw(rng), int(rng.integers(2**31))))
        actions.append(task.policy.act(observation, task.policy.draw(rng, 1)[0]))
    np.testing.assert_array_equal(share.rollout.actions, actions)
    assert [(row["scenario"], row["traffic_seed"]) for row in share.episodes] == scenarios


@pytest.mark.parametrize("start", [Normaliser.empty(2), experienced()], ids=["empty", "experienced"])
def test_each_observation_updates_the_statistics_and_is_then_standardised(start):
    """In the order in which they came: resets, steps and final observations alike (OmniSafe's order)."""
    env = Scripted(length=5)
    share = collect(env, make_task(23, start))
    running, standardised = start.copy(), []
    for raw in env.raw:
        running.update(raw)
        standardised.append(running.normalise(raw))
    rows = iter(standardised)
    acted, last = [], []
    for length in (5, 5, 5, 5, 3):
        acted += [next(rows) for _ in range(length)]
        last.append(next(rows))
    assert next(rows, None) is None
    np.testing.assert_array_equal(share.rollout.observations, acted)
    np.testing.assert_array_equal(share.rollout.last, last)


def test_the_statistics_count_steps_and_resets_of_this_share_alone():
    env = Scripted(length=5)
    share = collect(env, make_task(23, experienced()))
    assert share.seen.count == 23 + len(share.episodes) == 23 + 5 == len(env.raw)
    exact = np.array(env.raw, np.float64)
    np.testing.assert_allclose(share.seen.mean, exact.mean(axis=0))
    np.testing.assert_allclose(share.seen.std, exact.std(axis=0, ddof=1))


def test_merging_shares_gives_the_statistics_of_all_that_was_seen():
    start, envs = experienced(), [Scripted(length=5), Scripted(length=7)]
    whole, merged = start.copy(), start.copy()
    for worker, env in enumerate(envs):
        merged.merge(collect(env, make_task(20, start, seed=worker)).seen)
        for raw in env.raw:
            whole.update(raw)
    assert merged.count == whole.count
    np.testing.assert_allclose(merged.mean, whole.mean)
    np.testing.assert_allclose(merged.std, whole.std)


def test_without_a_normaliser_observations_are_raw():
    env = Scripted(length=5)
    share = collect(env, make_task(13))
    assert share.seen.count == 0
    np.testing.assert_array_equal(share.rollout.observations[:, 1], [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2])
    np.testing.assert_array_equal(share.rollout.last[:, 1], [5, 5, 3])


@pytest.mark.parametrize("normaliser", [None, experienced()], ids=["raw", "normalised"])
def test_an_environment_may_reuse_its_observation_array(normaliser):
    """What was stored must not change when the environment writes its next observation into the same memory."""
    task = make_task(23, normaliser)
    assert_equal_shares(collect(Scripted(reuse_buffer=True), task), collect(Scripted(), task))


def test_a_time_limit_keeps_the_true_final_observation_and_is_no_end():
    share = collect(SPEEDING.make(), make_task(50, pool=SPEEDING.training))
    rollout = share.rollout
    assert rollout.path_ends.tolist() == [20, 40, 50]
    assert not rollout.terminated.any()
    np.testing.assert_array_equal(rollout.last[:, 1], [1.0, 1.0, 0.0])
    np.testing.assert_array_equal(rollout.last[:, 0], rollout.observations[[19, 39, 49], 0])
    assert [row["finished"] for row in share.episodes] == [True, True, False]


def test_a_terminal_state_is_marked_and_the_cut_one_is_not():
    share = collect(Scripted(length=4, terminates=True), make_task(10))
    assert share.rollout.terminated.tolist() == [True, True, False]
    assert [row.get("arrived") for row in share.episodes] == [True, True, None]


def test_an_end_on_the_last_step_of_the_share_is_an_end():
    env = Scripted(length=5, terminates=True)
    share = collect(env, make_task(10))
    assert share.rollout.path_ends.tolist() == [5, 10]
    assert share.rollout.terminated.tolist() == [True, True]
    assert [row["finished"] for row in share.episodes] == [True, True]
    assert len(env.options) == 2, "no further episode is begun"


def test_an_episodes_record_holds_the_task_metrics_at_its_end():
    env = Scripted(length=5)
    env.progress = lambda: {"metres": env.at / 2, "speed": 1.0}
    share = collect(env, dataclasses.replace(make_task(13), metrics=("metres",)))
    assert [row["progress"] for row in share.episodes] == [{"metres": 2.5}, {"metres": 2.5}, {"metres": 1.5}]
    assert "progress" not in collect(env, make_task(5)).episodes[0]


def test_episode_records_add_up():
    share = collect(Scripted(length=5), make_task(13))
    lengths = [row["length"] for row in share.episodes]
    assert lengths == [5, 5, 3]
    assert [row["finished"] for row in share.episodes] == [True, True, False]
    start = 0
    for row, end in zip(share.episodes, share.rollout.path_ends, strict=True):
        assert row["return"] == share.rollout.rewards[start:end].sum()
        assert row["cost"] == share.rollout.costs[start:end].sum()
        start = end
    assert json.loads(json.dumps(share.episodes)) == share.episodes


def test_every_scenario_is_of_the_pool_and_is_the_one_recorded():
    env = Scripted(length=3)
    share = collect(env, make_task(300))
    scenarios = [row["scenario"] for row in share.episodes]
    begun = [int(raw[0]) for raw in env.raw if raw[1] == 0]
    assert scenarios == begun
    assert all(scenario in POOL for scenario in scenarios)
    assert len(set(scenarios)) > 25, "and they vary"


def test_a_traffic_seed_is_drawn_passed_on_and_recorded():
    env = Scripted(length=3)
    share = collect(env, make_task(30, traffic=True))
    assert env.options == [{"traffic_seed": row["traffic_seed"]} for row in share.episodes]
    assert len({row["traffic_seed"] for row in share.episodes}) == 10
    plain = Scripted(length=3)
    assert "traffic_seed" not in collect(plain, make_task(30)).episodes[0]
    assert set(map(str, plain.options)) == {"None"}


def test_actions_are_stored_as_sampled_and_sent_within_bounds():
    env = Scripted()
    rollout = collect(env, make_task(200)).rollout
    sent = np.array(env.actions)
    assert env.action_space.low <= sent.min() < sent.max() <= env.action_space.high
    assert np.abs(rollout.actions).max() > 1.0, "samples beyond the range are kept for learning"
    to_env = ActionMap.to(env.action_space)
    np.testing.assert_array_equal(sent, [to_env(action) for action in rollout.actions])


def test_actions_are_sent_as_sampled_to_an_environment_that_does_not_clip():
    env = Scripted()
    env.clips = False
    rollout = collect(env, make_task(200)).rollout
    middle, half = (
        (env.action_space.high + env.action_space.low) / 2,
        (env.action_space.high - env.action_space.low) / 2,
    )
    np.testing.assert_allclose(env.actions, middle + half * rollout.actions, rtol=1e-5, atol=1e-5)
    assert np.max(env.actions) > env.action_space.high


@pytest.mark.parametrize(
    ("what", "value", "message"),
    [
        ("reward", math.nan, r"returned reward nan at step 3 of scenario 1\d\d"),
        ("reward", -math.inf, r"returned reward -inf at step 3 of scenario 1\d\d"),
        ("cost", math.inf, r"returned cost inf at step 3 of scenario 1\d\d"),
        ("cost", math.nan, r"returned cost nan at step 3 of scenario 1\d\d"),
        ("observation", [math.nan, 0.0], r"an observation with NaN or infinity at step 3 of scenario 1\d\d"),
        ("observation", [math.inf, -math.inf], r"an observation with NaN or infinity at step 3 of scenario 1\d\d"),
        ("observation", [0.0, -math.inf], r"an observation with NaN or infinity at step 3 of scenario 1\d\d"),
    ],
)
@pytest.mark.parametrize("normaliser", [None, experienced()], ids=["raw", "normalised"])
def test_numbers_that_are_not_finite_stop_the_run_and_name_the_step(what, value, message, normaliser):
    env = Scripted(length=5)

    def spoil(step: int, values: dict[str, Any]) -> None:
        if step == 3 and what in values:
            values[what] = np.array(value, np.float32) if what == "observation" else value

    env.spoil = spoil
    with pytest.raises(EnvironmentFailure, match=message) as caught:
        collect(env, make_task(20, normaliser))
    assert "\n" not in str(caught.value)


def test_large_numbers_are_finite():
    env = Scripted(length=5)
    env.spoil = lambda step, values: values.update(observation=np.full(2, 3e38, np.float32))
    assert len(collect(env, make_task(7, experienced())).episodes) == 2


def test_a_reset_that_is_not_finite_is_step_zero():
    env = Scripted()
    env.spoil = lambda step, values: values.update(observation=np.full(2, np.nan, np.float32))
    with pytest.raises(EnvironmentFailure, match="at step 0 of scenario"):
        collect(env, make_task(5))


def test_the_step_named_is_that_of_the_episode_not_of_the_share():
    env, episodes = Scripted(length=4), []

    def spoil(step: int, values: dict[str, Any]) -> None:
        episodes.extend([1] if step == 0 else [])
        if len(episodes) == 3 and step == 2 and "reward" in values:
            values["reward"] = math.nan

    env.spoil = spoil
    with pytest.raises(EnvironmentFailure, match="reward nan at step 2 of scenario"):
        collect(env, make_task(40))


def test_ticks_grow_up_to_the_whole_share():
    ticks: list[int] = []
    collect(Scripted(), make_task(40), ticks.append)
    assert ticks == sorted(ticks)
    assert ticks[-1] == 40
    assert len(ticks) >= 3


def test_an_environment_describes_its_sizes():
    assert DescribeTask().run(SPEEDING.make(), lambda steps: None) == Dimensions(observation=2, action=1)


def test_joined_shares_keep_their_paths():
    shares = [collect(Scripted(length=4), make_task(n, seed=n)).rollout for n in (10, 3, 8)]
    joined = Rollout.join(shares)
    assert len(joined) == 21
    assert joined.path_ends.tolist() == [4, 8, 10, 13, 17, 21]
    for field in ("observations", "actions", "log_probs", "rewards", "costs", "last", "terminated"):
        np.testing.assert_array_equal(getattr(joined, field), np.concatenate([getattr(s, field) for s in shares]))
    alone = Rollout.join(shares[:1])
    np.testing.assert_array_equal(alone.path_ends, shares[0].path_ends)
