"""``GET /v1/omni/state``: what who watches is told, and when."""

from __future__ import annotations

import json
import signal
import time

import httpx
import pytest

from .fake_server import FakeServer, endless, slow_vocoder, speaking

STATE = "/v1/omni/state"
CHAT = "/v1/chat/completions"
ASKED = {"messages": [{"role": "user", "content": "hello"}], "modalities": ["text", "audio"], "stream": True}


@pytest.fixture
def http(request):
    """To the server that the test marks, ``endless`` by default."""
    server = FakeServer(getattr(request, "param", endless)())
    with httpx.Client(base_url=server.url, trust_env=False, timeout=20) as http:
        http.server = server
        yield http
    server.close()


def states(answer):
    for line in answer.iter_lines():
        if line:
            yield json.loads(line.removeprefix("data: "))


def first(seen, what):
    """The first state of which this holds."""
    return next(state for state in seen if what(state))


def stage(state, name):
    (found,) = [each for each in state["stages"] if each["stage"] == name]
    return found


def test_the_first_state_comes_at_once_and_is_whole(http):
    with http.stream("GET", STATE) as answer:
        state = next(states(answer))
    assert (state["pipeline"], state["models"]) == ("fake", ["fake"])
    assert (state["ready"], state["reason"], state["in_flight"]) == (True, None, 0)
    assert [each["stage"] for each in state["stages"]] == ["thinker", "talker", "vocoder"]
    vocoder = stage(state, "vocoder")
    assert vocoder["inputs"] == [{"stage": "talker", "mode": "whole"}]
    assert (vocoder["state"], vocoder["ready"], vocoder["replicas"], vocoder["restarts"]) == ("ready", 1, 1, 0)
    assert (vocoder["running"], vocoder["waiting"], vocoder["output"]) == (0, 0, "audio")


def test_a_request_is_seen_to_come_and_to_go(http):
    with http.stream("GET", STATE) as answer:
        seen = states(answer)
        next(seen)
        asked = time.monotonic()
        with http.stream("POST", CHAT, json=ASKED):
            first(seen, lambda state: state["in_flight"] == 1 and stage(state, "vocoder")["running"] == 1)
        gone = first(seen, lambda state: state["in_flight"] == 0)
    assert time.monotonic() - asked < 8, "told of by the sign of life only"
    assert [each["running"] for each in gone["stages"]] == [0, 0, 0]


def test_states_come_at_most_four_times_a_second(http):
    with http.stream("GET", STATE) as answer:
        seen = states(answer)
        next(seen)
        begun, count = time.monotonic(), 0
        for _ in range(3):
            with http.stream("POST", CHAT, json=ASKED):
                first(seen, lambda state: state["in_flight"] == 1)
            first(seen, lambda state: state["in_flight"] == 0)
            count += 2
        assert time.monotonic() - begun > (count - 1) * 0.25


@pytest.mark.parametrize("http", [lambda: slow_vocoder(endless(), 1.5)], indirect=True)
def test_what_waits_for_a_stage_is_its_queue(http):
    http.server.signal("vocoder", signal.SIGKILL)
    with http.stream("GET", STATE) as answer:
        seen = states(answer)
        first(seen, lambda state: stage(state, "vocoder")["state"] == "restarting")
        with http.stream("POST", CHAT, json=ASKED):
            first(seen, lambda state: stage(state, "vocoder")["waiting"] == 1)
            back = first(seen, lambda state: stage(state, "vocoder")["running"] == 1)
    assert stage(back, "vocoder")["restarts"] == 1


def test_it_ends_with_the_server(http):
    with http.stream("GET", STATE) as answer:
        seen = states(answer)
        next(seen)
        http.server.close()
        *_, last = seen
    assert (last["ready"], last["reason"]) == (False, "the server is stopping")


@pytest.mark.parametrize("http", [speaking], indirect=True)
def test_who_leaves_is_forgotten_and_too_many_are_refused(http, monkeypatch):
    monkeypatch.setattr("omni_actors_asyncio.server._routes_web.MAX_WATCHERS", 2)
    with http.stream("GET", STATE) as one, http.stream("GET", STATE) as two:
        assert (one.status_code, two.status_code) == (200, 200)
        refused = http.get(STATE)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, 429)
        assert refused.headers["retry-after"] == "10"
    deadline = time.monotonic() + 10
    status = 429
    while status != 200:
        assert time.monotonic() < deadline
        with http.stream("GET", STATE) as again:
            status = again.status_code


def test_the_page_is_here_and_nothing_else_is(http):
    page = http.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for name in ("page.js", "page.css", "card.js", "icon.svg"):
        assert http.get(f"/omni/{name}").status_code == 200
    assert http.get("/omni/../_routes_web.py").status_code == 404
    assert http.get("/omni/index.html").status_code == 404
