"""The source behind a module is found by a rule, and whatever the rule covers changes its hash."""

import functools
import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

from vlmsafe.envs.gym import source_hash
from vlmsafe.envs.registry import env_spec
from vlmsafe.io.source import SourceHash, git_revision, hash_source, loaded_files, stale_files, unchanged, unseen_files


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Writes files of a project whose folder is on the Python path, and returns that folder."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(**files: str) -> Path:
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__', '/').replace('/init', '/__init__')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def test_a_module_counts_with_what_it_imports_from_the_users_files_and_with_nothing_else(project):
    folder = project(
        sea="import numpy, json, sea_rules\nimport vlmsafe\n",
        sea_rules="def f():\n    from sea_depth import depth\n",
        sea_depth="depth = 1\n",
        sea_notes="",
    )
    before = hash_source(["sea"])
    assert list(before.files) == ["sea.py", "sea_rules.py", "sea_depth.py"]
    (folder / "sea_notes.py").write_text("x = 1")
    assert hash_source(["sea"]) == before
    (folder / "sea_depth.py").write_text("depth = 2")
    after = hash_source(["sea"])
    assert after.digest != before.digest
    assert before.changes(after) == "sea_depth.py"


def test_a_module_of_a_package_counts_with_the_package_and_the_packages_around_it(project):
    folder = project(
        lab__init="",
        lab__worlds__init="",
        lab__worlds__pond="from ..tools import depth\nfrom . import reef\n",
        lab__worlds__reef="",
        lab__worlds__unused="",
        lab__tools__init="",
        lab__tools__depth="",
        lab__tools__other="",
    )
    (folder / "lab" / "worlds" / "boat.xml").write_text("<mujoco/>")
    (folder / "lab" / "worlds" / "notes.txt").write_text("")
    inside = {"__init__.py", "pond.py", "reef.py", "unused.py", "boat.xml"}
    around = {"lab/__init__.py", "lab/tools/__init__.py", "lab/tools/depth.py"}
    assert set(hash_source(["lab.worlds.pond"]).files) == {f"lab/worlds/{name}" for name in inside} | around
    assert "lab/tools/other.py" in hash_source(["lab"]).files


@pytest.mark.parametrize(
    "text",
    [
        "import gymnasium\ngymnasium.register('Brook-v0', entry_point='brook_env:Brook')",
        "import importlib\nimportlib.import_module('brook_env')",
        "from brook_env import *",
        "try:\n    import brook_env\nexcept ImportError:\n    pass",
    ],
)
def test_modules_that_are_named_in_another_way_count_too(project, text):
    project(brook=text, brook_env="")
    assert list(hash_source(["brook"]).files) == ["brook.py", "brook_env.py"]


def test_the_hash_depends_neither_on_the_place_of_a_project_nor_on_its_line_ends(project, tmp_path, monkeypatch):
    folder = project(hill__init="", hill__top="x = 1\ny = 2\n")
    before = hash_source(["hill.top"])
    shutil.move(folder / "hill", tmp_path / "elsewhere" / "hill")
    (tmp_path / "elsewhere" / "hill" / "top.py").write_bytes(b"x = 1\r\ny = 2\r\n")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    assert hash_source(["hill.top"]) == before


def test_an_installed_module_counts_as_its_whole_package():
    found = hash_source(["gymnasium.envs.classic_control"])
    assert list(found.files) == ["gymnasium/"]
    assert found == hash_source(["gymnasium"])


def test_a_folder_without_init_in_a_package_counts_with_it(project):
    project(spruce__init="from spruce.needles.green import tip\n", spruce__needles__green__tip="LENGTH = 1\n")
    project(asks="from spruce.needles.green import tip\n")
    assert set(hash_source(["asks"]).files) == {"asks.py", "spruce/__init__.py", "spruce/needles/green/tip.py"}
    assert set(hash_source(["spruce"]).files) == {"spruce/__init__.py", "spruce/needles/green/tip.py"}


def test_a_large_package_is_one_entry(project):
    folder = project(city__init="import city_law", city_law="", **{f"city__house{i}": "" for i in range(101)})
    before = hash_source(["city"])
    assert list(before.files) == ["city/", "city_law.py"]
    (folder / "city" / "house7.py").write_text("x = 1")
    assert before.changes(hash_source(["city"])) == "city/"


def test_source_that_cannot_be_had_says_why(project):
    project(wood__tree="")
    assert hash_source(["nowhere"]).unknown == "the module 'nowhere' cannot be found"
    assert hash_source(["sys"]).unknown == "the module 'sys' has no file of its own"
    assert "a folder without __init__.py" in hash_source(["wood"]).unknown
    assert list(hash_source(["wood.tree"]).files) == ["wood/tree.py"]
    assert hash_source(["nowhere"]).digest is None


