"""The parts of a distillation: recordings read back, the teacher's columns, the training, what is measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from vlmsafe.distillation.agreement import agreement, signals_of, speeds, warnings_of
from vlmsafe.distillation.frames import FramesTask
from vlmsafe.distillation.stacks import Frames, RecordedFrames, cost_within, read_frames
from vlmsafe.distillation.student import Lessons, Targets, chances, reach, train_student, with_prompts
from vlmsafe.distillation.teach import Teacher, teach, to_cosines
from vlmsafe.envs.api import Env, Scenarios
from vlmsafe.errors import EnvironmentFailure, InputError, RunError
from vlmsafe.io.images import decode, encode
from vlmsafe.signals.frame_stack import STEPS_APART, FrameStack, steps_back
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import Scorer
from vlmsafe.signals.scorers.embedded.network import Architecture
from vlmsafe.signals.scorers.embedded.scorer import EmbeddedScorer

PROMPTS = PromptSet(("left", "dark"), ("right",))


class Bar(Env):
    """A bright bar moves to the right; near the right edge it costs. Frames are wide, and every step is another one."""

    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    length, grows = 60, False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.x = 0, float(self.np_random.uniform(0.0, 0.5))
        return np.array([self.x], np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.x = min(1.0, self.x + 0.02)
        cost = {"cost": float(self.x >= 1.0)}
        return np.array([self.x], np.float32), 0.0, self.t >= self.length, False, cost

    def frame(self) -> Any:
        frame = np.full((24 + self.t * self.grows, 60, 3), self.t, np.uint8)
        frame[:, int(50 * self.x) : int(50 * self.x) + 10] = 255
        return frame


class Place(Scorer):
    """Probabilities: where the bar of the newest frame is."""

    looks_at, rules, bounds = "frame", ("decoupled",), (0.0, 1.0)

    def __init__(self, prompts: PromptSet, frames: int = 1) -> None:
        self.groups, self.frames, self.seen = (1, 1), frames, 0

    def score(self, inputs: Any) -> Any:
        self.seen += len(inputs)
        x = (inputs[:, 0, :, -1] == 255).argmax(axis=1) / 50.0
        return np.stack([1.0 - x, x], axis=1).astype(np.float32)


def task(path: Path, **changes: Any) -> FramesTask:
    settings = {"scenarios": Scenarios(0, 50), "traffic": False, "seed": (0,), "agents": (), "longest": 100,
                "whole": True, **changes}  # fmt: skip
    return FramesTask(path, "bar", **settings)


def recorded(path: Path, env: Env | None = None, **changes: Any) -> RecordedFrames:
    task(path, **changes).run(env or Bar(), lambda steps: None)
    return RecordedFrames.read(path)


def taught(tmp_path: Path, count: int = 3) -> tuple[Frames, Targets, Teacher]:
    teacher = Teacher("python:mine", Place(PROMPTS), PROMPTS)
    recordings = [recorded(tmp_path / f"{number}.npz", seed=(number,)) for number in range(count)]
    frames = read_frames([one.path for one in recordings], 32, 2)
    values = np.concatenate([teacher.score(one) for one in recordings]).astype(np.float64)
    return frames, Targets(teacher.columns, values, (1, 1)), teacher


def test_exact_pictures_keep_every_colour() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (7, 9, 3), np.uint8)
    np.testing.assert_array_equal(decode(encode(frame, exact=True)), frame)


def test_recorded_stacks_are_those_that_a_run_would_score(tmp_path: Path) -> None:
    class Watched(Bar):
        """Keeps what a run would have scored at each step."""

        def reset(self, **rest: Any) -> Any:
            self.stacks = FrameStack(self.frame, steps_back(3), every=1)
            kept.append({})
            return super().reset(**rest)

        def step(self, action: Any) -> Any:
            result = super().step(action)
            kept[-1][self.t - 1] = self.stacks.after(self.t)
            return result

    kept: list[dict[int, Any]] = []
    recording = recorded(tmp_path / "a.npz", Watched())
    scorer = Place(PROMPTS, frames=3)
    found = np.concatenate(list(recording.batches(scorer, 7)))
    episodes = np.repeat(np.arange(5), recording.arrays["frame_count"])
    for row, (episode, step) in enumerate(zip(episodes, recording.arrays["frame_step"], strict=True)):
        if step >= 2 * STEPS_APART:  # where all frames of the stack are there
            np.testing.assert_array_equal(found[row], kept[episode][int(step)])
    assert found.shape[1:] == (24, 60, 9)


def test_most_training_episodes_end_soon_after_a_cost_and_held_out_ones_do_not(tmp_path: Path) -> None:
    env = Bar()
    env.length = 90
    whole = recorded(tmp_path / "whole.npz", env).arrays
    short = recorded(tmp_path / "short.npz", env, whole=False, episodes=20).arrays
    assert set(whole["length"]) == {90}
    assert whole["complete"].all()
    assert np.mean(short["length"] < 70) > 0.5
    cut = recorded(tmp_path / "cut.npz", env, longest=8).arrays
    assert set(cut["length"]) == {8}
    assert not cut["complete"].any()


def test_an_episode_shorter_than_the_distance_of_frames_has_one(tmp_path: Path) -> None:
    env = Bar()
    env.length = 1
    assert recorded(tmp_path / "a.npz", env).arrays["frame_count"].tolist() == [1] * 5


def test_frames_that_change_their_size_are_refused(tmp_path: Path) -> None:
    env = Bar()
    env.grows = True
    with pytest.raises(EnvironmentFailure, match="renders frames of different sizes"):
        recorded(tmp_path / "a.npz", env)


def test_a_damaged_recording_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"is damaged .* delete it"):
        RecordedFrames.read(tmp_path / "a.npz")


def test_cost_within_k_steps_counts_the_present_step_and_is_open_where_a_recording_was_cut() -> None:
    cost = np.array([0, 0, 0, 1, 0, 0, 0, 0], float)
    frames = Frames(
        torch.empty(0), np.empty((8, 1), np.int64), np.arange(8), np.full(8, "e"), np.arange(8), np.full(8, "d"),
        np.full(8, np.nan), cost, np.zeros(8, np.int64), np.array([True]),
    )  # fmt: skip
    assert cost_within(frames, 2).tolist() == [0, 1, 1, 1, 0, 0, 0, 0]
    cut = replace(frames, complete=np.array([False]))
    assert cost_within(cut, 2)[:6].tolist() == [0, 1, 1, 1, 0, 0]
    assert np.isnan(cost_within(cut, 2)[6:]).all()
    # Half of the draws are near a cost.
    two = replace(frames, cost=np.concatenate([cost[:4], np.zeros(60)]), episode=np.repeat([0, 1], [4, 60]),
                  at=np.arange(64), complete=np.array([True, True]))  # fmt: skip
    assert chances(two)[:4].sum() == pytest.approx(0.5)
    assert chances(two).sum() == pytest.approx(1.0)


def test_no_frame_is_scored_twice_and_probabilities_become_cosines(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "a.npz")
    teacher = Teacher("python:mine", Place(PROMPTS), PROMPTS)
    first = teach(teacher, recording.path, tmp_path / "scores")
    again = teach(teacher, recording.path, tmp_path / "scores")
    assert first is not None
    assert again is not None
    assert teacher.scorer.seen == len(recording)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(first.similarities, again.similarities)
    x = np.array([(recording.frame(row)[0, :, 0] == 255).argmax() / 50.0 for row in range(len(recording))])
    np.testing.assert_allclose(first.similarities[:, 1], 2.0 * x - 1.0, atol=1e-6)
    assert teach(teacher, recording.path, tmp_path / "other", lambda: True) is None
    (tmp_path / "scores/a.npz").write_bytes(b"nothing")
    with pytest.raises(RunError, match="are damaged"):
        teach(teacher, recording.path, tmp_path / "scores")


def test_cosines_stay_as_they_are() -> None:
    values = np.array([[-0.25, 0.5]], np.float32)
    np.testing.assert_array_equal(to_cosines(values, (-1.0, 1.0)), values)


def test_a_teacher_of_groups_gives_every_prompt_the_column_of_its_group() -> None:
    teacher = Teacher("oracle", Place(PROMPTS), PROMPTS)
    assert teacher.columns == ("all positive prompts", "all negative prompts")
    assert teacher.column_of == [0, 0, 1]


def test_a_teacher_whose_frames_lie_between_recorded_ones_is_refused(tmp_path: Path) -> None:
    scorer = Place(PROMPTS, frames=2)
    scorer.frame_distance = STEPS_APART + 1
    with pytest.raises(InputError, match=f"are {STEPS_APART + 1} steps apart, and recorded ones are {STEPS_APART}"):
        next(recorded(tmp_path / "a.npz").batches(scorer, 4))


def test_every_column_has_room_within_the_bounds_of_cosines() -> None:
    values = np.array([[0.2, -1.0, 0.5], [0.3, 1.0, 0.5], [np.nan, 0.9, 0.5]])
    centres, scales = reach(values)
    np.testing.assert_allclose(centres, [0.25, 0.0, 0.5], atol=1e-6)
    np.testing.assert_allclose(scales[:2], [0.15, 1.0], atol=1e-6)
    assert 0.0 < scales[2] < 1e-3
    assert (np.abs(centres) + scales <= 1.0 + 1e-6).all()


def test_a_student_learns_its_teacher_and_the_same_seed_gives_the_same_student(tmp_path: Path) -> None:
    frames, targets, teacher = taught(tmp_path)
    small = Architecture(size=32, widths=(8, 16, 16), depths=(0, 0, 0), dimension=16)
    short, lessons = Lessons(steps=4, stacks=16), Lessons(steps=120, stacks=32, learning_rate=3e-3)
    made = [train_student(frames, targets, short, seed=seed, architecture=small) for seed in (0, 0, 1)]
    first, again, other = (model.state_dict() for model in made)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    model = with_prompts(train_student(frames, targets, lessons, architecture=small), PROMPTS.texts, teacher.column_of)
    scorer = EmbeddedScorer(model, PROMPTS, device="cpu")
    fresh = recorded(tmp_path / "held-out.npz", seed=(99,), scenarios=Scenarios(50, 50))
    said, wanted = np.concatenate([scorer.score(part) for part in fresh.batches(scorer, 16)]), teacher.score(fresh)
    np.testing.assert_array_equal(said[:, 0], said[:, 1])
    rows = agreement(teacher.columns, said[:, [0, 2]], wanted, targets.values.mean(axis=0))
    assert all(row["pearson"] > 0.9 and row["error"] < 0.5 * row["error_of_mean"] for row in rows), rows


def test_agreement_says_none_where_a_side_does_not_vary() -> None:
    still, moving = np.full((5, 1), 0.5), np.arange(5.0)[:, None]
    [row] = agreement(["a"], still, moving, np.array([2.0]))
    assert (row["pearson"], row["spearman"], row["error_of_mean"]) == (None, None, pytest.approx(1.2))
    [row] = agreement(["a"], moving**3, moving, np.array([2.0]))
    assert row["spearman"] == pytest.approx(1.0)
    assert row["pearson"] < 1.0


def test_a_signal_that_knows_the_place_warns_and_the_negated_margin_does_too(tmp_path: Path) -> None:
    env = Bar()
    env.length = 80
    recordings = [recorded(tmp_path / f"{number}.npz", env, seed=(number,)) for number in range(3)]
    frames = read_frames([one.path for one in recordings], 32, 1)
    values = np.concatenate([Teacher("t", Place(PROMPTS), PROMPTS).score(one) for one in recordings])
    signals = signals_of(values, (1, 1), "student")
    noise = np.random.default_rng(0).uniform(size=len(frames))
    [test] = warnings_of(frames, {**signals, "noise": noise}, resamples=50)
    assert (test["episodes"], test["cut"], test["onsets"]) == (15, 0, 15)
    assert test["now"]["student c_vlm"]["auc"] == 1.0
    ahead = {(row["signal"], row["horizon"]): row["auc"] for row in test["ahead"]}
    assert ahead["student c_vlm", 10] > 0.95
    assert ahead["student margin", 10] > 0.95
    assert 0.3 < ahead["noise", 10] < 0.7
    assert {row["form"] for row in test["ahead"]} == {"standardised"}


def test_speeds_are_measured_on_the_same_frames_in_turns(tmp_path: Path) -> None:
    one, other = Place(PROMPTS), Place(PROMPTS, frames=2)
    found = speeds({"teacher": one, "student": other}, recorded(tmp_path / "a.npz"), seconds=0.01, stacks=8)
    assert one.seen == other.seen >= 4 * 8
    assert found["at_a_time"] == 8
    assert found["frame"] == [24, 60]
    assert min(found["frames_per_second"].values()) > 0.0
