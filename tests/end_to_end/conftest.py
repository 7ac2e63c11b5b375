"""A browser for the tests that open pages."""

import shutil

import pytest


@pytest.fixture(scope="session")
def browser():
    """Chromium, headless, driven by Playwright; without either the test is skipped with what to install."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    found = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
    if not found:
        pytest.skip("no Chromium: install Debian's package 'chromium' to run the tests in a browser")
    with sync_api.sync_playwright() as driver:
        window = driver.chromium.launch(executable_path=found[0], args=["--no-sandbox"])
        yield window
        window.close()
