"""A run directory is created once, read strictly, and found wherever it lies."""

import json
import re
from pathlib import Path

import pytest
from recorded_traces import make_run

import vlmsafe
from vlmsafe.config.settings import TrainConfig
from vlmsafe.errors import InputError, RunError
from vlmsafe.runs.run import Run, find_runs


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "a run")


def test_second_run_in_a_directory_is_refused_with_the_command_that_continues_the_first(run):
    with pytest.raises(InputError, match=r"already holds a run \(epoch 0 of .*vlmsafe train --resume '.*a run'"):
        Run.create(TrainConfig(env="braking", method="ppo-lag", run_dir=run.path).resolved())


def test_directory_without_a_configuration_is_no_run_and_runs_below_it_are_named(run):
    with pytest.raises(InputError, match=rf"not a run directory: it has no config.yaml; did you mean {run.path}\?"):
        Run.open(run.path.parent)


def test_run_that_was_moved_knows_its_present_place(run, tmp_path):
    moved = run.path.rename(tmp_path / "moved")
    assert Run.open(moved).config.run_dir == moved


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"env_return": 1.0}, "expected a whole number as epoch of row 2, got none"),
        ({"epoch": 2, "episode_cost": "much"}, "expected a number as episode_cost of row 2, got 'much'"),
    ],
)
def test_row_with_a_value_of_another_kind_is_damage(run, row, expected):
    run.append("epochs", [{"epoch": 1, "kappa": None}, row])
    with pytest.raises(RunError, match=rf"epochs.jsonl is damaged: {expected}"):
        run.rows("epochs")
    run.append("timing", [row])
    assert run.rows("timing") == [row]  # seconds per stage, with names that only the stages know


def test_surroundings_are_recorded_and_read_back(run):
    recorded = run.recorded()
    assert {"started", "python", "packages", "git_revision", "processor", "env_version"} <= set(recorded)
    assert recorded["packages"]["vlmsafe"]
    config = run.path / "config.yaml"
    config.write_text(re.sub(r"recorded:.*", "recorded: unknown\n", config.read_text(), flags=re.DOTALL))
    assert Run.open(run.path).recorded() == {}


def test_names_of_tables_say_what_was_asked_for(run):
    assert run.evaluation_path("paper", 5) == run.path / "evaluations" / "paper-epoch-00005.parquet"
    assert run.trace_path("paper") == run.trace_path("paper", indicators=run.config.frame_indicators)
    other = not run.config.frame_indicators
    name = f"paper{'-indicators' if other else '-no-indicators'}-epoch-00005.parquet"
    assert run.trace_path("paper", 5, other) == run.path / "traces" / name


def test_runs_are_found_through_links_once_and_damaged_ones_are_named(tmp_path):
    good, bad = make_run(tmp_path / "all" / "good").path, make_run(tmp_path / "all" / "bad").path
    make_run(tmp_path / "all" / ".hidden" / "run")
    make_run(good / "inside")
    (tmp_path / "all" / "link").symlink_to(good)
    (bad / "config.yaml").write_text("nonsense: true\n")
    runs, unreadable = find_runs(tmp_path / "all")
    assert [found.path for found in runs] == [good]
    assert [one.path for one in unreadable] == [bad]


def test_only_runs_reads_tables():
    source = Path(vlmsafe.__file__).parent
    readers = {str(path.relative_to(source)) for path in source.rglob("*.py") if "read_parquet" in path.read_text()}
    assert readers == {"runs/tables.py"}


def test_events_come_back_in_order(run):
    run.event("started", seed=1)
    run.event("stopped")
    assert [(event["event"], event.get("seed")) for event in run.events()] == [("started", 1), ("stopped", None)]
    assert json.loads((run.path / "events.jsonl").read_text().splitlines()[0])["time"]
