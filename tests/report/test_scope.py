"""The scope is one file that holds the trace, its frames once, and nothing that could run or reach out."""

import base64
import hashlib
import html
import json
import re

import polars as pl
import pytest
from recorded_traces import CONTACTS, LENGTH, PROMPTS, make_run, write_recorded

from vlmsafe.errors import InputError
from vlmsafe.report.scope import make_scope, write_scope
from vlmsafe.runs.layout import about_path, frames_path
from vlmsafe.runs.traces import open_trace


def blocks(page):
    """The JSON of a page by its id."""
    found = re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', page, re.DOTALL)
    return {name: json.loads(text) for name, text in found}


@pytest.fixture
def trace(tmp_path):
    return open_trace(write_recorded(tmp_path))


def test_page_holds_every_scored_frame_once_as_it_was_kept(trace):
    scope = make_scope(trace)
    kept = pl.read_parquet(frames_path(trace.path))["picture"].to_list()
    held = blocks(scope.html)
    frames = [base64.b64decode(text) for number in range(3) for text in held[f"frames-{number}"]]
    assert frames == kept
    assert all(frame[8:12] == b"WEBP" for frame in frames)
    assert scope.frames == len(kept)
    assert scope.size == len(scope.html.encode())
    for frame in kept:
        assert scope.html.count(base64.b64encode(frame).decode()) == 1


def test_page_holds_the_numbers_of_the_trace(trace):
    data = blocks(make_scope(trace).html)["data"]
    for number, episode in enumerate(data["episodes"]):
        steps = trace.steps.filter(episode=number)
        scored = steps.filter("scored")
        assert episode["length"] == LENGTH
        assert episode["cost"] == pytest.approx(steps["cost"].to_list())
        assert episode["scored"] == scored["step"].to_list()
        assert episode["extras"]["distance"] == pytest.approx(steps["distance"].to_list(), rel=1e-4)
        scores = episode["scores"][0]
        for name in ("kappa", "positive", "negative", "margin"):
            assert scores[name] == pytest.approx(scored[name].to_list(), rel=1e-4, abs=1e-12)
        for i, values in enumerate(scores["similarities"]):
            assert values == pytest.approx(scored[f"similarity_{i}"].to_list(), rel=1e-4)
    assert set(data["extras"]) == {"reward", "hazard", "distance"}
    assert [(one["group"], one["text"]) for one in data["scorers"][0]["prompts"]] == list(PROMPTS)


def test_contacts_are_unbroken_runs_of_steps_with_cost(trace):
    scope = make_scope(trace)
    data = blocks(scope.html)["data"]
    assert [episode["contacts"] for episode in data["episodes"]] == [[[10, 11], [18, 18]], [], [[6, 6]]]
    assert scope.onsets == scope.recorded_onsets == 3
    assert CONTACTS[0] == (10, 11, 18)


def test_scores_that_are_no_numbers_become_null(trace):
    steps = trace.steps.with_columns(kappa=pl.when(pl.col("step") == 4).then(float("nan")).otherwise("kappa"))
    steps.write_parquet(trace.path)
    data = blocks(make_scope(open_trace(trace.path)).html)["data"]
    assert data["episodes"][0]["scores"][0]["kappa"][1] is None


def test_text_of_a_trace_stays_text(trace):
    about = json.loads(about_path(trace.path).read_text()) | {"method": "<img src=x onerror=alert(1)>"}
    about_path(trace.path).write_text(json.dumps(about))
    page = make_scope(open_trace(trace.path)).html
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert blocks(page)["data"]["title"].startswith("<img src=x")
    # Of the scripts only one runs; the others are data.
    assert re.findall(r"<script(?![^>]*application/json)[^>]*>", page) == ["<script>"]


def test_policy_allows_the_pages_own_script_and_style_and_nothing_else(trace):
    page = make_scope(trace).html
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    rules = dict(rule.split(" ", 1) for rule in html.unescape(policy).split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        wanted = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{wanted}'"
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a format


def test_episodes_limit_what_is_shown_and_what_is_left_out_is_counted(trace):
    scope = make_scope(trace, episodes=2)
    assert (scope.episodes, scope.recorded, scope.onsets, scope.recorded_onsets) == (2, 3, 2, 3)
    assert set(blocks(scope.html)) == {"data", "frames-0", "frames-1"}
    assert scope.frames == 2 * LENGTH // 2
    with pytest.raises(InputError, match="episodes is 0"):
        make_scope(trace, episodes=0)


def test_every_scorer_of_a_trace_is_there(tmp_path):
    data = blocks(make_scope(open_trace(write_recorded(tmp_path, scorers=("clip", "oracle")))).html)["data"]
    assert [scorer["name"] for scorer in data["scorers"]] == ["clip", "oracle"]
    first, second = data["episodes"][0]["scores"]
    assert first["positive"] != second["positive"]
    assert "clip_kappa" not in data["extras"]


def test_trace_that_does_not_say_who_looked_on_is_shown_all_the_same(trace):
    about_path(trace.path).unlink()
    data = blocks(make_scope(open_trace(trace.path)).html)["data"]
    assert data["title"] == "held-out"
    assert [one["text"] for one in data["scorers"][0]["prompts"]] == [None, None]


def test_page_goes_beside_the_run_unless_another_place_is_given(tmp_path):
    run = make_run(tmp_path / "run").path
    write_recorded(run, "paper-20")
    path, scope = write_scope(run)
    assert path == run / "scope-paper-20.html"
    assert path.read_text() == scope.html
    other, _ = write_scope(run, tmp_path / "new" / "page.html", protocol="paper-20", episodes=1)
    assert other.stat().st_size < path.stat().st_size
    with pytest.raises(InputError, match="a name that ends in"):
        write_scope(run, tmp_path / "page.pdf")


def test_trace_without_scorers_or_with_steps_missing_is_refused(tmp_path):
    path = write_recorded(tmp_path)
    whole = pl.read_parquet(path)
    whole.filter(pl.col("step") != 5).write_parquet(path)
    with pytest.raises(InputError, match="the steps of episode 0 are not 1, 2, 3"):
        make_scope(open_trace(path))
    whole.drop("positive", "negative", "margin", "kappa").write_parquet(path)
    with pytest.raises(InputError, match="recorded without a scorer"):
        make_scope(open_trace(path))
