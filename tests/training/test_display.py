"""The live display shows how far an epoch's episodes got, within 80 columns."""

import io

from rich.console import Console

from vlmsafe.training.display import _figures

ROW = {
    "epoch": 12, "env_return": -1234.56, "episode_cost": 812.34, "budget": 25.0, "multiplier": 12.345, "bonus": None,
    "kl": 0.0123, "passes": 40, "episodes": 20,
}  # fmt: skip


def shown(row):
    console = Console(file=io.StringIO(), width=200)
    console.print(_figures(row, 50))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_progress_stands_below_the_figures_within_80_columns():
    progress = {"route_completion": 0.123, "arrived": 0.5, "arrived_without_cost": 0.25, "passive": None}
    lines = shown(ROW | {"progress": progress})
    assert max(map(len, lines)) <= 80
    assert lines[2].split("  ")[0] == "route completion"
    assert lines[3].split() == ["0.12", "50%", "25%", "-"]


def test_an_environment_without_progress_shows_only_the_figures():
    assert len(shown(ROW)) == 2
