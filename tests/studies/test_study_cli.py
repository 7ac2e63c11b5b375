"""vlmsafe study, as a user types it."""

import io
import json
import shutil
from pathlib import Path

import pytest
from in_process import InProcess
from rich.console import Console

from vlmsafe.cli import main
from vlmsafe.cli.study import tables, verbs
from vlmsafe.errors import EXIT_BAD_INPUT
from vlmsafe.io.files import append_rows
from vlmsafe.io.locks import DirectoryLock
from vlmsafe.studies.api import audit, report
from vlmsafe.studies.execute import execute
from vlmsafe.studies.remote.store import Store
from vlmsafe.studies.remote.study_side import keep_new
from vlmsafe.studies.schema import load_study, parse_study, shipped_studies

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
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SMALL)
    return tmp_path


def shown(capsys, *words):
    main(["study", *map(str, words)])
    return capsys.readouterr().out


def refused(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        main(["study", *map(str, words)])
    assert caught.value.code == EXIT_BAD_INPUT
    message = capsys.readouterr().err
    assert len(message.strip().splitlines()) == 1
    return message


def rows(text, first):
    return [line.split() for line in text.splitlines() if line.strip().startswith(f"{first} ")]


def test_list_names_every_study_with_its_runs(capsys):
    text = shown(capsys, "list")
    for name in shipped_studies():
        assert any(f" {name} " in line for line in text.splitlines()), name
    assert " 99 " in next(line for line in text.splitlines() if " formula-one-grid " in line)


def test_show_prints_the_question_the_cells_and_the_file(capsys, here):
    text = shown(capsys, "show", "small.yaml")
    assert text.startswith("Does the oracle lower the cost?")
    assert rows(text, "speeding") == [
        ["speeding", "ppo-lag", "ppo-lag", "1,", "2", "80", "-", "-"],
        ["speeding", "oracle", "vlm-ppo-lag", "1,", "2", "80", "-", "-"],
    ]
    assert "signal.scorer: oracle" in text


def test_plan_prints_every_cell_and_what_its_hours_rest_on(capsys, here):
    text = shown(capsys, "plan", "small.yaml", "--cores", 2)
    assert [row[:5] for row in rows(text, "speeding")] == [
        ["speeding", "ppo-lag", "2", "0", "160"],
        ["speeding", "oracle", "2", "0", "160"],
    ]
    assert "4 runs, 0 done; 320 steps of training" in text
    assert "note: 'table': measured by benchmarks/speeds.py on" in text
    assert not (here / "runs").exists()


def test_a_plan_of_an_environment_that_was_never_measured_says_unknown(capsys, here, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "end_to_end")
    own = SMALL.replace("[speeding]", "['gym:broken_envs:Walk-v0']").replace("scorer: oracle", "scorer: noise")
    (here / "own.yaml").write_text(own)
    text = shown(capsys, "plan", "own.yaml")
    assert "left: an unknown number of hours on this machine" in text
    assert "0.00" not in text
    assert "note: NO BUDGET WAS GIVEN for 'gym:broken_envs:Walk-v0': a cost of 25 per episode is assumed" in text
    (here / "own.yaml").write_text(own.replace("steps_per_epoch", "budget: 3, steps_per_epoch"))
    assert "BUDGET" not in shown(capsys, "plan", "own.yaml")


def test_a_plan_for_a_cluster_needs_nothing_that_only_its_nodes_have(capsys, here):
    missing = SMALL.replace("scorer: oracle", "scorer: 'clip:lost/weights/of/mine', signal.prompts: metadrive")
    (here / "own.yaml").write_text(missing.replace("[speeding]", "['gym:not_here:Walk-v0']"))
    assert "not_here" in refused(capsys, "run", "own.yaml")
    text = shown(capsys, "plan", "own.yaml", "--launcher", "ray")
    assert "left: an unknown number of hours\n" in text  # those of this machine would be wrong
    assert "core-hours, " not in shown(capsys, "plan", "small.yaml", "--launcher", "ray")


@pytest.mark.parametrize("kind", ["protocols", "traces"])
def test_a_protocol_that_is_defined_for_no_environment_is_a_problem(capsys, here, kind):
    (here / "small.yaml").write_text(f"{SMALL}{kind}: [{{protocol: held-out, episodes: 2}}, {{protocol: paper}}]\n")
    for verb in ("plan", "run"):
        message = refused(capsys, verb, "small.yaml")
        assert f"'paper' under '{kind}' is defined for no environment that it is asked for (speeding); use" in message
    (here / "small.yaml").write_text(f"{SMALL}{kind}: [{{protocol: held-out, episodes: 2}}]\n")
    shown(capsys, "plan", "small.yaml")


def test_one_run_is_not_called_runs(capsys, here):
    one = (
        SMALL.replace("seeds: [1, 2]", "seeds: [1]")
        .replace("  oracle: {method", "#")
        .replace("total_steps: 80", "total_steps: 40")
    )
    (here / "one.yaml").write_text(one)
    assert "1 run, 0 done" in shown(capsys, "plan", "one.yaml")
    assert "1 run of 1 arm in" in shown(capsys, "show", "one.yaml")


def test_status_is_plain_where_it_is_not_a_terminal_and_knows_a_study_by_name_file_and_folder(capsys, here):
    execute(parse_study(SMALL, ""), here / "runs" / "small", InProcess())
    texts = [shown(capsys, "status", name) for name in ("small.yaml", "runs/small")]
    texts.append(shown(capsys, "status", "small.yaml", "--root", here / "runs"))
    texts.append(shown(capsys, "status", "small.yaml", "--dir", here / "runs" / "small"))
    for text in texts:
        assert "\x1b" not in text
        assert rows(text, "speeding") == [
            ["speeding", "ppo-lag", "2/2", "100", "%", "-", "-", "done"],
            ["speeding", "oracle", "2/2", "100", "%", "-", "-", "done"],
        ]
    smaller = shown(capsys, "status", "small.yaml", "--scale", "0.5")
    assert rows(smaller, "speeding")[0][2] == "0/2"


def test_a_folder_that_happens_to_have_a_studys_name_is_not_taken_for_it(capsys, here):
    (here / "demo").mkdir()
    assert "2 runs of 2 arms in runs/demo" in shown(capsys, "show", "demo")


def test_a_report_has_the_runs_of_the_study_as_it_is_now_and_says_what_it_leaves_out(capsys, here):
    folder = here / "runs" / "small"
    execute(parse_study(SMALL, ""), folder, InProcess())
    (here / "small.yaml").write_text(SMALL.replace("seeds: [1, 2]", "seeds: [1]").replace("80", "160"))
    shown(capsys, "report", "small.yaml")
    page = (folder / "report.html").read_text(encoding="utf-8").replace("<wbr>", "")
    assert "2 runs, 2 trained to the end" in page
    assert "runs/small/speeding/oracle/seed-2 and 1 more: not of the study as it is defined now, and left out" in page
    assert "was made with other settings: total_steps is 80 there and 160 in the study" in page
    shutil.copyfile(here / "small.yaml", folder / "study.yaml")
    left_out = "not of the study as it is defined now, and left out"
    with pytest.raises(SystemExit):
        main(["audit", "runs/small"])  # it counts the same runs, and says so
    text = capsys.readouterr().out
    assert "2 runs, 1 comparison" in text
    assert left_out in " ".join(text.split())
    main(["diagnose", "returns", "runs/small", "--json"])
    said = capsys.readouterr()
    assert left_out in said.err
    (answer,) = json.loads(said.out)
    assert {row["run"] for row in answer["tables"]["returns-runs"]} == {"seed-1"}


def test_several_folders_have_the_runs_of_their_studies_in_reports_and_audits(capsys, here):
    for name in ("small", "other"):
        execute(parse_study(SMALL.replace("small", name, 1), ""), here / "runs" / name, InProcess())
        fewer = SMALL.replace("small", name, 1).replace("seeds: [1, 2]", "seeds: [1]")
        (here / "runs" / name / "study.yaml").write_text(fewer)
    both = [here / "runs" / name for name in ("small", "other")]
    assert audit(both).runs == 4
    assert "4 runs, " in report(both, here / "r.html", files=False).page.read_text(encoding="utf-8")
    (both[0] / "study.yaml").write_text("name: [")
    found = audit(both)  # a study that cannot be read does not stop it
    assert found.runs == 6
    assert any(
        f"every run in {both[0]} counts, because its study cannot be read" in one.reason for one in found.unchecked
    )
    assert "because its study cannot be read" in report(both, here / "r.html", files=False).page.read_text("utf-8")


def test_mistakes_are_one_line(capsys, here):
    assert "unknown study command 'lst'; did you mean 'list'?" in refused(capsys, "lst")
    assert "unknown study 'smal'" in refused(capsys, "plan", "smal")
    assert "scale is 2.0; it must be greater than 0 and at most 1" in refused(
        capsys, "plan", "small.yaml", "--scale", 2
    )
    assert "unknown scorer 'clap'" in refused(capsys, "plan", "generalisation", "--scorer", "clap")
    assert "there is no runs/small" in refused(capsys, "report", "small.yaml")


def test_help_lists_the_verbs(capsys):
    text = shown(capsys)
    verbs = ["list", "show", "plan", "freeze", "run", "status", "report", "verify"]
    assert [line.split()[0] for line in text.splitlines()[2:]] == verbs


def test_the_folder_of_a_smaller_study_is_enough_to_go_on_with_it(capsys, here):
    small = load_study("small.yaml").varied(0.5)
    execute(small, here / "runs" / small.title, InProcess())
    assert rows(shown(capsys, "status", "runs/small-scale-0.5"), "speeding")[0][2] == "2/2"


def test_a_report_of_a_study_by_its_name_or_folder_is_the_studys_own(capsys, here):
    study = parse_study(SMALL + "tables: [methods]\n", "")
    execute(study, here / "runs" / "small", InProcess())
    for name in ("small", "runs/small"):
        main(["report", name, "--no-files"])
        assert capsys.readouterr().out == "report: runs/small/report.html\n"
        page = (here / "runs" / "small" / "report.html").read_text(encoding="utf-8")
        assert "Does the oracle lower the cost?" in page
        assert not (here / "runs" / "small" / "report").exists()
    main(["report", "small", "--no-files", "--question", "Is it cheaper?", "--out", "other.html"])
    page = (here / "other.html").read_text(encoding="utf-8")
    assert '<p class="question">Is it cheaper?</p>' in page
    assert page.index("What the arms are") < page.index("Training on speeding")


# -- a study that is kept at a URL --


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished study, and at a store an earlier state of it."""
    root = tmp_path_factory.mktemp("made")
    (root / "small.yaml").write_text(SMALL)
    study, folder, store = parse_study(SMALL, ""), root / "runs" / "small", Store(f"file://{root}/store")
    execute(study, folder, InProcess())
    journal = (folder / "journal.jsonl").read_bytes()
    (folder / "journal.jsonl").write_bytes(journal.split(b"\n")[0] + b"\n")
    first = study.expand(folder)[0].path / "epochs.jsonl"
    whole = first.read_bytes()
    first.write_bytes(whole.split(b"\n")[0] + b"\n")
    keep_new(store, study.expand(folder)[:1])
    store.store_study(folder)
    first.write_bytes(whole)
    (folder / "journal.jsonl").write_bytes(journal)
    for mark in folder.rglob(".copy-of"):
        mark.unlink()
    return root, store.url


@pytest.mark.parametrize("verb", ["status", "report"])
def test_results_that_are_not_from_the_url_are_never_removed(capsys, made, monkeypatch, verb):
    root, url = made
    monkeypatch.chdir(root)
    before = files(root / "runs")
    assert f"runs/small is not a copy of {url}" in refused(capsys, verb, "small.yaml", "--dir", url)
    assert files(root / "runs") == before


def test_looking_at_a_study_that_runs_here_changes_nothing_in_its_folder(capsys, made, here):
    _, url = made
    shown(capsys, "status", "small.yaml", "--dir", url)
    folder = here / "runs" / "small"
    append_rows(folder / "journal.jsonl", [{"run": "speeding/oracle/seed-1", "step": "train", "what": "began"}])
    (folder / "logs" / "live.log").write_text("epoch 1")
    before = files(folder)
    with DirectoryLock(folder):
        assert "running" in shown(capsys, "status", "small.yaml", "--dir", url, "--runs", "--once")
    assert files(folder) == before


def test_a_study_that_runs_elsewhere_is_shown_as_running_by_its_journal(capsys, made, here):
    _, url = made  # there the first run has one epoch of two, and the journal says that it began
    assert rows(shown(capsys, "status", "small.yaml", "--dir", url), "speeding") == [
        ["speeding", "ppo-lag", "0/2", "25", "%", "-", "-", "1", "running"],
        ["speeding", "oracle", "0/2", "0", "%", "-", "-", "waiting"],
    ]
    text = shown(capsys, "status", "small.yaml", "--dir", url, "--runs")
    assert text.count("running") == 1


def test_the_table_on_a_terminal_is_fetched_again(made, here, monkeypatch):
    screen, source = io.StringIO(), here / "source"
    shutil.copytree(made[0] / "runs" / "small", source)
    terminal = Console(file=screen, force_terminal=True, width=120)
    for module in (verbs, tables):
        monkeypatch.setattr(module, "out", terminal)
    monkeypatch.setattr(verbs, "_FETCH", 0.0)
    study, turns = parse_study(SMALL, ""), []
    store = Store(f"file://{here}/store")
    store.store_study(source)

    def sleep(seconds):
        turns.append(seconds)
        assert len(turns) < 5
        keep_new(store, study.expand(source))

    monkeypatch.setattr(verbs.time, "sleep", sleep)
    main(["study", "status", "small.yaml", "--dir", store.url])
    assert "2/2" in screen.getvalue()


def test_show_and_plan_fetch_nothing(capsys, made, here):
    _, url = made
    for verb in ("show", "plan"):
        shown(capsys, verb, "small.yaml", "--dir", url)
    assert not (here / "runs").exists()
    shown(capsys, "status", "small.yaml", "--dir", f"file://{here}/nothing")
    assert not (here / "runs").exists()


def test_what_looks_like_a_url_is_none_or_is_refused(capsys, made, here):
    _, url = made
    assert "two slashes must follow: file://" in refused(capsys, "status", "small.yaml", "--dir", "file:store2/")
    assert "memory:// exists only inside one process" in refused(capsys, "run", "small.yaml", "--dir", "memory://x")
    assert "cannot use 'Nonsense://x" in refused(capsys, "run", "small.yaml", "--dir", "Nonsense://x")
    assert sorted(path.name for path in here.iterdir()) == ["small.yaml"]
    assert "running" in shown(capsys, "status", "small.yaml", "--dir", url.replace("file", "FILE"))


def test_hints_name_the_url_and_the_cluster(here):
    command = verbs.RunCommand("small.yaml", dir=f"file://{here}/x", launcher="ray", address="head:6379")
    url = f"--dir file://{here}/x"
    assert command.command("run", here) == f"vlmsafe study run {here} {url} --launcher ray --address head:6379"
    assert command.command("report", here) == f"vlmsafe study report {here} {url}"
    assert verbs.RunCommand("small.yaml").command("run", here) == f"vlmsafe study run {here}"
