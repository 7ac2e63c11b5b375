"""An evaluation that ends too early keeps what it has done, and mixes it with nothing else."""

import json
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

import polars as pl
import pytest

from vlmsafe import evaluate, train
from vlmsafe.errors import RunError
from vlmsafe.evaluation.protocols import PROTOCOLS, Protocol
from vlmsafe.evaluation.resume import SavedTask, UnfinishedEvaluation, UnfinishedTable
from vlmsafe.runs.checkpoint import path_of
from vlmsafe.runs.run import Run


def small_run(env, path):
    return train(env=env, total_steps=1200, steps_per_epoch=400, learner={"update_iters": 2}, run_dir=str(path),
                 quiet=True)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return small_run("speeding", tmp_path_factory.mktemp("runs") / "speeding")


@pytest.fixture
def run(trained, tmp_path):
    """A copy of its own for each test, without evaluations."""
    shutil.copytree(trained.path, tmp_path / "run", ignore=shutil.ignore_patterns("*.parquet", "*.partial-*"))
    return Run.open(tmp_path / "run")


def kept(run, name="held-out"):
    return sorted(run.evaluations.glob(f"{name}.partial-*/*-*.json"))


class Stopped(KeyboardInterrupt):
    pass


def interrupt(run, *arguments, after, **options):
    """Stop an evaluation once so many episodes are done."""

    def stop(done):
        if done >= after:
            raise Stopped

    with pytest.raises(Stopped):
        evaluate(run, *arguments, processes=1, on_episode=stop, **options)


