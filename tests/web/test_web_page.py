"""The page in a real browser, on fake engines: asking, hearing, watching, stopping, and what goes wrong."""

from __future__ import annotations

import re
import signal
import wave

import httpx
import pytest
from playwright.sync_api import expect

from .fake_server import PIECE_S, PIECES, RATE, TEXT, endless, painting, silent, slow_vocoder, speaking

SAMPLES = round(RATE * PIECE_S) * PIECES
EVIL = '<img src=x onerror="document.title=1"><script>document.title=2</script>&amp;'


def ask(page, question="What is two plus three?"):
    """By the keyboard, as people do. The new answer is on top."""
    page.get_by_label("Ask", exact=True).fill(question)
    page.keyboard.press("Enter")
    return page.locator(".card").first


def wait_data(card, name, pattern):
    expect(card).to_have_attribute(f"data-{name}", pattern)
    return card.get_attribute(f"data-{name}")


def idle(page):
    """The engines hold nothing, as the page is told."""
    expect(page.locator("#in-flight")).to_have_text("0")
    for stage in page.locator(".stage").all():
        expect(stage).to_have_attribute("data-running", "0")


# ---------------------------------------------------------------------- asking and hearing


def test_an_answer_is_read_and_heard(open_page, served, downloaded):
    page = open_page(served(speaking()).url)
    card = ask(page)
    wait_data(card, "state", "done")
    expect(card.locator(".answer")).to_have_text(TEXT)
    assert wait_data(card, "scheduled", re.compile(".")) == str(SAMPLES)
    expect(card).to_have_attribute("data-heard", str(SAMPLES))  # the sound device has had it all
    expect(card).to_have_attribute("data-playing", "false")
    with wave.open(str(downloaded(page))) as sound:
        assert (sound.getframerate(), sound.getnframes(), sound.getsampwidth()) == (RATE, SAMPLES, 2)
        assert max(sound.readframes(SAMPLES)) > 0


def test_an_answer_shows_its_numbers(open_page, served):
    page = open_page(served(speaking(token_s=0.005)).url)
    card = ask(page)
    wait_data(card, "state", "done")
    first_text, first_audio = (int(card.get_attribute(f"data-{name}")) for name in ("first-text", "first-audio"))
    assert 0 < first_text < first_audio
    assert card.get_attribute("data-tokens") == str(len(TEXT))
    assert card.get_attribute("data-seconds") == "1"
    assert 0 < float(card.get_attribute("data-rtf")) < 10
    expect(card.locator(".facts")).to_contain_text(card.get_attribute("data-request-id"))


def test_sound_is_heard_while_it_is_being_made(open_page, served):
    page = open_page(served(endless()).url)
    card = ask(page)
    wait_data(card, "playing", "true")
    expect(card).to_have_attribute("data-state", "answering")
    page.keyboard.press("Escape")
    wait_data(card, "state", "stopped")


def test_it_can_be_heard_again(open_page, served):
    page = open_page(served(speaking(pieces=100)).url)
    card = ask(page)
    wait_data(card, "state", "done")
    card.get_by_role("button", name="Pause").click()
    wait_data(card, "playing", "false")
    card.get_by_role("button", name="Play").click()
    wait_data(card, "playing", "true")
    card.get_by_role("button", name="Pause").click()
    wait_data(card, "playing", "false")


def test_one_answer_is_heard_at_a_time(open_page, served):
    page = open_page(served(endless()).url)
    first = ask(page, "first")
    wait_data(first, "playing", "true")
    second = ask(page, "second")
    wait_data(second, "playing", "true")
    first = page.locator(".card").nth(1)
    expect(first).to_have_attribute("data-playing", "false")
    expect(first).to_have_attribute("data-state", "answering")


def test_a_pipeline_without_sound_is_read(open_page, served):
    page = open_page(served(silent(TEXT)).url)
    expect(page.locator("#readiness")).to_have_text("ready")
    card = ask(page)
    wait_data(card, "state", "done")
    expect(card.locator(".answer")).to_have_text(TEXT)
    expect(card.locator(".sound")).to_be_hidden()


