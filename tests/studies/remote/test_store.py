"""Runs kept at a URL: a copy that is cut off leaves the run as it was, and a study there equals a local one."""

import os
import shutil
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
from vlmsafe.io.files import read_rows
from vlmsafe.runs.run import Run
from vlmsafe.studies.execute import execute
from vlmsafe.studies.journal import JOURNAL
from vlmsafe.studies.launch.local import LocalLauncher
from vlmsafe.studies.remote.run_side import main as remote_run
from vlmsafe.studies.remote.store import Store, Taken, Tree, is_url
from vlmsafe.studies.schema import parse_study

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
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


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
    there = write(tmp_path / "there", lock="7")
    assert fetched(tree, there) == expected | {"lock": "7"}  # a lock is a machine's own
    (here / "checkpoints" / "one").unlink()
    write(here, epochs_jsonl="row\n")
    tree.store(here, "me")
    del expected["checkpoints/one"]
    assert fetched(tree, tmp_path / "again") == expected | {"epochs.jsonl": "row\n"}
    assert fetched(tree, there) == expected | {"epochs.jsonl": "row\n", "lock": "7"}


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
    tree.claim("other")
    tree.store(write(here, events_jsonl="1\n"), "other")  # what was cut off leaves no rubbish for ever
    after = content(here)
    assert fetched(tree, tmp_path / "last") == after
    objects = [path for path in fs.find("/tests") if "/objects/" in path]
    assert len(objects) <= len(set(before.values()) | set(after.values()))


@pytest.mark.parametrize("local", [{"config_yaml": "b"}, {"evaluations__x": "mine"}, {"checkpoints__one": "newer"}])
def test_work_that_is_not_from_the_store_is_never_overwritten_or_removed(tree, tmp_path, local):
    tree.store(write(tmp_path / "here", config_yaml="a", checkpoints__one="1"), "me")
    stranger, copy = write(tmp_path / "stranger", **local), tmp_path / "copy"
    tree.fetch(copy)
    for folder in (stranger, write(copy, **local)):
        before = content(folder)
        with pytest.raises(InputError, match=r"is not a copy of memory://.*; choose another --root"):
            tree.fetch(folder)
        assert content(folder) == before


def test_a_copy_of_another_store_is_not_one_of_this(tree, tmp_path):
    other = Store("memory://tests/other").tree("env/arm/seed-1")
    other.store(write(tmp_path / "here", config_yaml="a"), "me")
    tree.store(write(tmp_path / "there", config_yaml="b"), "me")
    other.fetch(tmp_path / "copy")
    with pytest.raises(InputError, match="not a copy of memory://tests/study"):
        tree.fetch(tmp_path / "copy")


def test_a_run_that_was_claimed_and_never_copied_takes_nothing_from_a_folder(tree, tmp_path):
    here = write(tmp_path / "here", config_yaml="a")
    tree.claim("me")
    assert not tree.fetch(here)
    assert content(here) == {"config.yaml": "a"}


def test_a_fetch_that_is_cut_off_can_be_done_again_after_the_store_went_on(tree, tmp_path, monkeypatch):
    here, copy = write(tmp_path / "here", a="1", b="1"), tmp_path / "copy"
    tree.store(here, "me")
    tree.fetch(copy)
    tree.store(write(here, a="2", b="2"), "me")
    real, calls = Tree._fetch_file, []

    def once(self, digest, path):
        calls.append(path)
        if len(calls) > 1:
            raise KeyboardInterrupt
        real(self, digest, path)

    with monkeypatch.context() as patch:
        patch.setattr(Tree, "_fetch_file", once)
        with pytest.raises(KeyboardInterrupt):
            tree.fetch(copy)
    tree.store(write(here, a="3", b="3"), "me")
    assert fetched(tree, copy) == {"a": "3", "b": "3"}


def test_what_a_study_noted_and_could_not_copy_stays_unless_another_machine_went_on(tmp_path):
    store, here, there = Store(f"file://{tmp_path}/store"), tmp_path / "here", tmp_path / "there"
    store.store_study(write(here, journal_jsonl="1\n", logs__a_log="x"))
    store.fetch_study(there)
    assert content(there) == content(here)
    write(here, journal_jsonl="1\n2\n", logs__b_log="y")
    store.fetch_study(here)
    assert content(here) == {"journal.jsonl": "1\n2\n", "logs/a.log": "x", "logs/b.log": "y"}
    store.store_study(write(there, journal_jsonl="1\n3\n"))
    store.fetch_study(here)
    assert content(here) == {"journal.jsonl": "1\n3\n", "logs/a.log": "x", "logs/b.log": "y"}
    with pytest.raises(InputError, match="not a copy"):
        store.fetch_study(write(tmp_path / "stranger", journal_jsonl="9\n"))


