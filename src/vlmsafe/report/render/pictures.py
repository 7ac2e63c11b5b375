"""A chart as a file of its own: SVG, and PNG and PDF made from that SVG.

vl-convert does the conversion because it makes both formats, keeps text and lines as vectors in the PDF, and brings its
own font, so that a machine needs neither fonts nor system libraries. It knows no CSS variables, so this module fills in
the colours.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from functools import cache

from markupsafe import Markup, escape

from vlmsafe.report.elements import Chart
from vlmsafe.report.render.scales import LETTER, WIDTH
from vlmsafe.report.render.svg import draw_panel, middle_cut, swatch
from vlmsafe.report.render.templates import asset

# All text is in one weight of one font: the converter puts several fonts into a PDF in an order that changes, and equal
# charts would give unequal files.
_FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
_COLUMNS = 3
_GAP, _EDGE = 22.0, 8.0
_TITLE_LETTER, _TITLE_LINE = 7.4, 16.0  # pixels, of text of 12 pixels
_TITLE_LINES = 3
_SWATCH, _ENTRY = 34.0, 18.0  # width of a legend's sample, height of its entry
_SCALE = 2.0  # pixels of a PNG for each pixel of the SVG
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def chart_svg(chart: Chart) -> str:
    """The whole chart in light colours: panels in rows of three or as it says (four: a square), one legend below."""
    columns = min(chart.columns or (2 if len(chart.panels) == 4 else _COLUMNS), len(chart.panels))
    pieces: list[str] = []
    top = _EDGE
    for first in range(0, len(chart.panels), columns):
        panels = chart.panels[first : first + columns]
        titles = [_title_lines(panel.title) for panel in panels]
        drawings = [draw_panel(panel, chart, f"panel-{first + place}") for place, panel in enumerate(panels)]
        below = top + _TITLE_LINE * max(map(len, titles)) + 4.0
        for column, (lines, drawing) in enumerate(zip(titles, drawings, strict=True)):
            left = _EDGE + column * (WIDTH + _GAP)
            pieces += [_text("title", left, top + 12.0 + _TITLE_LINE * i, line) for i, line in enumerate(lines)]
            pieces.append(f'<g transform="translate({left:g} {below:g})">{drawing.body}</g>')
        top = below + max(drawing.height for drawing in drawings) + _EDGE
    entries = list(_legend_entries(chart)) if chart.legend else []
    # The longest name decides where it is wider than the panels: a name that is cut may equal another.
    width = max([columns * (WIDTH + _GAP) - _GAP, *(room for _, _, room in entries)])
    left = 0.0
    for sample, name, room in entries:
        if left and left + room > width:
            left, top = 0.0, top + _ENTRY
        entry = f"{sample}{_text('', _SWATCH, 10.0, name)}"
        pieces.append(f'<g transform="translate({_EDGE + left:g} {top:g})">{entry}</g>')
        left += room
    height = top + (_ENTRY if entries else 0.0)
    width += 2 * _EDGE
    body = re.sub("[₀-₉]", _lowered, _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", "".join(pieces)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="{_FONT}"><style>{_style()}</style>'
        f'<rect class="page" width="100%" height="100%"/>{body}</svg>\n'
    )


def png(svg: str) -> bytes:
    """The picture in pixels."""
    import vl_convert  # a library of 80 MB, which a page alone does not need

    return vl_convert.svg_to_png(svg, scale=_SCALE)


def pdf(svg: str) -> bytes:
    """The picture for papers. Equal pictures give equal files."""
    import vl_convert

    return vl_convert.svg_to_pdf(svg)


def _title_lines(title: str) -> list[str]:
    """A title in at most three lines of a panel's width; the middle of a longer one is left out."""
    letters = int(WIDTH / _TITLE_LETTER)
    whole, cut = (
        textwrap.wrap(text, letters, break_on_hyphens=False)
        for text in (title, middle_cut(title, (_TITLE_LINES - 1) * letters))
    )
    return whole if len(whole) <= _TITLE_LINES else cut


def _legend_entries(chart: Chart) -> Iterator[tuple[Markup, str, float]]:
    """The sample, the text and the width of each entry."""
    samples = [(swatch("", chart.places[name]), name) for name in chart.shown_groups]
    samples += [(swatch(style), text) for style, text in chart.keys]
    for sample, name in samples:
        yield sample, name, _SWATCH + LETTER * len(name) + _GAP


def _text(kind: str, x: float, y: float, words: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


def _lowered(digit: re.Match[str]) -> str:
    """A lowered digit as a plain one set lower: the font has no glyph for the former."""
    return f'<tspan baseline-shift="sub" font-size="75%">{ord(digit[0]) - ord("₀")}</tspan>'


@cache
def _style() -> str:
    """The style sheet of charts with the page's light colours filled in."""
    light = re.search(r":root \{(.*?)\}", asset("report.css"), re.DOTALL)
    assert light is not None
    colours = dict(re.findall(r"--([\w-]+): ([^;]+);", light[1]))
    own = "\n.page { fill: var(--page); }\nsvg text.title { fill: var(--ink); font-size: 12px; }"
    return re.sub(r"var\(--([\w-]+)\)", lambda name: colours[name[1]], asset("chart.css") + Markup(own))
