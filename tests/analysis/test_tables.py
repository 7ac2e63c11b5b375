"""Runs are stacked under their names, and analysing them needs neither torch nor a simulator."""

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import vlmsafe.analysis
from vlmsafe.analysis.tables import episode_numbers, stacked
from vlmsafe.errors import InputError


def test_every_row_carries_its_arm_and_run_and_what_one_run_lacks_is_null():
    table = stacked(
        {
            "plain": {"1": pl.DataFrame({"cost": [1.0, 2.0]})},
            "shaped": {"1": pl.DataFrame({"cost": [3], "path": [4.0]}), "2": pl.DataFrame({"cost": [5.0]})},
        }
    )
    assert table.columns == ["arm", "run", "cost", "path"]
    assert table.rows() == [
        ("plain", "1", 1.0, None), ("plain", "1", 2.0, None), ("shaped", "1", 3.0, 4.0), ("shaped", "2", 5.0, None),
    ]  # fmt: skip
    with pytest.raises(InputError, match="at least one run"):
        stacked({"plain": {}})


def test_equal_episode_numbers_of_different_runs_are_different_episodes():
    steps = pl.DataFrame({"episode": [0, 0, 1], "step": [1, 2, 1]})
    table = stacked({"a": {"1": steps, "2": steps}, "b": {"2": steps}})
    assert episode_numbers(table, "test").tolist() == [0, 0, 1, 2, 2, 3, 4, 4, 5]


def test_analysis_imports_neither_torch_nor_a_simulator():
    modules = [path.stem for path in Path(vlmsafe.analysis.__file__).parent.glob("*.py") if path.stem != "__init__"]
    assert len(modules) >= 8
    heavy = ("torch", "transformers", "metadrive", "mujoco", "pybullet")
    code = f"import sys, importlib; [importlib.import_module('vlmsafe.analysis.' + m) for m in {modules}]; "
    code += f"print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
