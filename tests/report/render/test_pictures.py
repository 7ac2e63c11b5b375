"""A chart is one picture with all its panels, as SVG, PNG and PDF."""

import re
import struct
import xml.etree.ElementTree as ElementTree

import pytest

from vlmsafe.report.elements import Axis, Chart, Dots, Line, Panel
from vlmsafe.report.render.files import write_chart
from vlmsafe.report.render.pictures import chart_svg, pdf, png

LONG = "vlm-ppo-lag-conf-with-a-name-longer-than-any-panel-is-wide"


def chart_of(count=2, groups=("a", "b"), title="A panel", **options):
    marks = [Line(name, [0, 1], [place, 1 - place]) for place, name in enumerate(groups)]
    panels = [Panel(f"{title} {place}", Axis("steps"), Axis("η₂"), marks) for place in range(count)]
    return Chart("x", "x", panels, groups, **options)


def texts(svg):
    return ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("text")]


def pixels(content):
    return struct.unpack(">II", content[16:24])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_every_panel_and_every_group_has_its_name(count):
    found = texts(chart_svg(chart_of(count, keys=(("band", "± 1 deviation"),))))
    assert all(f"A panel {place}" in found for place in range(count))
    assert {"a", "b", "± 1 deviation"} <= set(found)
    assert found.count("steps") == count


def test_panels_stand_in_rows_of_three_and_four_make_a_square():
    def size(count):
        root = ElementTree.fromstring(chart_svg(chart_of(count)))
        return float(root.get("width")), float(root.get("height"))

    assert size(3)[0] == size(7)[0] > size(4)[0] == size(2)[0] > size(1)[0]
    assert size(1)[1] == size(3)[1] < size(4)[1] < size(7)[1]


def test_a_chart_may_say_how_many_panels_stand_in_a_row():
    def width(count, columns):
        return ElementTree.fromstring(chart_svg(chart_of(count, columns=columns))).get("width")

    assert width(6, 2) == width(2, None) != width(6, None)
    assert width(1, 2) == width(1, None)


def test_colours_need_no_page_around_them():
    svg = chart_svg(chart_of())
    assert "var(" not in svg
    assert re.search(r"\.c1 { color: #[0-9a-f]{6}; }", svg)


def test_a_chart_without_legend_shows_none():
    assert "a" not in texts(chart_svg(chart_of(legend=False)))


def test_names_in_a_legend_are_never_cut_because_two_could_look_the_same():
    names = (f"{LONG}-first", f"{LONG}-other")
    svg = chart_svg(chart_of(1, names))
    assert set(names) <= set(texts(svg))
    assert float(ElementTree.fromstring(svg).get("width")) > 400


def test_a_long_title_has_three_lines_and_keeps_its_end():
    title = " ".join(["calibrated"] * 30)
    lines = [text for text in texts(chart_svg(chart_of(1, title=title))) if "calibrated" in text]
    assert len(lines) <= 3
    assert lines[-1].endswith(" 0")
    assert "…" in " ".join(lines)


def test_names_are_text_whatever_they_hold():
    evil = '<script>"&\x1b\x00'
    svg = chart_svg(chart_of(1, (evil, "b"), title=evil))
    assert "<script" not in svg
    assert any(text.startswith('<script>"&') for text in texts(svg))
    assert png(svg)


def test_values_that_are_no_numbers_are_left_out():
    marks = [Dots("a", [0.0, float("nan"), 2.0], [1.0, 1.0, float("inf")])]
    svg = chart_svg(Chart("x", "x", [Panel("t", Axis("x"), Axis("y"), marks)], ["a"]))
    assert "nan" not in svg
    assert "inf" not in svg


def test_a_png_is_twice_as_fine_as_the_svg():
    svg = chart_svg(chart_of(3))
    root = ElementTree.fromstring(svg)
    assert pixels(png(svg)) == (2 * float(root.get("width")), 2 * float(root.get("height")))


def test_a_pdf_holds_text_in_one_font_of_its_own_and_no_pixels():
    content = pdf(chart_svg(chart_of(3)))
    assert set(re.findall(rb"/BaseFont /\w+\+([\w-]+)", content)) == {b"LiberationSans"}
    assert b"/FontFile2" in content
    assert b"/Subtype /Image" not in content


def test_equal_charts_give_equal_files(tmp_path):
    one, other = (write_chart(chart_of(), tmp_path / name, "x") for name in ("a", "b"))
    assert [path.name for path in one] == ["x.csv", "x.svg", "x.png", "x.pdf"]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]
