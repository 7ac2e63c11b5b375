"""Tables of runs are read with one set of errors: what was expected, what came, what to do."""

import polars as pl
import pytest
from recorded_traces import make_run

from vlmsafe.errors import InputError, RunError
from vlmsafe.runs.layout import find_table, tables_in
from vlmsafe.runs.tables import read_table, write_table


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "a run")


def test_damaged_table_is_told_with_the_command_that_makes_it_again(run):
    path = run.evaluation_path("paper", 5)
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(RunError) as caught:
        read_table(path)
    message = str(caught.value)
    assert message.startswith(f"{path} is damaged: expected a Parquet table, got: ")
    assert message.endswith(f"make it again with: vlmsafe evaluate '{run.path}' --protocol paper")
    assert "\n" not in message


def test_missing_column_is_named(run):
    path = run.evaluation_path("held-out")
    write_table(path, pl.DataFrame({"cost": [1.0]}))
    with pytest.raises(RunError, match=r"expected a Parquet table with the columns episode, got: .*episode"):
        read_table(path, ["episode"])


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("cost", ["much"], "expected numbers in the column 'cost', got String"),
        ("episode", [0.5], "expected whole numbers in the column 'episode', got others"),
        ("step", [float("nan")], "expected whole numbers in the column 'step', got others"),
        ("scored", [0.5], "expected true or false in the column 'scored', got Float64"),
    ],
)
def test_column_of_another_kind_is_refused(run, column, values, expected):
    path = run.evaluation_path("held-out")
    write_table(path, pl.DataFrame({column: values}))
    with pytest.raises(RunError, match=expected):
        read_table(path)


def test_known_columns_come_with_the_type_that_readers_expect(run):
    path = run.evaluation_path("held-out")
    write_table(path, pl.DataFrame({"cost": [1], "episode": [0.0], "violation": [1], "hazard": [None], "mine": ["x"]}))
    kinds = [pl.Float64, pl.Int64, pl.Boolean, pl.Float64, pl.String]
    assert read_table(path).dtypes == kinds


def test_pictures_and_traces_of_earlier_versions_are_no_tables(run):
    for name in ("paper", "paper-frames", "trace-paper"):
        write_table(run.evaluations / f"{name}.parquet", pl.DataFrame({"cost": [1.0]}))
    assert list(tables_in(run.evaluations)) == ["paper"]
    assert find_table(run.evaluations, None) == run.evaluation_path("paper")
    assert find_table(run.evaluations, "held-out") is None
    write_table(run.evaluation_path("paper-20"), pl.DataFrame({"cost": [1.0]}))
    with pytest.raises(InputError, match="choose with --protocol: paper-20, paper"):
        find_table(run.evaluations, None)