@pytest.mark.parametrize(("env", "episodes"), [("speeding", 24), ("braking", 14)])
def test_evaluation_killed_and_started_again_equals_an_uninterrupted_one(env, episodes, tmp_path):
    run = small_run(env, tmp_path / "run")
    shutil.copytree(run.path, tmp_path / "whole")
    arguments = ["evaluate", run.path, "--episodes", episodes, "--processes", 2]
    command = [sys.executable, "-m", "vlmsafe", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 600.0
    while len(kept(run)) < 4:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.communicate()
    time.sleep(0.5)  # workers notice that they are alone
    done = len(kept(run))
    assert 4 <= done < episodes
    assert not (run.evaluations / "held-out.parquet").exists()
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert f"{done} of {episodes} episodes are already done" in " ".join(again.stderr.split())
    table = pl.read_parquet(run.evaluations / "held-out.parquet")
    assert table.equals(evaluate(tmp_path / "whole", episodes=episodes))
    assert [path.name for path in run.evaluations.iterdir()] == ["held-out.parquet"]


def test_only_missing_episodes_are_run(run):
    interrupt(run, episodes=6, after=4)
    progress = []
    table = evaluate(run, episodes=6, on_episode=progress.append)
    assert progress == [4, 5, 6]
    assert len(table) == 6
    assert not kept(run)


def test_asking_for_more_goes_on_from_the_table(run):
    whole = evaluate(run, episodes=7)
    small = evaluate(run, episodes=3, overwrite=True)
    assert small.equals(whole[:3])
    progress = []
    assert evaluate(run, episodes=7, on_episode=progress.append).equals(whole)
    assert progress == [3, 4, 5, 6, 7]
    notes = []
    assert evaluate(run, episodes=7, on_note=notes.append, on_episode=progress.append).equals(whole)
    assert progress[5:] == []
    assert "pass --overwrite" in notes[0]


def test_a_table_of_an_earlier_version_is_readable_and_replaced(run):
    whole = evaluate(run, episodes=3)
    path = run.evaluations / "held-out.parquet"
    whole[:2].drop("protocol", "deterministic", "fingerprint").write_parquet(path)
    progress, notes = [], []
    assert evaluate(run, episodes=3, on_episode=progress.append, on_note=notes.append).equals(whole)
    assert progress[0] == 0
    assert notes == [f"{path} was made with another checkpoint, setting or version; its episodes are run again"]


def test_episodes_of_another_checkpoint_are_not_mixed_in(run):
    interrupt(run, episodes=4, after=2)
    path_of(run.checkpoints, 3).unlink()
    notes, progress = [], []
    table = evaluate(run, episodes=4, on_note=notes.append, on_episode=progress.append)
    assert set(table["checkpoint_epoch"]) == {2}
    assert progress[0] == 0
    assert "another checkpoint" in notes[0]
    assert len(kept(run)) == 2
    assert evaluate(run, episodes=4, epoch=2)["cost"].equals(table["cost"])


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_longer_evaluation_of_an_older_checkpoint_is_not_replaced_without_a_note(run, overwrite):
    newest = path_of(run.checkpoints, 3)
    hidden = newest.rename(newest.with_suffix(".away"))
    older = evaluate(run, episodes=4)
    hidden.rename(newest)
    notes = []
    newer = evaluate(run, episodes=2, overwrite=overwrite, on_note=notes.append)
    path, aside = run.evaluation_path("held-out"), run.evaluation_path("held-out", 2)
    what = "they will not be kept" if overwrite else "they will be kept in held-out-epoch-00002.parquet"
    assert notes[0] == f"{path} holds 4 episodes of epoch 2, more than the 2 of epoch 3 that replace them; {what}"
    assert set(newer["checkpoint_epoch"]) == {3}
    assert pl.read_parquet(path).equals(newer)
    assert aside.exists() != overwrite
    if not overwrite:
        assert pl.read_parquet(aside).equals(older)
        progress = []
        again = evaluate(run, episodes=4, epoch=2, on_note=notes.append, on_episode=progress.append)
        assert progress == []  # it is the table that --epoch makes
        assert again.drop("run_finished").equals(older.drop("run_finished"))


def test_a_longer_evaluation_is_kept_unless_one_as_long_is_kept_already(run):
    def older(episodes):
        newest = path_of(run.checkpoints, 3)
        hidden = newest.rename(newest.with_suffix(".away"))
        evaluate(run, episodes=episodes, overwrite=True)
        hidden.rename(newest)

    notes, aside = [], run.evaluation_path("held-out", 2)
    for episodes, kept, what in ((3, 3, "will be kept in"), (2, 3, "will not be kept"), (4, 4, "will be kept in")):
        older(episodes)
        evaluate(run, episodes=1, on_note=notes.append)
        assert len(pl.read_parquet(aside)) == kept
        assert what in notes[-2]
    evaluate(run, episodes=1, on_note=notes.append)
    run.evaluation_path("held-out").write_bytes(b"rubbish")
    with pytest.raises(RunError, match="is damaged"):
        evaluate(run, episodes=1)
    assert len(evaluate(run, episodes=1, overwrite=True)) == 1


def test_episodes_that_share_a_simulator_begin_again_together(run, monkeypatch):
    shared = Protocol("shared", "one simulator", episodes=4, shared_simulator=True)
    monkeypatch.setitem(PROTOCOLS, "shared", shared)
    evaluate(run, "shared", episodes=2)
    progress = []
    whole = evaluate(run, "shared", on_episode=progress.append)
    assert progress == [0, 4]
    assert evaluate(run, "shared", overwrite=True).equals(whole)


def test_two_processes_do_not_evaluate_the_same_at_once(run):
    def second(done):
        evaluate(run, episodes=3)

    with pytest.raises(RunError, match="in use by another process"):
        evaluate(run, episodes=3, processes=1, on_episode=second)
    assert len(evaluate(run, episodes=3)) == 3


def test_a_damaged_file_is_named(run):
    interrupt(run, episodes=3, after=1)
    kept(run)[0].write_text("{")
    with pytest.raises(RunError, match=r"00000-00000\.json is damaged.*remove it"):
        evaluate(run, episodes=3)


def test_rows_are_written_by_the_worker_itself(tmp_path):
    class Rows:
        def run(self, env, tick):
            return [{"cost": 1.5, "arrived": None}]

    assert SavedTask(Rows(), tmp_path / "00000-00000.json").run(None, None) == [{"cost": 1.5, "arrived": None}]
    assert json.loads((tmp_path / "00000-00000.json").read_text()) == [{"cost": 1.5, "arrived": None}]


@pytest.mark.parametrize("finished", [False, True])
def test_an_attempt_leaves_a_folder_only_if_an_episode_is_finished(tmp_path, finished):
    plan = SimpleNamespace(identity={}, repeatable=True)
    with UnfinishedEvaluation(tmp_path / "held-out.parquet", plan) as unfinished:
        if finished:
            (unfinished.path / "00000-00000.json").write_text("[]")
    assert unfinished.path.exists() == finished


def test_a_name_with_the_characters_of_a_glob_stands_for_itself(tmp_path):
    unfinished = UnfinishedTable(tmp_path / "held[1]*.parquet", {})
    own, foreign = tmp_path / "held[1]*.partial-older", tmp_path / "held1-out.partial-older"
    for folder in (own, foreign):
        folder.mkdir()
    assert unfinished.others() == [own]
