"""A trace on disk is read back as it was, its frames with it, and can be scored anew."""

import numpy as np
import polars as pl
import pytest
from frame_scorer import FrameScorer, MotionScorer
from recorded_traces import CONTACTS, PROMPTS, frame, make_run, write_recorded
from small_embedded import save_small_embedded
from small_models import save_small_clip
from small_qwen import save_small_qwen

from vlmsafe.errors import InputError
from vlmsafe.evaluation.trace.files import frames_path
from vlmsafe.evaluation.trace.rescore import (
    moments,
    open_trace,
    rescore,
    rescore_sets,
)
from vlmsafe.io.images import encode
from vlmsafe.signals.frame_stack import Moments
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers import make_scorer, parse_scorer

SETS = {
    "one": PromptSet(("the car drives safely",), ("about to hit",)),
    "two": PromptSet(("a clear road", "The car  drives safely"), ("danger", "the car leaves the road")),
}


def test_trace_of_a_run_is_found_by_protocol_or_by_being_the_only_one(tmp_path):
    run = make_run(tmp_path / "run").path
    other = write_recorded(run, "paper-20")
    assert open_trace(run).path == other
    held_out = write_recorded(run)
    assert open_trace(run).path == held_out
    assert open_trace(run, "paper-20").path == other
    assert open_trace(held_out).about["every"] == 2
    held_out.unlink()
    write_recorded(run, "paper-200")
    with pytest.raises(InputError, match="several others; choose with --protocol: paper-20, paper-200"):
        open_trace(run)


def test_trace_says_which_prompt_each_similarity_is_of(tmp_path):
    (one,) = open_trace(write_recorded(tmp_path)).onlookers
    assert (one.scorer, one.prefix, one.prompts) == ("embedded", "", PROMPTS)
    assert one.prompt_set == PromptSet((PROMPTS[0][1],), (PROMPTS[1][1],))
    first, second = open_trace(write_recorded(tmp_path, scorers=("clip", "oracle"))).onlookers
    assert (first.prefix, second.prefix) == ("clip_", "oracle_")


def test_run_without_a_trace_or_without_frames_is_told_the_command_that_makes_it(tmp_path):
    run = make_run(tmp_path / "a run").path
    with pytest.raises(InputError, match=r"has no trace 'held-out'; record one with: vlmsafe trace '.*a run' --frames"):
        open_trace(run)
    with pytest.raises(InputError, match=r"--frames --protocol paper-20 --every 4$"):
        open_trace(run, "paper-20")
    write_recorded(run, "paper-20", every=2, frames=False)
    with pytest.raises(InputError, match=r"without frames; .*' --frames --protocol paper-20 --every 2 --overwrite$"):
        open_trace(run, "paper-20").pictures()
    lone = write_recorded(tmp_path, frames=False, scorers=("clip", "oracle")).rename(tmp_path / "lone.parquet")
    with pytest.raises(InputError, match=r"vlmsafe trace RUN --frames --scorer clip --scorer oracle --overwrite$"):
        open_trace(lone).pictures()


def test_what_is_no_trace_is_refused(tmp_path):
    path = write_recorded(tmp_path)
    with pytest.raises(InputError, match="is no trace: it has no column 'scenario'; it holds the frames of one"):
        open_trace(frames_path(path))
    with pytest.raises(InputError, match="there is no"):
        open_trace(tmp_path / "nowhere.parquet")
    path.write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        open_trace(path)


def test_frames_of_another_trace_are_refused(tmp_path):
    path = write_recorded(tmp_path)
    pl.read_parquet(frames_path(path)).slice(1).write_parquet(frames_path(path))
    with pytest.raises(InputError, match="does not hold the frames of the scored steps"):
        open_trace(path).pictures()


@pytest.mark.parametrize("every", [1, 2, 4])
def test_recorded_moments_are_those_that_were_scored(tmp_path, every):
    found = list(moments(open_trace(write_recorded(tmp_path, every=every)).pictures(), 2))
    wanted = []
    for episode in CONTACTS:
        steps = iter(range(1, 99))
        now = [0]
        watch = Moments(lambda episode=episode, now=now: frame(episode, now[0]), 2, every)
        for _ in range(24):
            now[0] = next(steps)
            if (moment := watch.after(now[0])) is not None:
                wanted.append(moment)
    np.testing.assert_array_equal(found, wanted)


def test_frames_kept_too_seldom_for_a_scorer_of_motion_are_refused(tmp_path):
    pictures = open_trace(write_recorded(tmp_path, every=3)).pictures()
    assert len(list(moments(pictures, 1))) == len(pictures)
    with pytest.raises(InputError, match="record the trace with --every 1, 2 or 4"):
        list(moments(pictures, 2))


def test_earlier_frame_is_never_one_of_another_episode():
    pictures = pl.DataFrame(
        [{"episode": e, "step": s, "picture": encode(frame(e, s))} for e, s in ((0, 4), (0, 8), (1, 3), (1, 12))]
    )
    with pytest.raises(InputError, match="the frame of step 8 of episode 1 was not kept"):
        list(moments(pictures, 2))


@pytest.mark.parametrize("kind", [FrameScorer, MotionScorer])
def test_rescoring_gives_what_the_scorer_gives_on_the_frames_whatever_the_batch(tmp_path, kind):
    pictures = open_trace(write_recorded(tmp_path)).pictures()
    scorer = kind(SETS["two"])
    whole = scorer.score(np.stack(list(moments(pictures, scorer.frames))))
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


def test_scorer_that_asks_about_a_group_is_labelled_with_its_description(tmp_path):
    save_small_qwen(tmp_path / "model")
    pictures = [open_trace(write_recorded(tmp_path)).pictures().head(2)]
    found = rescore_sets(pictures, parse_scorer(f"qwen2-vl:{tmp_path / 'model'}"), SETS, device="cpu")
    for one in found.values():
        assert one.labels == (
            ("positive", "safe driving conditions"),
            ("negative", "driving danger or imminent collision"),
        )
        assert one.similarities.shape == (2, 2)
        assert one.bounds == (0.0, 1.0)
