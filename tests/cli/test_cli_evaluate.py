"""The table of `vlmsafe evaluate` shows success twice, and not at all where there is nowhere to arrive."""

import io

import pytest
from recorded_traces import make_run
from rich.console import Console

from vlmsafe.cli.evaluate import result_table

FIGURES = {"episodes": 4.0, "env_return": 1.0, "cost": 0.75, "violation_rate": 0.75, "catastrophe_rate": 0.0,
           "length": 200.0, "distance": 12.0}  # fmt: skip


@pytest.mark.parametrize(
    ("arrived", "without_cost", "words"), [(0.75, 0.25, ["75.0", "%", "25.0", "%"]), (None, None, [])]
)
def test_arrived_and_arrived_without_cost_stand_side_by_side(tmp_path, arrived, without_cost, words):
    figures = FIGURES | {"arrival_rate": arrived, "arrival_without_cost_rate": without_cost}
    console = Console(file=io.StringIO(), width=120)
    console.print(result_table(make_run(tmp_path), "held-out", 3, figures, 25.0))
    shown = console.file.getvalue()
    assert ("arrived," in shown) is (arrived is not None)
    row = next(line for line in shown.splitlines() if line.split()[:1] == ["4"])
    assert row.split()[8:] == [*words, "200.00", "12.00"]
