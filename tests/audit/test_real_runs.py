"""Runs that were really trained and evaluated: nothing is found in a matched pair of arms, and damage is."""

import shutil
from dataclasses import replace

import polars as pl
import pytest

from vlmsafe import evaluate, train
from vlmsafe.audit import audit
from vlmsafe.config.methods import method_defaults
from vlmsafe.runs.checkpoint import path_of, saved_epochs
from vlmsafe.runs.run import Run

SEEDS = (3, 5, 8, 13)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method in ("ppo-lag", "cppo-pid"):
        for seed in SEEDS:
            config = replace(
                method_defaults(method), env="speeding", seed=seed, total_steps=2000, steps_per_epoch=500, budget=36.0,
                run_dir=folder / "speeding" / method / f"seed-{seed}",
            )  # fmt: skip
            evaluate(train(config, quiet=True), episodes=6, processes=1)
    return folder


@pytest.fixture
def runs(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "runs")


def test_nothing_is_found_in_two_matched_arms(trained):
    result = audit([trained])
    assert [(finding.code, finding.evidence) for finding in result.findings] == []
    assert [entry.codes for entry in result.unchecked] == [("cost-tracks-distance", "progress-differs")]
    assert result.comparisons == ("speeding: 'ppo-lag' against 'cppo-pid'",)


def test_a_run_given_twice_counts_once(trained):
    assert audit([trained, trained / "speeding" / "ppo-lag"]).runs == 2 * len(SEEDS)


def test_a_run_that_was_killed_is_found(runs):
    run = Run.open(runs / "speeding" / "ppo-lag" / "seed-5")
    for epoch in saved_epochs(run.checkpoints):
        if epoch > 2:
            path_of(run.checkpoints, epoch).unlink()
    assert audit([runs]).codes() == {"incomplete-run"}


def test_a_damaged_checkpoint_and_a_damaged_record_are_found_and_the_rest_is_read(runs):
    run = Run.open(runs / "speeding" / "cppo-pid" / "seed-8")
    newest = path_of(run.checkpoints, saved_epochs(run.checkpoints)[-1])
    newest.write_bytes(newest.read_bytes()[:-100])
    (runs / "speeding" / "ppo-lag" / "seed-3" / "epochs.jsonl").write_text("{not json\n")
    result = audit([runs])
    found = {finding.where for finding in result.findings if finding.code == "unreadable-run"}
    assert "speeding: ppo-lag seed-3" in found
    assert result.runs == 2 * len(SEEDS)


def test_a_folder_whose_configuration_cannot_be_read_is_named(runs):
    (runs / "speeding" / "ppo-lag" / "seed-3" / "config.yaml").write_text("env: speeding\nlerner: 3\n")
    result = audit([runs])
    assert {"unreadable-run", "seed-sets-differ"} <= result.codes()
    assert any("lerner" in line for finding in result.findings for line in finding.evidence)


def test_a_setting_edited_after_training_is_found(runs):
    path = runs / "speeding" / "ppo-lag" / "seed-3" / "config.yaml"
    path.write_text(path.read_text().replace("gamma: 0.99", "gamma: 0.9"))
    assert audit([runs]).codes() == {"config-changed", "inconsistent-arm"}


def test_an_evaluation_of_fewer_episodes_is_found(runs):
    path = runs / "speeding" / "ppo-lag" / "seed-13" / "evaluations" / "held-out.parquet"
    pl.read_parquet(path).head(4).write_parquet(path)
    assert audit([runs]).codes() == {"evaluations-differ"}


def test_a_copied_run_is_found(runs):
    folder = runs / "speeding" / "ppo-lag"
    shutil.rmtree(folder / "seed-13")
    shutil.copytree(folder / "seed-5", folder / "seed-13")
    path = folder / "seed-13" / "config.yaml"
    path.write_text(path.read_text().replace("seed: 5", "seed: 13"))
    assert {"duplicate-runs"} <= audit([runs]).codes() <= {"duplicate-runs", "config-changed"}


def test_one_run_alone_is_audited_without_a_comparison(trained):
    result = audit([trained / "speeding" / "ppo-lag" / "seed-3"])
    assert (result.runs, result.comparisons, result.findings) == (1, (), ())


@pytest.mark.parametrize(
    ("gate", "scorer", "state", "remedy"),
    [
        ("signed", "constant:0.3,0.6", "closed", "calibrate it (--signal.gate signed-calibrated)"),
        ("python:wide_open_gates:always", "noise", "open", "change your function 'python:wide_open_gates:always'"),
    ],
)
def test_a_gate_that_the_paper_does_not_have_is_found_stuck_too(tmp_path, monkeypatch, gate, scorer, state, remedy):
    (tmp_path / "wide_open_gates.py").write_text(
        "def always(positive, negative, margin):\n    return 1.0 + 0 * margin\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    train(
        env="speeding", method="vlm-ppo-lag-conf", total_steps=400, steps_per_epoch=200, learner={"update_iters": 1},
        run_dir=str(tmp_path / "run"), quiet=True, signal={"scorer": scorer, "gate": gate},
    )  # fmt: skip
    found = [one for one in audit([tmp_path / "run"]).findings if one.code == "gate-saturated"]
    assert len(found) == 1
    assert f"a gate that is {state} everywhere weighs nothing: {remedy}" in found[0].fix
