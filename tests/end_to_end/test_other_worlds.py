"""A run that was trained in another version of its environment says so wherever it is opened."""

import json

import pytest
from recorded_versions import edit_recorded

from vlmsafe import audit, evaluate, resume, trace, train, verify
from vlmsafe.audit.kinds import Severity
from vlmsafe.cli import main
from vlmsafe.errors import EXIT_WARNINGS, RunError
from vlmsafe.runs.checkpoint import path_of
from vlmsafe.runs.run import Run
from vlmsafe.runs.warm_start import describe_start

SMALL = {"env": "speeding", "total_steps": 80, "steps_per_epoch": 40, "quiet": True}
ELSEWHERE = "it was trained in version 0 of speeding, and this is version 1, another world"


@pytest.fixture
def elsewhere(tmp_path) -> Run:
    """A run of another world."""
    run = train(**SMALL, run_dir=str(tmp_path / "old" / "seed-0"))
    edit_recorded(run.path, env_version=0)
    return Run.open(run.path)


def test_a_run_of_another_world_cannot_be_continued_and_is_left_as_it_was(elsewhere, capsys):
    path_of(elsewhere.checkpoints, 2).unlink()
    files = {path: path.read_bytes() for path in elsewhere.path.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=f"cannot be continued: {ELSEWHERE}; start a new run, or continue this one"):
        resume(elsewhere.path, quiet=True)
    with pytest.raises(SystemExit, match="1"):
        main(["train", "--resume", str(elsewhere.path)])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert ELSEWHERE in line
    assert {path: path.read_bytes() for path in elsewhere.path.rglob("*") if path.is_file()} == files


def test_a_policy_of_another_world_is_driven_with_a_note_and_the_tables_say_in_which_world(elsewhere):
    notes = []
    table = evaluate(elsewhere.path, episodes=2, processes=1, on_note=notes.append)
    trace(elsewhere.path, [], episodes=1, processes=1, write=True, on_note=notes.append)
    said = f"{elsewhere.path} drives in another world than it was trained in: {ELSEWHERE}"
    assert [note for note in notes if "world" in note] == [said, said]
    assert table["env_version"].to_list() == [1, 1]
    assert json.loads(elsewhere.trace_path("held-out").with_suffix(".json").read_text())["env_version"] == 1


def test_a_run_that_starts_from_a_driver_of_another_world_says_so(elsewhere, tmp_path):
    run = train(**SMALL, run_dir=str(tmp_path / "new"), init_from=str(elsewhere.path))
    start = run.start()
    assert start is not None
    assert describe_start(start).endswith(f"; {ELSEWHERE}")


def test_a_run_of_another_world_is_not_replayed(elsewhere):
    found = verify(elsewhere.path)
    assert (found.outcome, found.exit_code, found.replays) == ("not replayed", EXIT_WARNINGS, ())
    assert found.summary == f"not replayed: no epoch can be replayed here: {ELSEWHERE}"
    assert verify(elsewhere.path, epochs=0).outcome == "equal"


@pytest.mark.parametrize("words", [["runs"], ["diagnose", "returns"], ["published", "compare"]])
def test_commands_that_open_runs_of_another_world_say_so_in_one_line(elsewhere, capsys, words):
    main([*words, str(elsewhere.path.parent)])
    said = " ".join(capsys.readouterr().err.split())
    assert said.count(f"{elsewhere.path}: {ELSEWHERE}") == 1


def test_runs_of_two_worlds_are_not_compared_without_a_finding(elsewhere, tmp_path):
    def found(*paths):
        return [(one.severity, one.evidence) for one in audit(list(paths)).findings if one.code == "worlds-differ"]

    train(**SMALL, run_dir=str(tmp_path / "new" / "seed-0"))
    note = "all its runs were trained in version 0 of speeding, and this is version 1"
    assert found(tmp_path / "new") == []
    assert found(tmp_path / "old") == [(Severity.NOTE, (note,))]
    between = (Severity.ERROR, ("speeding: version 0 in old; version 1 in new",))
    assert found(tmp_path / "old", tmp_path / "new") == [between, (Severity.NOTE, (note,))]
    evaluate(elsewhere.path, episodes=2, processes=1)
    driven = "seed-0: trained in version 0, evaluated under 'held-out' in version 1"
    assert found(tmp_path / "old") == [(Severity.ERROR, (driven,))]