def test_a_file_that_python_cannot_read_counts_and_is_not_followed(project):
    project(bent__init="import bent_rules", bent__template="import {name}\ndef f(:", bent_rules="")
    assert set(hash_source(["bent"]).files) == {"bent/__init__.py", "bent/template.py", "bent_rules.py"}


def test_stamps_say_quickly_whether_anything_may_have_changed(project):
    folder = project(dune__init="import dune_rules", dune__sand="", dune_rules="x = 1")
    seen = hash_source(["dune"]).seen
    assert unchanged(seen)
    assert not unchanged({})  # nothing is known
    for change in ("dune_rules.py", "dune/sand.py", "dune/new.py", "dune_rules/__init__.py"):
        (folder / change).parent.mkdir(exist_ok=True)
        (folder / change).write_text("x = 2  # other")
        assert not unchanged(seen), change
        seen = hash_source(["dune"]).seen
        assert unchanged(seen)


def test_a_record_gives_the_source_back_and_a_damaged_one_gives_none(project):
    project(lake="")
    for source in (hash_source(["lake"], revision=True), hash_source(["nowhere"])):
        assert SourceHash.from_dict(source.to_dict()) == source
    assert SourceHash.from_dict({"digest": "1234"}).unknown == "its record is incomplete"


def test_changes_name_what_is_new_and_gone_and_at_most_three_files():
    before, after = SourceHash({"a.py": "1", "b.py": "1"}), SourceHash({"b.py": "1", "c.py": "1"})
    assert before.changes(after) == "a.py (gone), c.py (new)"
    assert SourceHash({}).changes(SourceHash(dict.fromkeys("abcde", "1"))) == "a (new), b (new), c (new), 2 more"


def test_the_users_revision_is_dirty_if_a_tracked_file_changed_or_a_hashed_one_is_not_tracked(project):
    folder = project(moor="import moor_rules", moor_rules="")

    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)

    assert hash_source(["moor"], revision=True).revision is None
    git("init", "-q")
    assert hash_source(["moor"], revision=True).revision is None  # no commit
    git("add", "moor.py")
    git("commit", "-qm", "first")
    clean = git_revision(str(folder))
    assert clean is not None
    assert len(clean) == 40
    assert hash_source(["moor"], revision=True).revision == f"{clean}-dirty"  # moor_rules.py is not tracked
    git("add", "-A")
    git("commit", "-qm", "second")
    clean = git_revision(str(folder))
    (folder / "notes.txt").write_text("not part of the code")
    assert hash_source(["moor"], revision=True).revision == clean
    (folder / "moor_rules.py").write_text("x = 1")
    assert hash_source(["moor"], revision=True).revision == f"{clean}-dirty"


def test_loaded_files_that_the_rule_did_not_reach_are_named(project):
    folder = project(
        fjord="import importlib, sys, pathlib, json\nimportlib.import_module('fjord' + '_hidden')\n"
        "sys.path.insert(0, str(pathlib.Path(__file__).parent / 'lib'))\nimport fjord_rules",
        fjord_hidden="",
    )
    (folder / "lib").mkdir()
    (folder / "lib" / "fjord_rules.py").write_text("")
    source, before, path = hash_source(["fjord"]), frozenset(sys.modules), list(sys.path)
    try:
        importlib.import_module("fjord")
        assert unseen_files(loaded_files(before), source) == ["fjord_hidden.py", "fjord_rules.py"]
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            del sys.modules[name]


def test_a_file_that_was_changed_after_its_import_is_stale(project, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    folder = project(skerry="x = 1")
    assert stale_files(hash_source(["skerry"])) == []  # never imported
    importlib.import_module("skerry")
    try:
        assert stale_files(hash_source(["skerry"])) == []
        (folder / "skerry.py").write_text("x = 1.5")
        assert stale_files(hash_source(["skerry"])) == ["skerry.py"]
    finally:
        del sys.modules["skerry"]


@pytest.mark.parametrize("kind", ["text", "class", "function", "partial"])
def test_an_id_without_a_module_has_the_source_of_its_entry_point_and_its_wrappers(project, kind):
    project(bay="class Bay: ...\ndef make(): ...\n", bay_wrapper="class Wrapper: ...\n")
    module = importlib.import_module("bay")
    entry_points = {
        "text": "bay:Bay", "class": module.Bay, "function": module.make, "partial": functools.partial(module.make),
    }  # fmt: skip
    wrapper = gymnasium.envs.registration.WrapperSpec("Wrapper", "bay_wrapper:Wrapper", {})
    gymnasium.register("Bay-v0", entry_point=entry_points[kind], additional_wrappers=(wrapper,))
    try:
        assert list(source_hash(env_spec("gym:Bay-v0"), False).files) == ["bay.py", "bay_wrapper.py"]
    finally:
        del gymnasium.registry["Bay-v0"]
    assert "'Bay-v0' is not registered" in source_hash(env_spec("gym:Bay-v0"), False).unknown


def test_environments_of_this_package_have_no_source_of_the_users():
    assert env_spec("speeding").source_hash() is None
