"""A real ``omni-actors serve tiny-omni`` that is fuzzed, benchmarked, crowded and robbed of its stages."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from omni_actors.config import resolve
from omni_actors.testing.os_state import descendants

from .fake_pipeline import holds, idle
from .fuzz import fuzz
from .server_process import ServerProcess, ready_within
from .swarm import STREAM, ask, resident_mib, storm
from .test_serve_gate import NOT_JSON, TOO_MUCH

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
THEIRS = (
    COMPLETIONS,
    CHAT,
    "/v1/responses",
    "/v1/responses/{response_id}",
    "/v1/messages",
    "/v1/systemone",
    "/tokenize",
    "/detokenize",
    "/generative_scoring",
    "/v1/models",
)
LONG = [{"role": "user", "content": "What is two plus three, nine minus four, one plus one, and six minus two?"}]
SPOKEN = {"messages": LONG, "modalities": ["text", "audio"]}
ENDLESS = {"model": "tiny-omni", "prompt": "What is", "ignore_eos": True, "max_tokens": 240}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """As users start it: without vLLM's development routes."""
    with ServerProcess(development=False).until_stopped() as server:
        yield server


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/responses", "/tokenize"])
def test_nonsense_is_400_on_vllms_routes_too(http, path):
    for name, body in NOT_JSON.items():
        answer = http.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, name
        assert answer.json()["error"]["code"] == 400
    for name, (document, _) in TOO_MUCH.items():
        assert http.post(path, json=document).status_code == 400, name
    assert http.get("/health").status_code == 200


def test_bodies_from_vllms_openapi_get_no_5xx_but_503(http):
    examples = int(os.environ.get("OMNI_ACTORS_FUZZ_EXAMPLES", "8"))
    counts = fuzz(http, examples=examples, operations=THEIRS)
    assert set(counts) == set(THEIRS)
    holds(http, idle, 5)


def test_prompts_are_not_logged(server, http):
    word = "quokka"
    asked = {"messages": [{"role": "user", "content": word}], "max_tokens": 2}
    assert http.post(CHAT, json=asked).status_code == 200
    assert http.post(CHAT, json={**asked, "temperature": -1}).status_code == 400
    assert http.post(CHAT, json={**asked, "modalities": ["text", "audio"]}).status_code == 200
    assert http.post(COMPLETIONS, json={"model": "tiny-omni", "prompt": word, "max_tokens": 2}).status_code == 200
    assert http.post("/v1/audio/speech", json={"input": word, "speed": 2}).status_code == 400
    assert [line for line in server.lines if word in line] == []


def test_vllms_own_benchmark_completes(server, tmp_path):
    program = (
        "import argparse\nfrom vllm.benchmarks.serve import add_cli_args, main\n"
        "parser = argparse.ArgumentParser()\nadd_cli_args(parser)\nmain(parser.parse_args())"
    )
    model = str(resolve("tiny-omni").spec.stage("thinker").model)
    asked = {"base-url": server.url, "model": "tiny-omni", "tokenizer": model, "num-prompts": "16"}
    asked |= {"dataset-name": "random", "random-input-len": "16", "random-output-len": "8", "result-dir": str(tmp_path)}

    def run(backend: str, endpoint: str) -> None:
        how = asked | {"backend": backend, "endpoint": endpoint, "result-filename": f"{backend}.json"}
        options = [part for name, value in how.items() for part in (f"--{name}", value)]
        told = subprocess.run(
            [sys.executable, "-c", program, *options, "--save-result", "--disable-tqdm"],
            env=os.environ | {"HF_HUB_OFFLINE": "1", "NO_PROXY": "*", "no_proxy": "*"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert told.returncode == 0, told.stderr[-3000:]
        result = json.loads((tmp_path / f"{backend}.json").read_text())
        assert (result["completed"], result.get("failed", 0)) == (16, 0)

    with ThreadPoolExecutor(2) as pool:  # what takes the time is to import vLLM
        list(pool.map(run, ("openai", "openai-chat"), (COMPLETIONS, CHAT)))


def test_a_crowd_that_leaves_at_random_frees_the_engines(server, http):
    draw = random.Random(2)
    asked = {**STREAM, "messages": LONG}

    def crowd() -> float:
        leave_after = [draw.choice([None, *range(1, 30)]) for _ in range(48)]
        told = asyncio.run(storm(server.url, [asked] * 48, leave_after))
        left_at = time.monotonic()
        assert {each.status for each in told} == {200}
        holds(http, idle, 10)
        return time.monotonic() - left_at

    for _ in range(2):
        crowd()
    warm = resident_mib(server.process.pid)
    took = [crowd() for _ in range(2)]
    assert max(took) <= 1, took
    assert resident_mib(server.process.pid) - warm < 32


def test_a_killed_vocoder_fails_who_listens_and_not_who_reads(server, http):
    text = {"messages": LONG, "max_tokens": 40, "ignore_eos": True}

    async def story() -> None:
        listening = [asyncio.ensure_future(ask(server.url, SPOKEN)) for _ in range(8)]
        await asyncio.to_thread(holds, http, lambda now: now["stages"][2]["running"] >= 1, 20)
        reading = [asyncio.ensure_future(ask(server.url, text)) for _ in range(8)]
        killed_at = asyncio.get_running_loop().time()
        os.kill(server.child("engines.generation"), signal.SIGKILL)
        # From now on: it is back before the readers have ended.
        looking = asyncio.ensure_future(asyncio.to_thread(ready_within, http, 503, 1))
        heard = await asyncio.gather(*listening)
        failed = [told for told in heard if told.status != 200]
        assert failed
        assert {told.status for told in failed} == {503}
        assert all(told.at - killed_at < 1 for told in failed if b"failed at this request" in told.body)
        assert {told.status for told in await asyncio.gather(*reading)} == {200}
        assert "vocoder" in (await looking).json()["reason"]

    asyncio.run(story())
    ready_within(http, 200, 60)


def test_a_killed_thinker_is_a_503_of_vllms_own_routes(server, http):
    """The last one: its restart is not waited for."""

    async def story() -> None:
        asking = [asyncio.ensure_future(ask(server.url, ENDLESS, path=COMPLETIONS)) for _ in range(4)]
        asking += [asyncio.ensure_future(ask(server.url, {**ENDLESS, "stream": True}, path=COMPLETIONS))]
        await asyncio.to_thread(holds, http, lambda now: now["stages"][0]["running"] >= 5, 20)
        for engine in engines:  # one of them is the thinker; nobody here needs the other
            killed_at = asyncio.get_running_loop().time()
            os.kill(engine, signal.SIGKILL)
            done, _ = await asyncio.wait(asking, timeout=2, return_when=asyncio.FIRST_COMPLETED)
            if done:
                break
        *whole, stream = await asyncio.gather(*asking)
        assert [(told.status, told.at - killed_at < 1) for told in whole] == [(503, True)] * 4
        assert all(b"stage thinker failed at this request" in told.body for told in (*whole, stream))
        assert b"SIGKILL" not in b"".join(told.body for told in (*whole, stream))

    engines = [pid for pid in descendants(server.process.pid) if is_engine(pid)]
    for engine in engines:
        os.kill(engine, signal.SIGSTOP)  # so that nobody's answer is complete before the blow
    asyncio.run(story())
    ready_within(http, 503, 1, naming="thinker")  # the talker may have been killed before, and be named alone at first
    for engine in engines:
        with suppress(ProcessLookupError):
            os.kill(engine, signal.SIGCONT)


def is_engine(pid: int) -> bool:
    return "EngineCore" in Path(f"/proc/{pid}/cmdline").read_text()
