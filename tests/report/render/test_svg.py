"""Panels are drawn as SVG: every mark in its place, every value to point at, every text escaped."""

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
from drawn_charts import hover, rows_of

from vlmsafe.report.elements import Axis, Band, Bar, Box, Chart, Dots, Line, Panel, Rule, Span
from vlmsafe.report.render.marks import value_text
from vlmsafe.report.render.scales import limits, ticks
from vlmsafe.report.render.svg import panel_svg, rule_labels

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
    text = panel_svg(panel, chart, "k")
    root = ElementTree.fromstring(text)
    assert "<script" not in text
    assert "nan" not in text
    width, height = (float(part) for part in root.get("viewBox").split()[2:])
    data = json.loads(root.get("data-hover"))
    points = [point for series in data["s"] for point in series["p"]]
    assert points
    assert all(0 <= point[0] <= width and 0 <= point[1] <= height for point in points)


def test_pointing_finds_every_value_that_is_drawn():
    chart = Chart("x", "x", [EVERY_MARK], ["a", "b"])
    data = json.loads(ElementTree.fromstring(panel_svg(EVERY_MARK, chart, "k")).get("data-hover"))
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
        ((1_000_000.0, 1_000_050.0), ["1M", "1.00001M", "1.00002M", "1.00003M", "1.00004M", "1.00005M"]),
        ((123_456.0, 123_458.0), ["123.456k", "123.4565k", "123.457k", "123.4575k", "123.458k"]),
        ((0.5, 0.5 + 4e-6), [f"5.0000{i}e\N{MINUS SIGN}01" for i in range(5)]),
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


@pytest.mark.parametrize("along", ["x", "y"])
def test_lines_close_together_have_one_name_and_lines_apart_their_own(along):
    def names(*budgets, upto=100.0):
        rules = [Rule(value, f"budget {value:g}", along) for value in budgets]
        panel = Panel("t", Axis("x", low=0.0, high=upto), Axis("y", low=0.0, high=upto), rules)
        return [label for _, label, _ in rule_labels(panel, along, 300.0)]

    assert names(15.0, 25.0, 35.0, upto=1000.0) == ["budgets 15, 25, 35"]
    assert names(10.0, 90.0) == ["budget 10", "budget 90"]
    assert names(10.0, 11.0, 90.0) == ["budgets 10, 11", "budget 90"]
    assert names(25.0) == ["budget 25"]


def test_a_box_is_drawn_told_and_exported_with_its_own_numbers():
    panel = Panel("t", Axis("v", low=0.0, high=10.0), Axis("", ("one",)), [Box("a", 0, 0.0, 2.0, 3.0, 8.0, 10.0, "n")])
    chart = Chart("x", "x", [panel], ["a"])
    root = ElementTree.fromstring(panel_svg(panel, chart, "k"))
    (bar,) = (node for node in root.iter("rect") if "bar" in node.get("class", ""))
    (median,) = (node.get("d") for node in root.iter("path") if node.get("class") == "median")
    at = float(re.match(r"M([\d.]+)", median)[1])
    left, width = float(bar.get("x")), float(bar.get("width"))
    assert (at - left) / width == pytest.approx(1 / 6, abs=0.01)
    ((name, point),) = hover(panel, chart)
    assert (name, point[2]) == ("n", "median 3, quarters 2 to 8, all 0 to 10")
    assert point[0] == pytest.approx(at, abs=0.1)
    (row,) = rows_of(chart)
    assert [row[key] for key in ("mark", "x", "y", "low", "high")] == ["quarters", "3.0", "one", "2.0", "8.0"]


def test_a_dot_on_the_edge_is_drawn_whole():
    panel = Panel("t", Axis("x", low=0.0), Axis("y", low=0.0), [Dots("a", [0.0, 1.0], [0.0, 1.0])])
    chart = Chart("x", "x", [panel], ["a"])
    root = ElementTree.fromstring(panel_svg(panel, chart, "k"))
    clip = next(node for node in root.iter("rect"))
    x, y, w, h = (float(clip.get(name)) for name in ("x", "y", "width", "height"))
    for _, point in hover(panel, chart):
        assert x <= point[0] - 5
        assert point[0] + 5 <= x + w
        assert y <= point[1] - 5
        assert point[1] + 5 <= y + h


def test_arms_of_one_panel_differ_in_colour_where_a_chart_has_no_legend():
    groups = [f"arm {i}" for i in range(20)]
    rows = [(0, 8, 16), (3, 11, 19)]
    shown = [
        Panel(f"{i}", Axis("v"), Axis("", ("one",)), [Dots(groups[place], [1.0], [0.0]) for place in places])
        for i, places in enumerate(rows)
    ]
    chart = Chart("x", "x", shown, groups, legend=False)
    for panel in shown:
        colours = set(re.findall(r'class="mark (c\d)"', panel_svg(panel, chart, "k")))
        assert len(colours) == 3


@pytest.mark.parametrize(("value", "text"), [(9999.7, "10,000"), (9999.4, "9,999"), (12345.6, "12,346"), (0.5, "0.5")])
def test_values_are_written_as_people_do(value, text):
    assert value_text(value) == text


def test_a_long_number_at_the_end_of_an_axis_stays_inside():
    panel = Panel("t", Axis("x"), Axis("y"), [Dots("a", [240_000.0], [1.0])])
    root = ElementTree.fromstring(panel_svg(panel, Chart("x", "x", [panel], ["a"]), "k"))
    (label,) = (node for node in root.iter("text") if node.text == "240.0005k")
    assert float(label.get("x")) + 6.0 * len(label.text) / 2 < 380


def test_marks_with_values_that_are_no_numbers_are_left_out():
    nan = float("nan")
    marks = [Span("a", 1.0, nan, 0.0, 2.0), Bar("a", 0.0, nan, "y"), Band("a", [0, 1], [0.0, nan], [1.0, 2.0])]
    panel = Panel("t", Axis("x"), Axis("y"), marks)
    assert "nan" not in panel_svg(panel, Chart("x", "x", [panel], ["a"]), "k")
