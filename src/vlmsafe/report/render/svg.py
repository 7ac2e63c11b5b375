"""Charts as SVG: each panel is one picture, sized for a narrow column.

Colours are classes, so that a style sheet decides them: the page's theme, or the fixed colours of a file (pictures.py).
Nothing depends on colour alone, because groups also differ in marker and dashes. Every text is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from vlmsafe.report.elements import COLOURS, Chart, Panel, Rule
from vlmsafe.report.render.marks import DASHES, draw, shape
from vlmsafe.report.render.scales import LETTER, WIDTH, Frame, limits, ticks
from vlmsafe.report.render.templates import inline_json

_MARKER = 6.0  # how far a marker on the edge reaches over it
_RULE_LETTER, _RULE_LINE = 5.6, 11.0  # pixels, of text of 10 pixels


@dataclass(frozen=True)
class PanelDrawing:
    """A drawn panel, before it stands in a page or a file."""

    body: str
    height: float
    hover: list[dict[str, Any]]
    """The points that a reader can point at."""


def draw_panel(panel: Panel, chart: Chart, key: str) -> PanelDrawing:
    """Draw one panel; `key` makes its ids unique."""
    frame = Frame.around(panel)
    index = chart.places_in(panel)
    drawn, hover = [], []
    for mark in panel.marks:
        text, points = draw(mark, frame, 0 if isinstance(mark, Rule) else index.get(mark.group, 0))
        drawn.append(text)
        hover += points
    clip = (
        f'<clipPath id="{key}"><rect x="{frame.left - _MARKER:.1f}" y="{frame.top - _MARKER:.1f}" '
        f'width="{frame.width + 2 * _MARKER:.1f}" height="{frame.height + 2 * _MARKER:.1f}"/></clipPath>'
    )
    axes, rules = "".join(_axes(panel, frame)), "".join(_rule_labels(panel, frame))
    body = f'{clip}{axes}<g clip-path="url(#{key})">{"".join(drawn)}</g>{rules}'
    return PanelDrawing(body, frame.total, hover)


def panel_svg(panel: Panel, chart: Chart, key: str) -> Markup:
    """One panel for the page, with the values that are shown when a reader points at them."""
    drawing = draw_panel(panel, chart, key)
    values = inline_json({"x": panel.x.label, "y": panel.y.label, "s": drawing.hover})
    return Markup(
        f'<svg class="plot" viewBox="0 0 {WIDTH:g} {drawing.height:g}" role="img" tabindex="0" '
        f"aria-label=\"{escape(panel.title)}\" data-hover='{values}'>{drawing.body}"
        '<circle class="at" r="5" visibility="hidden"/></svg>'
    )


def _axes(panel: Panel, frame: Frame) -> Iterable[str]:
    bottom, right = frame.top + frame.height, frame.left + frame.width
    if panel.y.label:
        yield _text("name", "start", 2.0, 11.0, _fitted(panel.y.label, WIDTH))
    for value, label in ticks(panel.y, frame.y_range, 5):
        y = frame.y(value)
        if not panel.y.categories:
            yield f'<path class="grid" d="M{frame.left:.1f} {y:.1f}H{right:.1f}"/>'
        yield _text("tick", "end", frame.left - 6.0, y + 3.8, _fitted(label, frame.left - 12.0))
    places = ticks(panel.x, frame.x_range, 5)
    for value, label in places:
        x = frame.x(value)
        if panel.x.categories:
            shown = _fitted(label, frame.width / len(places) - 4.0)
        else:
            yield f'<path class="grid" d="M{x:.1f} {frame.top:.1f}V{bottom:.1f}"/>'
            shown, x = escape(label), min(x, WIDTH - LETTER * len(label) / 2)  # a long number at the end stays inside
        yield _text("tick", "middle", x, bottom + 14.0, shown)
    yield f'<path class="axis" d="M{frame.left:.1f} {frame.top:.1f}V{bottom:.1f}H{right:.1f}"/>'
    yield _text("name", "middle", frame.left + frame.width / 2, bottom + 31.0, escape(panel.x.label))


def _text(kind: str, anchor: str, x: float, y: float, words: Markup) -> str:
    return f'<text class="{kind}" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">{words}</text>'


def _fitted(label: str, room: float) -> Markup:
    """A name that fits into so many pixels. A name that is cut is shown whole when a reader points at it."""
    cut = middle_cut(label, max(4, int(room / LETTER + 1e-6)))
    return escape(cut) if cut == label else Markup("{}<title>{}</title>").format(cut, label)


def middle_cut(name: str, most: int) -> str:
    """A name cut to so many letters. The middle is left out, because names of runs differ at their ends.

    >>> middle_cut("metadrive-easy", 9)
    'meta…easy'
    """
    head = (most - 1) // 2
    return name if len(name) <= most else f"{name[:head]}…{name[len(name) - (most - 1 - head) :]}"


def _rule_labels(panel: Panel, frame: Frame) -> Iterable[str]:
    """Names of lines, placed where they hide least: over the right end of a line, or next to its top."""
    for value, label, _ in rule_labels(panel, "x", frame.height):
        y = max(frame.y(value) - 4, frame.top + 8)
        yield _text("rule", "end", frame.left + frame.width, y, _fitted(label, frame.width))
    for value, label, before in rule_labels(panel, "y", frame.width):
        x = frame.x(value) + (-3.0 if before else 3.0)
        shown = _fitted(label, x if before else WIDTH - x)
        yield _text("rule", "end" if before else "start", x, frame.top - 4, shown)


def rule_labels(panel: Panel, along: str, length: float) -> list[tuple[float, str, bool]]:
    """The names of lines that run along an axis, as (value, name, whether the name stands before the line).

    The other axis is `length` pixels long. Neighbours with names that would overlap share one name.
    """
    low, high = limits(panel, "x" if along == "y" else "y")
    named: dict[float, str] = {
        mark.value: mark.label for mark in panel.marks if isinstance(mark, Rule) and mark.label and mark.along == along
    }
    groups = [[value] for value in sorted(named)]

    def text(group: list[float]) -> str:
        labels = list(dict.fromkeys(named[value] for value in group))
        budgets = [label.removeprefix("budget ") for label in labels if label.startswith("budget ")]
        return f"budgets {', '.join(budgets)}" if len(budgets) == len(labels) > 1 else ", ".join(labels)

    def stands(group: list[float]) -> tuple[float, bool, float, float]:
        """The value at which a name stands, whether it stands before the line, and both ends of the name in pixels."""
        first, last = (length * (value - low) / (high - low) for value in (group[0], group[-1]))
        if along == "x":
            bottom = min(last, length - _RULE_LINE)
            return group[-1], False, bottom, bottom + _RULE_LINE
        wide = _RULE_LETTER * len(text(group)) + 6.0
        before = (first + last) / 2 > 0.6 * length
        return (group[0], True, first - wide, first) if before else (group[-1], False, last, last + wide)

    place = 0
    while place < len(groups) - 1:
        if stands(groups[place])[3] > stands(groups[place + 1])[2]:
            groups[place : place + 2] = [groups[place] + groups[place + 1]]
            place = 0  # the longer name may reach its other neighbour
        else:
            place += 1
    return [(*stands(group)[:1], text(group), stands(group)[1]) for group in groups]


def swatch(style: str, place: int | None = None) -> Markup:
    """The sample of a legend's entry: a group by its number, or a style of mark."""
    if place is not None:
        colour, dash = f"c{place % COLOURS}", DASHES[place // COLOURS % len(DASHES)]
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        inner = f'<path class="line {colour}" d="M1 6H27"{dashes}/>'
        inner += f'<path class="mark {colour}" d="{shape(place, 14, 6, 3.6)}"/>'
    else:
        inner = {
            "line": '<path class="line plain" d="M1 6H27"/>',
            "dashed": '<path class="line plain" stroke-dasharray="4 3" d="M1 6H27"/>',
            "band": '<path class="band plain" d="M1 1H27V11H1Z"/>',
            "faint": '<path class="seed plain" d="M1 6H27"/>',
            "dot": f'<path class="mark plain" d="{shape(0, 14, 6, 4)}"/>',
            "faint-dot": f'<path class="episode plain" d="{shape(0, 14, 6, 2.4)}"/>',
        }[style]
    return Markup(f'<svg class="swatch" width="28" height="12" viewBox="0 0 28 12" aria-hidden="true">{inner}</svg>')
