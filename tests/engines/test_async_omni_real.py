"""AsyncOmni on a real engine says what AsyncLLM says, word for word, and does what its control plane promises."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from .reference import opened, said_by

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

PROGRAM = Path(__file__).with_name("async_llm_program.py")
_spec = importlib.util.spec_from_file_location("async_llm_program", PROGRAM)
cases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cases)

ENDLESS = {"temperature": 0, "max_tokens": 200, "ignore_eos": True}


@pytest.fixture(scope="module")
def vllms_answers() -> Iterator[Callable[[], dict]]:
    """It makes them while ours starts."""
    with said_by(PROGRAM) as answers:
        yield answers


@pytest.fixture(scope="module")
def omni(vllms_answers):
    with opened(cases.thinker()) as omni:
        yield omni


@pytest.fixture(scope="module")
def said_by_vllm(vllms_answers) -> dict:
    return vllms_answers()


@pytest.mark.parametrize("kind", cases.KINDS)
@pytest.mark.parametrize("name", cases.CASES)
def test_it_says_what_vllm_says(omni, said_by_vllm, name, kind):
    ours = json.loads(json.dumps(uvloop.run(cases.answer(omni, name, kind))))
    assert ours == said_by_vllm[f"{name}: {kind}"]


@pytest.mark.parametrize("in_turn", [True, False], ids=["in turn", "at once"])
@pytest.mark.parametrize("kind", cases.SESSION_KINDS)
@pytest.mark.parametrize("name", cases.SESSIONS)
def test_a_session_says_what_vllms_says(omni, said_by_vllm, name, kind, in_turn):
    """Streamed input. Given at once, several answers may come as one."""
    theirs = said_by_vllm[f"session, {name}: {kind}"]
    if not in_turn:
        theirs = {**theirs, "reasons": theirs["reasons"][-1:]}
    ours = json.loads(json.dumps(uvloop.run(cases.session(omni, name, kind, in_turn=in_turn))))
    assert ours == theirs


def test_sixty_four_at_once_say_what_one_says(omni, said_by_vllm):
    async def main():
        return await asyncio.gather(*(cases.answer(omni, "greedy", "DELTA") for _ in range(64)))

    answers = uvloop.run(main())
    assert {a["choices"]["0"]["text"] for a in answers} == {said_by_vllm["greedy: DELTA"]["choices"]["0"]["text"]}


def test_an_abort_hands_back_the_partial_tokens_and_frees_the_engine(omni):
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    async def main():
        params = SamplingParams(**ENDLESS, logprobs=0, output_kind=RequestOutputKind.FINAL_ONLY)
        asked = asyncio.ensure_future(anext(omni.generate({"prompt_token_ids": [7, 3, 9]}, params, "final")))
        watch = omni.generate({"prompt_token_ids": [7, 3, 9]}, SamplingParams(**ENDLESS), "watch")
        for _ in range(5):
            await anext(watch)
        (report,) = await omni.abort("final")
        output = await asked
        await watch.aclose()
        return report, output, await omni.reset_prefix_cache()

    report, output, forgotten = asyncio.run(main())
    (choice,) = output.outputs
    assert (output.finished, choice.finish_reason, forgotten) == (True, "abort", True)
    assert report.unconfirmed == ()
    assert 0 < len(choice.token_ids) < 200
    assert list(choice.token_ids) == report.terminals[0].token_ids("thinker")
    assert len(choice.logprobs) == len(choice.token_ids)


def test_pause_and_resume_for_a_trainer(omni, said_by_vllm):
    from vllm import SamplingParams

    async def main():
        stream = omni.generate({"prompt_token_ids": [7, 3, 9]}, SamplingParams(**ENDLESS), "rollout")
        await anext(stream)
        await omni.pause_generation(mode="abort")
        (partial,) = [output async for output in stream]
        assert partial.outputs[0].finish_reason == "abort"
        assert await omni.is_paused()
        waiting = asyncio.ensure_future(cases.answer(omni, "greedy", "FINAL_ONLY"))
        await omni.update_weight_version("v2")
        assert await omni.get_weight_version() == "v2"
        assert not waiting.done()
        await omni.resume_generation()
        assert not await omni.is_paused()
        return await waiting

    answer, expected = asyncio.run(main())["choices"]["0"], said_by_vllm["greedy: FINAL_ONLY"]["choices"]["0"]
    assert answer["text"] == expected["text"]


@pytest.mark.parametrize("mode", ["wait", "keep"])
def test_a_pause_that_lets_them_live(omni, mode):
    from vllm import SamplingParams

    async def main():
        stream = omni.generate({"prompt_token_ids": [7, 3, 9]}, SamplingParams(**ENDLESS), "long")
        await anext(stream)
        await omni.pause_generation(mode=mode, clear_cache=mode == "wait")
        await omni.resume_generation()
        return [output async for output in stream][-1].outputs[0]

    choice = asyncio.run(main())
    assert (choice.finish_reason, len(choice.token_ids)) == ("length", 200)


def test_calls_of_every_worker(omni):
    async def main():
        with pytest.raises(Exception, match="no_such_method"):
            await omni.collective_rpc("no_such_method", timeout=10)
        sums = await omni.compute_weight_checksums()
        return await omni.get_supported_tasks(), sums, await omni.is_sleeping(), await omni.is_tracing_enabled()

    tasks, sums, sleeping, tracing = asyncio.run(main())
    assert "generate" in tasks
    assert len(sums) == 1
    assert (sleeping, tracing) == (False, False)


def test_what_vllm_refuses_is_refused_in_its_words(omni):
    from vllm import SamplingParams
    from vllm.exceptions import VLLMClientError
    from vllm.lora.request import LoRARequest

    async def ask(prompt, params=None, **more):
        return await anext(omni.generate(prompt, params or SamplingParams(), "r", **more))

    async def main():
        lora = LoRARequest("l", 1, "nowhere")
        for refused, words in (
            (ask({"prompt_token_ids": [1] * 300}), "256"),
            (ask({"prompt_token_ids": [1]}, lora_request=lora), "LoRA is not enabled"),
            (ask({"prompt_token_ids": [1]}, data_parallel_rank=7), "data_parallel_rank"),
            (ask({"prompt_token_ids": [1]}, SamplingParams(logprobs=10_000)), "logprobs"),
        ):
            with pytest.raises(VLLMClientError, match=words):
                await refused

    asyncio.run(main())


def test_what_vllm_takes_is_taken(omni):
    from vllm import SamplingParams

    async def main():
        params = SamplingParams(temperature=0, max_tokens=3)
        more = {
            "priority": -1,
            "trace_headers": {"traceparent": "00-1-2-01"},
            "data_parallel_rank": 0,
            "session_id": "s",
            "reasoning_ended": True,
            "reasoning_parser_kwargs": {"a": 1},
            "tokenization_kwargs": {"add_special_tokens": False},
            "prompt_text": "as it was written",
        }
        return await anext(omni.generate({"type": "token", "prompt_token_ids": [7, 3]}, params, "r", **more))

    assert asyncio.run(main()).prompt == "as it was written"


def test_it_counts_and_logs_as_vllm_does(omni):
    from prometheus_client import REGISTRY
    from vllm import SamplingParams

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    vllms = logging.getLogger("vllm.v1.metrics.loggers")
    labels = {"model_name": "tiny-omni", "engine": "0", "stage": "thinker"}

    def counted() -> float:
        return REGISTRY.get_sample_value("vllm:generation_tokens_total", labels)

    async def main():
        before = counted()
        asked = omni.generate({"prompt_token_ids": [7, 3, 9]}, SamplingParams(max_tokens=5, ignore_eos=True), "counted")
        (*_, last) = [output async for output in asked]
        await omni.do_log_stats()
        return last, counted() - before

    vllms.addHandler(handler)
    level = vllms.level
    vllms.setLevel(logging.INFO)  # a test before this one may have silenced vLLM
    try:
        last, more = asyncio.run(main())
    finally:
        vllms.removeHandler(handler)
        vllms.setLevel(level)
    assert (more, last.metrics.num_generation_tokens) == (5, 5)
    assert 0 < last.metrics.queued_ts <= last.metrics.scheduled_ts < last.metrics.first_token_ts
    assert lines[-1].startswith("Stage thinker, engine 000: Avg prompt throughput:")
    assert "Running: 0 reqs, Waiting: 0 reqs" in lines[-1]


def test_leaving_frees_the_engine_within_a_tenth_of_a_second(omni):
    from vllm import SamplingParams

    async def main():
        streams = [omni.generate({"prompt_token_ids": [7, 3, 9]}, SamplingParams(**ENDLESS), str(n)) for n in range(16)]
        await asyncio.gather(*map(anext, streams))
        began = time.monotonic()
        await asyncio.gather(*(stream.aclose() for stream in streams))
        return time.monotonic() - began, await omni.reset_prefix_cache(), (await omni.statistics()).requests

    took_s, forgotten, requests = asyncio.run(main())
    assert (forgotten, requests) == (True, 0)
    assert took_s < 0.1
