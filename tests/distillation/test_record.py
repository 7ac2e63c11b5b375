"""Recordings: what a file holds, and that it is what happened."""

import itertools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from vlmsafe.distillation.data import read, stack_views
from vlmsafe.distillation.drivers import KINDS, driver
from vlmsafe.distillation.facts import FACTS, MEASURES
from vlmsafe.distillation.record import AFTER_CONTACT, RecordTask, step_limit
from vlmsafe.envs.api import Env, Scenarios
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import InputError
from vlmsafe.io.images import ROUNDING, decode, encode
from vlmsafe.signals.frame_stack import STEPS_APART
from vlmsafe.signals.scorers.embedded.network import views


def task(path: Path, env: str = "braking", **changes: Any) -> RecordTask:
    spec = env_spec(env)
    settings = {"scenarios": Scenarios(0, 50), "traffic": spec.traffic, "episodes": 8, "seed": (1,), **changes}
    return RecordTask(path, env, spec.step_seconds, **settings)


def made(env: str = "braking") -> Env:
    return env_spec(env).make()


def test_equal_tasks_write_equal_files_and_others_do_not(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        task(tmp_path / name, seed=(seed,)).run(made(), lambda steps: None)
    first, again, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == again != other


def test_a_file_that_is_there_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    told = task(path).run(made(), lambda steps: None)
    before = path.stat().st_mtime_ns
    assert task(path, seed=(9,)).run(made(), lambda steps: None) == told
    assert path.stat().st_mtime_ns == before


def test_most_episodes_end_soon_after_their_first_contact(tmp_path: Path) -> None:
    task(tmp_path / "a.npz", episodes=40).run(made(), lambda steps: None)
    with np.load(tmp_path / "a.npz") as held:
        costs = np.split(held["cost"], np.cumsum(held["length"])[:-1])
    after = [len(cost) - 1 - int(np.flatnonzero(cost)[0]) for cost in costs if cost.any()]
    assert len(after) > 10
    assert np.mean([steps <= AFTER_CONTACT for steps in after]) > 0.5


def test_every_frame_is_read_back_with_the_facts_of_its_own_step(tmp_path: Path) -> None:
    path = tmp_path / "braking.0000.npz"
    task(path, episodes=3).run(made(), lambda steps: None)
    examples = read([path])
    with np.load(path) as held:
        assert held["measure_names"].tolist() == list(MEASURES)
        gap = held["measures"][:, list(MEASURES).index("bump_gap")]
        starts = np.concatenate([[0], np.cumsum(held["length"])[:-1]])
        at = np.repeat(starts, held["frame_count"]) + held["frame_step"]
        np.testing.assert_array_equal(examples.measures[:, list(MEASURES).index("bump_gap")], gap[at])
        np.testing.assert_array_equal(examples.contact, held["cost"][at] > 0.0)
    # The bump is a yellow bar (240, 190, 30) whose height in the frame is the gap.
    rows = (examples.seen[:, 2, :, 64].numpy() < 60).argmax(axis=1) / 2.0
    shown = rows > 0
    assert shown.mean() > 0.7
    distance = (64 - 8 - rows[shown]) * 240.0 / 56.0
    assert np.abs(distance - gap[at][shown]).max() < 10.0


def test_a_moment_is_seen_as_the_scorer_sees_it_and_its_frames_are_as_far_apart(tmp_path: Path) -> None:
    path = tmp_path / "braking.0000.npz"
    task(path, episodes=3).run(made(), lambda steps: None)
    examples = read([path])
    with np.load(path) as held:
        pieces = np.split(held["frame_bytes"], np.cumsum(held["frame_size"])[:-1])
        steps = held["frame_step"]
    frames = [decode(piece.tobytes()) for piece in pieces]
    later = np.flatnonzero(examples.frames[:, 0] != examples.frames[:, 1])
    assert set(steps[later] - steps[examples.frames[later, 0]]) == {STEPS_APART}
    first = np.setdiff1d(np.arange(len(steps)), later)
    assert len(first) == 3, "one per episode has none before it"
    for row in (first[0], later[0], later[-1]):
        before, now = (frames[index] for index in examples.frames[row])
        whole = torch.from_numpy(np.concatenate([before, now], axis=-1))[None]
        expected = views(whole, 128).round().byte()
        assert torch.equal(stack_views(examples.seen, torch.from_numpy(examples.frames[[row]])), expected)


def test_recordings_can_be_read_without_their_pictures(tmp_path: Path) -> None:
    path = tmp_path / "braking.0000.npz"
    task(path, episodes=2).run(made(), lambda steps: None)
    without = read([path], pictures=False)
    np.testing.assert_array_equal(without.truths, read([path]).truths)
    assert len(without.seen) == 0


def test_recordings_of_several_files_keep_their_episodes_apart(tmp_path: Path) -> None:
    for number, env in enumerate(("braking", "speeding")):
        task(tmp_path / f"{env}.npz", env, seed=(number,)).run(made(env), lambda steps: None)
    examples = read(sorted(tmp_path.glob("*.npz")))
    assert len(np.unique(examples.episode)) == 16
    assert all(len(np.unique(examples.env[examples.episode == one])) == 1 for one in range(16))
    assert examples.truths.shape == (len(examples), len(FACTS))
    assert examples.frames.max() == len(examples.seen) - 1
    chosen = examples.select(examples.env == "speeding")
    assert len(chosen) == len(chosen.observations) == (examples.env == "speeding").sum()


def test_a_recording_made_before_a_measure_was_known_is_read_without_it(tmp_path: Path) -> None:
    path, old = tmp_path / "braking.0000.npz", tmp_path / "braking.0001.npz"
    task(path, episodes=3).run(made(), lambda steps: None)
    with np.load(path) as held:
        arrays = dict(held.items())
    names = ["bump_gap", "pace", "hazard"]
    columns = [list(MEASURES).index(name) for name in names]
    np.savez(old, **{**arrays, "measure_names": np.array(names), "measures": arrays["measures"][:, columns]})
    now, then = read([path]), read([old])
    np.testing.assert_array_equal(now.measures, then.measures)
    np.testing.assert_array_equal(now.truths, then.truths)


def test_without_recordings_reading_says_so() -> None:
    with pytest.raises(InputError, match="no recordings"):
        read([])


def test_a_picture_comes_back_with_its_colours_rounded() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    again = decode(encode(frame))
    assert again.shape == frame.shape
    assert np.abs(again.astype(int) - frame).max() <= ROUNDING // 2


@pytest.mark.parametrize("name", ["braking", "speeding"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_driver_can_drive_every_environment(kind: Any, name: str) -> None:
    env = made(name)
    observation, _ = env.reset(seed=0)
    became, act = driver(kind, env, [], np.random.default_rng(0))
    assert became in (("dice", "straight") if name == "speeding" else KINDS[:9])
    for _ in range(80):
        action = act(observation)
        assert action.shape == env.action_space.shape
        assert np.abs(action).max() <= 1.0


class Sandbox(Env):
    """Two actions, of which the second steers; from step 30 on something is touched, which costs nothing."""

    steering = 1
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return np.zeros(1, np.float32), 0.0, False, False, {"cost": 0.0}

    def frame(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)

    def facts(self) -> Any:
        return {"hit": float(self._steps >= 30)}

    def expert(self) -> Any:
        return lambda: np.array([0.25, 0.0])


class Counting(Sandbox):
    """Its expert's throttle is the number of the call, in hundredths."""

    def expert(self) -> Any:
        calls = itertools.count()
        return lambda: np.array([next(calls) / 100.0, 0.0])


def _driven(kind: Any, seed: int, env: type[Sandbox] = Sandbox) -> np.ndarray:
    _, act = driver(kind, env(), [], np.random.default_rng(seed))
    return np.array([act(np.zeros(1, np.float32)) for _ in range(60)])


@pytest.mark.parametrize(("kind", "disturbed", "kept"), [("pulling", 1, 0), ("blind", 0, 1)])
def test_a_fault_of_the_steering_is_one_of_the_action_that_steers(kind: Any, disturbed: int, kept: int) -> None:
    expert = np.array([0.25, 0.0])
    driven = _driven(kind, 0)
    assert (driven[:, kept] == expert[kept]).all()
    assert driven[-1, disturbed] != expert[disturbed]


@pytest.mark.parametrize("seed", range(5))
def test_who_is_late_does_what_was_right_some_steps_ago(seed: int) -> None:
    behind = np.arange(60) - np.round(100 * _driven("late", seed, Counting)[:, 0])
    begun = int((behind > 0).argmax())
    assert (behind[:begun] == 0).all()
    assert 8 <= behind[-1] <= 30
    assert (behind[max(begun, 31) :] == behind[-1]).all()


def test_who_swerves_steers_to_one_side_and_does_not_slow_down() -> None:
    driven = _driven("swerving", 0)[-1]
    assert abs(driven[1]) > 0.03
    assert driven[0] >= 0.2


def test_who_drives_straight_on_or_rolls_dice_steers_little_on_average() -> None:
    steady = np.array([_driven("straight", seed)[0] for seed in range(40)])
    assert np.abs(steady[:, 1]).max() < 0.2
    assert steady[:, 0].min() >= 0.1
    dice = np.array([_driven("dice", seed).mean(axis=0) for seed in range(200)])
    assert np.abs(dice[:, 1].mean()) < 0.05 < dice[:, 0].mean()


def test_a_contact_that_costs_nothing_ends_a_recording_too_and_short_steps_make_longer_ones(tmp_path: Path) -> None:
    recorded = RecordTask(tmp_path / "a.npz", "sandbox", 0.04, Scenarios(0, 9), False, episodes=30, seed=(0,))
    recorded.run(Sandbox(), lambda steps: None)
    with np.load(tmp_path / "a.npz") as held:
        lengths = held["length"].tolist()
    assert set(lengths) == {30 + AFTER_CONTACT, 240}
    assert lengths.count(240) < 15


@pytest.mark.parametrize(("step_seconds", "steps"), [(0.1, 160), (0.2, 160), (1.0, 160), (0.04, 240), (1 / 60, 576)])
def test_an_episode_lasts_at_least_as_many_steps_and_as_long(step_seconds: float, steps: int) -> None:
    assert step_limit(step_seconds) == steps


def test_an_environment_that_says_how_long_a_step_takes_is_believed(tmp_path: Path) -> None:
    env = Sandbox()
    env.step_seconds = 0.04
    RecordTask(tmp_path / "a.npz", "sandbox", 0.1, Scenarios(0, 9), False, episodes=12, seed=(0,)).run(env, int)
    with np.load(tmp_path / "a.npz") as held:
        assert float(held["step_seconds"]) == 0.04
        assert max(held["length"]) == 240
