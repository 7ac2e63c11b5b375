"""vlmsafe study verify checks some runs of a study, from as many arms as possible."""

import json
import shutil

import pytest
from in_process import InProcess, call
from verified_runs import edit_rows, tree_digest

from vlmsafe.errors import EXIT_BAD_INPUT, EXIT_ERRORS, EXIT_WARNINGS, InputError
from vlmsafe.runs.run import Run
from vlmsafe.studies.execute import execute
from vlmsafe.studies.schema import parse_study
from vlmsafe.studies.verify import sample, verify_study

STUDY = """\
name: small
question: Is it what it says?
environments: [speeding]
seeds: [1, 2]
total_steps: 80
settings: {steps_per_epoch: 40, learner.update_iters: 1}
arms:
  ppo: {method: ppo}
  ppo-lag: {method: ppo-lag}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies") / "small"
    execute(parse_study(STUDY, ""), folder, InProcess())
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "small")


def test_the_sample_takes_every_arm_once_before_a_second_run_of_any(tmp_path):
    specs = parse_study(STUDY.replace("[1, 2]", "[1, 2, 3, 4]"), "").expand(tmp_path)
    chosen = [sample(specs, 4, seed) for seed in range(8)]
    assert all(sorted(spec.arm for spec in some) == ["ppo", "ppo", "ppo-lag", "ppo-lag"] for some in chosen)
    assert all({spec.arm for spec in some[:2]} == {"ppo", "ppo-lag"} for some in chosen)
    assert chosen[0] == sample(specs, 4, 0)
    assert len({tuple(spec.name for spec in some) for some in chosen}) > 1
    assert len(sample(specs, 100, 0)) == len(specs)


def test_an_intact_study_has_a_line_per_run_and_a_summary_and_is_not_changed(folder):
    before = tree_digest(folder)
    answer = call("study", "verify", folder, "--runs", 2)
    assert answer.returncode == 0
    first, second, summary = answer.stdout.splitlines()
    assert all("equal: epochs 1 to 2 from the seed" in line for line in (first, second))
    assert {line.split("/")[1] for line in (first, second)} == {"ppo", "ppo-lag"}
    assert summary == "2 of 2 runs are equal; chosen from 4 runs with finished epochs, of 4 planned"
    assert tree_digest(folder) == before


def test_a_run_that_differs_and_one_that_is_damaged_are_named_and_the_others_verified(folder):
    edit_rows(Run.open(folder / "speeding/ppo/seed-1"), "epochs", lambda rows: rows[1].__setitem__("kl", 0.5))
    (folder / "speeding/ppo-lag/seed-2/episodes.jsonl").unlink()
    answer = call("study", "verify", folder, "--runs", 4, "--epochs", 1, "--json")
    assert answer.returncode == EXIT_ERRORS
    found = {run["name"]: run for run in json.loads(answer.stdout)["runs"]}
    assert len(found) == 4
    assert found["speeding/ppo/seed-1"]["verification"]["outcome"] == "different"
    assert "episodes.jsonl missing" in found["speeding/ppo-lag/seed-2"]["reason"]
    outcomes = [run["verification"]["outcome"] for run in found.values() if run["verification"]]
    assert outcomes.count("equal") == 2


def test_a_run_that_cannot_be_verified_is_a_warning(folder):
    for seed in (1, 2):
        (folder / f"speeding/ppo/seed-{seed}/episodes.jsonl").unlink()
    answer = call("study", "verify", folder, "--epochs", 0, "--runs", 2)
    assert answer.returncode == EXIT_WARNINGS
    assert "cannot be verified:" in answer.stdout
    assert "1 could not be verified" in answer.stdout.splitlines()[-1]


def test_runs_that_have_not_begun_are_not_chosen(folder):
    shutil.rmtree(folder / "speeding/ppo-lag")
    result = verify_study(parse_study(STUDY, ""), folder, runs=9, epochs=0)
    assert (result.begun, result.planned, len(result.runs)) == (2, 4, 2)
    shutil.rmtree(folder / "speeding/ppo/seed-2")
    alone = verify_study(parse_study(STUDY, ""), folder, runs=9, epochs=0).summary
    assert alone == "1 of 1 run is equal; chosen from 1 run with finished epochs, of 4 planned"


def test_a_study_without_runs_or_a_sample_of_none_is_refused(folder, tmp_path):
    with pytest.raises(InputError, match="no run with a finished epoch"):
        verify_study(parse_study(STUDY, ""), tmp_path / "nowhere", runs=1, epochs=1)
    assert call("study", "verify", folder, "--runs", 0).returncode == EXIT_BAD_INPUT
    answer = call("study", "verify", folder, "--epochs", -1)
    assert (answer.returncode, answer.stdout) == (EXIT_BAD_INPUT, "")
    assert answer.stderr == "error: epochs is -1; expected 0 or more\n"
    answer = call("study", "verify", "demo", "--root", tmp_path / "nowhere")
    assert answer.returncode == EXIT_BAD_INPUT
    assert "expected the folder of a study that was started" in answer.stderr
