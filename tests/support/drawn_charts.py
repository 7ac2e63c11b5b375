"""What a drawn or exported chart tells: for the tests of charts."""

import csv
import io
import json
import xml.etree.ElementTree as ElementTree

from vlmsafe.report.render.files import chart_csv
from vlmsafe.report.render.svg import panel_svg


def hover(panel, chart):
    """Name and point of everything that a reader of the page can point at."""
    data = json.loads(ElementTree.fromstring(panel_svg(panel, chart, "k")).get("data-hover"))
    return [(entry["n"], point) for entry in data["s"] for point in entry["p"]]


def rows_of(chart):
    """The rows of its CSV."""
    return list(csv.DictReader(io.StringIO(chart_csv(chart))))
