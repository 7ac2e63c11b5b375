"""Running a study: what is there is never done again, what fails takes nothing with it, nothing is mixed up."""

import json
import os
import re
import shutil
import socket
from pathlib import Path

import polars as pl
import pytest
from in_process import InProcess, trainings
from recorded_versions import edit_recorded

from vlmsafe.comparison.claims import load_claims
from vlmsafe.errors import InputError, Interrupted, RunError
from vlmsafe.io.interrupts import StopRequest
from vlmsafe.io.locks import DirectoryLock
from vlmsafe.runs.run import Run
from vlmsafe.studies import reuse
from vlmsafe.studies.execute import StudyResult, execute, write_definition
from vlmsafe.studies.journal import Event, failures
from vlmsafe.studies.progress import study_progress
from vlmsafe.studies.schema import load_study, parse_study
from vlmsafe.studies.steps import next_step
from vlmsafe.studies.study import Study

SMALL = """\
name: small
question: Does the oracle lower the cost?
environments: [speeding]
seeds: [1, 2]
total_steps: 80
settings: {steps_per_epoch: 40, learner.update_iters: 1}
arms:
  ppo-lag: {method: ppo-lag}
  oracle: {method: vlm-ppo-lag, settings: {signal.scorer: oracle}}
protocols: [{protocol: held-out, episodes: 3}]
traces: [{protocol: held-out, episodes: 2, arms: [oracle], seeds: [1], scorers: [noise]}]
comparisons: [{first: oracle, second: ppo-lag, about: [signal]}]
"""
TRAINING = SMALL.partition("protocols:")[0]
"""The same without evaluations and traces, where they would only take time."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study that ran without a break."""
    root = tmp_path_factory.mktemp("whole")
    launcher = InProcess()
    assert len(run(study(), root / "small", launcher).done) == 4
    assert trainings(launcher) == 4
    return root / "small"


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of it, to be damaged."""
    shutil.copytree(finished, tmp_path / "runs" / "small")
    return tmp_path / "runs" / "small"


def study(text: str = SMALL) -> Study:
    return parse_study(text, "small.yaml")


def run(chosen: Study, folder: Path, launcher: InProcess | None = None, **options) -> StudyResult:
    return execute(chosen, folder, launcher or InProcess(), **options)


def records(folder: Path) -> dict[str, bytes]:
    """What equal studies have in equal files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.name in ("epochs.jsonl", "episodes.jsonl") or path.suffix == ".parquet"
    }


def test_every_run_is_trained_evaluated_and_traced_as_the_study_says(finished):
    table = pl.read_parquet(finished / "speeding" / "oracle" / "seed-2" / "evaluations" / "held-out.parquet")
    assert (len(table), set(table["checkpoint_epoch"])) == (3, {2})
    assert [str(path.relative_to(finished)) for path in finished.rglob("traces/*.parquet")] == [
        "speeding/oracle/seed-1/traces/held-out.parquet"
    ]
    trace = pl.read_parquet(finished / "speeding" / "oracle" / "seed-1" / "traces" / "held-out.parquet")
    assert trace["episode"].n_unique() == 2
    about = json.loads((finished / "speeding" / "oracle" / "seed-1" / "traces" / "held-out.json").read_text())
    assert "noise" in json.dumps(about)
    assert [state.trained for state in study_progress(study().expand(finished), {})] == [2, 2]


def test_the_folder_holds_the_study_and_its_claims(finished):
    assert load_study(finished).expand(finished) == study().expand(finished)
    (claim,) = load_claims(finished / "claims.yaml").comparisons
    assert (claim.first, claim.second, claim.about) == ("oracle", "ppo-lag", ("signal",))


def test_running_a_finished_study_again_does_nothing(folder):
    before, launcher = records(folder), InProcess()
    assert len(run(study(), folder, launcher).done) == 4
    assert launcher.launched == []
    assert records(folder) == before


