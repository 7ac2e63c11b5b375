"""Pictures of a page for the documents: 1280 and 390 pixels wide, light and dark.

    python tools/screenshots.py runs/x/scope-held-out.html docs/images/scope [--hash 0.49]

writes docs/images/scope-1280-light.png and three more. Needs Debian's chromium and Playwright.
"""

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

SIZES = ((1280, 900), (390, 844))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("prefix", type=Path, help="of the names of the pictures")
    parser.add_argument("--hash", default="", help="what follows # in the page's address")
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for width, height in SIZES:
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                page.goto(f"{options.page.resolve().as_uri()}#{options.hash}")
                page.wait_for_timeout(500)
                path = options.prefix.with_name(f"{options.prefix.name}-{width}-{scheme}.png")
                page.screenshot(path=path, full_page=True)
                page.close()
                print(path)
        browser.close()


if __name__ == "__main__":
    main()
