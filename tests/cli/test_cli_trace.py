"""vlmsafe trace, as a user's shell runs it."""

import subprocess
import sys

import polars as pl
import pytest

from vlmsafe import train
from vlmsafe.errors import EXIT_BAD_INPUT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(env="braking", total_steps=400, steps_per_epoch=400, learner={"update_iters": 1}, quiet=True,
                 run_dir=str(tmp_path_factory.mktemp("runs") / "run"))  # fmt: skip


def vlmsafe_trace(*arguments):
    command = [sys.executable, "-m", "vlmsafe", "trace", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_trace_prints_a_row_per_scorer_and_writes_the_table(run):
    scorers = ("--scorer", "oracle", "--scorer", "noise")
    answer = vlmsafe_trace(run.path, "--episodes", 2, "--every", 5, *scorers)
    assert answer.returncode == 0, answer.stderr
    table = pl.read_parquet(run.path / "traces" / "held-out.parquet")
    assert {"oracle_kappa", "noise_negative", "distance"} < set(table.columns)
    rows = [line.split() for line in answer.stdout.splitlines()]
    (oracle,) = [row for row in rows if row[:1] == ["oracle"]]
    assert oracle[1:3] == ["2", str(len(table))]
    assert oracle[5] == str(table["scored"].sum())
    assert [row for row in rows if row[:1] == ["noise"]]
    again = vlmsafe_trace(run.path, "--episodes", 1, *scorers)
    assert again.returncode == EXIT_BAD_INPUT
    assert "pass --overwrite" in again.stderr
    assert pl.read_parquet(run.path / "traces" / "held-out.parquet").equals(table)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--scorer", "clap"), "unknown scorer 'clap'; did you mean 'clip'?"),
        (("--protocol", "paper"), "'paper' is not defined for 'braking'; use held-out"),
        (("--every", 0, "--scorer", "oracle"), "every is 0"),
        (("--prompts", "nowhere.yaml"), "cannot read prompts from nowhere.yaml"),
    ],
)
def test_what_cannot_be_traced_is_one_line(run, arguments, message):
    answer = vlmsafe_trace(run.path, "--epoch", 1, *arguments)
    assert answer.returncode == EXIT_BAD_INPUT
    assert len(answer.stderr.strip().splitlines()) == 1
    assert message in answer.stderr
