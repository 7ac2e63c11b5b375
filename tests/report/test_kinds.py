"""The registry of tables and figures names functions that exist, and is cheap to read."""

import subprocess
import sys

import pytest

from vlmsafe.report.kinds import FIGURES, TABLES


@pytest.mark.parametrize(("package", "kinds"), [("tables", TABLES), ("charts", FIGURES)])
def test_every_kind_is_made_by_a_function_of_its_own(package, kinds):
    functions = [kind.load(package) for kind in kinds.values()]
    assert all(callable(function) for function in functions)
    assert len(set(functions)) == len(functions)


def test_only_usual_tables_stand_before_the_figures():
    assert [name for name, kind in TABLES.items() if kind.first] == ["comparisons", "contrasts", "summary", "training"]
    assert all(kind.usual for kind in TABLES.values() if kind.first)


def test_a_study_file_is_checked_without_reading_runs():
    code = "import sys, vlmsafe.report.request; print(*(name for name in sys.modules if 'report.' in name))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["vlmsafe.report.kinds", "vlmsafe.report.request"]
