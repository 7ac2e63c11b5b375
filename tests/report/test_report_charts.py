"""Charts put the right numbers on the right axes, and both drawings show them."""

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from report_runs import PLAIN, SIGNAL, write_run, write_study

from vlmsafe.report.charts import build_chart
from vlmsafe.report.charts_training import curve_marks
from vlmsafe.report.data import FIGURES, Entry, StudyInfo
from vlmsafe.report.exports import chart_csv
from vlmsafe.report.material import read_material
from vlmsafe.report.model import Axis, Band, Bar, Box, Chart, Dots, Line, Missing, Panel, Rule, Span
from vlmsafe.report.plots import plot
from vlmsafe.report.svg import limits, svg, ticks


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return read_material([write_study(tmp_path_factory.mktemp("study"), traces=True)], StudyInfo("study"))


@pytest.fixture(scope="module")
def charts(study):
    over = {"sweep": ("total_steps",)}
    return {kind: build_chart(study, Entry(kind, over=over.get(kind, ()))) for kind in FIGURES}


@pytest.mark.parametrize("kind", FIGURES)
def test_every_figure_of_a_full_study_has_panels_and_none_is_empty(charts, kind):
    chart = charts[kind]
    assert isinstance(chart, Chart), chart
    assert chart.panels
    for panel in chart.panels:
        assert any(not isinstance(mark, Rule) for mark in panel.marks), panel.title
        assert panel.x.label or panel.x.categories


@pytest.mark.parametrize("kind", FIGURES)
def test_both_drawings_have_all_panels(charts, kind):
    chart = charts[kind]
    shown = [ax for ax in plot(chart).axes if ax.get_visible()]
    assert len(shown) == len(chart.panels)
    for place, panel in enumerate(chart.panels):
        root = ElementTree.fromstring(svg(panel, chart, f"p{place}"))
        assert root.get("aria-label") == panel.title


def test_runs_that_have_only_begun_do_no_harm(tmp_path):
    write_run(tmp_path, PLAIN, 1, epochs=0)
    write_run(tmp_path, SIGNAL, 2, epochs=1)
    material = read_material([tmp_path], StudyInfo("study"))
    for kind in FIGURES:
        chart = build_chart(material, Entry(kind))
        assert isinstance(chart, Missing) or plot(chart).axes


def test_environment_return_and_shaped_return_never_share_an_axis(charts):
    titles = [panel.title for panel in charts["curves"].panels]
    assert titles == ["Episode cost J_C", "Environment return", "Shaped return"]
    cost, own, shaped = charts["curves"].panels
    assert [mark.value for mark in cost.marks if isinstance(mark, Rule)] == [25.0]
    assert {mark.group for mark in own.marks} == {PLAIN, SIGNAL}
    assert {mark.group for mark in shaped.marks} == {SIGNAL}
    assert max(y for mark in own.marks if isinstance(mark, Line) for y in mark.y) < 30
    assert min(y for mark in shaped.marks if isinstance(mark, Line) for y in mark.y) > 50


def test_the_signal_term_is_drawn_apart_from_the_cost_term(charts):
    titles = [panel.title for panel in charts["multiplier"].panels]
    assert titles == ["Multiplier λ", "Cost term J_C - d", "Signal term η₂ (mean c_vlm - τ)"]


def test_an_arm_is_its_mean_a_band_and_faint_runs(study):
    marks = [mark for mark in curve_marks([study.every_arm["metadrive-easy", PLAIN]], "episode_cost")]
    assert sum(isinstance(mark, Line) and mark.faint for mark in marks) == 4
    (band,) = (mark for mark in marks if isinstance(mark, Band))
    (mean,) = (mark for mark in marks if isinstance(mark, Line) and not mark.faint)
    table = np.array([mark.y for mark in marks if isinstance(mark, Line) and mark.faint])
    assert mean.y == pytest.approx(table.mean(axis=0))
    assert np.array(band.high) - np.array(mean.y) == pytest.approx(table.std(axis=0))


def test_a_mean_ends_with_the_shortest_run(tmp_path):
    write_run(tmp_path, PLAIN, 1)
    write_run(tmp_path, PLAIN, 2, epochs=5)
    material = read_material([tmp_path], StudyInfo("study"))
    lines = [
        mark
        for mark in curve_marks([material.every_arm["metadrive-easy", PLAIN]], "episode_cost")
        if isinstance(mark, Line)
    ]
    assert sorted(len(line.y) for line in lines if line.faint) == [5, 12]
    assert [len(line.y) for line in lines if not line.faint] == [5]


