"""The documentation: it builds without a warning, all links lead somewhere, and reading it fetches nothing."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import vlmsafe

ROOT = Path(__file__).parents[2]
README_LINES = 80


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` builds it: a link or an anchor that leads nowhere fails the build.

    Not with --quiet, under which mkdocs counts no warnings and --strict fails nothing.
    """
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


class Fetched(HTMLParser):
    """What a browser loads by itself: scripts, styles, pictures, fonts; not what a reader may click."""

    def __init__(self):
        super().__init__()
        self.addresses = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        address = given.get("src") or (given.get("href") if tag == "link" else None)
        if address and given.get("rel") not in ("next", "prev", "canonical"):
            self.addresses.append(address)


def test_reading_the_site_needs_no_network(site):
    for page in site.rglob("*.html"):
        parser = Fetched()
        parser.feed(page.read_text(encoding="utf-8"))
        outside = [address for address in parser.addresses if re.match(r"(https?:)?//", address)]
        assert not outside, f"{page.name} fetches {outside}"


def test_pages_from_the_code_hold_what_the_code_says(site):
    from vlmsafe.audit.kinds import KINDS
    from vlmsafe.cli import VERBS
    from vlmsafe.paper.published import labels

    def text(name):
        return (site / name).read_text(encoding="utf-8")

    assert all(f"vlmsafe {verb}" in text("reference/cli.html") for verb in VERBS)
    assert all(code in text("reference/findings.html") for code in KINDS)
    assert all(label in text("guides/reproduce-the-paper.html") for label in labels())
    assert "steps_per_epoch" in text("reference/settings.html")
    for name in vlmsafe.drivers():
        assert f'id="{name}"' in text("reference/drivers.html")
        assert (site / "images" / f"driver-{name}.png").is_file()


def test_formulas_are_drawn_by_the_browser(site):
    page = (site / "guides" / "wrapper.html").read_text(encoding="utf-8")
    assert "<math" in page
    assert "arithmatex" not in page


def test_the_readme_is_short_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= README_LINES
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target]
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
