"""A report is one page with the answer first, and files for papers beside it."""

import os
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from report_runs import PLAIN, SIGNAL, costs_with, made_up_prompts, write_evaluation, write_run, write_study

from vlmsafe import evaluate, train
from vlmsafe.cli import report as command
from vlmsafe.errors import InputError
from vlmsafe.report.dataset import read_dataset
from vlmsafe.report.request import StudyInfo
from vlmsafe.report.rerun import rerun_lines
from vlmsafe.report.write import write_report
from vlmsafe.runs.run import Run

pytestmark = pytest.mark.slow

EVIL = '<script>alert("&amp;")</script>'


class Document(HTMLParser):
    """The text of a page in reading order, and its tags with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.words, self.tags, self.open, self.unclosed = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "rect", "circle", "path", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.unclosed.append(tag)

    def handle_data(self, data):
        if self.open[-1:] not in (["script"], ["style"]):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(self.words)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    write_study(folder / "runs", traces=True)
    info = StudyInfo("controls", "Does the bonus lower the catastrophe rate?", ("tab:x",), planned=10)
    return write_report([folder / "runs"], folder / "report.html", info)


@pytest.fixture(scope="module")
def page(written):
    return written.page.read_text()


def test_the_question_comes_first_then_the_answer_then_tables_figures_audit_and_settings(page):
    text = Document(page).text
    order = [
        "Does the bonus lower the catastrophe rate?",
        f"Catastrophe rate of '{SIGNAL}' against '{PLAIN}': lower on metadrive-easy.",
        "The difference is significant: ",
        "The audit has",
        "8 runs of 10 planned, 8 trained to the end",
        "Comparisons on metadrive-easy",
        "Training curves",
        "The logged return taken apart",
        "No finding is not the same as nothing wrong.",
        'vlmsafe train --config "$RUNS"/metadrive-easy/ppo-lag/seed-123/config.yaml',
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_a_page_is_well_formed_and_needs_nothing_else(page):
    document = Document(page)
    assert not document.open
    assert not document.unclosed
    sources = [attrs[name] for _, attrs in document.tags for name in ("src", "srcset", "action") if name in attrs]
    assert not sources
    links = [attrs["href"] for tag, attrs in document.tags if "href" in attrs]
    assert all(link.startswith(("#", "report/")) for link in links)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_links_within_the_page_have_a_target_and_ids_are_unique(page):
    document = Document(page)
    ids = [attrs["id"] for _, attrs in document.tags if "id" in attrs]
    assert len(set(ids)) == len(ids)
    targets = [attrs["href"][1:] for _, attrs in document.tags if attrs.get("href", "").startswith("#")]
    assert targets
    assert set(targets) <= set(ids)


def test_every_table_and_figure_is_also_a_file(written, page):
    names = {path.name for path in written.files}
    assert all(path.stat().st_size for path in written.files)
    assert {"table-comparisons.csv", "table-comparisons.tex", "figure-curves.png", "figure-curves.pdf"} <= names
    linked = set(re.findall(r'href="report/([^"]+)"', page))
    assert linked == names


def test_names_and_prompts_stay_text(tmp_path):
    for seed in (1, 2):
        evil = made_up_prompts(EVIL)
        write_evaluation(write_run(tmp_path / "runs", SIGNAL, seed, arm="<script>x", prompts=evil), costs_with(1))
        write_evaluation(write_run(tmp_path / "runs", PLAIN, seed), costs_with(2))
    info = StudyInfo(
        EVIL, EVIL, (EVIL,), command=EVIL, definition=EVIL, tables=({"kind": "summary", "title": EVIL, "label": EVIL},)
    )
    page = write_report([tmp_path / "runs"], tmp_path / "r.html", info, files=False).page.read_text()
    document = Document(page)
    assert [tag for tag, _ in document.tags].count("script") == 1  # the page's own
    assert document.text.count(EVIL) >= 7
    assert "<script>x" in document.text


def test_equal_runs_give_equal_pages_wherever_they_lie(tmp_path):
    pages = []
    for name in ("one", "two"):
        write_study(tmp_path / name / "runs", seeds=(1, 2))
        written = write_report(
            [tmp_path / name / "runs"], tmp_path / name / "r.html", StudyInfo("s"), files=False, times=False
        )
        pages.append(written.page.read_text())
    assert pages[0] == pages[1]
    assert "What it costs to train" not in pages[0]


LAMP = """
import numpy as np
import vlmsafe


class Lamp(vlmsafe.Scorer):
    looks_at, rules = "frame", ("decoupled",)

    def __init__(self, prompts):
        self.groups = (1, 1)

    def score(self, inputs):
        light = inputs.mean(axis=(1, 2, 3)) / 255.0
        return np.stack([1 - light, light], axis=1).astype(np.float32)
