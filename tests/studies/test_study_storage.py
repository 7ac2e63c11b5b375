"""Runs kept at a URL: a copy that is cut off leaves the run as it was, and a study there equals a local one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import polars as pl
import pytest
from in_process import InProcess

from vlmsafe.cli import main
from vlmsafe.errors import InputError, RunError
from vlmsafe.studies.execution import JOURNAL, execute
from vlmsafe.studies.launchers import LocalLauncher
from vlmsafe.studies.remote_run import main as remote_run
from vlmsafe.studies.storage import Store, Taken, Tree, is_url
from vlmsafe.studies.study_yaml import parse_study
from vlmsafe.training.files import read_rows
from vlmsafe.training.run import Run

STUDY = """\
name: speeding
question: Does the oracle lower the cost?
environments: [speeding]
seeds: [1]
total_steps: 2000
settings: {steps_per_epoch: 400, learner.update_iters: 2}
arms:
  ppo-lag: {method: ppo-lag}
  oracle: {method: vlm-ppo-lag, settings: {signal.scorer: oracle}}
protocols: [{protocol: held-out, episodes: 2}]
"""


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def tree():
    store = Store("memory://tests/study")
    yield store.tree("env/arm/seed-1")
    fs = fsspec.filesystem("memory")
    fs.rm("/tests", recursive=True)


def fetched(tree: Tree, folder: Path) -> dict[str, str]:
    assert tree.fetch(folder)
    return content(folder)


def test_what_is_fetched_is_what_was_stored_and_nothing_else(tree, tmp_path):
    assert not tree.fetch(tmp_path / "nothing")
    here = write(tmp_path / "here", config_yaml="a", checkpoints__one="1", lock="9", checkpoints__two="2")
    tree.store(here, "me")
    expected = {"config.yaml": "a", "checkpoints/one": "1", "checkpoints/two": "2"}
    there = write(tmp_path / "there", config_yaml="other", leftover="x", lock="7")
    assert fetched(tree, there) == expected | {"lock": "7"}  # a lock is a machine's own
    (here / "checkpoints" / "one").unlink()
    write(here, epochs_jsonl="row\n")
    tree.store(here, "me")
    del expected["checkpoints/one"]
    assert fetched(tree, tmp_path / "again") == expected | {"epochs.jsonl": "row\n"}


def test_a_copy_that_is_cut_off_anywhere_leaves_the_run_as_it_was_before(tree, tmp_path, monkeypatch):
    here = write(tmp_path / "here", config_yaml="a", epochs_jsonl="1\n", checkpoints__one="1")
    tree.store(here, "me")
    before = fetched(tree, tmp_path / "before")
    write(here, epochs_jsonl="1\n2\n", checkpoints__two="2")
    (here / "checkpoints" / "one").unlink()
    after = content(here)
    fs = fsspec.filesystem("memory")
    writes, opens, removals, seen = fs.pipe_file, fs.open, fs.rm_file, []

    class CutOff(BaseException):
        pass

    def cut(number: int):
        count = 0

        def due() -> bool:
            nonlocal count
            count += 1
            return count == number

        def pipe_file(path, data, **options):
            if due():
                writes(path, data[: len(data) // 2], **options)
                raise CutOff
            writes(path, data, **options)

        def open_file(path, mode="rb", **options):
            if mode == "wb" and due():
                writes(path, b"half")
                raise CutOff
            return opens(path, mode, **options)

        def rm_file(path):
            if due():
                raise CutOff
            removals(path)

        return {"pipe_file": pipe_file, "open": open_file, "rm_file": rm_file}

    for number in range(1, 50):
        with monkeypatch.context() as patch:
            for name, function in cut(number).items():
                patch.setattr(type(fs), name, staticmethod(function))
            try:
                tree.store(here, "me")
                finished = True
            except CutOff:
                finished = False
        seen.append(fetched(tree, tmp_path / f"cut-{number}"))
        assert seen[-1] in (before, after)
        if finished:
            break
    assert finished
    assert seen[0] == before
    assert seen[-1] == after
    assert len(seen) > 3
    tree.claim("other")  # what was cut off leaves no rubbish for ever
    assert fetched(tree, tmp_path / "last") == after
    objects = [path for path in fs.find("/tests") if "/objects/" in path]
    assert len(objects) <= len(set(before.values()) | set(after.values()))


def test_old_objects_are_removed(tree, tmp_path):
    here = tmp_path / "here"
    for number in range(10):
        tree.store(write(here, epochs_jsonl=f"{number}\n"), "me")
    paths = fsspec.filesystem("memory").find("/tests")
    assert len([path for path in paths if "/objects/" in path]) == 2
    assert len([path for path in paths if "/lists/" in path]) == 2


def test_a_process_whose_run_was_given_to_another_copies_nothing_any_more(tree, tmp_path):
    here = write(tmp_path / "here", config_yaml="a")
    tree.claim("first")
    tree.store(here, "first")
    tree.claim("second")
    write(here, config_yaml="b")
    with pytest.raises(Taken, match="worked on by another process now"):
        tree.store(here, "first")
    assert fetched(tree, tmp_path / "there") == {"config.yaml": "a"}


def test_a_damaged_object_is_noticed(tree, tmp_path):
    tree.store(write(tmp_path / "here", config_yaml="a"), "me")
    fs = fsspec.filesystem("memory")
    (path,) = (path for path in fs.find("/tests") if "/objects/" in path)
    fs.pipe_file(path, b"b")
    with pytest.raises(RunError, match="damaged"):
        tree.fetch(tmp_path / "there")


def test_urls_are_told_from_folders_and_unknown_ones_refused():
    assert is_url("file:///tmp/x")
    assert not is_url("/tmp/x")
    with pytest.raises(InputError, match="cannot use 'nonsense://x' to keep runs"):
        Store("nonsense://x")


def test_a_study_at_a_url_equals_a_local_one_and_goes_on_from_any_machine(tmp_path, monkeypatch, capsys):
    study = parse_study(STUDY, "speeding.yaml")
    whole, first = tmp_path / "whole" / "speeding", tmp_path / "first" / "speeding"
    assert len(execute(study, whole, InProcess()).done) == 2
    store = Store(f"file://{tmp_path}/store")
    outcome = execute(study, first, LocalLauncher(cores=2), store=store)
    assert not outcome.failed
    assert len(outcome.done) == 2
    # Another machine, which has nothing yet, finds everything done.
    (tmp_path / "speeding.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    main(["study", "run", "speeding.yaml", "--dir", store.url, "--root", "second"])
    assert "finished: 2 runs" in capsys.readouterr().out
    second = tmp_path / "second" / "speeding"
    assert len([row for row in read_rows(second / JOURNAL) if row["what"] == "began"]) == 4
    for spec, reference in zip(study.expand(second), study.expand(whole), strict=True):
        for record in ("epochs.jsonl", "episodes.jsonl"):
            assert (spec.path / record).read_bytes() == (reference.path / record).read_bytes()
        tables = [pl.read_parquet(path / "evaluations" / "held-out.parquet") for path in (spec.path, reference.path)]
        assert tables[0].equals(tables[1])
        assert "finished" in (second / "logs" / f"{spec.name}.log").read_text()


def test_a_run_that_is_killed_with_its_machine_goes_on_from_the_last_copy(tmp_path):
    study = parse_study(STUDY.replace("2000", "80000"), "speeding.yaml")
    store, spec = Store(f"file://{tmp_path}/store"), study.expand(tmp_path / "here")[0]
    words = ["train", "--env", "speeding", "--method", "ppo-lag", "--seed", "1", "--total-steps", "80000"]
    words += ["--steps-per-epoch", "400", "--learner.update-iters", "2", "--run-dir", "@run", "--quiet"]
    code = f"import sys; from vlmsafe.studies.remote_run import main; main({store.url!r}, {spec.name!r}, {words!r})"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    tree, deadline = store.tree(spec.name), time.monotonic() + 60

    def copied() -> bool:
        listing = tree.newest()
        return listing is not None and any(
            name >= "checkpoints/epoch-00003" for name in listing.files if name.startswith("checkpoints/")
        )

    while not copied():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert tree.fetch(spec.path)
    run = Run.open(spec.path)
    begun = run.epochs_done()
    assert 3 <= begun < 200
    run.restore()  # nothing is missing
    # What was copied goes on where it stopped, and is copied at the end.
    assert remote_run(store.url, spec.name, ["evaluate", "@run", "--protocol", "held-out", "--episodes", "2"]) == 0
    assert tree.fetch(spec.path)
    assert pl.read_parquet(spec.path / "evaluations" / "held-out.parquet")["checkpoint_epoch"][0] == begun
