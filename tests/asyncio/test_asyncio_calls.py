"""``collective_rpc``: at once everywhere, with a deadline of its own, in nobody's way; failures are exceptions."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
import trio
from omni_actors_asyncio import AsyncOmni

from omni_actors import EngineRejected
from omni_actors.testing import FakeCore, FakeCoreBehaviour, MemoryWorld, current_process
from omni_actors.testing._core_wire import UTILITY, FakeOutputs, FakeUtility
from omni_actors.testing._exit import Exit
from omni_actors.testing.rigs import core, pipeline

SLOW_S = 0.5


class Deliberate(FakeCore):
    """Takes its time for a ``collective_rpc``, as its kwargs say, and goes on making tokens meanwhile."""

    def __init__(self, nursery: trio.Nursery, name: str, *how) -> None:
        super().__init__(*how)
        self._nursery, self._name = nursery, name

    def _hear(self, message) -> None:
        if bytes(message[0]) == UTILITY:
            _, call_id, method, args = msgspec.msgpack.decode(message[1])
            if method == "collective_rpc":
                self._nursery.start_soon(self._answer, call_id, args[3] or {})
                return
        super()._hear(message)

    async def _answer(self, call_id: int, kwargs: dict) -> None:
        await trio.sleep(kwargs.get("slow_s", {}).get(self._name, SLOW_S))
        if self._name in kwargs.get("failing", ()):
            answer = FakeUtility(call_id, "Call to collective_rpc method failed: on purpose")
        else:
            answer = FakeUtility.answer(call_id, [self._name])
        self._send([msgspec.msgpack.encode(FakeOutputs(utility_output=answer))])


async def engine(launch, payload, transport):
    behaviour = msgspec.convert(payload["engine_args"], FakeCoreBehaviour)
    end = None
    async with trio.open_nursery() as nursery:
        fake = Deliberate(nursery, f"{launch.stage}/{launch.replica}", behaviour, payload["handshake"], transport)
        current_process().on_terminate(fake.stop)
        try:
            await fake.run()
        except Exit as error:
            end = error
        nursery.cancel_scope.cancel()
    if end is not None:
        raise end


def deliberate() -> AsyncOmni:
    spec = pipeline(
        core("thinker", output="text", replicas=2, tokens=8_000, token_s=0.002, params={"max_tokens": None}),
        core("painter", output="image"),
    )
    return AsyncOmni(spec, world=MemoryWorld({"omni_actors.testing.fake_core": engine}))


def test_all_replicas_of_all_stages_are_asked_at_once(run):
    async def main():
        async with deliberate() as omni:
            began = time.monotonic()
            answers = await omni.collective_rpc("method", 30.0)
            return answers, time.monotonic() - began

    answers, took_s = run(main)
    assert answers == ["thinker/0", "thinker/1", "painter/0"]
    assert SLOW_S <= took_s < 3 * SLOW_S


def test_a_slow_one_delays_no_token(run):
    async def main():
        async with deliberate() as omni:
            stream = omni.generate_omni("x", modalities=["text"])
            await anext(stream)
            call = asyncio.ensure_future(omni.collective_rpc("method", 30.0))
            pauses, at = [], time.monotonic()
            while not call.done():
                await anext(stream)
                pauses.append(time.monotonic() - at)
                at = time.monotonic()
            await stream.aclose()
            return await call, sorted(pauses)

    answers, pauses = run(main)
    assert len(answers) == 3
    assert len(pauses) > 20, "tokens came while it was under way"
    assert pauses[len(pauses) // 2] < SLOW_S / 10


def test_its_deadline_is_its_own(run):
    async def main():
        async with deliberate() as omni:
            began = time.monotonic()
            with pytest.raises(TimeoutError, match="did not answer in time"):
                await omni.collective_rpc("method", 0.2, (), {"slow_s": {"thinker/1": 60}})
            took_s = time.monotonic() - began
            # Who has answered meanwhile, and who has not, are fit for the next call.
            return took_s, await omni.collective_rpc("method", 30.0, stages=["thinker"])

    took_s, answers = run(main)
    assert 0.2 <= took_s < 10
    assert answers == ["thinker/0", "thinker/1"]


def test_one_failure_is_the_callers_exception_when_all_have_answered(run):
    async def main():
        async with deliberate() as omni:
            began = time.monotonic()
            with pytest.raises(EngineRejected, match="thinker/1: Call to collective_rpc method failed: on purpose"):
                await omni.collective_rpc("method", 30.0, (), {"failing": ["thinker/1"], "slow_s": {"thinker/1": 0}})
            return time.monotonic() - began

    assert run(main) >= SLOW_S


def test_cancelling_it_ends_the_waiting(run):
    async def main():
        async with deliberate() as omni:
            call = asyncio.ensure_future(omni.collective_rpc("method", 60.0, (), {"slow_s": {"painter/0": 60}}))
            await asyncio.sleep(0)
            began = time.monotonic()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            return time.monotonic() - began

    assert run(main) < 10