def test_pictures_are_seen_beside_the_text(open_page, served):
    page = open_page(served(painting()).url)
    expect(page.locator("#readiness")).to_have_text("ready")
    card = ask(page)
    wait_data(card, "state", "done")
    expect(card.locator(".answer")).to_have_text(TEXT)
    expect(card.locator(".sound")).to_be_hidden()
    assert card.get_attribute("data-pictures") == "2"
    seen = "image => image.complete && [image.naturalWidth, image.naturalHeight, image.alt]"
    for image in card.locator(".pictures img").all():
        assert image.evaluate(seen) == [8, 8, "A picture for: What is two plus three?"]
    expect(card.locator(".facts")).to_contain_text("first picture")


def test_the_steps_of_a_painting_are_counted(open_page, served):
    page = open_page(served(painting()).url)
    expect(page.locator("#readiness")).to_have_text("ready")
    progress = ': progress {"stage": "painter", "part": 0, "index": 0, "done": %d, "total": 20, "eta_s": 0.1}'
    body = "\n\n".join([*(progress % done for done in (1, 19)), "data: [DONE]", ""])
    page.route("**/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    card = ask(page)
    wait_data(card, "state", "done")
    expect(card.locator(".facts .steps")).to_have_text("painter's steps19 of 20")


def test_text_stays_text(open_page, served):
    page = open_page(served(silent(EVIL)).url)
    expect(page.locator("#readiness")).to_have_text("ready")
    title = page.title()
    card = ask(page, EVIL)
    wait_data(card, "state", "done")
    expect(card.locator(".answer")).to_have_text(EVIL)
    expect(card.locator(".question")).to_have_text(EVIL)
    assert page.title() == title
    assert page.locator("img[src=x], main script").count() == 0


# ---------------------------------------------------------------------- stopping


def test_stop_frees_the_engines(open_page, served):
    page = open_page(served(endless()).url)
    card = ask(page)
    wait_data(card, "playing", "true")
    expect(page.locator("#in-flight")).to_have_text("1")
    expect(page.locator('[data-stage="vocoder"]')).to_have_attribute("data-running", "1")
    card.get_by_role("button", name="Stop").click()
    wait_data(card, "state", "stopped")
    expect(card.locator(".status")).to_contain_text("Stopped in every stage: thinker had made 23 tokens")
    expect(card).to_have_attribute("data-playing", "false")
    idle(page)


def test_each_answer_has_its_own_stop(open_page, served):
    page = open_page(served(endless()).url)
    for question in ("first", "second", "third"):
        wait_data(ask(page, question), "scheduled", re.compile("."))
    third, second, first = page.locator(".card").all()
    second.get_by_role("button", name="Stop").click()
    wait_data(second, "state", "stopped")
    expect(page.locator("#in-flight")).to_have_text("2")
    page.keyboard.press("Escape")  # the newest
    wait_data(third, "state", "stopped")
    expect(first).to_have_attribute("data-state", "answering")
    page.keyboard.press("Escape")
    wait_data(first, "state", "stopped")
    idle(page)


def test_leaving_the_page_frees_the_engines(open_page, served):
    server = served(endless())
    leaving, staying = open_page(server.url), open_page(server.url)
    wait_data(ask(leaving), "playing", "true")
    expect(staying.locator("#in-flight")).to_have_text("1")
    leaving.close()
    idle(staying)


# ---------------------------------------------------------------------- watching


def test_the_stages_stand_in_the_order_of_the_graph(open_page, served):
    page = open_page(served(speaking()).url)
    expect(page.locator(".stage .name")).to_have_text(["thinker", "talker", "vocoder"])
    expect(page.locator(".column")).to_have_count(3)
    expect(page.locator(".stage .word")).to_have_text(["ready"] * 3)


def test_a_stage_that_dies_says_so_and_comes_back(open_page, served):
    server = served(slow_vocoder(speaking(), 2))
    page = open_page(server.url)
    vocoder = page.locator('[data-stage="vocoder"]')
    expect(vocoder).to_have_attribute("data-state", "ready")
    server.signal("vocoder", signal.SIGKILL)
    expect(vocoder).to_have_attribute("data-state", "restarting")
    expect(vocoder.locator(".reason")).not_to_be_empty()
    expect(page.locator("#trouble")).to_contain_text("vocoder is restarting")
    expect(page.locator('[data-stage="thinker"]')).to_have_attribute("data-state", "ready")
    expect(vocoder).to_have_attribute("data-state", "ready")
    expect(vocoder.locator(".replicas")).to_contain_text("1 restart")
    expect(page.locator("#trouble")).to_be_empty()


def test_an_answer_whose_stage_dies_says_so(open_page, served):
    server = served(endless())
    page = open_page(server.url)
    card = ask(page)
    wait_data(card, "playing", "true")
    server.signal("vocoder", signal.SIGKILL)
    wait_data(card, "state", "failed")
    expect(card.locator(".error")).to_have_text("stage vocoder failed at this request; try again")
    idle(page)


def test_a_server_that_is_gone_is_missed_and_found_again(open_page, served):
    server = served(endless())
    page = open_page(server.url)
    card = ask(page)
    wait_data(card, "playing", "true")
    server.vanish()
    wait_data(card, "state", "failed")
    expect(card.locator(".error")).to_contain_text("connection to the server was lost")
    expect(page.locator("#trouble")).to_have_text("server unreachable; trying again")
    expect(page.locator(".stage").first).to_have_attribute("data-state", "unknown")
    served(speaking(), port=server.port)
    expect(page.locator("#readiness")).to_have_text("ready")
    expect(page.locator("#trouble")).to_be_empty()
    wait_data(ask(page), "state", "done")


def test_a_server_that_stops_in_the_middle_ends_the_answer(open_page, served):
    server = served(endless())
    page = open_page(server.url)
    card = ask(page)
    wait_data(card, "playing", "true")
    server.close()
    wait_data(card, "state", re.compile("stopped|failed"))
    expect(page.locator("#trouble")).to_have_text("server unreachable; trying again")


# ---------------------------------------------------------------------- refused


def test_a_key_is_asked_for_and_sent(open_page, served):
    page = open_page(served(speaking(), key="secret").url)
    expect(page.locator("#trouble")).to_have_text("this server wants an API key")
    card = ask(page)
    wait_data(card, "state", "failed")
    expect(card.locator(".error")).to_contain_text("API key")
    page.get_by_label("API key").fill("secret")
    page.keyboard.press("Tab")
    expect(page.locator("#readiness")).to_have_text("ready")
    wait_data(ask(page), "state", "done")
    page.reload()
    expect(page.locator("#readiness")).to_have_text("ready")


def test_a_refusal_is_said_in_words(open_page, served):
    page = open_page(served(speaking()).url)
    card = ask(page, "x" * 5000)
    wait_data(card, "state", "failed")
    expect(card.locator(".error")).to_contain_text("exceed the limit of 4096")


def test_nothing_is_asked_with_nothing(open_page, served):
    page = open_page(served(speaking()).url)
    page.get_by_role("button", name="Ask").click()
    expect(page.locator(".card")).to_have_count(0)
    expect(page.get_by_label("Ask", exact=True)).to_be_focused()


# ---------------------------------------------------------------------- for everybody


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_small_screen(open_page, served, scheme):
    how = {"viewport": {"width": 360, "height": 740}, "color_scheme": scheme, "reduced_motion": "reduce"}
    page = open_page(served(speaking()).url, **how)
    wait_data(ask(page, "a" * 200), "state", "done")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 18, 24)"
    assert dark == (scheme == "dark")


def test_it_can_be_used_without_eyes_and_mouse(open_page, served):
    page = open_page(served(speaking()).url)
    card = ask(page)
    wait_data(card, "state", "done")
    expect(card.locator(".answer")).to_have_attribute("aria-live", "polite")
    expect(card.locator(".answer")).to_have_attribute("aria-busy", "false")
    for role, name in (("textbox", "Ask"), ("slider", "Volume"), ("checkbox", "Mute"), ("button", "Play")):
        expect(page.get_by_role(role, name=name, exact=True)).to_have_count(1)
    expect(page.get_by_role("region", name="Stages")).to_be_visible()
    named = "all => all.filter(each => !(each.ariaLabel || each.textContent.trim() || each.labels?.length)).length"
    assert page.eval_on_selector_all("button, input, textarea", named) == 0


def test_only_this_server_may_be_spoken_to(served):
    policy = httpx.get(served(speaking()).url, trust_env=False).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
