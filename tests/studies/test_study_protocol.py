"""Freezing a study: before its first run, once, with every later change on record."""

import json
import shutil
from pathlib import Path

import pytest
from in_process import InProcess, call, trainings
from recorded_versions import edit_recorded

from vlmsafe.comparison.claims import load_claims
from vlmsafe.comparison.looks import Looks
from vlmsafe.comparison.preregistration import PROTOCOL_FILE, PROTOCOL_PAGE, read_protocol
from vlmsafe.errors import EXIT_BAD_INPUT, InputError, RunError
from vlmsafe.io.files import read_rows
from vlmsafe.io.locks import DirectoryLock
from vlmsafe.studies import api
from vlmsafe.studies.api import audit, freeze_study, report, report_on_study
from vlmsafe.studies.execute import execute
from vlmsafe.studies.journal import JOURNAL
from vlmsafe.studies.protocol import freeze, notice
from vlmsafe.studies.remote.store import Store
from vlmsafe.studies.schema import parse_study

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
comparisons: [{first: oracle, second: ppo-lag, about: [signal]}]
"""
OTHER_LEVEL = SMALL.replace("about: [signal]", "about: [signal], alpha: 0.01")
OWN_CLAIMS = "comparisons: [{first: oracle, second: ppo-lag, outcome: env_return}]\n"


def study(text=SMALL):
    return parse_study(text, "small.yaml")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "small"
    assert len(execute(study(), folder, InProcess()).done) == 4
    return folder


@pytest.fixture
def folder(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, tmp_path / "runs" / "small")
    (tmp_path / "small.yaml").write_text(SMALL)
    return Path("runs/small")


def journaled(folder):
    return [(row["what"], row["reason"]) for row in read_rows(folder / JOURNAL) if row["run"] == "study"]


def changes(folder):
    return [one.changes for one in read_protocol(folder).versions[1:]]


def test_the_first_study_run_freezes_the_study_before_it_trains(tmp_path):
    there = []
    launcher = InProcess(lambda command: there.append((tmp_path / "small" / PROTOCOL_FILE).exists()))
    events = []
    execute(study(), tmp_path / "small", launcher, on_event=events.append)
    assert (trainings(launcher), there[0]) == (4, True)
    assert [str(event.reason).split(", ")[-1] for event in events if event.what == "frozen"] == [
        f"before the first run ({tmp_path / 'small' / PROTOCOL_PAGE})"
    ]
    first = read_protocol(tmp_path / "small").first
    assert (first.at.begun, first.at.finished, first.at.planned) == (0, 0, 4)


def test_the_protocol_has_what_the_study_decides(finished):
    content = read_protocol(finished).last.content
    assert (content["study"], content["question"]) == ("small", "Does the oracle lower the cost?")
    assert content["cells"][1] == {
        "environment": "speeding", "arm": "oracle", "method": "vlm-ppo-lag", "seeds": [1, 2], "total_steps": 80,
        "settings": {"learner.update_iters": 1, "signal.scorer": "oracle", "steps_per_epoch": 40}, "evaluations": {},
    }  # fmt: skip
    (claim,) = content["claims"]["comparisons"]
    assert (claim["first"], claim["test"], claim["sides"], claim["alpha"]) == (
        "oracle",
        "permutation",
        "two-sided",
        0.05,
    )
    page = (finished / PROTOCOL_PAGE).read_text()
    for words in (content["question"], "| speeding | oracle |", "test permutation", "one look", "before the first run"):
        assert words in page
    assert read_protocol(finished).last.digest in page


def test_freezing_again_without_a_change_changes_nothing(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    _, event = freeze(study(), folder)
    execute(study(), folder, InProcess())
    notice(study(), folder)
    assert event is None
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    "text",
    [
        f"# a comment\n{SMALL}tables: [summary]\nfigures: [curves]\n",
        SMALL.replace("learner.update_iters: 1", "learner.update_iters: 1, checkpoint.every: 2"),
        SMALL.replace("settings: {steps_per_epoch: 40, ", "settings: {steps_per_epoch: 40, kernels: native, "),
        SMALL + "traces: [{protocol: held-out, episodes: 2}]\n",
        # The same settings in another place.
        SMALL.replace("environments: [speeding]", "environments: {speeding: {total_steps: 80}}"),
    ],
)
def test_a_change_of_what_is_not_frozen_is_no_change(folder, text):
    assert freeze(study(text), folder)[1] is None


@pytest.mark.parametrize(
    ("text", "change"),
    [
        (OTHER_LEVEL, "claim 'oracle' against 'ppo-lag', cost: alpha from 0.05 to 0.01"),
        (SMALL.replace("seeds: [1, 2]", "seeds: [1, 2, 3]"), "seeds 3 added"),
        (SMALL.replace("update_iters: 1", "update_iters: 2"), "learner.update_iters from 1 to 2"),
        (SMALL.replace("lower the cost", "do anything"), "another question"),
        (f"{SMALL}looks: {{at: [0.5, 1.0]}}\n", "looks from one to [0.5, 1.0] (obrien-fleming)"),
        (f"{SMALL}protocols: [{{protocol: held-out, episodes: 2}}]\n", "evaluation 'held-out' from none to 2"),
        (f"{SMALL}correction: holm\n", "correction from none to holm"),
    ],
)
def test_a_later_change_is_a_version_with_the_runs_that_were_finished(folder, text, change):
    found, event = freeze(study(text), folder)
    assert event.reason == f"after 4 of 4 runs, to version 2: {change}"
    assert read_protocol(folder) == found
    assert changes(folder) == [(change,)]
    assert change in (folder / PROTOCOL_PAGE).read_text()
    assert freeze(study(text), folder)[1] is None


def test_study_run_tells_of_a_change_and_records_it(folder):
    events = []
    execute(study(OTHER_LEVEL), folder, InProcess(), on_event=events.append)
    assert [event.what for event in events] == ["changed"]
    assert len(read_protocol(folder).versions) == 2
    assert journaled(folder) == [("changed", events[0].reason)]


def test_claims_that_were_edited_by_hand_are_noticed_by_who_looks(folder, capsys):
    (folder / "claims.yaml").write_text(OWN_CLAIMS)
    answer = call("study", "status", folder, "--once")
    assert "env_return: decided before, changed after 4 of 4 runs." in " ".join(answer.stdout.split())
    assert len(changes(folder)) == 1
    found = audit(folder)
    (warning,) = [one for one in found.findings if one.code == "claims-changed"]
    assert (str(warning.severity), warning.evidence) == (
        "warning",
        ("'oracle' against 'ppo-lag', env_return: decided before, changed after 4 of 4 runs",),
    )
    written = report(folder, files=False)
    page = written.page.read_text()
    assert "env_return: decided before, changed after 4 of 4 runs." in page
    assert "environment return" in written.answer[0].lower()  # the report tests the claims that the audit does
    assert len(changes(folder)) == 1


@pytest.mark.parametrize("look", [audit, lambda folder: report(folder, files=False)])
def test_audit_and_report_record_a_change_of_claims(folder, look):
    (folder / "claims.yaml").write_text(OWN_CLAIMS)
    look(folder)
    assert changes(folder) == [
        ("claim 'oracle' against 'ppo-lag', cost: about from [\"signal\"] to [], outcome from cost to env_return",)
    ]


def test_a_study_that_was_not_changed_is_shown_as_frozen_and_not_complained_of(folder):
    assert "claims-changed" not in audit(folder).codes()
    page = report(folder, files=False).page.read_text()
    assert "before the first run." in page
    assert "cost: decided before the first run." in page


def test_an_edited_study_file_is_shown_at_once_and_recorded_when_it_is_run_or_frozen(folder):
    Path("small.yaml").write_text(OTHER_LEVEL)
    answer = call("study", "status", "small.yaml", "--once")
    assert "alpha from 0.05 to 0.01" in answer.stdout
    assert "the last change is not recorded yet" in answer.stdout
    page = report_on_study(study(OTHER_LEVEL), folder, files=False).page.read_text()
    assert "changed after 4 of 4 runs" in page
    assert "not recorded yet" in page
    audit(folder)  # of the folder, whose study is as it was
    assert changes(folder) == []
    call("study", "freeze", "small.yaml")
    assert len(changes(folder)) == 1
    assert "not recorded" not in call("study", "status", "small.yaml", "--once").stdout
    assert load_claims(folder / "claims.yaml").comparisons[0].alpha == 0.01


def test_a_folder_that_cannot_be_written_shows_the_change_all_the_same(folder, monkeypatch):
    (folder / "claims.yaml").write_text(OWN_CLAIMS)

    def full(path, data):
        raise RunError("no space left")

    monkeypatch.setattr("vlmsafe.studies.protocol.write_atomically", full)
    found, unrecorded = notice(study(), folder)
    assert (len(found.versions), unrecorded) == (2, "a change of the protocol could not be recorded: no space left")
    assert changes(folder) == []


def test_a_study_that_began_before_protocols_says_that_its_runs_were_there(folder):
    (folder / PROTOCOL_FILE).unlink()
    assert notice(study(), folder) == (None, "")
    assert "This study has no frozen protocol." in report(folder, files=False).page.read_text()
    assert not (folder / PROTOCOL_FILE).exists()
    events = []
    execute(study(), folder, InProcess(), on_event=events.append)
    assert "not before the first run: 4 of 4 runs were there" in events[0].reason
    (note,) = [one for one in audit(folder).findings if one.code == "claims-changed"]
    assert (str(note.severity), note.evidence) == (
        "note",
        ("'oracle' against 'ppo-lag', cost: not decided before: 4 of 4 runs were there",),
    )


@pytest.mark.parametrize(
    "words",
    [
        ("study", "run"),
        ("study", "status", "--once"),
        ("study", "freeze"),
        ("study", "report"),
        ("report",),
        ("audit",),
    ],
)
def test_a_protocol_that_was_edited_is_one_line_and_nothing_is_written(folder, words):
    document = json.loads((folder / PROTOCOL_FILE).read_text())
    document["versions"][0]["finished"] = 1
    (folder / PROTOCOL_FILE).write_text(json.dumps(document))
    (folder / "study.yaml").write_text((folder / "study.yaml").read_text() + "# edited\n")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    answer = call(*words[:2], folder, *words[2:])
    assert answer.returncode == EXIT_BAD_INPUT
    assert "protocol.json was changed by hand: its hash does not match" in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after | {"lock": b""} == before | {"lock": b""}


def test_claims_that_cannot_be_read_stop_a_study_before_anything_is_written(folder):
    (folder / "claims.yaml").write_text("comparisons: [{first: oracle}]\n")
    before = (folder / "study.yaml").read_bytes()
    with pytest.raises(InputError, match="expected 'first' and 'second'"):
        execute(study(OTHER_LEVEL), folder, InProcess())
    assert (folder / "study.yaml").read_bytes() == before


def test_a_folder_of_another_study_is_refused(folder):
    with pytest.raises(
        InputError, match=r"holds the protocol of the study 'small', and this study is 'small-scale-0\.5'"
    ):
        freeze(study().varied(0.5), folder)


def test_a_smaller_study_is_frozen_as_itself(tmp_path):
    smaller = study().varied(0.5)
    found, _ = freeze_study(smaller, tmp_path / smaller.title)
    assert found.last.content["study"] == "small-scale-0.5"
    assert found.last.content["cells"][0]["total_steps"] == 40


def test_the_command_prints_the_page_and_the_hash_and_says_when_nothing_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)
    first = call("study", "freeze", "small.yaml")
    digest = read_protocol(Path("runs/small")).last.digest
    assert first.stdout.splitlines()[1:] == ["protocol: runs/small/protocol.md", f"hash: {digest}"]
    assert "unchanged since" in call("study", "freeze", "small.yaml").stdout
    Path("small.yaml").write_text(OTHER_LEVEL)
    again = call("study", "freeze", "small.yaml", "--dir", "runs/small").stdout
    assert "protocol changed: before the first run, to version 2: claim" in again
    assert digest not in again
    assert "decided before the first run" in call("study", "status", "small.yaml", "--once").stdout


def test_a_study_that_is_running_is_not_frozen_by_another_process(tmp_path):
    tmp_path.joinpath("small").mkdir()
    with DirectoryLock(tmp_path / "small"), pytest.raises(RunError, match="a process is working in"):
        freeze_study(study(), tmp_path / "small")


def test_a_study_at_a_url_has_its_protocol_there(tmp_path):
    store = Store(f"file://{tmp_path / 'store'}")
    found, _ = freeze_study(study(), tmp_path / "here", store)
    store.fetch_study(tmp_path / "there")
    assert read_protocol(tmp_path / "there") == found
    assert (tmp_path / "there" / PROTOCOL_PAGE).exists()
    changed, _ = freeze_study(study(OTHER_LEVEL), tmp_path / "there", store)
    store.fetch_study(tmp_path / "here")
    assert read_protocol(tmp_path / "here") == changed
    assert len(changed.versions) == 2


def test_a_run_that_was_copied_from_another_study_is_said_to_be_older(folder):
    for path in folder.glob("speeding/*/*"):
        edit_recorded(path, started="2026-01-01T00:00:00+00:00")
    other = SMALL.replace("name: small", "name: other")
    launcher = InProcess()
    execute(study(other), Path("runs/other"), launcher)
    assert trainings(launcher) == 0
    protocol = json.loads(Path("runs/other", PROTOCOL_FILE).read_text())
    assert protocol["versions"][0]["begun"] == 0
    assert (
        "4 of 4 runs had been trained before, for another study." in report("runs/other", files=False).page.read_text()
    )


def test_a_report_is_told_the_planned_seeds_and_the_looks(folder):
    info = api._study_info(study(f"{SMALL}looks: {{at: [0.5, 1.0]}}\n"), folder, "")
    assert info.planned_seeds == {("speeding", "ppo-lag"): (1, 2), ("speeding", "oracle"): (1, 2)}
    assert info.looks == Looks((0.5, 1.0))
    assert info.protocol is not None
