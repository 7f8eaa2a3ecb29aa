"""A replica that starts during a pause rests before it gets any work, on fakes that write down what they hear."""

from __future__ import annotations

import asyncio
import threading

import attrs
import msgspec
import pytest
from omni_actors_asyncio import AsyncOmni

from omni_actors.testing import FakeCore, FakeCoreBehaviour, MemoryWorld, current_process
from omni_actors.testing._core_wire import FakeUtility
from omni_actors.testing.rigs import SHORT, core, pipeline


class Restful(FakeCore):
    """Says that it obeys; ``die`` ends it with exit code 3."""

    def __init__(self, heard: list, *how) -> None:
        super().__init__(*how)
        self._heard = heard

    def _call(self, call_id, method, args):
        if method in ("is_sleeping", "has_work"):
            return super()._call(call_id, method, args)
        self._heard.append((method, *args))
        if method == "die":
            self._code = 3
            self._life.cancel()
        return FakeUtility.answer(call_id, True)

    def _add(self, add):
        self._heard.append("work")
        super()._add(add)


class Lives(list):
    """What each life of the engine heard. ``second`` is set when that one begins."""

    def __init__(self) -> None:
        self.second = threading.Event()

    def begin(self) -> list:
        self.append([])
        if len(self) == 2:
            self.second.set()
        return self[-1]


def restful(lives: Lives) -> AsyncOmni:
    """One stage."""

    async def engine(launch, payload, transport):
        behaviour = msgspec.convert(payload["engine_args"], FakeCoreBehaviour)
        fake = Restful(lives.begin(), behaviour, payload["handshake"], transport)
        current_process().on_terminate(fake.stop)
        await fake.run()

    spec = pipeline(core("llm", output="text", deadlines=attrs.evolve(SHORT, backoff_first_s=0.01)))
    return AsyncOmni(spec, world=MemoryWorld({"omni_actors.testing.fake_core": engine}))


async def second_life(omni: AsyncOmni, lives: Lives) -> list:
    """Kill the engine; what the next one heard until it had answered a request that waited for it."""
    await omni.call("llm", "die", timeout_s=10)
    assert await asyncio.to_thread(lives.second.wait, 10)
    assert [output async for output in omni.generate("x", None, "r")]
    return lives[1]


REST = {
    "pause": (lambda o: o.pause_generation(), ("pause_scheduler", "keep", False)),
    "pause, wait": (lambda o: o.pause_generation(mode="wait"), ("pause_scheduler", "keep", False)),
    "sleep": (lambda o: o.sleep(2), ("sleep", 2, "keep")),
}


@pytest.mark.parametrize("how", REST)
def test_it_rests_before_it_gets_work(run, how):
    rest, told = REST[how]

    async def main():
        lives = Lives()
        async with restful(lives) as omni:
            await rest(omni)
            return await second_life(omni, lives)

    assert run(main)[:2] == [told, "work"]


GO_ON = {
    "resume": lambda o: o.resume_generation(),
    "wake up": lambda o: o.wake_up(),
    "wake up, bit by bit": lambda o: o.wake_up(["weights", "kv_cache"]),
}


@pytest.mark.parametrize("how", GO_ON)
def test_after_the_pause_it_works(run, how):
    async def main():
        lives = Lives()
        async with restful(lives) as omni:
            await omni.sleep(1)
            await GO_ON[how](omni)
            return await second_life(omni, lives)

    assert run(main) == ["work"]


def test_a_stage_that_was_not_paused_is_not(run):
    async def main():
        lives = Lives()
        async with restful(lives) as omni:
            await omni.pause_generation(stages=[])
            return await second_life(omni, lives)

    assert run(main) == ["work"]