def test_an_interrupted_run_is_resumed_and_ends_as_if_it_had_never_stopped(folder, finished):
    path = folder / "speeding" / "oracle" / "seed-1"
    (path / "checkpoints" / "epoch-00002.safetensors").unlink()
    launcher = InProcess()
    assert not run(study(), folder, launcher).failed
    assert launcher.launched[0][:3] == ("train", "--resume", str(path))
    assert trainings(launcher) == 1
    assert records(folder) == records(finished)


def test_missing_and_short_evaluations_are_made_and_longer_ones_are_kept(folder, finished):
    one, two = (
        folder / "speeding" / "ppo-lag" / f"seed-{seed}" / "evaluations" / "held-out.parquet" for seed in (1, 2)
    )
    one.unlink()
    pl.read_parquet(two).head(2).write_parquet(two)
    launcher = InProcess()
    assert not run(study(), folder, launcher).failed
    assert sorted(words[0] for words in launcher.launched) == ["evaluate", "evaluate"]
    assert records(folder) == records(finished)
    fewer, launcher = study(SMALL.replace("episodes: 3", "episodes: 2")), InProcess()
    assert not run(fewer, folder, launcher).failed
    assert launcher.launched == []
    assert records(folder) == records(finished)


def test_a_missing_or_damaged_trace_is_made_again(folder):
    trace = folder / "speeding" / "oracle" / "seed-1" / "traces" / "held-out.parquet"
    trace.unlink()
    launcher = InProcess()
    assert not run(study(), folder, launcher).failed
    assert [words[0] for words in launcher.launched] == ["trace"]
    trace.write_bytes(b"not a table")
    outcome = run(study(), folder)
    assert list(outcome.failed) == ["speeding/oracle/seed-1"]
    assert "move it away and make it again with: vlmsafe trace" in outcome.failed["speeding/oracle/seed-1"]


@pytest.mark.parametrize(("old", "new"), [("total_steps: 80", "total_steps: 120"), ("scorer: oracle", "scorer: noise")])
def test_a_directory_with_another_run_is_an_error_before_anything_starts(folder, old, new):
    text = SMALL.replace(old, new)
    before, launcher = records(folder), InProcess()
    with pytest.raises(
        InputError, match=r"seed-1 holds another run than the study describes: .* there and .* in the study"
    ):
        run(study(text), folder, launcher)
    assert launcher.launched == []
    assert records(folder) == before


def test_a_run_with_other_prompts_of_the_same_name_is_another_run(tmp_path):
    prompts = tmp_path / "mine.yaml"
    prompts.write_text("positive: [safe]\nnegative: [unsafe]\n")
    text = TRAINING.replace("seeds: [1, 2]", "seeds: [1]").replace(
        "signal.scorer: oracle", f"signal.scorer: oracle, signal.prompts: {prompts}"
    )
    target = tmp_path / "other"
    assert not run(study(text), target).failed
    prompts.write_text("positive: [safe]\nnegative: [risky]\n")
    with pytest.raises(InputError, match="its prompts are not those that"):
        run(study(text), target)


def test_where_and_how_often_a_run_is_saved_does_not_make_it_another_run(folder):
    launcher = InProcess()
    text = SMALL.replace("steps_per_epoch: 40", "steps_per_epoch: 40, checkpoint.every: 2, signal.device: cpu")
    text = text.replace("ppo-lag: {method: ppo-lag}", "ppo-lag: {method: ppo-lag, settings: {signal.device: auto}}")
    assert not run(study(text), folder, launcher).failed
    assert launcher.launched == []


def test_a_failed_run_is_reported_and_the_rest_carried_on(tmp_path):
    def refuse(command):
        if "oracle/seed-1" in str(command.log):
            print("note: something\nerror: the disk is full")
            raise SystemExit(1)

    folder, launcher, heard = tmp_path / "small", InProcess(refuse), []
    small = study(TRAINING)
    outcome = run(small, folder, launcher, on_event=heard.append)
    assert list(outcome.failed) == ["speeding/oracle/seed-1"]
    assert outcome.failed["speeding/oracle/seed-1"].startswith("train: the disk is full (log: ")
    assert len(outcome.done) == 3
    assert Event("speeding/oracle/seed-1", "train", "began", node=socket.gethostname()) in heard
    assert failures(folder).keys() == {"speeding/oracle/seed-1"}
    assert sum(state.failed for state in study_progress(small.expand(folder), failures(folder))) == 1
    assert len(run(small, folder).done) == 4
    assert failures(folder) == {}


