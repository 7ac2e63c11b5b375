"""A record holds everything that can be read of a run, and a line about everything that cannot."""

import polars as pl
import pytest
from recorded_traces import make_run, write_recorded

from vlmsafe.runs.arms import by_arm, open_arms
from vlmsafe.runs.records import read_arms, read_record
from vlmsafe.runs.tables import write_table


def record_of(path):
    return read_record(open_arms([path])[0][0])


def test_damaged_files_become_problems_and_the_rest_is_read(tmp_path):
    run = make_run(tmp_path / "ppo-lag" / "seed-1")
    write_recorded(run.path)
    run.append("epochs", [{"epoch": 1, "episode_cost": 2.0}, {"epoch": 2, "episode_cost": 4.0}])
    run.append("episodes", [{"epoch": "one"}])
    run.evaluation_path("held-out").write_bytes(b"nothing")
    (run.checkpoints / "epoch-00002.safetensors").write_bytes(b"nothing")
    record = record_of(run.path)
    assert [problem.split(" is damaged")[0].rpartition("/")[2] for problem in record.problems] == [
        "episodes.jsonl",
        "held-out.parquet",
        "epoch-00002.safetensors",
    ]
    assert record.over("episode_cost", 2) == 3.0
    assert record.over("kappa", 2) is None
    assert list(record.traces) == ["held-out"]
    assert (record.episodes, record.evaluations, record.trained_with) == ([], {}, None)
    assert record.epochs_saved == 2


def test_table_of_the_newest_epoch_stands_for_a_protocol_without_a_table_of_its_own(tmp_path):
    run = make_run(tmp_path / "run")
    for epoch in (9, 10):
        write_table(run.evaluation_path("paper", epoch), pl.DataFrame({"cost": [float(epoch)]}))
    assert record_of(run.path).evaluations["paper"]["cost"].to_list() == [10.0]
    write_table(run.evaluation_path("paper"), pl.DataFrame({"cost": [1.0]}))
    write_table(run.evaluation_path("empty"), pl.DataFrame({"cost": []}, schema={"cost": pl.Float64}))
    found = record_of(run.path).evaluations
    assert list(found) == ["paper"]
    assert found["paper"]["cost"].to_list() == [1.0]


@pytest.mark.parametrize(
    ("place", "arm", "name"),
    [
        ("mine/seed-3", "mine", "seed-3"),
        ("mine/3", "mine", "3"),
        ("seed-3/mine", "mine", "seed-3"),
        ("mine-seed-3", "mine", "seed-3"),
        ("elsewhere", "ppo-lag", "elsewhere"),
    ],
)
def test_directory_names_the_arm_of_a_run(tmp_path, place, arm, name):
    make_run(tmp_path / place)
    (run,), problems = open_arms([tmp_path])
    assert (run.env, run.arm, run.name, problems) == ("braking", arm, name, [])


def test_runs_given_twice_count_once_and_runs_of_one_name_are_told_apart(tmp_path):
    first, second = (make_run(tmp_path / folder / "mine" / "seed-1").path for folder in ("a", "b"))
    runs, _ = open_arms([tmp_path, first])
    assert [run.name for run in runs] == [str(first), str(second)]
    assert [len(group) for group in by_arm(runs).values()] == [2]
    (arm,) = read_arms(runs).values()
    assert list(arm.matched_by) == [str(first), str(second)]  # both have seed 0
    assert arm.first.name == str(first)
