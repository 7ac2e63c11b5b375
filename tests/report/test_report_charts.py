"""Charts put the right numbers on the right axes, and both drawings show them."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from report_runs import PLAIN, SIGNAL, costs_with, write_evaluation, write_run, write_study

from vlmsafe.comparison.outcomes import values_of
from vlmsafe.report.charts.build import build_chart
from vlmsafe.report.charts.outcomes import _MOST_EPISODES
from vlmsafe.report.charts.training import curve_marks
from vlmsafe.report.dataset import read_dataset
from vlmsafe.report.elements import (
    Axis,
    Band,
    Bar,
    Box,
    Chart,
    Dots,
    Line,
    Missing,
    Panel,
    Rule,
    Span,
)
from vlmsafe.report.render.files import chart_csv
from vlmsafe.report.render.plots import plot
from vlmsafe.report.render.style import legend_below, panels
from vlmsafe.report.render.svg import (
    _value,
    limits,
    rule_labels,
    svg,
    ticks,
)
from vlmsafe.report.request import FIGURES, Entry, StudyInfo


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return read_dataset([write_study(tmp_path_factory.mktemp("study"), traces=True)], StudyInfo("study"))


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
    dataset = read_dataset([tmp_path], StudyInfo("study"))
    for kind in FIGURES:
        chart = build_chart(dataset, Entry(kind))
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
    dataset = read_dataset([tmp_path], StudyInfo("study"))
    lines = [
        mark
        for mark in curve_marks([dataset.every_arm["metadrive-easy", PLAIN]], "episode_cost")
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


def test_csv_of_a_figure_has_every_drawn_value(charts):
    lines = chart_csv(charts["curves"]).splitlines()
    assert lines[0] == "panel,group,mark,name,x,y,low,high"
    runs = [line for line in lines if line.startswith("Episode cost") and ",run,seed-42," in line]
    assert len(runs) == 2 * 12  # both arms, twelve epochs


def hover(panel, chart):
    data = json.loads(ElementTree.fromstring(svg(panel, chart, "k")).get("data-hover"))
    return [(entry["n"], point) for entry in data["s"] for point in entry["p"]]


def rows_of(chart):
    return list(csv.DictReader(io.StringIO(chart_csv(chart))))


def test_between_names_no_place_is_given_out_as_a_value(charts):
    for kind, chart in charts.items():
        for panel in chart.panels:
            for name, point in hover(panel, chart):
                assert not (panel.x.categories and point[2]), (kind, name, point)
                assert not (panel.y.categories and point[3]), (kind, name, point)
        for panel in chart.panels:
            for row in rows_of(chart):
                if row["panel"] == panel.title and row["group"]:
                    assert not panel.x.categories or row["x"] in panel.x.categories, (kind, row)
                    assert not panel.y.categories or row["y"] in panel.y.categories, (kind, row)


def test_a_band_over_names_is_exported_by_name():
    panel = Panel("t", Axis("K", ("1", "20")), Axis("y"), [Band("a", [-0.26, 0.74], [0.0, 1.0], [2.0, 3.0])])
    assert [row["x"] for row in rows_of(Chart("x", "x", [panel], ["a"]))] == ["1", "20"]


def test_lead_times_stand_in_the_order_of_their_horizons(study, charts):
    panel = charts["lead-time"].panels[0]
    assert panel.x.categories == ("1", "3", "5", "10", "20", "40")
    (found,) = study.lead_times(Entry("lead-time")).values()
    own = found.filter(arm=SIGNAL, form="standardised", signal="negative")
    wanted = dict(own.select("horizon", "auc").iter_rows())
    spans = [mark for mark in panel.marks if isinstance(mark, Span) and mark.group == "c_vlm"]
    assert {int(panel.x.categories[round(mark.at)]): mark.centre for mark in spans} == wanted
    assert all(mark.name == f"c_vlm, K = {panel.x.categories[round(mark.at)]}" for mark in spans)
    (line,) = (mark for mark in panel.marks if isinstance(mark, Line) and mark.group == "c_vlm")
    assert line.y == [wanted[int(name)] for name in panel.x.categories]


def test_relative_change_is_in_parts_of_the_second_arm(study, charts):
    panel = next(panel for panel in charts["evaluation-summary"].panels if panel.title == "Relative change")
    (bar,) = (mark for mark in panel.marks if isinstance(mark, Bar))
    source = study.source("metadrive-easy", Entry("evaluation-summary"))
    first, second = (
        np.mean(list(values_of(study.every_arm["metadrive-easy", name], "catastrophe", source).values()))
        for name in (SIGNAL, PLAIN)
    )
    assert bar.value == pytest.approx(100 * (second - first) / second)
    assert bar.group == SIGNAL


def test_many_episodes_are_thinned_out_evenly_and_means_are_of_all(tmp_path):
    run = write_run(tmp_path, PLAIN, 1)
    costs = costs_with(300, 1001)
    write_evaluation(run, costs)
    dataset = read_dataset([tmp_path], StudyInfo("study"))
    panel = build_chart(dataset, Entry("cost-progress")).panels[0]
    small, large = (mark for mark in panel.marks if isinstance(mark, Dots))
    assert len(small.x) <= _MOST_EPISODES < 3 * len(small.x)
    assert small.y == costs[::3]
    assert small.names[:2] == ["seed-1, episode 0", "seed-1, episode 3"]
    assert large.y == [pytest.approx(np.mean(costs))]


def test_every_budget_of_the_arms_is_a_line(tmp_path):
    for budget in (15.0, 25.0, 35.0):
        run = write_run(tmp_path, PLAIN, 1, arm=f"d-{budget:g}", budget=budget)
        write_evaluation(run, costs_with(1))
    dataset = read_dataset([tmp_path], StudyInfo("study"))
    for entry in (Entry("cost-progress"), Entry("sweep", over=("total_steps",)), Entry("curves"), Entry("dots")):
        panel = build_chart(dataset, entry).panels[0]
        assert [mark.value for mark in panel.marks if isinstance(mark, Rule)] == [15.0, 25.0, 35.0], entry.kind


@pytest.mark.parametrize("along", ["x", "y"])
def test_lines_close_together_have_one_name_and_lines_apart_their_own(along):
    def names(*budgets, upto=100.0):
        rules = [Rule(value, f"budget {value:g}", along) for value in budgets]
        panel = Panel("t", Axis("x", low=0.0, high=upto), Axis("y", low=0.0, high=upto), rules)
        return [label for _, label, _ in rule_labels(panel, along, 300.0, 5.6, 11.0)]

    assert names(15.0, 25.0, 35.0, upto=1000.0) == ["budgets 15, 25, 35"]
    assert names(10.0, 90.0) == ["budget 10", "budget 90"]
    assert names(10.0, 11.0, 90.0) == ["budgets 10, 11", "budget 90"]
    assert names(25.0) == ["budget 25"]


def test_names_of_lines_are_not_printed_over_each_other_on_paper():
    for along in ("x", "y"):
        rules = [Rule(value, f"budget {value:g}", along) for value in (15.0, 25.0, 35.0, 180.0)]
        ends = Axis("v", low=0.0, high=200.0)
        panel = Panel("t", ends, ends, [*rules, Dots("a", [1.0], [200.0])])
        (ax,) = plot(Chart("x", "x", [panel], ["a"], legend=False)).axes
        boxes = [text.get_window_extent() for text in ax.texts]
        assert len(boxes) >= 2
        assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[i + 1 :])


@pytest.mark.parametrize("rows", [(), ("a long name of a row, w", "b")])
def test_titles_on_paper_end_before_the_next_panel(rows):
    marks = [Dots("a", [0.0, 1.0], [0.0, 1.0])]
    title = "Calibrated κ as a detector, vlm-ppo-lag-conf-calibrated, metadrive-medium"
    chart = Chart("x", "x", [Panel(title, Axis("x"), Axis("y", rows), marks)] * 3, ["a"])
    figure = plot(chart)
    ends = [ax.get_tightbbox().x0 for ax in figure.axes[1:]] + [figure.bbox.x1]
    for ax, end in zip(figure.axes, ends, strict=True):
        assert ax._left_title.get_window_extent().x1 <= end  # no public way leads to it
    assert figure.axes[0].get_title("left").replace("\n", " ").startswith("Calibrated")


def test_no_entry_of_a_legend_is_lost_where_names_are_cut_alike():
    names = [f"vlm-ppo-lag-conf-with-a-long-{word}-and-the-same-ending-of-it" for word in ("first", "other")]
    figure, axes = panels(1, 1, (6, 3))
    legend_below(figure, [axes[0, 0].plot([0, 1])[0] for _ in names], names)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names


def test_a_box_is_drawn_told_and_exported_with_its_own_numbers():
    panel = Panel("t", Axis("v", low=0.0, high=10.0), Axis("", ("one",)), [Box("a", 0, 0.0, 2.0, 3.0, 8.0, 10.0, "n")])
    chart = Chart("x", "x", [panel], ["a"])
    root = ElementTree.fromstring(svg(panel, chart, "k"))
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
    root = ElementTree.fromstring(svg(panel, chart, "k"))
    clip = next(node for node in root.iter("rect"))
    x, y, w, h = (float(clip.get(name)) for name in ("x", "y", "width", "height"))
    for _, point in hover(panel, chart):
        assert x <= point[0] - 5
        assert point[0] + 5 <= x + w
        assert y <= point[1] - 5
        assert point[1] + 5 <= y + h
    assert not any(found.get_clip_on() for found in plot(chart).axes[0].collections)


def test_bands_of_costs_and_multipliers_do_not_go_below_zero(tmp_path):
    for seed, cost in ((1, 0.0), (2, 0.5)):
        write_run(tmp_path, PLAIN, seed, cost=cost)
    dataset = read_dataset([tmp_path], StudyInfo("study"))
    arm = dataset.every_arm["metadrive-easy", PLAIN]
    (free,) = (mark for mark in curve_marks([arm], "episode_cost") if isinstance(mark, Band))
    panel = build_chart(dataset, Entry("curves")).panels[0]
    (band,) = (mark for mark in panel.marks if isinstance(mark, Band))
    assert min(free.low) < 0.0
    assert list(band.low) == [max(0.0, low) for low in free.low]


def test_arms_of_one_panel_differ_in_colour_where_a_chart_has_no_legend():
    groups = [f"arm {i}" for i in range(20)]
    rows = [(0, 8, 16), (3, 11, 19)]
    shown = [
        Panel(f"{i}", Axis("v"), Axis("", ("one",)), [Dots(groups[place], [1.0], [0.0]) for place in places])
        for i, places in enumerate(rows)
    ]
    chart = Chart("x", "x", shown, groups, legend=False)
    for panel, figure in zip(shown, plot(chart).axes, strict=True):
        colours = set(re.findall(r'class="mark (c\d)"', svg(panel, chart, "k")))
        assert len(colours) == 3
        assert len({tuple(dots.get_facecolor()[0]) for dots in figure.collections}) == 3


def test_lead_lag_lines_keep_clear_of_the_frame(charts):
    panel = next(panel for panel in charts["lead-time"].panels if panel.title.startswith("c_vlm at t"))
    values = [y for mark in panel.marks if isinstance(mark, Line) for y in mark.y]
    low, high = limits(panel, "y")
    assert low < min(values)
    assert max(values) < high


@pytest.mark.parametrize(("value", "text"), [(9999.7, "10,000"), (9999.4, "9,999"), (12345.6, "12,346"), (0.5, "0.5")])
def test_values_are_written_as_people_do(value, text):
    assert _value(value) == text
