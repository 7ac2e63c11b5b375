"""A run that was trained in another version of its environment says so wherever it is opened."""

import json
from pathlib import Path

import pytest
from recorded_versions import edit_recorded

from vlmsafe import audit, evaluate, report, resume, run_study, trace, train, verify
from vlmsafe.audit.kinds import Severity
from vlmsafe.cli import main
from vlmsafe.errors import EXIT_WARNINGS, InputError, RunError
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


def test_a_finished_run_of_another_world_says_so_where_there_is_nothing_to_continue(elsewhere, capsys):
    main(["train", "--resume", str(elsewhere.path)])
    said = " ".join(capsys.readouterr().out.split())
    assert "is finished; nothing to do" in said
    assert f"note: {ELSEWHERE}" in said


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


# FormulaOne of version 1 could draw cost indicators into its frames. The present one cannot, except with `track`.
FORMULA_ONE = {
    "env": "formula-one-l1", "method": "vlm-ppo-lag", "signal": {"scorer": "constant:0.5"}, "total_steps": 8,
    "steps_per_epoch": 4, "learner": {"update_iters": 1}, "quiet": True,
}  # fmt: skip
STUDY = """
name: racing
question: What did it cost?
environments: [formula-one-l1]
seeds: [0]
total_steps: 8
settings: {steps_per_epoch: 4, learner.update_iters: 1, frame_indicators: true}
arms: {scored: {method: vlm-ppo-lag, settings: {signal.scorer: "constant:0.5"}}}
"""


@pytest.fixture(scope="module")
def old_study(tmp_path_factory) -> Path:
    """A study's folder with a run of FormulaOne's first version, whose frames showed the cost."""
    folder = tmp_path_factory.mktemp("old") / "racing"
    run = train(**FORMULA_ONE, run_dir=str(folder / "formula-one-l1" / "scored" / "seed-0"))
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("frame_indicators: false", "frame_indicators: true"))
    edit_recorded(run.path, env_version=1)
    (folder / "study.yaml").write_text(STUDY)
    return folder


def test_a_run_of_the_first_formula_one_opens_with_the_indicators_it_had(old_study):
    run = Run.open(old_study / "formula-one-l1" / "scored" / "seed-0")
    assert (run.config.frame_indicators, run.config.spec.indicators) == (True, None)
    said = "it was trained in version 1 of formula-one-l1, and this is version 2, another world"
    with pytest.raises(RunError, match=f"cannot be continued: {said}"):
        resume(run.path, quiet=True)
    notes = []
    assert evaluate(run, episodes=1, processes=1, on_note=notes.append)["env_version"].to_list() == [2]
    assert notes == [f"{run.path} drives in another world than it was trained in: {said}"]
    run.evaluation_path("held-out").unlink()


def test_runs_of_both_formula_ones_are_not_compared_without_a_finding(old_study, tmp_path):
    train(**FORMULA_ONE, run_dir=str(tmp_path / "new" / "seed-0"))
    found = {one.code: one for one in reversed(audit([old_study / "formula-one-l1", tmp_path / "new"]).findings)}
    assert found["worlds-differ"].severity == Severity.ERROR
    assert found["worlds-differ"].evidence == ("formula-one-l1: version 1 in scored; version 2 in new",)
    assert "new" not in str(found["frames-show-cost"].evidence)


def test_a_study_of_the_first_formula_one_is_reported_and_not_continued(old_study, capsys):
    assert "worlds-differ" in report(old_study).page.read_text()
    for verb in ("status", "show"):
        main(["study", verb, str(old_study)])
        assert "scored" in capsys.readouterr().out
    with pytest.raises(InputError, match="'scored' on formula-one-l1: frame_indicators is true, but frames of"):
        run_study(old_study)
