"""The templates, style sheets and scripts of the pages. Jinja escapes every value that a template prints."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup


def render_page(template: str, **values: Any) -> str:
    """Fill in a template of the package."""
    return _environment().get_template(template).render(values)


def asset(name: str) -> Markup:
    """A style sheet or script of the package, as text that may stand in a page as it is."""
    return Markup((resources.files("vlmsafe.report") / "assets" / name).read_text(encoding="utf-8"))


def inline_json(value: Any) -> Markup:
    """JSON that can stand in a script element or between single quotes.

    >>> print(inline_json({"name": "</script>'"}))
    {"name":"\\u003c/script\\u003e\\u0027"}
    """
    return htmlsafe_json_dumps(value, json.dumps, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("vlmsafe.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
