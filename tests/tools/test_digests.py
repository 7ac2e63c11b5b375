"""The comparison of digests takes no failure for a missing package, and does not pass with nothing compared."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

_TOOL = Path(__file__).parents[2] / "tools" / "digests.py"
_SPEC = importlib.util.spec_from_file_location("digests", _TOOL)
tool = sys.modules[_SPEC.name] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tool)


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        (
            "error: environment 'x' needs the Python package 'mujoco', which is not installed; install it with: pip",
            True,
        ),
        ("error: FormulaOne cannot draw frames here: MuJoCo has no OpenGL", True),
        ("Traceback (most recent call last):\nModuleNotFoundError: No module named 'torch'\n", True),
        ("error: cannot import the scorer 'python:a:B'; put its folder on PYTHONPATH, or install it", False),
        ("FileNotFoundError: /home/me/install/numbers", False),
    ],
)
def test_only_a_missing_package_leaves_a_run_out(said, missing, monkeypatch):
    answer = subprocess.CompletedProcess([], 1, "", said)
    monkeypatch.setattr(tool.subprocess, "run", lambda *words, **named: answer)
    if missing:
        assert tool.digest_of("--env x", {}, "baseline") is None
    else:
        with pytest.raises(SystemExit, match="failed:\n"):
            tool.digest_of("--env x", {}, "baseline")


@pytest.mark.parametrize(
    ("here", "good"),
    [({"a": "1", "b": None}, True), ({"a": "2"}, False), ({"b": "1", "c": "1"}, False), ({}, False)],
)
def test_equal_digests_pass_and_different_or_no_digests_fail(here, good, tmp_path):
    there = {"machine": {"processor": "another", "packages": {}}, "digests": {"a": "1", "b": None}}
    (tmp_path / "there.json").write_text(json.dumps(there))
    assert tool.compare(here, tmp_path / "there.json") is good
