"""A name after @ means one interpreter, and one that means none says what to do."""

import sys
from pathlib import Path

import pytest

from vlmsafe.envs.bridge.interpreters import Interpreter, find_interpreter
from vlmsafe.errors import InputError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VLMSAFE_INTERPRETERS", raising=False)
    return tmp_path


def test_a_path_and_a_virtual_environments_folder_mean_the_same(folder):
    (folder / "venv/bin").mkdir(parents=True)
    (folder / "venv/bin/python").symlink_to(sys.executable)
    python = folder / "venv/bin/python"
    assert find_interpreter(str(python)) == find_interpreter("./venv") == Interpreter(python), "its link is kept"


def test_only_a_python_is_run_from_the_path(folder):
    with pytest.raises(InputError, match="'cat' is neither an interpreter on the PATH nor an entry"):
        find_interpreter("cat")


def test_a_command_is_found_on_the_path():
    assert find_interpreter("python3").python.name == "python3"


def test_an_entry_has_folders_and_variables_beside_its_file(folder, monkeypatch):
    (folder / "sources").mkdir()
    (folder / "interpreters.yaml").write_text(
        f"old: {{python: {sys.executable}, path: [sources], variables: {{MUJOCO_GL: egl, N: 1}}}}\n"
        f"short: {sys.executable}\n"
    )
    expected = Interpreter(Path(sys.executable), (folder / "sources",), {"MUJOCO_GL": "egl", "N": "1"})
    assert find_interpreter("old") == expected
    assert find_interpreter("short").python == Path(sys.executable)
    monkeypatch.chdir("/")
    monkeypatch.setenv("VLMSAFE_INTERPRETERS", str(folder / "interpreters.yaml"))
    assert find_interpreter("old") == expected


def test_an_entry_says_where_a_path_of_before_is_now(folder):
    with pytest.raises(InputError, match=r'add to interpreters.yaml: "/gone/python": \{python: NEW PATH\}'):
        find_interpreter("/gone/python")
    (folder / "interpreters.yaml").write_text(f'"/gone/python": {{python: {sys.executable}}}\n')
    assert find_interpreter("/gone/python").python == Path(sys.executable)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("old: {pyton: /bin/sh}", "expected python: PATH"),
        ("old: {python: /bin/sh, more: 1}", "expected python: PATH"),
        ("old: {python: /bin/sh, path: sources}", "path is a list of folders"),
        ("old: {python: /bin/sh, path: [nowhere]}", "there is no such folder"),
        ("old: {python: /no/python}", "there is no interpreter at '/no/python'"),
        ("- old", "expected names with an entry each"),
        ("old: {python: [", "not valid YAML"),
        ("new: {python: /bin/sh}", "neither an interpreter on the PATH nor an entry of interpreters.yaml.* has new"),
    ],
)
def test_a_wrong_entry_is_one_line(folder, text, reason):
    (folder / "interpreters.yaml").write_text(text)
    with pytest.raises(InputError, match=reason) as caught:
        find_interpreter("old")
    assert "\n" not in str(caught.value)
