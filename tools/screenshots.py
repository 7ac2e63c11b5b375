"""Pictures of a page for the documents: 1280 and 390 pixels wide, light and dark.

    python tools/screenshots.py runs/x/scope-held-out.html docs/images/scope [--hash 0.49] [--most 1900]

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
    parser.add_argument("--most", type=int, help="pixels of height after which a long page is cut")
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for width, height in SIZES:
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                page.goto(f"{options.page.resolve().as_uri()}#{options.hash}")
                page.wait_for_timeout(500)
                path = options.prefix.with_name(f"{options.prefix.name}-{width}-{scheme}.png")
                whole = page.evaluate("document.documentElement.scrollHeight")
                clip = {"x": 0, "y": 0, "width": width, "height": min(whole, options.most or whole)}
                page.screenshot(path=path, full_page=True, clip=clip)
                page.close()
                print(path)
        browser.close()


if __name__ == "__main__":
    main()
