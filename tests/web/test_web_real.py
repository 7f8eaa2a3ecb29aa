"""The page of a real ``omni-actors serve tiny-omni``: real text, real sound, real deaths."""

from __future__ import annotations

import os
import re
import signal
import wave
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from ..serve.server_process import ServerProcess

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

LONG = "What is two plus three, nine minus four, one plus one, and six minus two?"
ANSWER = "Two plus three is five. Nine minus four is five. One plus one is two. Six minus two is four."


@pytest.fixture(scope="module")
def server(browser) -> Iterator[ServerProcess]:
    """Stopped by SIGTERM in the end: a page that still watches does not hold it up, and nothing is left."""
    server = ServerProcess()
    watching = browser.new_page()
    try:
        watching.goto(server.url)
        expect(watching.locator("#readiness")).to_have_text("ready")
        yield server
        server.signal(signal.SIGTERM)
        expect(watching.locator("#readiness")).to_have_text(re.compile("not ready|offline"))
        assert server.ended() == 0
        expect(watching.locator("#trouble")).to_have_text("server unreachable; trying again")
    finally:
        server.close()


def ask(page, question):
    page.get_by_label("Ask", exact=True).fill(question)
    page.keyboard.press("Enter")
    return page.locator(".card").first


def idle(page):
    expect(page.locator("#in-flight")).to_have_text("0")
    for stage in page.locator(".stage").all():
        expect(stage).to_have_attribute("data-running", "0")


def test_a_question_is_answered_in_text_and_sound(open_page, server, downloaded):
    page = open_page(server.url)
    card = ask(page, LONG)
    expect(card).to_have_attribute("data-state", "done")
    expect(card.locator(".answer")).to_have_text(ANSWER)
    samples = int(card.get_attribute("data-scheduled"))
    assert int(card.get_attribute("data-first-audio")) < int(card.get_attribute("data-total"))
    with wave.open(str(downloaded(page))) as sound:
        assert (sound.getframerate(), sound.getnframes()) == (24_000, samples)
        assert samples > 4 * 24_000
    idle(page)


def test_stop_in_the_middle_frees_every_engine(open_page, server):
    page = open_page(server.url)
    vocoder = server.child("engines.generation")
    os.kill(vocoder, signal.SIGSTOP)  # so that the answer cannot be over before it is stopped
    card = ask(page, LONG)
    expect(card.locator(".answer")).to_have_text(ANSWER)
    expect(page.locator('[data-stage="vocoder"]')).not_to_have_attribute("data-running", "0")
    card.get_by_role("button", name="Stop").click()
    os.kill(vocoder, signal.SIGCONT)
    expect(card).to_have_attribute("data-state", "stopped")
    expect(card.locator(".status")).to_contain_text("Stopped in every stage: thinker had made")
    idle(page)


def test_a_stage_that_is_killed_says_so_and_comes_back(open_page, server):
    page = open_page(server.url)
    vocoder = page.locator('[data-stage="vocoder"]')
    expect(vocoder).to_have_attribute("data-state", "ready")
    os.kill(server.child("engines.generation"), signal.SIGKILL)
    expect(vocoder).to_have_attribute("data-state", "restarting")
    expect(vocoder.locator(".reason")).to_contain_text("SIGKILL")
    expect(vocoder).to_have_attribute("data-state", "ready", timeout=60_000)
    expect(ask(page, "What is two plus three?")).to_have_attribute("data-state", "done")