def test_a_step_that_ends_well_and_makes_nothing_is_a_failure_and_not_repeated_for_ever(tmp_path):
    def do_nothing(command):
        raise SystemExit(0)

    launcher = InProcess(do_nothing)
    outcome = run(study(), tmp_path / "small", launcher)
    assert len(launcher.launched) == len(outcome.failed) == 4
    assert all("its results are missing" in reason for reason in outcome.failed.values())


def test_a_request_to_stop_leaves_everything_for_the_next_time(tmp_path, finished):
    stop = StopRequest()

    def interrupt(event: Event) -> None:
        if event.what == "ended":
            stop.reason = "SIGTERM"

    small, target = study(TRAINING), tmp_path / "small"
    with pytest.raises(Interrupted, match=r"SIGTERM received: .* the same command continues it"):
        run(small, target, stop=stop, on_event=interrupt)
    assert sum(next_step(spec) is None for spec in small.expand(target)) < 4
    assert len(run(small, target).done) == 4
    assert records(target).items() <= records(finished).items()


def test_a_study_runs_once_at_a_time(folder):
    with DirectoryLock(folder), pytest.raises(RunError, match="another process is running the study"):
        run(study(), folder)


def test_a_run_that_somebody_else_works_on_is_waited_for(folder):
    path = folder / "speeding" / "oracle" / "seed-1"
    lock = DirectoryLock(path)
    lock.__enter__()
    turns = []

    def release_later() -> None:
        turns.append(1)
        if len(turns) == 3:
            lock.__exit__()

    launcher, heard = InProcess(), []
    assert len(run(study(), folder, launcher, on_turn=release_later, on_event=heard.append).done) == 4
    assert len(turns) >= 3
    assert launcher.launched == []
    assert [str(event) for event in heard] == [
        f"speeding/oracle/seed-1: look waits: in use by pid {os.getpid()} on {socket.gethostname()}"
    ]


# -- equal runs of other studies --


def test_an_equal_finished_run_of_another_study_is_copied_and_not_trained_again(folder, finished):
    text = SMALL.replace("name: small", "name: other").replace("  ppo-lag:", "  baseline:")
    other = study(text.replace("second: ppo-lag", "second: baseline"))
    target, launcher = folder.parent / "other", InProcess()
    assert len(run(other, target, launcher).done) == 4
    assert trainings(launcher) == 0
    copy = Run.open(target / "speeding" / "baseline" / "seed-1")
    assert copy.status() == "finished"
    assert copy.events()[-1]["event"] == "copied"
    assert copy.events()[-1]["source"] == str(folder / "speeding" / "ppo-lag" / "seed-1")
    for name in ("epochs.jsonl", "evaluations/held-out.parquet"):
        assert (copy.path / name).read_bytes() == (folder / "speeding" / "ppo-lag" / "seed-1" / name).read_bytes()
    assert records(folder) == records(finished)


def test_what_a_copy_is_evaluated_and_traced_by_is_its_own_studys(folder):
    """Otherwise results would depend on which study was run first."""
    text = SMALL.replace("name: small", "name: other").replace("episodes: 3", "episodes: 2")
    other = study(text.replace("scorers: [noise]", "scorers: [oracle], every: 2"))
    launcher, target = InProcess(), folder.parent / "other"
    run(other, target, launcher)
    assert trainings(launcher) == 0
    for spec in other.expand(target):
        assert len(pl.read_parquet(spec.path / "evaluations" / "held-out.parquet")) == 2
    about = json.loads((target / "speeding" / "oracle" / "seed-1" / "traces" / "held-out.json").read_text())
    assert (about["every"], [one["scorer"] for one in about["scorers"]]) == (2, ["oracle"])


