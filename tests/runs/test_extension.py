"""A run can be given more steps: nothing that it has done changes, and the rest is as exact as any resumed run."""

import shutil

import numpy as np
import pytest
from in_process import call

from vlmsafe import audit, resume, train, verify
from vlmsafe.config.methods import config_from_yaml
from vlmsafe.config.settings import TrainConfig
from vlmsafe.errors import InputError
from vlmsafe.runs.checkpoint import load_checkpoint, path_of
from vlmsafe.runs.run import Run

SMALL = {"env": "speeding", "total_steps": 600, "steps_per_epoch": 200, "quiet": True, "checkpoint": {"keep": 9},
         "learner": {"update_iters": 1, "hidden": (8, 8)}}  # fmt: skip
RECORDS = ("epochs.jsonl", "episodes.jsonl")


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    return train(**SMALL, run_dir=str(tmp_path_factory.mktemp("short") / "run"))


@pytest.fixture
def copied(short, tmp_path):
    return Run.open(shutil.copytree(short.path, tmp_path / "run"))


def networks(run, epoch):
    return load_checkpoint(path_of(run.checkpoints, epoch)).arrays["networks"]


def test_an_extended_run_keeps_its_epochs_and_adds_the_rest(short, copied):
    longer = resume(copied.path, total_steps=1000, quiet=True)
    assert longer.status() == "finished"
    assert longer.config.epochs == 5
    for record in RECORDS:
        assert (longer.path / record).read_bytes().startswith((short.path / record).read_bytes())
    assert Run.open(longer.path).config == longer.config
    (event,) = [event for event in longer.events() if event["event"] == "extended"]
    assert (event["epoch"], event["total_steps"]) == (3, {"before": 600, "now": 1000})


def test_without_a_falling_rate_an_extended_run_equals_one_that_was_long_from_the_start(tmp_path):
    constant = SMALL | {"learner": {**SMALL["learner"], "lr_decay": False}}
    whole = train(**constant | {"total_steps": 1000}, run_dir=str(tmp_path / "whole"))
    run = train(**constant, run_dir=str(tmp_path / "run"))
    longer = resume(run.path, total_steps=1000, quiet=True)
    for record in RECORDS:
        assert (whole.path / record).read_bytes() == (longer.path / record).read_bytes()


def test_a_falling_rate_is_stretched_to_the_new_end(copied):
    config = copied.longer(1000)
    assert [config.epochs_planned(epoch) for epoch in range(5)] == [3, 3, 3, 5, 5]
    again = config.extended(1200, 4)
    assert [again.epochs_planned(epoch) for epoch in range(6)] == [3, 3, 3, 5, 6, 6]
    assert again.as_of(0) == copied.config
    assert again.as_of(1) == config
    longer = resume(copied.path, total_steps=1000, quiet=True)
    assert not np.array_equal(networks(longer, 3)[0], networks(longer, 4)[0]), "the rate rose from zero again"


@pytest.mark.parametrize("done", [2, 3])
def test_an_extension_that_is_interrupted_resumes_exactly(copied, tmp_path, done):
    for epoch in range(done + 1, 4):
        path_of(copied.checkpoints, epoch).unlink()
    other = shutil.copytree(copied.path, tmp_path / "other")
    whole = resume(copied.path, total_steps=1000, quiet=True)
    cut = resume(other, total_steps=1000, quiet=True)
    for epoch in (4, 5):
        path_of(cut.checkpoints, epoch).unlink()
    if done < 3:
        path_of(cut.checkpoints, 3).unlink()  # back to a checkpoint of before the extension
    again = resume(cut.path, total_steps=1000, quiet=True)  # the same command continues it
    for record in RECORDS:
        assert (whole.path / record).read_bytes() == (again.path / record).read_bytes()
    assert len([event for event in again.events() if event["event"] == "extended"]) == 1


def test_an_extended_run_can_be_verified_audited_and_repeated(copied, tmp_path):
    longer = resume(copied.path, total_steps=1000, quiet=True)
    result = verify(longer, epochs=9)
    assert (result.differences, result.obstacle) == ((), None)
    assert "config-changed" not in {finding.code for finding in audit([longer.path]).findings}
    settings = config_from_yaml(longer.path / "config.yaml")
    again = train(TrainConfig(**{**vars(settings), "run_dir": tmp_path / "again"}), quiet=True)
    for record in RECORDS:
        assert (longer.path / record).read_bytes() == (again.path / record).read_bytes()


@pytest.mark.parametrize(("steps", "message"), [(400, "has 600 already; expected more"), (700, "multiple of")])
def test_other_lengths_are_refused_in_one_line_and_change_nothing(copied, steps, message):
    before = {path: path.read_bytes() for path in copied.path.rglob("*") if path.is_file()}
    answer = call("train", "--resume", copied.path, "--total-steps", str(steps), "--quiet")
    assert answer.returncode == 2
    assert len(answer.stderr.strip().splitlines()) == 1
    assert message in answer.stderr
    assert {path: path.read_bytes() for path in copied.path.rglob("*") if path.is_file()} == before


def test_the_command_extends_and_says_when_there_is_nothing_to_do(copied):
    assert "nothing to do" in call("train", "--resume", copied.path, "--total-steps", "600").stdout
    assert "finished: " in call("train", "--resume", copied.path, "--total-steps", "800", "--quiet").stdout
    assert "nothing to do" in call("train", "--resume", copied.path, "--total-steps", "800").stdout
    with pytest.raises(InputError, match="has 800 already"):
        resume(copied.path, total_steps=600, quiet=True)


def test_steps_that_were_edited_by_hand_are_no_extension(copied):
    text = (copied.path / "config.yaml").read_text().replace("total_steps: 600", "total_steps: 1000")
    (copied.path / "config.yaml").write_text(text)
    with pytest.raises(Exception, match="total_steps was 600, is 1000"):
        resume(copied.path, quiet=True)
