"""Runs with the gates that the paper does not have: fitted before training, recorded, resumed and traced."""

import importlib
import sys

import numpy as np
import pytest

from vlmsafe import resume, trace, train
from vlmsafe.config.settings import SignalConfig, TrainConfig
from vlmsafe.errors import InputError, RunError
from vlmsafe.evaluation.gated_scorers import gated_scorers
from vlmsafe.evaluation.plan import Plan
from vlmsafe.runs.checkpoint import path_of
from vlmsafe.signals.gate import GATES, Gate, PlattGate, SignedGate

SMALL = {"env": "speeding", "method": "vlm-ppo-lag-conf", "total_steps": 400, "steps_per_epoch": 200, "quiet": True,
         "learner": {"update_iters": 1}}  # fmt: skip
OWN = {"scorer": "python:frame_scorer:FrameScorer", "prompts": "metadrive", "every": 2}
LABELS = ("cost-ahead", "cost", "hazard")


def calibrated(run):
    return next(event for event in run.events() if event["event"] == "calibrated")


def own_gate(run):
    plan = Plan.of(run, "held-out", episodes=1, epoch=None, processes=1, allow_untrained=False, on_note=print)
    return gated_scorers(plan, [], None)[""].gate


def assert_resumes_exactly(run):
    before = (run.path / "epochs.jsonl").read_bytes()
    path_of(run.checkpoints, 2).unlink()
    resume(run.path, quiet=True)
    assert (run.path / "epochs.jsonl").read_bytes() == before


@pytest.mark.parametrize("label", LABELS)
def test_platt_scaling_is_fitted_on_the_label_recorded_and_resumed_exactly(tmp_path, label):
    calibration = {"frames": 100, "label": label, "horizon": 10}
    signal = {"scorer": "oracle", "gate": "platt", "every": 2, "calibration": calibration}
    settings = {**SMALL, "env": "braking", "total_steps": 800, "steps_per_epoch": 400, "num_envs": 2}
    run = train(**settings, run_dir=str(tmp_path / "run"), signal=signal)
    event = calibrated(run)
    assert event["labelled_frames"] <= event["frames"] == 100
    assert 0 < event["dangerous_frames"] < event["labelled_frames"]
    assert label == "cost" or event["platt_slope"] < 0.0, "the oracle's margin falls ahead of contact"
    gate = PlattGate(event["platt_slope"], event["platt_intercept"])
    assert own_gate(run) == gate
    assert_resumes_exactly(run)
    assert [one["event"] for one in run.events()].count("calibrated") == 1
    steps = trace(run, episodes=1, every=2).filter("scored")
    np.testing.assert_allclose(steps["kappa"], gate.kappa(steps["margin"].to_numpy()), rtol=1e-12)


def test_the_hazard_label_is_the_hazard_of_the_scored_frames(tmp_path):
    """The oracle's negative score is the hazard, so its margin says exactly which frames are dangerous."""
    calibration = {"frames": 60, "label": "hazard"}
    signal = {"scorer": "oracle", "gate": "platt", "every": 3, "calibration": calibration}
    run = train(**SMALL, run_dir=str(tmp_path / "run"), signal=signal)
    steps = trace(run, episodes=4, every=3).filter("scored")
    kappa, hazard = steps["kappa"].to_numpy(), steps["hazard"].to_numpy()
    assert (kappa[hazard < 0.4] > 0.5).all()
    assert (kappa[hazard > 0.6] < 0.5).all()


def test_a_signed_gate_is_the_safe_half_of_the_calibrated_one(tmp_path):
    signal = {**OWN, "calibration": {"frames": 40}}
    runs = [
        train(**SMALL, run_dir=str(tmp_path / gate), signal={**signal, "gate": gate})
        for gate in ("calibrated", "signed-calibrated")
    ]
    levels = [(calibrated(run)["gate_scale"], calibrated(run)["gate_centre"]) for run in runs]
    assert levels[0] == levels[1]
    assert [own_gate(run) for run in runs] == [Gate(*levels[0]), SignedGate(*levels[0])]
    assert_resumes_exactly(runs[1])
    folded, signed = (run.rows("epochs")[0] for run in runs)
    assert 0.0 < signed["kappa"] < folded["kappa"]
    assert 0.0 < signed["bonus"] < folded["bonus"]
    steps = trace(runs[1], episodes=1).filter("scored")
    assert (steps["kappa"].to_numpy()[steps["margin"].to_numpy() <= levels[0][1]] == 0.0).all()


