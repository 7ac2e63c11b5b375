"""Charts put the right numbers on the right axes."""

import numpy as np
import polars as pl
import pytest
from drawn_charts import hover, rows_of
from report_runs import PLAIN, SIGNAL, costs_with, write_evaluation, write_run, write_study

from vlmsafe.comparison.outcomes import values_of
from vlmsafe.report.build import build_chart
from vlmsafe.report.charts.progress import _MOST_EPISODES
from vlmsafe.report.charts.routes import _ways
from vlmsafe.report.charts.training import curve_marks
from vlmsafe.report.dataset import read_dataset
from vlmsafe.report.elements import Axis, Band, Bar, Box, Chart, Dots, Line, Missing, Panel, Rule, Span
from vlmsafe.report.kinds import FIGURES
from vlmsafe.report.render.files import chart_csv
from vlmsafe.report.render.pictures import chart_svg, png
from vlmsafe.report.render.scales import Frame, limits
from vlmsafe.report.request import Entry, StudyInfo

ENV = "metadrive-easy"


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


def test_runs_that_have_only_begun_do_no_harm(tmp_path):
    write_run(tmp_path, PLAIN, 1, epochs=0)
    write_run(tmp_path, SIGNAL, 2, epochs=1)
    dataset = read_dataset([tmp_path], StudyInfo("study"))
    for kind in FIGURES:
        chart = build_chart(dataset, Entry(kind))
        assert isinstance(chart, Missing) or png(chart_svg(chart))


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


def test_a_route_is_drawn_to_scale_with_its_costs_and_its_end(charts, study):
    panel = charts["routes"].panels[1]
    assert [one.title for one in charts["routes"].panels] == [f"Scenario {10_000 + place}" for place in range(3)]
    way, costly, end = panel.marks
    assert way.group == SIGNAL
    assert (way.x[0], way.x[-1], set(way.y)) == (0.0, 118.0, {10.0})
    trace = next(iter(study.trace_tables(ENV)[SIGNAL].values())).filter(episode=1)
    assert list(costly.x) == trace.filter(trace["cost"] > 0)["x"].to_list()
    assert (end.x, end.y) == ([118.0], [10.0])
    frame = Frame.around(panel)
    assert frame.x(1.0) - frame.x(0.0) == pytest.approx(frame.y(0.0) - frame.y(1.0))


def test_the_costs_of_a_long_route_are_drawn_to_its_end():
    long = pl.DataFrame({"step": range(1000), "cost": 1.0, "x": np.arange(1000.0), "y": 0.0})
    way, costly, end = _ways({"arm": long})
    assert len(costly.x) <= 150
    assert max(costly.x) > 980
    assert way.x[-1] > 980
    assert end.x == [999.0]


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
    of_scores = ("gate-roc", "gate-curves")
    assert all(list(chart.groups)[:2] == arms for kind, chart in charts.items() if kind not in of_scores)


def test_csv_of_a_figure_has_every_drawn_value(charts):
    lines = chart_csv(charts["curves"]).splitlines()
    assert lines[0] == "panel,group,mark,name,x,y,low,high"
    runs = [line for line in lines if line.startswith("Episode cost") and ",run,seed-42," in line]
    assert len(runs) == 2 * 12  # both arms, twelve epochs


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


def test_every_budget_of_the_runs_is_a_line(tmp_path):
    for arm, seed, budget in (("one", 1, 15.0), ("two", 1, 25.0), ("two", 2, 35.0)):
        run = write_run(tmp_path, PLAIN, seed, arm=arm, budget=budget)
        write_evaluation(run, costs_with(1))
    dataset = read_dataset([tmp_path], StudyInfo("study"))
    for entry in (Entry("cost-progress"), Entry("sweep", over=("total_steps",)), Entry("curves"), Entry("dots")):
        panel = build_chart(dataset, entry).panels[0]
        assert [mark.value for mark in panel.marks if isinstance(mark, Rule)] == [15.0, 25.0, 35.0], entry.kind


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


def test_lead_lag_lines_keep_clear_of_the_frame(charts):
    panel = next(panel for panel in charts["lead-time"].panels if panel.title.startswith("c_vlm at t"))
    values = [y for mark in panel.marks if isinstance(mark, Line) for y in mark.y]
    low, high = limits(panel, "y")
    assert low < min(values)
    assert max(values) < high


