"""Our FormulaOne is as close to the original as benchmarks/formula_one.py allows it to differ."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("mujoco")

_SCRIPT = Path(__file__).parents[3] / "benchmarks" / "formula_one.py"
_SPEC = importlib.util.spec_from_file_location("compare_formula_one", _SCRIPT)
script = sys.modules[_SPEC.name] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(script)


@pytest.mark.parametrize("name", list(script.COMPARISONS))
def test_every_quantity_is_as_close_to_the_original_as_allowed(name):
    rows = list(script.COMPARISONS[name]())
    assert len(rows) > 5
    assert [row for row in rows if not row.ok] == []


def test_random_actions_leave_speeds_and_penetrations_bounded():
    assert [row for row in script.watch(1) if not row.ok] == []


def test_a_quantity_that_differs_more_is_seen_and_makes_the_script_fail(monkeypatch, capsys):
    monkeypatch.setitem(script.COMPARISONS, "car", lambda: iter([script.Compared("mass, kg", 2.0, 3.0, 0.5)]))
    assert script.main(script.Options(only=("car",))) == 1
    assert "too far" in capsys.readouterr().out
    assert script.main(script.Options(only=("wheels",))) == 2
    assert "no comparison is called wheels; there are circuit, car" in capsys.readouterr().out
