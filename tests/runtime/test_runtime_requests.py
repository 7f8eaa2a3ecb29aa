"""One stage, all the ways a request can go: finished, aborted, timed out, refused, read slowly."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import trio

from omni_actors import (
    InvalidRequest,
    Kind,
    Overloaded,
    RequestTimeout,
    RuntimeClosed,
    ShuttingDown,
    SlowConsumer,
    open_omni,
)
from omni_actors.config import Limits
from omni_actors.testing import FakeCoreBehaviour, FakeParams, fake_tokens
from omni_actors.testing.rigs import core, pipeline, speech


async def read(stream) -> list:
    return [output async for output in stream]


def text_of(outputs, index=0) -> str:
    return "".join(output.text for output in outputs if output.index == index)


async def test_a_request_streams_and_finishes(world, autojump_clock):
    async with open_omni(pipeline(core("llm", output="text", tokens=12)), world=world) as omni:
        async with omni.generate("hello", request_id="mine") as stream:
            outputs = await read(stream)
    expected = "".join(map(chr, fake_tokens([ord(c) for c in "hello"], FakeCoreBehaviour(tokens=12))))
    assert text_of(outputs) == expected
    assert stream.terminal.kind is Kind.FINISHED
    assert stream.terminal.text() == expected
    assert {output.request_id for output in outputs} == {"mine"}
    assert outputs[-1].payload.finish_reason == "stop"


async def test_params_are_per_request_or_per_stage(world, autojump_clock):
    async with open_omni(pipeline(core("llm", output="text", params={"max_tokens": 3})), world=world) as omni:
        for sampling, length in ((None, 3), ({"max_tokens": 5}, 5), ({"llm": {"max_tokens": 7}}, 7)):
            async with omni.generate("x", sampling) as stream:
                terminal = await stream.result()
            assert len(terminal.token_ids("llm")) == length


async def test_n_samples_are_n_choices(world, autojump_clock):
    async with open_omni(pipeline(core("llm", output="text")), world=world) as omni:
        async with omni.generate("x", {"n": 3, "seed": 5}) as stream:
            outputs = await read(stream)
        assert {output.index for output in outputs} == {0, 1, 2}
        for index in range(3):
            alone = fake_tokens([ord("x")], FakeCoreBehaviour(), FakeParams(seed=5 + index))
            assert text_of(outputs, index) == "".join(map(chr, alone)) == stream.terminal.text(index=index)


async def test_two_requests_with_one_id_run_apart(world, autojump_clock):
    async with open_omni(pipeline(core("llm", output="text")), world=world) as omni:
        async with omni.generate("a", request_id="same") as one, omni.generate("b", request_id="same") as two:
            first, second = (await one.result()).text(), (await two.result()).text()
    assert first != second
    assert len(first) == len(second) == 16


async def test_abort_returns_when_the_engine_has_forgotten(world, autojump_clock):
    async with open_omni(pipeline(core("llm", output="text", tokens=500)), world=world) as omni:
        async with omni.generate("x", request_id="r") as stream:
            got = [await anext(stream) for _ in range(5)]
            report = await omni.abort("r")
            assert report.known
            assert report.unconfirmed == ()
            (terminal,) = report.terminals
            assert terminal is stream.terminal
            assert terminal.kind is Kind.ABORTED
            assert terminal.text().startswith(text_of(got))
            assert await read(stream) == []
            assert await omni.call("llm", "has_work") == [False]
        omni.check()
        assert omni.in_flight == 0


async def test_abort_is_total(world, autojump_clock):
    """C3: unknown, finished, twice, and two live requests that share the id."""
    async with open_omni(pipeline(core("llm", output="text", tokens=500, token_s=0.01)), world=world) as omni:
        assert not (await omni.abort("nobody")).known
        async with omni.generate("x", {"max_tokens": 2}, request_id="short") as stream:
            await stream.result()
        report = await omni.abort("short")
        assert (report.known, report.terminals) == (False, ())
        async with omni.generate("a", request_id="both") as one, omni.generate("b", request_id="both") as two:
            await anext(one), await anext(two)
            first = await omni.abort("both")
            again = await omni.abort("both")
            assert len(first.terminals) == 2
            assert not again.known
            assert one.terminal.kind is two.terminal.kind is Kind.ABORTED
        async with omni.generate("c", {"max_tokens": 2}, request_id="both") as three:
            assert (await three.result()).kind is Kind.FINISHED
        omni.check()


async def test_the_engine_is_told_once_per_lease(world, autojump_clock):
    async with open_omni(pipeline(core("llm", output="text", tokens=500)), world=world) as omni:
        async with omni.generate("a", request_id="r") as stream:
            await anext(stream)
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(omni.abort, "r")
        assert await omni.call("llm", "has_work") == [False]


EXPECTED = {"exception": KeyError, "timeout": RequestTimeout}


@pytest.mark.parametrize("how", ["break", "cancel", "exception", "timeout"])
async def test_leaving_the_block_is_the_abort(world, autojump_clock, how):
    async with open_omni(pipeline(core("llm", output="text", tokens=500)), world=world) as omni:
        request = omni.generate("x", timeout_s=0.1 if how == "timeout" else None)
        with pytest.raises(EXPECTED[how]) if how in EXPECTED else nullcontext() as caught:
            with trio.move_on_after(0.1 if how == "cancel" else 100):
                async with request as stream:
                    async for _ in stream:
                        if how == "break":
                            break
                        if how == "exception":
                            raise KeyError("the user's own")
        if how == "timeout":
            assert caught.value.terminal is stream.terminal
            assert "llm" in str(caught.value)
        assert stream.terminal.kind is (Kind.TIMED_OUT if how == "timeout" else Kind.ABORTED)
        assert await omni.call("llm", "has_work") == [False]
        omni.check()


async def test_an_unanswered_abort_returns_in_time_and_names_the_suspect(world, autojump_clock):
    spec = pipeline(core("llm", output="text", tokens=500, die_at=3, death="stall"), abort_s=0.5)
    async with open_omni(spec, world=world) as omni, omni.generate("x", request_id="r") as stream:
        await anext(stream)
        await trio.sleep(0.1)
        before = trio.current_time()
        report = await omni.abort("r")
        assert trio.current_time() - before == pytest.approx(0.5)
        assert [(u.stage, u.replica) for u in report.unconfirmed] == [("llm", 0)]
        assert stream.terminal.kind is Kind.ABORTED


async def test_a_full_house_refuses_and_takes_again(world, autojump_clock):
    """C19: n counts; a refusal takes nothing; after the drain it goes on."""
    spec = pipeline(core("llm", output="text", tokens=50), limits=Limits(max_requests=10))
    async with open_omni(spec, world=world) as omni:
        started, refused = [], []

        async def one(number: int) -> None:
            try:
                async with omni.generate("x", {"n": 4} if number == 0 else None) as stream:
                    started.append(number)
                    await stream.result()
            except Overloaded as error:
                refused.append(error.limit)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(one, number)
        assert len(refused) + len(started) == 50
        assert set(refused) == {10}
        assert len(started) == (7 if 0 in started else 10)
        async with omni.generate("again") as stream:
            assert (await stream.result()).kind is Kind.FINISHED
        omni.check()


async def test_a_slow_reader_loses_its_request_only(world, autojump_clock):
    spec = pipeline(core("llm", output="text", tokens=400), limits=Limits(stream_bytes=1000))
    async with open_omni(spec, world=world) as omni:
        async with (
            omni.generate("slow", {"max_tokens": 400}) as slow,
            omni.generate("quick", {"max_tokens": 400}) as quick,
        ):
            assert len((await quick.result()).text()) == 400
            with pytest.raises(SlowConsumer, match="1000 bytes"):
                await read(slow)
        assert slow.terminal.kind is Kind.FAILED
        omni.check()


async def test_a_reader_that_is_late_gets_everything_as_one(world, autojump_clock):
    async with open_omni(pipeline(core("llm", output="text", tokens=40)), world=world) as omni:
        async with omni.generate("x", {"max_tokens": 40}) as stream:
            await trio.sleep(5)
            outputs = await read(stream)
    assert len(outputs) == 1
    assert outputs[0].text == stream.terminal.text()
    assert len(outputs[0].payload.token_ids) == 40


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("", {}, "empty"),
        (5, {}, "text or token ids"),
        ("x" * 5000, {}, "exceed the limit"),
        ("x", {"sampling": {"max_tokns": 1}}, "max_tokns"),
        ("x", {"modalities": ["video"]}, "it makes: text"),
        ("x", {"modalities": []}, "no modality"),
        ("x", {"timeout_s": -1}, "timeout_s"),
        ("x", {"request_id": 7}, "request_id"),
    ],
)
async def test_bad_input_is_refused_and_leaves_nothing(world, autojump_clock, prompt, options, words):
    async with open_omni(pipeline(core("llm", output="text")), world=world) as omni:
        with pytest.raises(InvalidRequest, match=words):
            async with omni.generate(prompt, **options):
                pytest.fail("it was taken")
        assert omni.in_flight == 0
        omni.check()


async def test_streams_have_one_reader(world, autojump_clock):
    async with open_omni(pipeline(core("llm", output="text", tokens=500)), world=world) as omni:
        async with omni.generate("x") as stream:
            with pytest.RaisesGroup(trio.BusyResourceError):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(read, stream)
                    nursery.start_soon(read, stream)


async def test_after_shutdown_nothing_is_taken(world, autojump_clock):
    async with open_omni(pipeline(core("llm", output="text")), world=world) as omni:
        omni.request_shutdown()
        with pytest.raises(ShuttingDown):
            async with omni.generate("x"):
                pass
        await omni.shutdown()
        with pytest.raises(RuntimeClosed):
            async with omni.generate("x"):
                pass


async def test_the_terminal_tells_the_time(world, autojump_clock):
    async with open_omni(speech(), world=world) as omni, omni.generate("hello") as stream:
        terminal = await stream.result()
    for timing in terminal.timings:
        assert terminal.submitted_at <= timing.ready_at <= timing.submitted_at <= timing.first_at <= timing.finished_at
    assert max(t.finished_at for t in terminal.timings) == terminal.at
