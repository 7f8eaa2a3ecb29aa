"""The whole runtime over real processes and ipc sockets: requests that finish, are aborted, run apart."""

from __future__ import annotations

import pytest
import trio

from omni_actors import InvalidRequest, Kind, RequestTimeout
from omni_actors.testing import FakeCoreBehaviour, fake_tokens
from omni_actors.testing.rigs import core, open_in_time, pipeline, speech

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("run_base")]

LONG = {"max_tokens": 10_000}
AT_WORK = {
    "thinker": lambda output: True,
    "talker": lambda output: output.payload.finish_reason is not None,
    "vocoder": lambda output: output.modality == "audio",
}
"""The output that proves a stage to be at work: of its own, or the end of its producer's."""


def made_of(prompt: str, tokens: int) -> str:
    return "".join(map(chr, fake_tokens([ord(c) for c in prompt], FakeCoreBehaviour(tokens=tokens))))


async def read(stream) -> list:
    return [output async for output in stream]


async def nothing_is_at_work(omni) -> bool:
    core_work = [*await omni.call("thinker", "has_work"), *await omni.call("talker", "has_work")]
    return not any(core_work) and (await omni.call("vocoder", "stats"))[0]["live"] == 0


async def test_text_streams_and_sound_follows():
    async with open_in_time(speech(thinker={"tokens": 12})) as omni:
        async with omni.generate("hello", request_id="mine") as stream:
            outputs = await read(stream)
        async with omni.generate("hello", modalities=["text"]) as stream:
            alone = await stream.result()
        omni.check()
    assert "".join(o.text for o in outputs) == made_of("hello", 12) == alone.text()
    assert [o.stage for o in outputs if o.modality == "audio"]
    assert {o.request_id for o in outputs} == {"mine"}
    assert outputs[-1].payload.finish_reason == "stop"
    assert {t.stage for t in alone.timings} == {"thinker"}
    assert sorted(omni.shutdown_report.stopped) == ["talker/0", "thinker/0", "vocoder/0"]


@pytest.mark.parametrize("busy_stage", ["thinker", "talker", "vocoder"])
async def test_an_abort_is_finished_when_it_returns(busy_stage):
    busy = {busy_stage: {"chunks": 10_000} if busy_stage == "vocoder" else {"tokens": 10_000, "params": LONG}}
    async with open_in_time(speech(**busy)) as omni:
        async with omni.generate("x", request_id="r") as stream:
            async for output in stream:
                if AT_WORK[busy_stage](output):
                    break
            assert not await nothing_is_at_work(omni)
            report = await omni.abort("r")
            assert await nothing_is_at_work(omni)
            assert report.unconfirmed == ()
            assert [t.kind for t in report.terminals] == [Kind.ABORTED]
            assert await read(stream) == []
        again = await omni.abort("r")
        assert not again.known
        omni.check()


@pytest.mark.parametrize("how", ["break", "cancel", "timeout"])
async def test_leaving_is_the_abort(how):
    async with open_in_time(speech(thinker={"tokens": 10_000, "params": LONG})) as omni:
        with trio.CancelScope() as scope:
            try:
                async with omni.generate("x", timeout_s=0.3 if how == "timeout" else None) as stream:
                    async for _ in stream:
                        if how == "cancel":
                            scope.cancel()
                        if how == "break":
                            break
            except RequestTimeout:
                assert how == "timeout"
        assert stream.terminal.kind is (Kind.TIMED_OUT if how == "timeout" else Kind.ABORTED)
        assert await nothing_is_at_work(omni)
        omni.check()


async def test_requests_with_one_id_run_apart():
    async with open_in_time(pipeline(core("llm", output="text", tokens=10_000, params={"max_tokens": 16}))) as omni:
        async with omni.generate("a", request_id="same") as one, omni.generate("b", request_id="same") as two:
            first, second = (await one.result()).text(), (await two.result()).text()
        assert (first, second) == (made_of("a", 16), made_of("b", 16))
        again = {"sampling": LONG, "request_id": "same"}
        async with omni.generate("a", **again) as one, omni.generate("b", **again) as two:
            report = await omni.abort("same")
            assert len(report.terminals) == 2
            assert one.terminal is not two.terminal
        omni.check()


async def test_a_hundred_requests_at_once_each_get_their_own():
    async with open_in_time(speech(thinker={"max_running": 16}, vocoder={"chunk_s": 0.001})) as omni:
        texts = {}

        async def one(number: int) -> None:
            async with omni.generate(f"q{number}") as stream:
                texts[number] = (await stream.result()).text()

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(one, number)
        assert texts == {number: made_of(f"q{number}", 10) for number in range(100)}
        assert omni.in_flight == 0
        omni.check()


async def test_bad_input_reaches_no_engine():
    async with open_in_time(speech()) as omni:
        for prompt, options in (("", {}), (5, {}), ("x" * 5000, {}), ("x", {"modalities": ["video"]})):
            with pytest.raises(InvalidRequest):
                async with omni.generate(prompt, **options):
                    pytest.fail("it was taken")
        assert await nothing_is_at_work(omni)
        omni.check()


async def test_two_runtimes_in_one_process(run_base):
    async with open_in_time(speech()) as one, open_in_time(speech()) as two:
        assert len(list(run_base.iterdir())) == 2
        assert set(one.pids().values()).isdisjoint(two.pids().values())
        await one.shutdown()
        async with two.generate("x") as stream:
            assert (await stream.result()).text() == made_of("x", 10)
