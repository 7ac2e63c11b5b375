"""vlmsafe scope and vlmsafe prompts, as a user's shell runs them."""

import json
import subprocess
import sys

import polars as pl
import pytest
from recorded_traces import make_run, write_recorded
from small_embedded import save_small_embedded

from vlmsafe.cli import main
from vlmsafe.errors import EXIT_BAD_INPUT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = make_run(tmp_path_factory.mktemp("runs") / "run").path
    write_recorded(path)
    write_recorded(path, "paper-20", frames=False)
    return path


def vlmsafe(*arguments):
    command = [sys.executable, "-m", "vlmsafe", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def refused(capsys, *arguments):
    """What a command that cannot be carried out prints; in this process, which saves the start of another."""
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert stopped.value.code == EXIT_BAD_INPUT
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.strip().splitlines()) == 1
    return printed.err


def test_scope_says_where_the_page_is_and_how_large(run, tmp_path):
    answer = vlmsafe("scope", run, "--episodes", 2, "--out", tmp_path / "page.html")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == [
        f"2 episodes, 24 frames, 2 onsets, {(tmp_path / 'page.html').stat().st_size / 1e6:.1f} MB",
        f"scope: {tmp_path / 'page.html'}",
    ]
    assert "those left out have 1 more onset. --episodes 3 shows all" in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--protocol", "paper-20"), "recorded without frames; record it again with: vlmsafe trace"),
        (("--protocol", "paper"), "has no trace 'paper' (it has: held-out, paper-20); record one with: vlmsafe trace"),
        (("--episodes", "0"), "episodes is 0"),
    ],
)
def test_what_the_scope_cannot_show_is_one_line(run, arguments, message, capsys):
    assert message in refused(capsys, "scope", run, *arguments)


def test_prompt_sets_are_listed_and_shown():
    answer = vlmsafe("prompts")
    assert answer.returncode == 0, answer.stderr
    assert "metadrive-v3" in answer.stdout
    shown = vlmsafe("prompts", "show", "metadrive-v2").stdout.splitlines()
    assert shown[:2] == ["positive:", "  - the car is driving safely"]


def test_bench_compares_prompt_sets_and_scorers_on_recorded_frames(run, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("positive: [the car drives safely]\nnegative: ['[red]danger', about to hit]\n")
    weights = save_small_embedded(tmp_path / "small.safetensors")
    scorers = ("--scorer", f"embedded:{weights}")
    sets = ("--prompts", mine, "metadrive-v2", "--resamples", 50, "--each-prompt", "--out", tmp_path / "out")
    answer = vlmsafe("prompts", "bench", run, *sets, *scorers)
    assert answer.returncode == 0, answer.stderr
    assert "3 episodes, 36 frames, 3 of them in contact, 3 onsets" in answer.stdout
    for name in ("mine", "metadrive-v2", "as recorded", "simulator's hazard", "step index", "[red]danger"):
        assert name in answer.stdout
    assert "only 3 onsets of contact" in answer.stderr
    assert "no longer unseen" in answer.stderr
    aucs = pl.read_csv(tmp_path / "out" / "aucs.csv")
    assert aucs["candidate"].unique(maintain_order=True).to_list() == [
        "mine", "metadrive-v2", "as recorded", "hazard", "step",
    ]  # fmt: skip


def test_bench_of_what_was_recorded_prints_json(run):
    answer = vlmsafe("prompts", "bench", run, "--prompts", "metadrive-v2", "metadrive-v3", "--resamples", 20, "--json")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["frames"] == 36
    assert [row["candidate"] for row in found["margins"]] == ["metadrive-v2", "metadrive-v3", "as recorded"]
    assert {row["candidate"] for row in found["differences"]} == {"metadrive-v3", "as recorded"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench",), "prompts bench needs a run directory or a trace"),
        (("bench", "RUN", "--scorer", "oracle"), "the scorer 'oracle' compares with no text"),
        (("bench", "RUN", "--prompts", "nowhere.yaml"), "cannot read prompts from nowhere.yaml"),
        (("bench", "RUN", "RUN"), "was given twice"),
        (("bench", "RUN", "--protocol", "paper-20"), "recorded without frames"),
        (("show",), "prompts show takes one name or file, got 0"),
        (("show", "metadrive-v9"), "unknown prompt set 'metadrive-v9'"),
        (("bench", "RUN", "--seed", "-1"), "the seed of the resamples is -1; it must be at least 0"),
        (("list", "--json"), "prompts list takes no options"),
        (("list", "--each-prompt"), "prompts list takes no options"),
        (("show", "metadrive-v2", "--seed", "3"), "prompts show takes no options"),
        (("show", "metadrive-v2", "--protocol", "paper"), "prompts show takes no options"),
    ],
)
def test_what_prompts_cannot_do_is_one_line(run, arguments, message, capsys):
    assert message in refused(capsys, "prompts", *(run if word == "RUN" else word for word in arguments))
