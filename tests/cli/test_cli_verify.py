"""vlmsafe verify, as a user types it."""

import json

import pytest
from in_process import call
from verified_runs import edit_rows, make_run

from vlmsafe.errors import EXIT_BAD_INPUT, EXIT_ERRORS


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run", total_steps=800)


def test_an_intact_run_is_told_with_what_was_replayed_and_with_what_it_was_made(run):
    answer = call("verify", run.path, "--epochs", 1)
    assert answer.returncode == 0
    for words in ("epoch 1 from the seed", "epoch 4 from the checkpoint of epoch 3", "numpy", "equal:"):
        assert words in answer.stdout


def test_the_same_as_json_for_programs(run):
    answer = call("verify", run.path, "--epochs", 0, "--json")
    assert (answer.returncode, json.loads(answer.stdout)["outcome"]) == (0, "equal")


def test_a_difference_is_told_with_an_exit_code_and_with_what_may_explain_it(run, tmp_path):
    changed = make_run(tmp_path / "run", total_steps=400)
    edit_rows(changed, "epochs", lambda rows: rows[1].__setitem__("episode_cost", 31.5))
    config = changed.path / "config.yaml"
    config.write_text(config.read_text().replace("numpy: ", "numpy: 0."))
    answer = call("verify", changed.path)
    assert answer.returncode == EXIT_ERRORS
    assert "epoch 2, episode_cost: 31.5 in the run," in " ".join(answer.stdout.split())
    assert "may be the reason" not in answer.stdout  # the row was edited
    edit_rows(changed, "epochs", lambda rows: rows[0]["digest"].__setitem__("networks", "0" * 16))
    answer = call("verify", changed.path)
    assert "the surroundings differ too, which may be the reason: numpy" in answer.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [(("--epochs", "-1"), "expected 0 or more"), (("--epochs", "many"), "many"), (("checkpoints",), "unrecognized")],
)
def test_what_cannot_be_verified_is_refused(run, words, message):
    answer = call("verify", run.path, *words)
    assert answer.returncode == EXIT_BAD_INPUT
    assert message in (answer.stderr + answer.stdout).lower()


def test_a_foreign_folder_is_refused_in_one_line_that_says_what_is_missing(run):
    answer = call("verify", run.path / "checkpoints")
    assert answer.returncode == EXIT_BAD_INPUT
    assert answer.stderr.strip().endswith("is not a run directory: it has no config.yaml")
