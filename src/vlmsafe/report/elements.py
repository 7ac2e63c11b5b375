"""The elements of a report before they are drawn: tables of cells, and charts of panels of marks.

One description serves all forms. A table becomes HTML, CSV, LaTeX and Markdown; a chart becomes SVG, PNG, PDF and CSV.
Elements do not know where their numbers come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

COLOURS = 8
"""The number of colours. Further groups use them again."""
State = Literal["", "over", "within"]


def minus(text: str) -> str:
    """A number with a minus sign instead of a hyphen.

    >>> minus("-3.1") == "\N{MINUS SIGN}3.1"
    True
    """
    return text.replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class Cell:
    """One value as it is read, sorted and exported."""

    value: float | str | None = None
    text: str = ""
    """As shown. A number without a text is shown with the column's digits."""
    low: float | None = None
    high: float | None = None
    """Ends of its interval."""
    std: float | None = None
    published: float | None = None
    published_std: float | None = None
    mark: str = ""
    """Follows a published value that was obtained under other conditions."""
    state: State = ""
    """Whether a cost is over its budget."""


@dataclass(frozen=True)
class Column:
    """A heading, and how numbers under it are written."""

    name: str
    """For files: lower case, no spaces."""
    heading: str
    digits: int | None = None
    """Decimals of numbers; None for text."""
    hint: str = ""
    """What the column means. The page shows it when a reader points at the heading."""

    @property
    def is_number(self) -> bool:
        return self.digits is not None


@dataclass(frozen=True)
class Table:
    """A titled table. Rows that are `strong` are summaries of those above or below them."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    label: str = ""
    strong: frozenset[int] = frozenset()
    notes: Sequence[str] = ()
    fold: bool = False
    """Whether the page shows it closed at first, because it is long and few readers need it."""


@dataclass(frozen=True)
class Missing:
    """A table or figure that was asked for and cannot be made, and why."""

    kind: str
    title: str
    reason: str
    label: str = ""

    def __str__(self) -> str:
        return f"{self.label or self.kind}: {self.title}: {self.reason}"


# -- charts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """One direction of a panel."""

    label: str
    categories: tuple[str, ...] = ()
    """Names of the places 0, 1, 2, ...; empty for numbers."""
    low: float | None = None
    """Ends that must be in view."""
    high: float | None = None
    whole: bool = False
    """Whether only whole numbers have a meaning, as for epochs."""


@dataclass(frozen=True)
class Line:
    """Points joined by a line. A `faint` line is a single seed, drawn behind the mean."""

    group: str
    x: Sequence[float]
    y: Sequence[float | None]
    name: str = ""
    faint: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Band:
    """The area between two lines."""

    group: str
    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class Dots:
    """Single points, each with a name that the page shows."""

    group: str
    x: Sequence[float]
    y: Sequence[float]
    names: Sequence[str] = ()
    faint: bool = False


@dataclass(frozen=True)
class Span:
    """A point with its interval along one axis."""

    group: str
    at: float
    """The place on the other axis."""
    centre: float
    low: float
    high: float
    along: Literal["x", "y"] = "y"
    name: str = ""


@dataclass(frozen=True)
class Bar:
    """A bar from zero, along one axis."""

    group: str
    at: float
    value: float
    along: Literal["x", "y"] = "x"
    width: float = 0.7
    name: str = ""


@dataclass(frozen=True)
class Box:
    """Lowest value, quartiles and highest value of many, along x."""

    group: str
    at: float
    low: float
    q25: float
    median: float
    q75: float
    high: float
    name: str = ""


@dataclass(frozen=True)
class Rule:
    """A line to compare values with: a budget, chance, a baseline."""

    value: float
    label: str = ""
    along: Literal["x", "y"] = "x"
    """The axis that the line runs along."""


Mark = Line | Band | Dots | Span | Bar | Box | Rule


@dataclass(frozen=True)
class Panel:
    """One pair of axes and the marks on them, in the order they are drawn."""

    title: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    equal: bool = False
    """Whether a unit is as long along x as along y, as on a map."""


@dataclass(frozen=True)
class Chart:
    """A figure: panels that share groups, and therefore colours and a legend."""

    name: str
    title: str
    panels: Sequence[Panel]
    groups: Sequence[str]
    """In the order of their colours. All groups of a report are listed, so that an arm keeps its colour."""
    caption: str = ""
    label: str = ""
    legend: bool = True
    keys: Sequence[tuple[str, str]] = field(default_factory=tuple)
    """Further entries of the legend as (style, text). Styles are line, dashed, band, faint, dot and faint-dot."""
    columns: int | None = None
    """Panels in a row of a picture; by default three, or two if there are four panels."""

    @property
    def places(self) -> dict[str, int]:
        """The number of each group, which decides its colour, marker and dashes.

        It is the same in every chart of a report, unless two groups of this chart would then look alike.
        """
        shown = self.shown_groups
        colours = [self.groups.index(group) % COLOURS for group in shown]
        order = shown if len(set(colours)) < len(colours) <= COLOURS else self.groups
        return {group: place for place, group in enumerate(order)}

    def places_in(self, panel: Panel) -> dict[str, int]:
        """The number of each group in one panel.

        A chart with a legend numbers all its panels alike. Without a legend the rows have names, so only groups of the
        same panel must differ.
        """
        return self.places if self.legend else replace(self, panels=[panel]).places

    @property
    def shown_groups(self) -> list[str]:
        """The groups that are drawn in some panel, in order."""
        used = {mark.group for panel in self.panels for mark in panel.marks if not isinstance(mark, Rule)}
        return [group for group in self.groups if group in used]