def test_a_signed_gate_around_zero_needs_no_calibration(tmp_path):
    run = train(**SMALL, run_dir=str(tmp_path / "run"), signal={"scorer": "constant:0.3,0.6", "gate": "signed"})
    assert {row["bonus"] for row in run.rows("epochs")} == {0.0}, "every frame says danger"
    assert not any(event["event"] == "calibrated" for event in run.events())
    assert own_gate(run) == GATES["signed"]


def test_labels_of_one_kind_stop_the_run_before_anything_is_written(tmp_path):
    signal = {"scorer": "oracle", "gate": "platt", "calibration": {"frames": 8, "label": "cost-ahead", "horizon": 500}}
    with pytest.raises(InputError, match=r"cannot be fitted: (none|each) of \d+ frames is dangerous \(cost within 500"):
        train(**SMALL, run_dir=str(tmp_path / "run"), signal=signal)
    better = {"scorer": "oracle", "gate": "signed"}
    assert train(**SMALL, run_dir=str(tmp_path / "run"), signal=better).status() == "finished"


def test_a_margin_that_reads_the_wrong_way_round_is_pointed_out(tmp_path, capsys, monkeypatch):
    (tmp_path / "turned_round.py").write_text(
        "import numpy as np, vlmsafe\n"
        "class Turned(vlmsafe.Scorer):\n"
        "    looks_at, rules, groups = 'hazard', ('decoupled',), (1, 1)\n"
        "    def __init__(self, prompts): pass\n"
        "    def score(self, inputs):\n"
        "        return np.stack([inputs, -inputs], axis=1).astype(np.float32)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    signal = {"scorer": "python:turned_round:Turned", "gate": "platt", "calibration": {"frames": 40, "label": "hazard"}}
    run = train(**{**SMALL, "quiet": False}, run_dir=str(tmp_path / "run"), signal=signal)
    assert calibrated(run)["platt_slope"] > 0.0
    assert "reads danger the wrong way round" in " ".join(capsys.readouterr().err.split())


def test_a_gate_of_the_users_runs_and_a_change_of_its_source_is_noticed(tmp_path, monkeypatch):
    place = tmp_path / "steep_gates.py"
    place.write_text("def steep(positive, negative, margin):\n    return (margin > 0.0) * 0.25\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    signal = {"scorer": "noise", "gate": "python:steep_gates:steep"}
    run = train(**SMALL, run_dir=str(tmp_path / "run"), signal=signal)
    assert all(0.0 < row["kappa"] < 0.25 for row in run.rows("epochs"))
    assert list(run.recorded()["source"]["gate"]["files"]) == ["steep_gates.py"]
    assert_resumes_exactly(run)
    gate = own_gate(run)
    assert gate.name == "python:steep_gates:steep"
    table = trace(run, episodes=1)
    assert set(table["kappa"].drop_nulls()) <= {0.0, 0.25}
    assert table["gate_scale"].null_count() == len(table)

    place.write_text(place.read_text().replace("0.25", "0.75"))
    path_of(run.checkpoints, 2).unlink()
    with pytest.raises(RunError, match=r"the source of its gate has changed: steep_gates\.py"):
        resume(run.path, quiet=True)
    importlib.invalidate_caches()
    sys.modules.pop("steep_gates")
    resume(run.path, quiet=True, accept_changed_code=True)
    assert run.rows("epochs")[-1]["kappa"] > 0.25


@pytest.mark.parametrize(
    ("signal", "message"),
    [
        (
            {"gate": "sideways"},
            r"signal.gate is 'sideways'; expected auto, off, prior-symmetric, .* or python:<module>",
        ),
        ({"gate": "python:nothing"}, "signal.gate is 'python:nothing'; expected"),
        ({"gate": "python:no_such_module:gate"}, "cannot import the gate 'python:no_such_module:gate'"),
        (
            {"gate": "signed", "cost_weight": 0.5},
            "signal.gate is 'signed' and signal.cost_weight 0.5; this gate closes",
        ),
        ({"gate": "platt", "cost_weight": 0.5}, "would hide them from the cost"),
    ],
)
def test_gates_that_cannot_be_used_are_refused_before_anything_is_written(tmp_path, signal, message):
    with pytest.raises(InputError, match=message) as caught:
        train(**SMALL, run_dir=str(tmp_path / "run"), signal={"scorer": "oracle", **signal})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_gates_of_the_papers_arms_are_what_they_were():
    for scorer, gate in (("clip", "prior-symmetric"), ("embedded", "calibrated"), ("qwen2-vl", "probability")):
        signal = SignalConfig(scorer=scorer, rule="decoupled", gate="auto")
        assert TrainConfig(signal=signal).resolved().signal.gate == gate
