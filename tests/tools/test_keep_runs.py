"""Kept runs are small, name no place, and are the finished runs of the study again where they are put back."""

import dataclasses
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from in_process import call
from verified_runs import change_checkpoint

import vlmsafe
from vlmsafe.comparison.outcomes import values_of
from vlmsafe.runs.arms import open_arms
from vlmsafe.runs.checkpoint import save_checkpoint
from vlmsafe.runs.records import read_arms
from vlmsafe.runs.run import Run

_SPEC = importlib.util.spec_from_file_location("keep_runs", Path(__file__).parents[2] / "tools" / "keep_runs.py")
tool = sys.modules[_SPEC.name] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tool)

STUDY = """
name: small
question: Does the oracle lower the cost?
environments: [speeding]
seeds: [1, 2]
total_steps: 80
settings: {steps_per_epoch: 40}
arms:
  plain: {method: ppo-lag}
  oracle: {method: vlm-ppo-lag-conf-calibrated, settings: {scorer: oracle, signal.calibration.frames: 20}}
protocols: [{protocol: held-out, episodes: 2}]
comparisons:
  - {first: oracle, second: plain, about: [signal], outcome: cost, source: held-out}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("study")
    (place / "small.yaml").write_text(STUDY)
    return vlmsafe.run_study(place / "small.yaml", root=place / "runs", jobs=1)


def costs(folder):
    arms = read_arms(open_arms([folder])[0])
    return {key: values_of(arm, "cost", "held-out") for key, arm in arms.items()}


def test_a_study_goes_on_from_its_kept_runs_without_training_them_again(folder, tmp_path):
    kept = tmp_path / "kept"
    assert tool.keep(folder, kept) == [f"speeding/{arm}/seed-{seed}" for arm in ("oracle", "plain") for seed in (1, 2)]
    shutil.rmtree(kept / "speeding" / "plain" / "seed-2")
    again = tmp_path / "runs" / "small"
    assert len(tool.keep(kept, again)) == 3
    events = []
    vlmsafe.run_study(again, jobs=1, on_event=events.append)
    assert {event.run for event in events if event.step in ("train", "evaluate")} == {"speeding/plain/seed-2"}
    assert costs(again) == costs(folder)


def test_a_kept_run_has_the_policy_the_rows_and_the_digests_and_names_no_place(folder, tmp_path):
    tool.keep(folder, tmp_path)
    whole, kept = (Run.open(place / "speeding" / "oracle" / "seed-1") for place in (folder, tmp_path))
    assert kept.status() == "finished"
    for name in ("epochs.jsonl", "episodes.jsonl", "events.jsonl"):
        assert (kept.path / name).read_bytes() == (whole.path / name).read_bytes()
    a, b = whole.checkpoint()[0], kept.checkpoint()[0]
    np.testing.assert_array_equal(a.arrays["networks"][:1], b.arrays["networks"])
    assert a.values["calibration"] == b.values["calibration"]
    sizes = [sum(file.stat().st_size for file in run.checkpoints.iterdir()) for run in (whole, kept)]
    assert sizes[1] < sizes[0] / 5
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or str(folder).encode() not in file.read_bytes(), file


def test_a_kept_run_can_be_evaluated_and_traced_again(folder, tmp_path):
    tool.keep(folder, tmp_path)
    places = [place / "speeding" / "oracle" / "seed-1" for place in (folder, tmp_path)]
    one, other = (vlmsafe.evaluate(place, "selection", episodes=2)["cost"].to_list() for place in places)
    assert one == other
    assert vlmsafe.trace(places[1], episodes=1)["kappa"].drop_nulls().len()


def test_a_kept_run_is_repeated_from_its_seed_and_its_policy_compared(folder, tmp_path):
    tool.keep(folder, tmp_path)
    kept = Run.open(tmp_path / "speeding" / "oracle" / "seed-1")
    result = vlmsafe.verify(kept, epochs=1)
    assert (result.outcome, [(one.start, one.last) for one in result.replays]) == ("equal", [(0, 1)])
    assert "was reduced to what acts" in " ".join(result.notes)
    assert vlmsafe.verify(kept, epochs=2).outcome == "equal"
    change_checkpoint(kept, 2, {"networks": kept.checkpoint()[0].arrays["networks"] + np.float32(1e-6)})
    assert vlmsafe.verify(kept, epochs=1).outcome == "equal"
    (difference,) = vlmsafe.verify(kept, epochs=2).differences
    assert (difference.epoch, difference.quantity, difference.source) == (2, "checkpoint", "records")


def test_a_kept_run_that_is_put_back_is_still_verified(folder, tmp_path):
    tool.keep(folder, tmp_path / "kept")
    tool.keep(tmp_path / "kept", tmp_path / "back")
    for path in sorted((tmp_path / "back" / "speeding").glob("*/seed-*")):
        answer = call("verify", path, "--epochs", 0)
        assert "equal:" in answer.stdout
        assert "none to replay from" in answer.stdout


def test_what_is_missing_from_a_kept_run_is_found_without_a_replay(folder, tmp_path):
    tool.keep(folder, tmp_path)
    kept = Run.open(tmp_path / "speeding" / "plain" / "seed-1")
    found = kept.checkpoint()[0]
    arrays = {name: array for name, array in found.arrays.items() if not name.startswith("normaliser.")}
    save_checkpoint(kept.checkpoints, dataclasses.replace(found, arrays=arrays), keep=1)
    (difference,) = vlmsafe.verify(kept, epochs=0).differences
    assert "normaliser" in difference.text


def test_an_older_copy_does_not_replace_the_journal_of_a_study_that_went_on(folder, tmp_path):
    tool.keep(folder, tmp_path / "kept")
    journal = folder / "journal.jsonl"
    rows = [json.loads(line) for line in (tmp_path / "kept" / "journal.jsonl").read_text().splitlines()]
    assert len(rows) == len(journal.read_text().splitlines())
    assert {row["node"] for row in rows} == {""}
    shutil.copytree(tmp_path / "kept", tmp_path / "again")
    line = json.dumps({**rows[-1], "what": "began"}) + "\n"
    with (tmp_path / "again" / "journal.jsonl").open("a") as file:
        file.write(line)
    tool.keep(tmp_path / "kept", tmp_path / "again")
    assert (tmp_path / "again" / "journal.jsonl").read_text().endswith(line)


def test_a_kept_run_has_what_it_started_from(folder, tmp_path):
    source = folder / "speeding" / "plain" / "seed-1"
    study = tmp_path / "study" / "speeding" / "warm"
    config = {"env": "speeding", "total_steps": 80, "steps_per_epoch": 40, "init_from": str(source)}
    vlmsafe.train(**config, seed=1, run_dir=study / "seed-1", quiet=True)
    tool.keep(tmp_path / "study", tmp_path / "kept")
    assert vlmsafe.verify(tmp_path / "kept" / "speeding" / "warm" / "seed-1").outcome == "equal"


def test_runs_that_are_not_finished_are_left_out(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "speeding" / "plain" / "seed-1" / "checkpoints" / "epoch-00002.safetensors").unlink()
    assert "speeding/plain/seed-1" not in tool.keep(copy, tmp_path / "kept")


def test_the_events_of_a_kept_run_name_neither_machine_nor_place(folder, tmp_path):
    run = tmp_path / "copy" / "speeding" / "plain" / "seed-1"
    shutil.copytree(folder / "speeding" / "plain" / "seed-1", run)
    elsewhere = "/scratch/of/another/machine/seed-1"
    stopped = {"event": "interrupted", "reason": f"stop; go on with: vlmsafe train --resume {elsewhere}", "cores": 2}
    resumed = {"event": "resumed", "scorer": {"name": "embedded", "service": f"unix:{elsewhere}"}}
    with (run / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in (stopped, resumed))
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["signal"]["service"] = f"unix:{elsewhere}"
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    tool.keep(tmp_path / "copy", tmp_path / "kept")
    place = tmp_path / "kept" / "speeding" / "plain" / "seed-1"
    kept = (place / "events.jsonl").read_text()
    assert [json.loads(line) for line in kept.splitlines()[-2:]] == [
        {"event": "interrupted", "reason": "stop; go on with: vlmsafe train --resume RUN"},
        {"event": "resumed", "scorer": {"name": "embedded"}},
    ]
    for text in (kept, (place / "config.yaml").read_text()):
        assert str(tmp_path) not in text
        assert elsewhere not in text
        assert "processor" not in text
    assert vlmsafe.verify(place, epochs=0).outcome == "equal"
