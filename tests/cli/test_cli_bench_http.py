"""The HTTP client of ``bench serve``: what it takes for an answer, and what it refuses to take for one."""

import json
from functools import partial

import pytest
import trio

from omni_actors._errors import OmniError
from omni_actors.cli._bench import judge
from omni_actors.cli.benches import asyncio as asyncio_bench
from omni_actors.cli.benches import serve
from omni_actors.cli.benches._http_load import HttpLoad
from omni_actors.cli.benches._pairs import Measured
from omni_actors.cli.benches._verdicts import compared
from omni_actors.cli.benches._work import Answer, Job, Round, pipeline, prompts

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
BUSY = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"


def chunk(data):
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(said):
    return b"data: " + (said if isinstance(said, bytes) else json.dumps(said).encode()) + b"\n\n"


def said(text):
    return event({"choices": [{"text": text}]})


class Server:
    """Answers each request on a connection with ``parts``, cut as they are; keeps what it was asked."""

    def __init__(self, *parts):
        self.parts, self.asked, self.connections = parts, [], 0

    async def __call__(self, stream):
        self.connections += 1
        heard = b""
        while data := await stream.receive_some():
            heard += data
            head, _, body = heard.partition(b"\r\n\r\n")
            length = next((int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0)
            if len(body) < length:
                continue
            self.asked.append((head.split(b" ")[1], body))
            heard = b""
            for part in self.parts:
                await stream.send_all(part)


@pytest.fixture
async def serving(nursery):
    async def start(*parts):
        server = Server(*parts)
        (listener,) = await nursery.start(partial(trio.serve_tcp, server, 0, host="127.0.0.1"))
        return server, HttpLoad(listener.socket.getsockname()[1], "bench", lambda: 2.5)

    return start


async def test_an_answer_is_its_text_however_the_stream_is_cut(serving):
    body = said("fi") + said("ve") + event({"choices": [], "usage": {}}) + event(b"[DONE]")
    server, load = await serving(HEAD, chunk(body[:7]), chunk(body[7:40]), chunk(body[40:]), b"0\r\n\r\n")

    found = await load.run(Job(concurrent=2, requests=5, first=3))

    assert [answer.text for answer in found.answers] == ["five"] * 5
    assert all(0 < answer.first_s <= answer.total_s <= found.wall_s for answer in found.answers)
    assert found.cpu_s == 0
    assert server.connections == 2
    asked = [json.loads(body) for path, body in server.asked]
    assert {path for path, _ in server.asked} == {b"/v1/completions"}
    assert sorted(each["prompt"] for each in asked) == sorted(prompts(8)[3:])
    assert all(each["stream"] and each["model"] == "bench" and each["max_tokens"] == 16 for each in asked)


@pytest.mark.parametrize(
    ("parts", "words"),
    [((BUSY,), "503"), ((HEAD, chunk(said("fi")), b"0\r\n\r\n"), "broke off")],
    ids=["refused", "cut short"],
)
async def test_what_is_no_answer_is_an_error(serving, parts, words):
    _, load = await serving(*parts)

    with pytest.raises(ExceptionGroup) as raised:
        await load.run(Job(concurrent=1, requests=1))
    assert raised.group_contains(OmniError, match=words)


async def test_a_server_is_ready_when_it_is_healthy(serving):
    _, busy = await serving(BUSY)
    with trio.move_on_after(0.6) as scope:
        await busy.ready()
    assert scope.cancelled_caught

    _, healthy = await serving(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    await healthy.ready()


def rounds(*, seconds, ttft_s, concurrent):
    return [Round(seconds, seconds / 2, [Answer("x", [1], ttft_s, seconds)] * concurrent) for _ in range(15)]


@pytest.mark.parametrize(("bench", "loads"), [(asyncio_bench, (1, 8, 64)), (serve, (32,))])
def test_their_bounds_see_a_slow_and_a_late_side(bench, loads):
    def verdicts(seconds, ttft_s):
        found = {
            c: Measured(
                rounds(seconds=seconds, ttft_s=ttft_s, concurrent=c),
                rounds(seconds=1.0, ttft_s=0.01, concurrent=c),
                rounds(seconds=9.0, ttft_s=9.0, concurrent=c),  # a floor is there to be known, not to be held
            )
            for c in loads
        }
        return judge(compared(found, bench.BOUNDS, ()))

    assert set(verdicts(1.0, 0.0105).values()) == {"holds"}
    assert {name for name, verdict in verdicts(1.1, 0.0105).items() if verdict == "fails"} == {
        f"rps_ratio_{c}" for c in loads
    }
    late = {name for name, verdict in verdicts(1.0, 0.0125).items() if verdict == "fails"}
    assert late == ({"ttft_added_ms_1"} if 1 in loads else set())


def test_both_servers_are_asked_for_the_same_engine(tmp_path):
    (stage,) = pipeline("engine").stages

    serve._ours(stage, tmp_path, 1)
    deploy = (tmp_path / "bench.yaml").read_text()
    options = serve._theirs(serve._VLLM, stage, tmp_path, 1)

    for name, value in stage.engine_args.items():
        assert f"{name}: {str(value).lower() if value is True else value}" in deploy
        assert f"--{name.replace('_', '-')}" in options