"""


def test_the_commands_of_a_page_make_a_run_with_the_users_code_and_prompts_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lamp.py").write_text(LAMP)
    (tmp_path / "mine.yaml").write_text("positive: [水 is calm]\nnegative: [a wave]\n")
    run = train(env="speeding", method="vlm-ppo-lag", scorer="python:lamp:Lamp", prompts="mine.yaml", total_steps=80,
                steps_per_epoch=40, learner={"update_iters": 1}, run_dir="runs/my first", quiet=True)  # fmt: skip
    costs = evaluate(run, episodes=3, processes=1)["cost"]
    (tmp_path / "mine.yaml").unlink()  # the run has its own copy
    page = write_report(["runs"], tmp_path / "r.html", files=False).page.read_text(encoding="utf-8")
    assert "Call these commands in the folder that holds your own modules" in page
    assert "水 is calm" in page
    commands, _ = rerun_lines(read_dataset(["runs"], StudyInfo("s")))
    assert commands[0] == "RUNS=runs"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(["sh", "-ec", "\n".join(commands)], env={**os.environ, "PATH": path}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    again = Run.open(tmp_path / "again" / "my first")
    assert [row["episode_cost"] for row in again.rows("epochs")] == [row["episode_cost"] for row in run.rows("epochs")]
    assert evaluate(again, episodes=3)["cost"].equals(costs)


def test_what_was_asked_for_and_is_missing_is_listed_with_its_reason(tmp_path):
    write_run(tmp_path / "runs", PLAIN, 1)
    info = StudyInfo("s", tables=({"kind": "gate", "label": "tab:gate-medians"},), figures=("lead-time",))
    written = write_report([tmp_path / "runs"], tmp_path / "r.html", info, files=False)
    assert [one.kind for one in written.missing] == ["gate", "lead-time"]
    text = Document(written.page.read_text()).text
    assert "tab:gate-medians" in text
    assert "vlmsafe trace RUN records one" in text


def test_what_a_study_names_comes_first_and_keeps_its_label(tmp_path):
    write_study(tmp_path / "runs", seeds=(1, 2))
    info = StudyInfo("s", tables=({"kind": "per-seed", "label": "tab:md-perseed", "source": "paper"}, "rates"))
    written = write_report([tmp_path / "runs"], tmp_path / "r.html", info)
    headings = re.findall(r"<h3>(.*?)</h3>", written.page.read_text())
    assert headings[0].startswith("Run by run (paper) on metadrive-easy")
    assert "tab:md-perseed" in headings[0]
    assert headings[1].startswith("Catastrophe and violation rates")
    assert (tmp_path / "r" / "tab-md-perseed.tex").read_text().count("tab:md-perseed") == 1


def test_one_run_is_a_report_too(tmp_path):
    run = write_run(tmp_path, SIGNAL, 1, epochs=3)
    written = write_report([run.path], tmp_path / "one.html")
    text = Document(written.page.read_text()).text
    assert "What did this run come to?" in text
    assert "1 run, 0 trained to the end" in text


def test_a_study_of_twenty_runs_is_small_and_quick(tmp_path):
    write_study(tmp_path / "runs", seeds=range(10), traces=True)
    began = time.process_time()  # of this process: others may be busy
    written = write_report([tmp_path / "runs"], tmp_path / "report.html")
    assert time.process_time() - began < 30
    assert written.page.stat().st_size < 5e6


# -- the command ------------------------------------------------------------------------------------------------


def test_the_command_writes_into_the_folder_and_prints_the_page(tmp_path, capsys):
    write_study(tmp_path / "runs", seeds=(1, 2))
    command.report_verb([str(tmp_path / "runs"), "--no-files"])
    said = capsys.readouterr()
    assert said.out.split() == ["report:", str(tmp_path / "runs" / "report.html")]
    assert said.err.startswith(
        f"Catastrophe rate of '{SIGNAL}' against '{PLAIN}': no significant difference on metadrive-easy."
    )
    assert "\nThe audit " in said.err
    assert not (tmp_path / "runs" / "report").exists()


def test_a_report_in_the_folder_is_not_taken_for_a_run(tmp_path):
    write_study(tmp_path / "runs", seeds=(1, 2))

    def page():
        return write_report([tmp_path / "runs"], tmp_path / "r.html", files=False, times=False).page.read_text()

    before = page()
    write_report([tmp_path / "runs"], tmp_path / "runs" / "report.html")
    assert page() == before


def test_a_folder_of_runs_is_not_filled_with_a_reports_files(tmp_path):
    write_study(tmp_path / "runs", seeds=(1, 2))
    before = sorted((tmp_path / "runs").rglob("*"))
    with pytest.raises(InputError, match=r"which holds other things \(claims.yaml\); give the page another name"):
        write_report([tmp_path / "runs"], tmp_path / "runs.html")
    assert sorted((tmp_path / "runs").rglob("*")) == before
    assert write_report([tmp_path / "runs"], tmp_path / "runs.html", files=False).page.is_file()


def test_files_of_an_earlier_report_go_and_other_peoples_stay(tmp_path):
    write_run(tmp_path / "runs", PLAIN, 1, epochs=3)
    out, folder = tmp_path / "my report.html", tmp_path / "my report"
    first = write_report([tmp_path / "runs"], out, StudyInfo("s", tables=({"kind": "training", "label": "tab:mine"},)))
    assert folder / "tab-mine.csv" in first.files
    (folder / "notes.md").write_text("mine")
    second = write_report([tmp_path / "runs"], out)
    listed = {path.name for path in second.files}
    assert "tab-mine.csv" not in listed
    assert {path.name for path in folder.iterdir()} == listed | {"files.txt", "notes.md"}
    links = re.findall(r'href="(my[^"]+)"', out.read_text())
    assert links
    assert all((tmp_path / unquote(link)).is_file() and " " not in link for link in links)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "report: no runs"),
        (["nowhere"], "there is no nowhere"),
        ([".", "--out", "report.pdf"], "expected the name of an HTML file"),
        (["."], "holds no run"),
    ],
)
def test_bad_requests_are_one_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        command.report_verb(arguments)
    assert not list(Path(tmp_path).iterdir())
