"""A real headless Chromium, pages that report what they did, and servers for them on fake engines."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from .fake_server import FakeServer

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LIMIT_MS = 15_000
"""For each thing that a test waits for: a machine with much else to do is slow."""


def chromium() -> str:
    """Its path. Without one the tests are skipped, or fail where a browser has to be there (CI)."""
    path = os.environ.get("OMNI_ACTORS_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is not None:
        return path
    words = "no chromium here: `make browser`, or apt-get install chromium, or OMNI_ACTORS_CHROMIUM=its path"
    if os.environ.get("CI") or os.environ.get("OMNI_ACTORS_BROWSER") == "required":
        pytest.fail(words)
    pytest.skip(words)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One per module. Playwright's loop counts as running in this thread, so it must not outlive these tests."""
    path = chromium()
    expect.set_options(timeout=LIMIT_MS)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser) -> Iterator[Callable[..., Page]]:
    """``open_page(url)``. In the end: no script failed, no other host was asked for anything, no policy was broken."""
    contexts, bugs, asked = [], [], []

    def open_page(url: str, **how: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1000, "height": 800}, **how})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.on("pageerror", lambda error: bugs.append(str(error)))
        page.on("console", lambda message: bugs.append(message.text) if "Content Security" in message.text else None)
        context.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert bugs == []
    assert {urlsplit(url).hostname for url in asked if not url.startswith(("blob:", "data:"))} == {"127.0.0.1"}


@pytest.fixture
def served() -> Iterator[Callable[..., FakeServer]]:
    """``served(spec, …)``: a FakeServer, closed in the end."""
    servers: list[FakeServer] = []

    def served(spec: Any, **how: Any) -> FakeServer:
        servers.append(FakeServer(spec, **how))
        return servers[-1]

    yield served
    for server in servers:
        server.close()


@pytest.fixture
def downloaded(tmp_path) -> Callable[[Page], Path]:
    """The file of a card's link, saved."""

    def downloaded(page: Page) -> Path:
        with page.expect_download() as download:
            page.locator(".save").first.click()
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        return path

    return downloaded
