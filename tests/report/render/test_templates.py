"""Templates escape what they print, and say so when a value is missing."""

import json

import pytest
from jinja2 import UndefinedError

from vlmsafe.report.render.templates import inline_json, render_page

EVIL = "</script><script>alert('&amp;')</script>"


def test_inline_json_cannot_end_its_element_or_its_attribute():
    text = inline_json({"name": EVIL, "κ": 1.5})
    assert not set("<>&'") & set(text)
    assert json.loads(text) == {"name": EVIL, "κ": 1.5}


def test_numbers_that_json_does_not_know_are_refused():
    with pytest.raises(ValueError, match="JSON compliant"):
        inline_json([float("nan")])


def test_a_template_escapes_text_and_needs_every_value():
    values = {"policy": "", "title": EVIL, "style": "", "script": "", "data": {}, "albums": []}
    page = render_page("scope.html.j2", inline_json=inline_json, **values)
    assert EVIL not in page
    assert "&lt;/script&gt;" in page
    del values["title"]
    with pytest.raises(UndefinedError, match="title"):
        render_page("scope.html.j2", inline_json=inline_json, **values)
