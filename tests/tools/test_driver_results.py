"""`tools/driver_results.py` tabulates held-out evaluations only, each with the budget and the steps that it had."""

import importlib.util
import sys
from pathlib import Path

import polars as pl
import pytest

from vlmsafe import evaluate, train
from vlmsafe.errors import InputError

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    spec = importlib.util.spec_from_file_location("driver_results", TOOLS / "driver_results.py")
    monkeypatch.setitem(sys.modules, spec.name, found := importlib.util.module_from_spec(spec))
    spec.loader.exec_module(found)
    return found


def test_only_held_out_evaluations_are_collected_with_their_own_budget(tool, tmp_path):
    small = {"env": "braking", "total_steps": 800, "steps_per_epoch": 400, "learner": {"update_iters": 1}}
    run = train(**small, budget=7.0, run_dir=str(tmp_path / "run"), quiet=True)
    held_out = evaluate(run, episodes=2)
    evaluate(run, "selection", episodes=3)
    evaluate(run, episodes=3, epoch=1)
    (row,) = tool.evaluated(run)
    assert (row["episodes"], row["budget"], row["steps"]) == (2, 7.0, 800)
    assert row["cost"] == pytest.approx(held_out["cost"].mean(), abs=1e-3)
    assert row["hours"] > 0


def test_steps_are_those_of_the_simulator(tool, tmp_path):
    small = {"env": "braking", "total_steps": 400, "steps_per_epoch": 200, "learner": {"update_iters": 1}}
    run = train(**small, action_repeat=2, run_dir=str(tmp_path / "run"), quiet=True)
    evaluate(run, episodes=2)
    assert [row["steps"] for row in tool.curve(run)] == [400, 800]
    assert [row["steps"] for row in tool.evaluated(run)] == [800]


def test_a_line_of_the_table_is_a_mean_over_the_runs_of_a_label_in_a_world(tool):
    rows = pl.DataFrame({
        "label": ["one", "one", "two"], "env": "metadrive-easy", "episodes": 100, "arrived": [0.5, 0.7, 1.0],
        "cost": [1.0, 3.0, 0.0], "budget": 25.0, "return": [9.0, 11.0, 5.0], "steps": [500, 1000, 1000],
        "hours": [1.0, 2.0, None],
    })  # fmt: skip
    _, _, one, two = tool.table(rows)
    assert one.startswith("| one | `metadrive-easy` | 2 x 100 | arrived 0.60 ± 0.14 | - | 2.00 ± 1.41 (25) |")
    assert one.endswith("| 500 to 1,000 | 1.50 ± 0.71 |")
    assert two.startswith("| two | `metadrive-easy` | 1 x 100 | arrived 1.00 | - | 0.00 (25) |")
    assert two.endswith("| 1,000 | - |")


def test_a_share_is_in_the_table_only_where_all_runs_of_a_label_recorded_it(tool):
    rows = pl.DataFrame({"stages": [1.0, 2.0], "at_least_one": [0.5, 0.7]})
    assert tool.task_cell(rows, "stages") == "stages 1.50 ± 0.71, one in 0.60 ± 0.14"
    assert tool.task_cell(rows.with_columns(at_least_one=pl.Series([0.5, None])), "stages") == "stages 1.50 ± 0.71"
    assert (
        tool.task_cell(pl.DataFrame({"arrived": [0.5], "route_completion": [0.9]}), "arrived")
        == "arrived 0.50, route 0.90"
    )


def test_a_kept_policy_gives_the_results_of_its_run_and_no_path_of_the_machine(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "POLICIES", tmp_path / "policies")
    small = {"env": "braking", "total_steps": 400, "steps_per_epoch": 200, "learner": {"update_iters": 1}}
    run = train(**small, run_dir=str(tmp_path / "run"), quiet=True)
    folder = tool.keep("one", run)
    assert evaluate(folder, episodes=2)["cost"].equals(evaluate(run, episodes=2)["cost"])
    assert str(tmp_path) not in (folder / "config.yaml").read_text() + (folder / "card.yaml").read_text()


def test_collecting_a_seed_replaces_this_seed_alone(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "FOLDER", tmp_path)
    monkeypatch.setattr(tool, "CURVES", tmp_path / "curves.csv")
    monkeypatch.setattr(tool, "EVALUATIONS", tmp_path / "evaluations.csv")
    small = {"env": "braking", "steps_per_epoch": 200, "learner": {"update_iters": 1}}
    runs = []
    for name, seed, epochs in (("first", 1, 1), ("second", 2, 1), ("first-again", 1, 2)):
        run = train(**small, total_steps=200 * epochs, seed=seed, run_dir=str(tmp_path / name), quiet=True)
        evaluate(run, episodes=2)
        runs.append(run)
    tool.collect("one", [run.path for run in runs[:2]])
    tool.collect("another", [runs[0].path])
    tool.collect("one", [runs[2].path])
    found = pl.read_csv(tmp_path / "evaluations.csv").select("label", "seed", "steps")
    assert sorted(found.rows()) == [("another", 1, 200), ("one", 1, 400), ("one", 2, 200)]
    assert len(pl.read_csv(tmp_path / "curves.csv")) == 4


def test_the_figure_shows_the_agents_that_are_asked_for_with_their_number_of_seeds(tool):
    curves = pl.DataFrame({
        "label": ["one", "one", "two"], "seed": [1, 2, 1], "steps": 100, "arrived": 0.5, "cost": 1.0, "budget": 25.0,
    })  # fmt: skip
    assert [panel.title for panel in tool.figure(curves).panels] == ["one (2 seeds)"] * 2 + ["two (1 seed)"] * 2
    assert tool.figure(curves).columns == 2
    assert [panel.title for panel in tool.figure(curves, ["two"]).panels] == ["two (1 seed)"] * 2
    with pytest.raises(InputError, match="no curve is called 'three'; there are: one; two"):
        tool.figure(curves, ["three"])