def test_arms_keep_their_colours_in_every_figure_of_arms(charts):
    arms = [PLAIN, SIGNAL]
    assert all(list(chart.groups)[:2] == arms for kind, chart in charts.items() if kind != "gate-roc")


# -- drawing ----------------------------------------------------------------------------------------------------

EVERY_MARK = Panel(
    "all & <marks>",
    Axis("x <b>"),
    Axis("y"),
    [
        Line("a", [0, 1, 2], [1.0, None, 3.0], "seed-<1>"),
        Band("a", [0, 1], [0.0, 1.0], [2.0, 3.0]),
        Dots("b", [0.5], [2.5], ["<script>"]),
        Span("b", 1.0, 2.0, 1.5, 2.5),
        Span("b", 2.0, 1.0, 0.5, 1.5, "x"),
        Bar("a", 1.0, -1.0, "y"),
        Rule(2.0, "budget <2>"),
        Rule(1.0, along="y"),
    ],
)
ROWS = Panel(
    "rows", Axis("v"), Axis("", ("one", "two")), [Bar("a", 0, 3.0), Box("b", 1, 0, 1, 2, 3, 4), Dots("a", [1], [0.1])]
)


@pytest.mark.parametrize("panel", [EVERY_MARK, ROWS])
def test_every_kind_of_mark_is_drawn_within_the_picture_and_escaped(panel):
    chart = Chart("x", "x", [panel], ["a", "b"])
    text = svg(panel, chart, "k")
    root = ElementTree.fromstring(text)
    assert "<script" not in text
    assert "nan" not in text
    width, height = (float(part) for part in root.get("viewBox").split()[2:])
    data = json.loads(root.get("data-hover"))
    points = [point for series in data["s"] for point in series["p"]]
    assert points
    assert all(0 <= point[0] <= width and 0 <= point[1] <= height for point in points)
    assert plot(chart).axes


def test_pointing_finds_every_value_that_is_drawn():
    chart = Chart("x", "x", [EVERY_MARK], ["a", "b"])
    data = json.loads(ElementTree.fromstring(svg(EVERY_MARK, chart, "k")).get("data-hover"))
    found = [(entry["n"], point[2:]) for entry in data["s"] for point in entry["p"]]
    line = [values for name, values in found if name == "a, seed-<1>"]
    assert line == [["0", "1"], ["2", "3"]]  # the gap has no value
    assert ("b", ["0.5", "2.5", "<script>"]) in found
    assert ("b", ["", "2 [1.5, 2.5]"]) in found


@pytest.mark.parametrize(
    ("ends", "labels"),
    [
        ((0.0, 1e6), ["0", "200k", "400k", "600k", "800k", "1M"]),
        ((0.0, 0.0013), ["0", "0.0005", "0.0010"]),
        ((0.12, 0.31), ["0.15", "0.20", "0.25", "0.30"]),
    ],
)
def test_ticks_are_round_numbers_that_differ(ends, labels):
    found = [label for _, label in ticks(Axis("x"), ends, 5)]
    assert found == labels
    assert len(set(found)) == len(found)


def test_an_axis_holds_all_marks_and_the_ends_it_must():
    low, high = limits(EVERY_MARK, "y")
    assert low < -1.0
    assert high > 3.0
    assert limits(Panel("t", Axis("x", low=0.0), Axis("y"), [Dots("a", [3.0, 5.0], [1.0, 1.0])]), "x")[0] == 0.0
    level = Panel("t", Axis("x"), Axis("y"), [Line("a", [0, 1], [0.62, 0.62 + 1e-12])])
    assert limits(level, "y") == pytest.approx((0.12, 1.12), abs=0.2)


def test_csv_of_a_figure_has_every_drawn_value(charts):
    lines = chart_csv(charts["curves"]).splitlines()
    assert lines[0] == "panel,group,mark,name,x,y,low,high"
    runs = [line for line in lines if line.startswith("Episode cost") and ",run,seed-42," in line]
    assert len(runs) == 2 * 12  # both arms, twelve epochs