def test_a_scoring_service_that_was_started_before_is_in_no_fetchs_way(tmp_path):
    store = Store(f"file://{tmp_path}/store")
    store.store_study(write(tmp_path / "here", journal_jsonl="1\n", logs__scorer_log="one machine"))
    there = write(tmp_path / "there", logs__scorer_log="another")
    store.fetch_study(there)
    assert content(there) == {"journal.jsonl": "1\n", "logs/scorer.log": "another"}


def test_only_what_is_asked_for_is_fetched(tmp_path):
    store = Store(f"file://{tmp_path}/store")
    store.store_study(write(tmp_path / "here", configs__a_yaml="a", configs__b_yaml="b", logs__a_log="x"))
    store.tree("study").fetch(tmp_path / "there", ["configs/a.yaml"])
    assert content(tmp_path / "there") == {"configs/a.yaml": "a"}


def test_checkpoints_are_copied_before_the_rows_they_need(tree, tmp_path, monkeypatch):
    here = write(tmp_path / "here", checkpoints__last="1", epochs_jsonl="1\n")
    real = Tree._add

    def add(self, *arguments):
        real(self, *arguments)
        write(here, epochs_jsonl="1\n2\n", checkpoints__last="2")  # the run goes on meanwhile

    monkeypatch.setattr(Tree, "_add", add)
    tree.store(here, "me")
    there = fetched(tree, tmp_path / "there")
    assert len(there["epochs.jsonl"].split()) >= int(there["checkpoints/last"])


# -- several at a time --


def meanwhile(monkeypatch, name: str, action, *, after: bool = True) -> None:
    """Let something happen once, at the end of a method of a tree or before it."""
    real, calls = getattr(Tree, name), []

    def method(self, *arguments):
        calls.append(name)
        if len(calls) > 1:
            return real(self, *arguments)
        if after:
            result = real(self, *arguments)
            action()
            return result
        action()
        return real(self, *arguments)

    monkeypatch.setattr(Tree, name, method)


@pytest.mark.parametrize(("method", "after"), [("_add_files", False), ("_add_files", True), ("_write", False)])
@pytest.mark.parametrize(("old", "new"), [("ffff", "aaaa"), ("aaaa", "ffff")])
@pytest.mark.parametrize("copies", [True, False])
def test_a_run_that_is_claimed_while_it_is_copied_stays_readable_and_the_claimers(
    tree, tmp_path, monkeypatch, method, after, old, new, copies
):
    here = write(tmp_path / "here", config_yaml="a", epochs_jsonl="1\n")
    tree.claim(old)
    tree.store(here, old)
    there = tmp_path / "there"

    def claim() -> None:
        tree.claim(new)
        tree.fetch(there)
        if copies:
            tree.store(write(there, events_jsonl="resumed\n"), new)

    meanwhile(monkeypatch, method, claim, after=after)
    write(here, epochs_jsonl="1\n2\n")
    with pytest.raises(Taken):
        tree.store(here, old)
    with pytest.raises(Taken):
        tree.store(here, old)
    assert fetched(tree, tmp_path / "third") == content(there)
    tree.store(write(there, epochs_jsonl="1\n2\n"), new)
    assert fetched(tree, tmp_path / "fourth") == content(there)
    tree.claim("0000")
    assert fetched(tree, tmp_path / "fifth") == content(there)


def test_a_process_whose_run_is_claimed_while_it_copies_does_not_even_write_its_list(tree, tmp_path, monkeypatch):
    here = write(tmp_path / "here", config_yaml="a")
    tree.claim("old")
    meanwhile(monkeypatch, "_add_files", lambda: tree.claim("new"))
    real, written = Tree._write, []

    def note(self, path, data):
        written.append(path.rpartition("-")[2])
        real(self, path, data)

    monkeypatch.setattr(Tree, "_write", note)
    with pytest.raises(Taken):
        tree.store(here, "old")
    assert written == ["new.json"]


@pytest.mark.parametrize(("old", "new"), [("ffff", "aaaa"), ("aaaa", "ffff")])
def test_a_claim_beside_a_copy_that_just_ends_wins(tree, tmp_path, monkeypatch, old, new):
    here = write(tmp_path / "here", config_yaml="a")
    tree.claim(old)
    meanwhile(monkeypatch, "_write", lambda: tree.store(here, old), after=False)
    tree.claim(new)
    assert tree.newest().owner == new
    with pytest.raises(Taken):
        tree.store(write(here, config_yaml="b"), old)
    tree.store(write(tmp_path / "there", config_yaml="c"), new)
    assert fetched(tree, tmp_path / "third") == {"config.yaml": "c"}


