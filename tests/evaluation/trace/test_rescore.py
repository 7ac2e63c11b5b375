"""The frames of a recorded trace can be scored anew."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from frame_scorer import FrameScorer, MotionScorer
from recorded_traces import CONTACTS, frame, write_recorded
from small_embedded import save_small_embedded
from small_models import save_small_clip
from small_qwen import save_small_qwen

from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.evaluation.trace.rescore import rescore, rescore_sets, stacks
from vlmsafe.io.images import encode
from vlmsafe.runs.traces import open_trace
from vlmsafe.signals.frame_stack import FrameStack, stack_of, steps_back
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.make import make_scorer
from vlmsafe.signals.scorers.registry import parse_scorer

SETS = {
    "one": PromptSet(("the car drives safely",), ("about to hit",)),
    "two": PromptSet(("a clear road", "The car  drives safely"), ("danger", "the car leaves the road")),
}


@pytest.mark.parametrize("every", [1, 2, 4])
def test_recorded_stacks_are_those_that_were_scored(tmp_path, every):
    found = list(stacks(open_trace(write_recorded(tmp_path, every=every)).pictures(), steps_back(2)))
    wanted = []
    for episode in CONTACTS:
        steps = iter(range(1, 99))
        now = [0]
        watch = FrameStack(lambda episode=episode, now=now: frame(episode, now[0]), steps_back(2), every)
        for _ in range(24):
            now[0] = next(steps)
            if (stack := watch.after(now[0])) is not None:
                wanted.append(stack)
    np.testing.assert_array_equal(found, wanted)


def test_frames_kept_too_seldom_for_a_scorer_of_motion_are_refused(tmp_path):
    pictures = open_trace(write_recorded(tmp_path, every=3)).pictures()
    assert len(list(stacks(pictures, steps_back(1)))) == len(pictures)
    with pytest.raises(InputError, match="record the trace with --every 1, 2 or 4"):
        list(stacks(pictures, steps_back(2)))
    assert len(list(stacks(pictures, steps_back(3, 6)))) == len(pictures)
    with pytest.raises(InputError, match=r"frames 1 step apart.* with --every 1$"):
        list(stacks(pictures, steps_back(3, 1)))


def test_earlier_frame_is_never_one_of_another_episode():
    pictures = pl.DataFrame(
        [{"episode": e, "step": s, "picture": encode(frame(e, s))} for e, s in ((0, 4), (0, 8), (1, 3), (1, 12))]
    )
    with pytest.raises(InputError, match="the frame of step 8 of episode 1 was not kept"):
        list(stacks(pictures, steps_back(2)))


@pytest.mark.parametrize("kind", [FrameScorer, MotionScorer])
def test_rescoring_gives_what_the_scorer_gives_on_the_frames_whatever_the_batch(tmp_path, kind):
    pictures = open_trace(write_recorded(tmp_path)).pictures()
    scorer = kind(SETS["two"])
    whole = scorer.score(np.stack(list(stacks(pictures, stack_of(scorer)))))
    for batch in (1, 7, 64):
        heard = []
        found = rescore(pictures, scorer, "mine", batch=batch, on_frames=heard.append)
        np.testing.assert_array_equal(found, whole)
        assert sum(heard) == len(pictures)
        assert max(heard) <= batch


def test_scorer_that_looks_at_no_frame_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"looks at no frame \(hazard\)"):
        rescore(open_trace(write_recorded(tmp_path)).pictures(), make_scorer("oracle", None), "oracle")


@pytest.mark.parametrize("kind", ["embedded", "clip"])
def test_prompt_sets_scored_together_are_those_scored_one_by_one(tmp_path, kind):
    if kind == "clip":
        save_small_clip(tmp_path / "model")
    else:
        save_small_embedded(tmp_path / "model")
    pictures = [open_trace(write_recorded(tmp_path)).pictures()]
    name = parse_scorer(f"{kind}:{tmp_path / 'model'}")
    counted = []
    together = rescore_sets(pictures, name, SETS, device="cpu", on_frames=counted.append)
    assert sum(counted) == len(pictures[0])  # each frame once
    apart = rescore_sets(pictures, name, SETS, device="cpu", together=False)
    for label, prompts in SETS.items():
        assert together[label].groups == apart[label].groups == prompts.sizes
        assert together[label].labels == apart[label].labels
        assert [text for _, text in together[label].labels] == list(prompts.texts)
        np.testing.assert_allclose(together[label].similarities, apart[label].similarities, atol=1e-5)
        assert np.ptp(together[label].similarities) > 1e-3


def test_scorer_of_the_users_own_is_asked_set_by_set(tmp_path):
    pictures = [open_trace(write_recorded(tmp_path)).pictures()] * 2
    found = rescore_sets(pictures, parse_scorer("python:frame_scorer:FrameScorer"), SETS)
    for label, prompts in SETS.items():
        once = rescore(pictures[0], FrameScorer(prompts), "mine")
        np.testing.assert_array_equal(found[label].similarities, np.concatenate([once, once]))


@pytest.mark.parametrize("fails", [False, True])
def test_every_scorer_of_a_comparison_is_closed_even_if_scoring_fails(tmp_path, monkeypatch, fails):
    closed = []
    monkeypatch.setattr(FrameScorer, "close", lambda self: closed.append(self), raising=False)
    if fails:
        monkeypatch.setattr(FrameScorer, "score", lambda self, inputs: 1 / 0)
    pictures = [open_trace(write_recorded(tmp_path)).pictures()]
    with pytest.raises(VlmsafeError) if fails else nullcontext():
        rescore_sets(pictures, parse_scorer("python:frame_scorer:FrameScorer"), SETS)
    assert len(closed) == (1 if fails else len(SETS))


def test_scorer_that_asks_about_a_group_is_labelled_with_its_description(tmp_path):
    save_small_qwen(tmp_path / "model")
    pictures = [open_trace(write_recorded(tmp_path)).pictures().head(2)]
    words = {"positive_description": "a kiln that fires safely", "negative_description": "a kiln that cracks"}
    sets = {label: replace(one, **words) for label, one in SETS.items()}
    found = rescore_sets(pictures, parse_scorer(f"qwen2-vl:{tmp_path / 'model'}"), sets, device="cpu")
    for one in found.values():
        assert one.labels == (
            ("positive", "a kiln that fires safely"),
            ("negative", "a kiln that cracks"),
        )
        assert one.similarities.shape == (2, 2)
        assert one.bounds == (0.0, 1.0)


def test_a_clip_is_made_of_the_recorded_frames(tmp_path):
    save_small_qwen(tmp_path / "model")
    name = parse_scorer(f"qwen2-vl:{tmp_path / 'model'}")
    pictures = open_trace(write_recorded(tmp_path)).pictures().head(6)
    one = replace(
        SETS["one"], positive_description="a kiln that fires safely", negative_description="a kiln that cracks"
    )
    found = rescore_sets([pictures], name, {"one": one}, device="cpu", stack=(3, 2))["one"].similarities
    scorer = make_scorer(name, one, device="cpu", frames=3, frame_distance=2)
    np.testing.assert_array_equal(found, scorer.score(np.stack(list(stacks(pictures, (4, 2, 0))))))