def test_equal_arms_of_one_study_are_trained_each_by_itself(tmp_path):
    text = TRAINING.replace(
        "oracle: {method: vlm-ppo-lag, settings: {signal.scorer: oracle}}", "again: {method: ppo-lag}"
    )
    launcher = InProcess()
    run(study(text), tmp_path / "runs" / "small", launcher)
    assert trainings(launcher) == 4


def test_what_a_run_left_that_ended_before_it_began_is_in_nobodys_way(folder):
    other, target = study(TRAINING.replace("name: small", "name: other")), folder.parent / "other"
    (target / "speeding" / "oracle" / "seed-1" / "checkpoints").mkdir(parents=True)
    launcher = InProcess()
    assert run(other, target, launcher).failed == {}
    assert trainings(launcher) == 0


@pytest.mark.parametrize(
    "change",
    [
        ("scorers: [noise]", "scorers: [oracle]"),
        ("seeds: [1],", "seeds: [1], every: 3,"),
        ("seeds: [1],", "seeds: [1], frames: true,"),
        ("scorers: [noise]", "scorers: [embedded], prompts: bullet"),
    ],
)
def test_a_trace_that_was_recorded_otherwise_than_asked_for_is_recorded_again(folder, change):
    launcher = InProcess()
    run(study(SMALL.replace(*change)), folder, launcher)
    assert [words[0] for words in launcher.launched] == ["trace"]
    run(study(SMALL.replace(*change)), folder, launcher)
    assert len(launcher.launched) == 1


def test_a_trace_with_other_prompts_is_recorded_again(folder):
    launcher = InProcess()
    for prompts in ("bullet", "bullet", "bullet-v2"):
        run(study(SMALL.replace("scorers: [noise]", f"scorers: [embedded], prompts: {prompts}")), folder, launcher)
    assert [words[-1] for words in launcher.launched] == ["bullet", "bullet-v2"]


def test_an_evaluation_of_an_earlier_checkpoint_is_made_again(folder):
    path = folder / "speeding" / "oracle" / "seed-2" / "evaluations" / "held-out.parquet"
    pl.read_parquet(path).with_columns(checkpoint_epoch=pl.lit(1, pl.Int64)).write_parquet(path)
    launcher = InProcess()
    outcome = run(study(), folder, launcher)
    assert [words[:2] for words in launcher.launched] == [("evaluate", str(path.parents[1]))]
    assert len(outcome.done) + len(outcome.failed) == 4


def test_a_run_whose_configuration_is_damaged_is_named_and_the_others_are_carried_on(folder):
    path = folder / "speeding" / "oracle" / "seed-1"
    whole = (path / "config.yaml").read_bytes()
    (path / "config.yaml").write_bytes(whole[:60])
    outcome = run(study(), folder)
    assert len(outcome.done) == 3
    assert list(outcome.failed) == ["speeding/oracle/seed-1"]
    assert str(path) in outcome.failed["speeding/oracle/seed-1"]
    assert list(failures(folder)) == ["speeding/oracle/seed-1"]
    (path / "config.yaml").write_bytes(whole)
    assert len(run(study(), folder).done) == 4
    assert failures(folder) == {}


def test_unequal_unfinished_and_independent_runs_are_trained(folder):
    (folder / "speeding" / "oracle" / "seed-2" / "checkpoints" / "epoch-00002.safetensors").unlink()
    text = TRAINING.replace("name: small", "name: other").replace(
        "{method: ppo-lag}", "{method: ppo-lag, settings: {learner.gamma: 0.9}}"
    )
    launcher = InProcess()
    assert len(run(study(text), folder.parent / "other", launcher).done) == 4
    assert trainings(launcher) == 3  # all but oracle, seed 1
    assert not any("--resume" in words for words in launcher.launched)
    alone, launcher = study(TRAINING.replace("name: small", "name: alone\nindependent: true")), InProcess()
    assert len(run(alone, folder.parent / "alone", launcher).done) == 4
    assert trainings(launcher) == 4