def test_a_tree_may_be_read_while_it_is_written(tree, tmp_path, monkeypatch):
    here = write(tmp_path / "here", epochs_jsonl="1\n", events_jsonl="x")
    tree.store(here, "me")

    def go_on() -> None:
        for number in (2, 3, 4):
            tree.store(write(here, epochs_jsonl=f"{number}\n"), "me")

    meanwhile(monkeypatch, "_fetch_file", go_on, after=False)
    assert fetched(tree, tmp_path / "there") == content(here)


def remove_object(text: str) -> None:
    fs = fsspec.filesystem("memory")
    fs.rm_file(next(path for path in fs.find("/tests") if "/objects/" in path and fs.cat_file(path) == text.encode()))


def test_a_list_of_which_something_is_lost_gives_way_to_the_one_before_and_the_next_copy_heals_it(tree, tmp_path):
    here = write(tmp_path / "here", config_yaml="a", epochs_jsonl="1\n")
    tree.store(here, "me")
    tree.store(write(here, epochs_jsonl="1\n2\n"), "me")
    remove_object("1\n2\n")
    assert fetched(tree, tmp_path / "there") == {"config.yaml": "a", "epochs.jsonl": "1\n"}
    tree.store(here, "me")
    assert fetched(tree, tmp_path / "there") == content(here)
    remove_object("a")
    with pytest.raises(RunError, match=r"^memory://tests/study/env/arm/seed-1 is damaged: the object"):
        tree.fetch(tmp_path / "third")


def damage_object(text: str) -> None:
    fs = fsspec.filesystem("memory")
    for path in fs.find("/tests"):
        if "/objects/" in path and fs.cat_file(path) == text.encode():
            fs.pipe_file(path, b"rubbish")


def test_a_damaged_object_gives_way_to_the_copy_before_with_a_note_and_the_next_copy_heals_it(tree, tmp_path, capsys):
    here = write(tmp_path / "here", config_yaml="a", epochs_jsonl="1\n")
    tree.store(here, "me")
    tree.store(write(here, epochs_jsonl="1\n2\n"), "me")
    damage_object("1\n2\n")
    there = tmp_path / "there"
    assert fetched(tree, there) == {"config.yaml": "a", "epochs.jsonl": "1\n"}
    assert "epochs.jsonl is not what was stored; the copy before it is used" in capsys.readouterr().err
    # The run goes on from there and writes the same content again, which replaces the damaged object.
    tree.store(write(there, epochs_jsonl="1\n2\n"), "me")
    assert fetched(tree, tmp_path / "third") == content(there)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("stray", [".DS_Store", "notes.txt", "12.json", "backup/00000009-me.json"])
@pytest.mark.parametrize("folder", ["lists", "objects"])
def test_a_stray_name_in_the_store_is_no_error_and_stays(tree, tmp_path, folder, stray):
    here = write(tmp_path / "here", config_yaml="a")
    fs = fsspec.filesystem("memory")
    path = f"/tests/study/env/arm/seed-1/{folder}/{stray}"
    fs.pipe_file(path, b"stray")
    assert tree.newest() is None
    tree.claim("me")
    for text in ("a", "b", "c", "d"):
        tree.store(write(here, config_yaml=text), "me")
    assert fetched(tree, tmp_path / "there") == {"config.yaml": "d"}
    assert fs.cat_file(path) == b"stray"


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
    assert is_url("S3://bucket/x")
    assert not is_url("/tmp/x")
    assert Store("FILE:///tmp/x/").url == "file:///tmp/x"
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
    code = f"from vlmsafe.studies.remote.run_side import main; main({store.url!r}, {spec.name!r}, {words!r})"
    # What it leaves behind is the next one's to remove, and here the test's.
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env=environment)
    tree, deadline = store.tree(spec.name), time.monotonic() + 600.0

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
    Run.open(shutil.copytree(spec.path, tmp_path / "restored")).restore()  # nothing is missing; it cuts rows off
    # What was copied goes on where it stopped, and is copied at the end.
    assert remote_run(store.url, spec.name, ["evaluate", "@run", "--protocol", "held-out", "--episodes", "2"]) == 0
    assert tree.fetch(spec.path)
    assert pl.read_parquet(spec.path / "evaluations" / "held-out.parquet")["checkpoint_epoch"][0] == begun
