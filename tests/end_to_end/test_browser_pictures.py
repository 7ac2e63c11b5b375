"""The picture of a chart in a real browser: no text leaves it or covers another."""

import pytest
from report_runs import PLAIN, SIGNAL, costs_with, write_evaluation, write_run, write_study

from vlmsafe.report.build import build_chart
from vlmsafe.report.dataset import read_dataset
from vlmsafe.report.elements import Axis, Chart, Dots, Missing, Panel, Rule
from vlmsafe.report.kinds import FIGURES
from vlmsafe.report.render.pictures import chart_svg
from vlmsafe.report.request import Entry, StudyInfo

LONG = "an-arm-with-a-name-that-somebody-typed-without-a-thought-for-figures"


def boxes(browser, chart):
    """The size of the picture, and each text with its box."""
    page = browser.new_page(viewport={"width": 1400, "height": 1400})
    # A page's own font is wider than that of the files, so what fits here fits there.
    page.set_content(f"<body style='margin: 0'>{chart_svg(chart).replace('Liberation Sans', 'DejaVu Sans')}")
    found = page.evaluate(
        """() => {
          const box = (node) => { const b = node.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom] }
          const texts = [...document.querySelectorAll("text")].filter((node) => node.textContent)
          return [box(document.querySelector("svg")), texts.map((node) => [node.childNodes[0].textContent, box(node)])]
        }"""
    )
    page.close()
    return found


def require_clear(browser, chart):
    whole, texts = boxes(browser, chart)
    assert texts
    for text, box in texts:
        assert box[0] >= -1, (chart.name, text)
        assert box[2] <= whole[2] + 1, (chart.name, text)
        assert box[3] <= whole[3] + 1, (chart.name, text)
    for place, (text, one) in enumerate(texts):
        for other_text, other in texts[place + 1 :]:
            wide = min(one[2], other[2]) - max(one[0], other[0])
            high = min(one[3], other[3]) - max(one[1], other[1])
            assert min(wide, high) <= 3, (chart.name, text, other_text)  # boxes have room above and below letters


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    plain = write_study(tmp_path_factory.mktemp("plain"), traces=True)
    long = tmp_path_factory.mktemp("long")
    for seed in (1, 2):
        write_evaluation(write_run(long, SIGNAL, seed, arm=LONG), costs_with(3))
        write_evaluation(write_run(long, PLAIN, seed, arm=f"{LONG}-too"), costs_with(5))
    return {path.name: read_dataset([path], StudyInfo("study")) for path in (plain, long)}


def test_no_text_of_a_reports_figures_leaves_the_picture_or_covers_another(browser, studies):
    drawn = 0
    for dataset in studies.values():
        for kind in FIGURES:
            chart = build_chart(dataset, Entry(kind, over=("total_steps",) if kind == "sweep" else ()))
            if not isinstance(chart, Missing):
                require_clear(browser, chart)
                drawn += 1
    assert drawn > len(FIGURES)


@pytest.mark.parametrize("along", ["x", "y"])
def test_names_of_lines_are_not_printed_over_each_other(browser, along):
    rules = [Rule(value, f"budget {value:g}", along) for value in (15.0, 25.0, 35.0, 180.0)]
    ends = Axis("", low=0.0, high=200.0)
    panel = Panel("t", ends, ends, [*rules, Dots("a", [1.0], [200.0])])
    require_clear(browser, Chart("rules", "x", [panel], ["a"], legend=False))


@pytest.mark.parametrize("rows", [(), ("a long name of a row, w", "b")])
def test_titles_end_before_the_next_panel(browser, rows):
    title = "Calibrated κ as a detector, vlm-ppo-lag-conf-calibrated, metadrive-medium"
    panel = Panel(title, Axis("x"), Axis("y", rows), [Dots("a", [0.0, 1.0], [0.0, 1.0])])
    require_clear(browser, Chart("titles", "x", [panel] * 3, ["a"]))
