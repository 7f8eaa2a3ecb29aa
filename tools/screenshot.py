"""The picture of the web page in the README: a running server's page, in the middle of answers.

While ``omni-actors serve tiny-omni`` runs, on a quiet machine:
``python tools/screenshot.py http://127.0.0.1:8000 docs/images/web.png``. Needs a chromium (``make browser``).
"""

from __future__ import annotations

import shutil
import sys
import time

from playwright.sync_api import Page, sync_playwright

SUMS = (
    "nine minus four, one plus one, and six minus two",
    "five plus four, eight minus three, and two plus six",
    "two plus three, nine minus four, one plus one, and six minus two",
)
SIZE = {"width": 1000, "height": 860}
SECONDS = 0.8
"""Of sound, that the newest answer has by then."""
LIMIT_S = 30
TRIES = 10


def shoot(page: Page, path: str) -> bool:
    """Ask, wait until the newest is heard, and keep what is to be seen then. False if it was over too soon."""
    for sums in SUMS:
        page.get_by_label("Ask", exact=True).fill(f"What is {sums}?")
        page.keyboard.press("Enter")
    newest, give_up = page.locator(".card").first, time.monotonic() + LIMIT_S
    while float(newest.get_attribute("data-seconds") or 0) < SECONDS:
        assert time.monotonic() < give_up, "no sound came"
    page.screenshot(path=path)
    return newest.get_attribute("data-state") == "answering"


def main() -> None:
    """The address of the server, and the file."""
    url, path = sys.argv[1:]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport=SIZE)
        for _ in range(TRIES):
            page.goto(url)
            page.locator("#readiness[data-state=ready]").wait_for()
            if shoot(page, path):
                break
        else:
            sys.exit("each answer was over too soon")
        browser.close()


if __name__ == "__main__":
    main()
