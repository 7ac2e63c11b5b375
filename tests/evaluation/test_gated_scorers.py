"""A trace scores as the run did, with its scorer, prompts and gate, and what it recorded can be read later."""

import dataclasses
import json

import numpy as np
import polars as pl
import pytest
from frame_scorer import FrameScorer
from small_qwen import save_small_qwen

from vlmsafe import train
from vlmsafe.envs.registry import ENVS
from vlmsafe.errors import InputError
from vlmsafe.evaluation.gated_scorers import GatedScorer, gated_scorers
from vlmsafe.evaluation.plan import Plan
from vlmsafe.evaluation.trace.record import trace, trace_summary
from vlmsafe.io.images import ROUNDING, decode
from vlmsafe.runs.traces import open_trace
from vlmsafe.signals.frame_stack import stack_of
from vlmsafe.signals.gate import GATES, Gate
from vlmsafe.signals.prompts import load_prompts
from vlmsafe.signals.scorers.make import make_scorer

SMALL = {"total_steps": 400, "steps_per_epoch": 400, "learner": {"update_iters": 1}, "quiet": True}
OWN = "python:frame_scorer:FrameScorer"


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    """A run with a calibrated gate."""
    signal = {"scorer": OWN, "prompts": "metadrive", "gate": "calibrated", "calibration": {"frames": 40}}
    path = tmp_path_factory.mktemp("runs") / "gated"
    return train(env="braking", method="vlm-ppo-lag-conf", signal=signal, run_dir=str(path), **SMALL)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run without a signal."""
    return train(env="speeding", run_dir=str(tmp_path_factory.mktemp("runs") / "plain"), **SMALL)


def plan_of(run, epoch=None):
    return Plan.of(run, "held-out", episodes=1, epoch=epoch, processes=1, allow_untrained=False, on_note=print)


def test_a_run_is_traced_with_its_own_scorer_prompts_and_calibrated_gate(gated):
    levels = gated.checkpoint(None)[0].values["calibration"]
    gate = Gate(levels["gate_scale"], levels["gate_centre"])
    assert gate != Gate()
    table = trace(gated, episodes=1, every=3)
    scored = table.filter("scored")
    np.testing.assert_allclose(scored["kappa"], gate.kappa(scored["margin"].to_numpy()), rtol=1e-12)
    assert table["gate_scale", "gate_centre"].unique().rows() == [(gate.scale, gate.centre)]
    assert table["kappa"].null_count() == (~table["scored"]).sum() > 0
    assert trace(gated, FrameScorer(gated.prompts()), episodes=1, every=3)["margin"].equals(table["margin"])


def test_other_prompts_and_other_scorers_do_not_borrow_the_runs_gate(gated):
    plan = plan_of(gated)
    assert gated_scorers(plan, [OWN], None)[""].gate != Gate()
    other = gated_scorers(plan, [OWN], "bullet")[""]
    assert (other.gate, other.prompts) == (Gate(), load_prompts("bullet"))
    two = gated_scorers(plan, ["embedded", OWN, "embedded", "noise"], None)
    assert list(two) == ["embedded", "python", "embedded2", "noise"]
    assert two["embedded"].gate == Gate() != two["python"].gate
    assert two["embedded"].prompts == gated.prompts()
    assert two["noise"].prompts is None


@pytest.mark.parametrize(("kind", "gate"), [("off", Gate()), ("probability", GATES["probability"])])
def test_gates_that_are_not_calibrated(gated, kind, gate):
    plan = plan_of(gated)
    config = dataclasses.replace(gated.config, signal=dataclasses.replace(gated.config.signal, gate=kind))
    plan = dataclasses.replace(plan, run=dataclasses.replace(gated, config=config))
    assert gated_scorers(plan, [], None)[""].gate == gate


def test_a_scorer_that_is_not_the_runs_has_the_gate_and_the_precision_of_its_kind(gated, tmp_path):
    save_small_qwen(tmp_path / "qwen")
    found = gated_scorers(plan_of(gated), [f"qwen2-vl:{tmp_path / 'qwen'}"], "metadrive", device="cpu")[""]
    assert found.gate == GATES["probability"]
    assert found.scorer.describe()["precision"] == "bfloat16"


def test_a_scorer_object_has_the_gate_that_suits_it(plain):
    class Answering(FrameScorer):
        gate = "probability"

    table = trace(plain, Answering(load_prompts("metadrive")), episodes=1, every=5)
    positive, negative = (table.filter("scored")[name].to_numpy() for name in ("positive", "negative"))
    np.testing.assert_allclose(table["kappa"].drop_nulls(), np.abs(2 * positive / (positive + negative) - 1))


def test_a_run_without_a_signal_is_looked_at_by_embedded_with_the_environments_prompts(plain):
    scorer = gated_scorers(plan_of(plain), [], None)[""]
    assert (scorer.name, scorer.gate, scorer.prompts) == ("embedded", Gate(), load_prompts("metadrive-v2"))
    assert [entry["prompt"] for entry in scorer.describe("x_")["similarities"]] == list(scorer.prompts.texts)


def test_a_scorer_that_learns_comes_as_the_checkpoint_has_it(tmp_path):
    run = train(env="speeding", method="ppo-lag-rnd", run_dir=str(tmp_path / "run"), **SMALL)
    scorer = gated_scorers(plan_of(run), [], None)[""].scorer
    saved = run.checkpoint(None)[0].arrays
    for name, array in scorer.state().items():
        np.testing.assert_array_equal(array, saved[f"scorer.{name}"], err_msg=name)


def test_prompts_are_asked_for_where_there_are_none(plain):
    bare = dataclasses.replace(plan_of(plain), spec=dataclasses.replace(ENVS["speeding"], prompts=None))
    with pytest.raises(InputError, match="has no prompts of its own; pass --prompts"):
        gated_scorers(bare, [], None)


def test_pictures_are_those_of_the_scored_frames_and_go_with_their_trace(gated):
    trace(gated, ["python:frame_scorer:MotionScorer"], episodes=2, every=70, frames=True, write=True)
    folder = gated.path / "traces"
    pictures = pl.read_parquet(folder / "held-out-frames.parquet")
    assert pictures.select("episode", "step").rows() == [(0, 70), (0, 140), (1, 70), (1, 140)]
    task, env = plan_of(gated).tasks[0], ENVS["braking"].make(ENVS["braking"].held_out)
    frames = {step.number: env.frame().copy() for _, step in task.drive(env, lambda steps: None)}
    for step, picture in pictures.filter(episode=0).select("step", "picture").rows():
        shown = decode(picture).astype(int)
        assert np.abs(shown - frames[step]).max() <= ROUNDING // 2
    trace(gated, episodes=1, every=70, write=True)
    assert sorted(path.name for path in folder.iterdir()) == ["held-out.json", "held-out.parquet"]


def test_frames_can_be_kept_where_no_scorer_looks_at_them(plain):
    trace(plain, ["oracle"], episodes=1, every=10, frames=True, write=True)
    assert len(pl.read_parquet(plain.path / "traces" / "held-out-frames.parquet")) == 2
    with pytest.raises(InputError, match="pass write=True"):
        trace(plain, ["oracle"], frames=True)


def test_what_each_similarity_is_stands_beside_the_table(gated):
    trace(gated, [OWN, "oracle"], episodes=1, every=50, write=True)
    about = json.loads((gated.path / "traces" / "held-out.json").read_text())
    assert (about["protocol"], about["checkpoint_epoch"], about["every"]) == ("held-out", 1, 50)
    own, oracle = about["scorers"]
    table = pl.read_parquet(gated.path / "traces" / "held-out.parquet")
    columns = [entry["column"] for entry in own["similarities"]]
    assert columns == [name for name in table.columns if name.startswith("python_similarity_")]
    assert [entry["prompt"] for entry in own["similarities"]] == list(gated.prompts().texts)
    assert own["gate"]["kind"] == "calibrated"
    assert [entry["group"] for entry in oracle["similarities"]] == ["positive", "negative"]
    assert oracle["similarities"][0]["prompt"] is None


def test_summary_counts_contacts_their_onsets_and_what_tells_them():
    cost = [0.0, 1.0, 1.0, 0.0, 2.0, 3.0]
    table = pl.DataFrame({"episode": [0, 0, 0, 0, 0, 1], "cost": cost, "scored": [True] * 5 + [False]})
    score = [0.1, 0.9, 0.9, 0.1, 0.9, None]
    table = table.with_columns(negative=pl.Series(score), kappa=pl.Series([0.5] * 5 + [None]))
    (found,) = trace_summary(table)
    assert found == {
        "scorer": "", "episodes": 2, "steps": 6, "contacts": 4, "onsets": 3, "scored": 5,
        "kappa": 0.5, "c_vlm": pytest.approx(2.9 / 5), "auc_kappa": 0.5, "auc_c_vlm": 1.0,
    }  # fmt: skip
    calm = table.with_columns(cost=pl.lit(0.0)).rename({"negative": "a_negative", "kappa": "a_kappa"})
    (found,) = trace_summary(calm)
    assert (found["scorer"], found["contacts"], found["auc_c_vlm"]) == ("a", 0, None)


def test_a_judge_of_ones_own_brings_its_gate(plain):
    gate = Gate(3.0, 0.2)
    table = trace(plain, {"mine": GatedScorer(make_scorer("oracle", None), gate)}, episodes=1)
    np.testing.assert_allclose(table["mine_kappa"], gate.kappa(table["mine_margin"].to_numpy()), rtol=1e-12)


def test_a_scorer_of_any_number_of_frames_looks_at_those_of_the_run_or_at_the_chosen_ones(tmp_path):
    save_small_qwen(tmp_path / "qwen")
    name = f"qwen2-vl:{tmp_path / 'qwen'}"
    signal = {
        "scorer": name,
        "precision": "float32",
        "every": 5,
        "frames": 3,
        "frame_distance": 2,
        "prompts": "metadrive",
    }
    run = train(env="braking", method="qwen2-vl-conf", signal=signal, run_dir=str(tmp_path / "run"), **SMALL)
    plan = plan_of(run)
    assert stack_of(gated_scorers(plan, [], None)[""].scorer) == (4, 2, 0)
    assert stack_of(gated_scorers(plan, [], None, scorer_frames=2)[""].scorer) == (4, 0)
    both = gated_scorers(plan, ["embedded", name], None, scorer_frames=2, frame_distance=3)
    assert [stack_of(one.scorer) for one in both.values()] == [(4, 0), (3, 0)]
    with pytest.raises(InputError, match="'embedded' looks at 2 frames"):
        gated_scorers(plan, ["embedded"], None, scorer_frames=5)

    alone = trace(run, name, episodes=1, every=5)
    two = trace(
        run, ["embedded", name], episodes=1, every=5, scorer_frames=3, frame_distance=2, write=True, frames=True
    )
    np.testing.assert_allclose(two["qwen2_vl_positive"], alone["positive"], atol=1e-6)
    described = open_trace(run.path).scorers
    assert [(one.frames, one.frame_distance) for one in described] == [(2, 4), (3, 2)]
