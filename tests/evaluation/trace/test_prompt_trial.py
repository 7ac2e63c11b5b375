"""Prompt sets tried on the frames of traces: what is compared, on what, and what is said about it."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from frame_scorer import FrameScorer
from recorded_traces import PROMPTS, write_recorded

from vlmsafe import train
from vlmsafe.errors import InputError
from vlmsafe.evaluation.trace.prompt_trial import compare, open_traces
from vlmsafe.evaluation.trace.record import trace
from vlmsafe.evaluation.trace.rescore import rescore
from vlmsafe.report.scope import write_scope
from vlmsafe.runs.layout import about_path
from vlmsafe.runs.traces import open_trace
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.rules import apply_rule

MINE = "python:frame_scorer:FrameScorer"


@pytest.fixture
def sets(tmp_path):
    one, two = tmp_path / "one" / "set.yaml", tmp_path / "two" / "set.yaml"
    for path, word in ((one, "safe"), (two, "calm")):
        path.parent.mkdir()
        path.write_text(f"positive: [{word}, clear]\nnegative: [danger]\n")
    return [str(one), str(two)]


def test_scores_are_those_of_the_scorer_on_the_recorded_frames(tmp_path, sets):
    path = write_recorded(tmp_path)
    trial = compare(open_traces([path]), sets[:1], [MINE], resamples=20)
    prompts = PromptSet(("safe", "clear"), ("danger",))
    similarities = rescore(open_trace(path).pictures(), FrameScorer(prompts), "mine")
    scores = apply_rule("decoupled", similarities, prompts.sizes)
    row = trial.bench.margins.filter(candidate="set").row(0, named=True)
    assert row["margin_median"] == pytest.approx(np.median(scores.margin))
    assert row["c_vlm_mean"] == pytest.approx(scores.negative.mean())
    texts = trial.bench.prompts.filter(candidate="set").select("group", "prompt").rows()
    assert texts == [("positive", "safe"), ("positive", "clear"), ("negative", "danger")]


def test_files_of_one_name_are_told_apart_and_what_was_recorded_stands_beside_them(tmp_path, sets):
    trial = compare(open_traces([write_recorded(tmp_path)]), sets, [MINE], resamples=20)
    assert trial.bench.margins["candidate"].to_list() == [*sets, "as recorded"]
    assert trial.title == "ppo-lag on braking, seed 0, held-out"


def test_file_named_like_a_control_keeps_its_ending(tmp_path, sets, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(sets[0]).rename(tmp_path / "step.yaml")
    trial = compare(open_traces([write_recorded(tmp_path)]), ["step.yaml"], [MINE], resamples=20)
    assert trial.bench.margins["candidate"].to_list() == ["step.yaml", "as recorded"]


def test_several_traces_are_pooled_episode_by_episode(tmp_path, sets):
    paths = [write_recorded(tmp_path / name) for name in ("a", "b")]
    one = compare(open_traces(paths[:1]), sets[:1], [MINE], resamples=20)
    both = compare(open_traces(paths), sets[:1], [MINE], resamples=20)
    assert (both.bench.episodes, both.bench.frames, both.bench.onsets) == (6, 72, 6)
    assert both.counts()["frames"] == 72
    same = [trial.bench.aucs.filter(candidate="set")["auc"].to_list() for trial in (one, both)]
    assert same[0] == pytest.approx(same[1])  # twice the same episodes
    with pytest.raises(InputError, match="was given twice"):
        open_traces([paths[0], paths[0]])


def test_traces_recorded_with_different_prompts_have_no_recorded_scores_in_common(tmp_path, sets):
    paths = [write_recorded(tmp_path / name) for name in ("a", "b")]
    about_path(paths[1]).write_text(about_path(paths[1]).read_text().replace(PROMPTS[0][1], "another"))
    trial = compare(open_traces(paths), sets, [MINE], resamples=20)
    assert trial.bench.margins["candidate"].to_list() == sets
    with pytest.raises(InputError, match="recorded without prompts or with different ones; pass --prompts"):
        compare(open_traces(paths), (), [MINE])


def test_what_several_scorers_recorded_is_that_of_one_that_reads_whatever_its_gate(tmp_path, sets):
    paths = [write_recorded(tmp_path / name, scorers=("oracle", "clip")) for name in ("a", "b")]
    for path, scale in zip(paths, ("7.0", "9.0"), strict=True):
        text = about_path(path).read_text().replace('"scale": 100.0', f'"scale": {scale}')
        head, tail = text.split('"scorer": "clip"')  # the oracle, which comes first, has no prompts
        for _, prompt in PROMPTS:
            head = head.replace(json.dumps(prompt), "null")
        about_path(path).write_text(f'{head}"scorer": "clip"{tail}')
    trial = compare(open_traces(paths), sets[:1], [MINE], resamples=20)
    recorded = trial.bench.margins.filter(candidate="as recorded").row(0, named=True)
    wanted = pl.read_parquet(paths[0]).filter("scored")["clip_margin"].median()
    assert recorded["margin_median"] == pytest.approx(wanted)


def test_trace_scored_again_as_it_was_says_what_the_pictures_changed(tmp_path):
    path = write_recorded(tmp_path)
    prompts = PromptSet((PROMPTS[0][1],), (PROMPTS[1][1],))
    similarities = rescore(open_trace(path).pictures(), FrameScorer(prompts), "mine")
    steps = pl.read_parquet(path)
    place = np.cumsum(steps["scored"].to_numpy()) - 1
    columns = [
        pl.when("scored").then(pl.Series(similarities[np.maximum(place, 0), i] + shift)).alias(f"similarity_{i}")
        for i, shift in ((0, 0.0), (1, 0.1))
    ]
    steps.with_columns(columns).write_parquet(path)
    about_path(path).write_text(about_path(path).read_text().replace('"scorer": "embedded"', f'"scorer": "{MINE}"'))
    trial = compare(open_traces([path]), resamples=20)
    assert trial.bench.margins["candidate"].to_list() == ["its own prompts"]
    (note,) = [note for note in trial.notes if "is what the trace was recorded with" in note]
    assert "1.0e-01 (at most)" in note


def test_choosing_on_held_out_scenarios_is_pointed_out(tmp_path, sets):
    def notes(protocol, chosen):
        return " ".join(compare(open_traces([write_recorded(tmp_path, protocol)]), chosen, [MINE], resamples=20).notes)

    assert "no longer unseen" in notes("held-out", sets)
    assert "no longer unseen" not in notes("held-out", sets[:1])  # nothing was chosen
    assert "no longer unseen" not in notes("paper-20", sets)
    assert "only 3 onsets of contact" in notes("paper-20", sets)


def test_progress_counts_every_frame_of_every_pass(tmp_path, sets):
    heard = []
    compare(open_traces([write_recorded(tmp_path)]), sets, [MINE], resamples=20,
            on_frames=lambda done, total: heard.append((done, total)))  # fmt: skip
    assert heard[-1] == (72, 72)  # one pass per prompt set


def test_a_trace_as_it_is_recorded_can_be_looked_at_and_scored_again(tmp_path):
    run = train(env="braking", total_steps=400, steps_per_epoch=400, learner={"update_iters": 1}, quiet=True,
                run_dir=str(tmp_path / "run"))  # fmt: skip
    recorded = trace(run, ["embedded"], episodes=2, every=4, frames=True, write=True, device="cpu")
    _, scope = write_scope(run.path)
    assert scope.frames == int(recorded["scored"].sum())
    trial = compare(open_traces([run.path]), resamples=20, device="cpu")
    own = trial.bench.margins.row(0, named=True)
    # Moments are put together as they were; only colours are rounded.
    assert own["c_vlm_mean"] == pytest.approx(recorded["negative"].mean(), abs=0.01)
    assert own["margin_median"] == pytest.approx(recorded["margin"].median(), abs=0.02)


def test_each_candidate_has_the_gate_of_its_scorers_kind(tmp_path, sets):
    trial = compare(open_traces([write_recorded(tmp_path)]), sets[:1], [MINE, "embedded"], resamples=20)
    gates = dict(trial.bench.margins.select("candidate", "gate").rows())
    assert gates == {MINE: "prior-symmetric", "embedded": "calibrated", "as recorded": "prior-symmetric"}