# -- what diagnoses draw --------------------------------------------------------------------------------------------


def lines_of(panel, group):
    return [mark for mark in panel.marks if isinstance(mark, Line) and mark.group == group]


def test_a_replay_shows_both_multipliers_of_every_run_and_what_the_term_added(study, charts):
    value, change = charts["multiplier-replay"].panels
    replays = study.replays(study.every_arm[ENV, SIGNAL])
    both = [line.y for line in lines_of(value, SIGNAL)]
    assert len(both) == 2 * len(replays) == 8
    for table, line in zip(replays.values(), lines_of(change, SIGNAL), strict=True):
        assert table["rebuilt"].to_list() in both
        assert table["without_term"].to_list() in both
        assert line.y == table["change"].to_list()
    assert not lines_of(value, PLAIN), "an arm without a signal has no term to remove"


def test_aucs_of_signals_as_they_are_have_a_figure_of_their_own(study, charts):
    (panel,) = charts["lead-time-raw"].panels
    aucs = study.lead_times(Entry("lead-time"))[ENV].filter(signal="negative")
    (raw,) = (line.y for line in lines_of(panel, "c_vlm"))
    assert raw == aucs.filter(form="raw")["auc"].to_list()
    (standardised,) = (line.y for line in lines_of(charts["lead-time"].panels[0], "c_vlm"))
    assert standardised == aucs.filter(form="standardised")["auc"].to_list() != raw


def test_boxes_stand_at_the_quantiles_of_each_run_under_every_gate(study, charts):
    cells = study.gate_cells(Entry("gate"))[ENV]
    gates = ["s = 10", "s = 50", "s = 100", "calibrated", "recorded"]
    titles = [panel.title for panel in charts["gate-cells"].panels]
    assert titles == ["Margin", *(f"κ, {gate}{', c = 0' if '=' in gate else ''}" for gate in gates)]
    assert [panel.title for panel in charts["gate"].panels] == ["Margin", "κ, s = 100, c = 0", "κ, calibrated"]
    shown = [("margin", "s = 10"), *(("kappa", gate) for gate in gates)]
    for panel, (name, gate) in zip(charts["gate-cells"].panels, shown, strict=True):
        boxes = [mark for mark in panel.marks if isinstance(mark, Box)]
        own = cells.filter(gate=gate)
        assert [(box.low, box.median, box.high) for box in boxes] == own.select(
            f"{name}_low", f"{name}_median", f"{name}_high"
        ).rows()


def test_gates_calibrated_on_other_episodes_are_drawn_for_both_halves(study, charts):
    roc, precision = charts["gate-curves"].panels
    curves = study.gate_curves(Entry("gate"))[ENV]
    for half, line in zip((1, 2), lines_of(roc, "κ, calibrated on other episodes"), strict=True):
        own = curves.filter(score="kappa", calibrated_on="other half", half=half)
        assert (list(line.x), list(line.y)) == (own["false_positive_rate"].to_list(), own["recall"].to_list())
    assert len(lines_of(precision, "negated margin")) == 1
    steps = study.traces(ENV, Entry("gate")).filter("scored")
    (rule,) = (mark for mark in precision.marks if isinstance(mark, Rule))
    assert rule.value == pytest.approx((steps["cost"] > 0).mean())
    (line,) = lines_of(precision, "negated margin")
    assert line.y[0] is None, "nothing is flagged at the first threshold, so there is no precision"


def test_returns_lead_from_what_the_environment_paid_to_what_was_logged(charts):
    (panel,) = charts["returns"].panels
    spans = {mark.name: mark for mark in panel.marks if isinstance(mark, Span)}
    assert len(spans) == len(panel.y.categories) == 8
    bonus = {name: span.high - span.low for name, span in spans.items()}
    assert bonus[f"{PLAIN} seed-42"] == 0.0
    assert bonus[f"{SIGNAL} seed-42"] == pytest.approx(60.0)
    assert spans[f"{SIGNAL} seed-42"].centre == spans[f"{SIGNAL} seed-42"].low, "the environment's return"


def test_cost_is_drawn_against_everything_it_is_correlated_with(charts):
    titles = [panel.title for panel in charts["cost-against"].panels]
    assert [title.split(":")[0] for title in titles] == [
        "Cost against route completion",
        "Cost against environment return",
    ]
    assert "Spearman" in titles[0]