def _recorded(folder: Path, **changes: object) -> None:
    """Change what the runs of a study recorded about the code that computed them."""
    for path in folder.glob("*/*/*/config.yaml"):
        edit_recorded(path.parent, **changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"packages": {"vlmsafe": "0.0.1"}}, r"it was computed by vlmsafe 0\.0\.1, and this is vlmsafe \d"),
        ({"packages": None}, "it does not record which version of vlmsafe computed it"),
        ({"env_version": 0}, "it was computed with version 0 of speeding, and this is version 1"),
        ({"env_version": None}, "it does not record which version of speeding it was computed with"),
        ({"kernels": None}, "it was computed with native kernels, and the study wants baseline ones"),
    ],
)
def test_a_run_that_other_code_computed_is_not_equal_and_the_reason_is_given(folder, changes, why):
    _recorded(folder, **changes)
    spec, heard = study().expand(folder.parent / "other")[0], []
    assert reuse.equal_run(spec, folder.parent, heard.append) is None
    assert re.fullmatch(rf"{folder}/{spec.name}: {why}.*", *heard)


def test_a_line_says_once_per_run_that_a_run_of_other_code_is_trained_again(folder):
    _recorded(folder, packages={"vlmsafe": "0.0.1"})
    other, launcher, heard = study(TRAINING.replace("name: small", "name: other")), InProcess(), []
    assert len(run(other, folder.parent / "other", launcher, on_event=heard.append).done) == 4
    assert trainings(launcher) == 4
    refused = [event.run for event in heard if event.what == "not copied"]
    assert sorted(refused) == sorted(spec.name for spec in other.expand(folder))


def test_runs_of_an_earlier_version_stay_in_their_study_and_one_line_says_so(folder):
    _recorded(folder, packages={"vlmsafe": "0.0.1"})
    before, launcher, heard = records(folder), InProcess(), []
    assert len(run(study(), folder, launcher, on_event=heard.append).done) == 4
    assert launcher.launched == []
    assert records(folder) == before
    (line,) = map(str, heard)
    assert line.startswith("4 runs, such as speeding/ppo-lag/seed-1: kept: it was computed by vlmsafe 0.0.1")


@pytest.mark.parametrize("function", ["rename", "finish_copy"])
def test_a_crash_while_copying_leaves_no_half_run(folder, monkeypatch, function):
    other, target = study(SMALL.replace("name: small", "name: other")), folder.parent / "other"

    def crash(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(*((Path, "rename") if function == "rename" else (reuse, "finish_copy")), crash)
        with pytest.raises(KeyboardInterrupt):
            run(other, target)
    assert not list(target.rglob("config.yaml"))
    launcher = InProcess()
    assert len(run(other, target, launcher).done) == 4
    assert trainings(launcher) == 0
    assert records(target) == records(folder)


def test_claims_that_somebody_else_wrote_are_kept(tmp_path):
    one = parse_study(SMALL, "small.yaml")
    assert write_definition(one, tmp_path) is None
    changed = parse_study(SMALL.replace("about: [signal]", "about: [signal], alpha: 0.01"), "small.yaml")
    assert write_definition(changed, tmp_path) is None  # the study's own claims follow its file
    assert load_claims(tmp_path / "claims.yaml").comparisons[0].alpha == 0.01
    own = "comparisons: [{first: oracle, second: ppo-lag, test: none}]\n"
    (tmp_path / "claims.yaml").write_text(own)
    for definition in (changed, one, parse_study(TRAINING, "small.yaml")):
        assert "it is kept" in (write_definition(definition, tmp_path) or "")
        assert (tmp_path / "claims.yaml").read_text() == own
    (tmp_path / "claims.yaml").unlink()
    assert write_definition(parse_study(TRAINING, "small.yaml"), tmp_path) is None
    assert not (tmp_path / "claims.yaml").exists()
