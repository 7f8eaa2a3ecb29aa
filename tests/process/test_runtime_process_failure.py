"""Real engines that die, freeze and lie: exactly their requests fail, with all details, and the stage comes back."""

from __future__ import annotations

import os
import signal

import attrs
import pytest
import trio

from omni_actors import Kind, StageFailed
from omni_actors.testing.rigs import SHORT, core, open_in_time, pipeline, speech

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("run_base")]

QUICK = attrs.evolve(SHORT, silence_s=0.3, hang_s=1.5, backoff_first_s=0.05)
LONG = {"max_tokens": 100_000}
NOISE_S = 0.7
"""What a busy machine may add to a bound."""


async def failure(stream) -> StageFailed:
    with pytest.raises(StageFailed) as caught:
        await stream.result()
    return caught.value


class Events:
    """What happened to the replicas, to be waited for."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, int, str]] = []
        self._more = trio.Event()

    def __call__(self, event) -> None:
        self._seen.append((event.stage, event.generation, event.kind))
        self._more.set()

    async def wait_for(self, stage: str, generation: int, kind: str) -> None:
        while (stage, generation, kind) not in self._seen:
            self._more = trio.Event()
            await self._more.wait()


async def test_a_killed_engine_fails_its_requests_within_a_second_and_comes_back():
    llm = core("llm", output="text", tokens=100_000, stderr="loading the weights", deadlines=QUICK)
    events = Events()
    async with open_in_time(pipeline(llm), on_event=events) as omni:
        async with omni.generate("x", LONG, request_id="mine") as stream:
            await anext(stream)
            pid = omni.pids()["llm/0"]
            killed_at = trio.current_time()
            os.kill(pid, signal.SIGKILL)
            error = await failure(stream)
            assert trio.current_time() - killed_at <= 1 + NOISE_S
        assert (error.stage, error.replica, error.generation, error.request_id) == ("llm", 0, 1, "mine")
        assert (error.pid, error.signal, error.exit_code, error.verdict) == (pid, "SIGKILL", None, "exit")
        assert error.stderr_tail == ("loading the weights",)
        assert "loading the weights" in str(error)
        assert error.terminal.text()
        await events.wait_for("llm", 2, "ready")
        assert omni.pids()["llm/0"] != pid
        async with omni.generate("again", {"max_tokens": 3}) as stream:
            assert len((await stream.result()).token_ids("llm")) == 3
        omni.check()
    assert omni.shutdown_report.stopped == ("llm/0",)


async def test_a_stopped_engine_is_found_within_hang_s():
    events = Events()
    async with open_in_time(
        pipeline(core("llm", output="text", tokens=100_000, deadlines=QUICK)), on_event=events
    ) as omni:
        async with omni.generate("x", LONG) as stream:
            await anext(stream)
            pid = omni.pids()["llm/0"]
            stopped_at = trio.current_time()
            os.kill(pid, signal.SIGSTOP)
            error = await failure(stream)
            assert trio.current_time() - stopped_at <= QUICK.hang_s + NOISE_S
        assert (error.verdict, error.pid) == ("hang", pid)
        await events.wait_for("llm", 2, "ready")
        async with omni.generate("again", {"max_tokens": 3}) as stream:
            assert (await stream.result()).kind is Kind.FINISHED
        omni.check()


async def test_a_long_step_and_an_idle_engine_are_no_hangs():
    slow = core("llm", output="text", token_s=1.0, deadlines=QUICK)
    async with open_in_time(pipeline(slow, omni_beside(chunk_s=1.0))) as omni:
        pids = omni.pids()
        async with omni.generate("x", {"max_tokens": 2}) as stream:
            assert (await stream.result()).kind is Kind.FINISHED
        assert omni.pids() == pids


def omni_beside(**behaviour):
    return attrs.evolve(speech(vocoder={"deadlines": QUICK, **behaviour}).stage("vocoder"), inputs=[], transform=None)


@pytest.mark.parametrize(
    ("death", "verdict", "words"),
    [
        ("exit", "exit", "exited with code 3"),
        ("sentinel", "sentinel", "reported that its engine is dead"),
        ("garbage", "protocol", "broke its wire"),
        ("stall", "hang", "was silent for"),
    ],
)
async def test_three_detectors_one_verdict(death, verdict, words):
    events = Events()
    llm = core("llm", output="text", tokens=1000, die_at=4, death=death, deadlines=QUICK)
    async with open_in_time(pipeline(llm), on_event=events) as omni:
        async with omni.generate("x", LONG) as stream:
            error = await failure(stream)
        assert (error.verdict, error.generation) == (verdict, 1)
        assert words in str(error)
        await events.wait_for("llm", 2, "ready")
        omni.check()


@pytest.mark.parametrize(
    ("death", "verdict"),
    [({"die_at_chunk": 1}, "exit"), ({"garbage_at_chunk": 1}, "protocol"), ({"stall_at_chunk": 1}, "hang")],
)
async def test_the_same_on_the_omni_wire(death, verdict):
    events = Events()
    async with open_in_time(speech(vocoder={**death, "deadlines": QUICK}), on_event=events) as omni:
        async with omni.generate("x", request_id="heard") as heard, omni.generate("y", modalities=["text"]) as read:
            error = await failure(heard)
            assert (await read.result()).kind is Kind.FINISHED
        assert (error.stage, error.verdict, error.request_id) == ("vocoder", verdict, "heard")
        await events.wait_for("vocoder", 2, "ready")
        async with omni.generate("z", modalities=["text"]) as read:
            assert (await read.result()).kind is Kind.FINISHED
        omni.check()


@pytest.mark.parametrize("replicas", [1, 2])
async def test_c15_the_last_stage_dies_under_load(replicas):
    vocoder = {"chunks": 40, "chunk_s": 0.05, "replicas": replicas, "deadlines": QUICK}
    async with open_in_time(speech(thinker={"max_running": 4}, vocoder=vocoder)) as omni:
        outcomes: dict[str, object] = {}
        first_sound = trio.Event()

        async def one(number: int) -> None:
            async with omni.generate(f"question {number}") as stream:
                try:
                    async for output in stream:
                        if output.modality == "audio":
                            first_sound.set()
                    outcomes[stream.request_id] = stream.terminal.kind
                except StageFailed as error:
                    outcomes[stream.request_id] = error

        async def text_only() -> None:
            for _ in range(10):
                async with omni.generate("just text", modalities=["text"]) as stream:
                    assert (await stream.result()).kind is Kind.FINISHED

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(one, number)
            await first_sound.wait()
            leases = omni._handler.table.leases.values()
            bound = {lease.record.request_id for lease in leases if (lease.stage, lease.replica) == ("vocoder", 0)}
            assert 0 < len(bound) < 10
            pid = omni.pids()["vocoder/0"]
            os.kill(pid, signal.SIGKILL)
            nursery.start_soon(text_only)
        failed = {name: error for name, error in outcomes.items() if isinstance(error, StageFailed)}
        # More may have been bound to it between its death and the moment when that was seen.
        assert bound <= failed.keys()
        assert all((e.stage, e.replica, e.generation, e.pid) == ("vocoder", 0, 1, pid) for e in failed.values())
        assert list(outcomes.values()).count(Kind.FINISHED) == 10 - len(failed) > 0
        omni.check()


async def test_an_engine_that_ignores_sigterm_is_killed_at_stop_s():
    deadlines = attrs.evolve(QUICK, stop_s=0.5)
    stubborn = core("llm", output="text", ignore_sigterm=True, deadlines=deadlines)
    async with open_in_time(pipeline(stubborn)) as omni:
        begun = trio.current_time()
        report = await omni.shutdown()
        took = trio.current_time() - begun
    assert (report.killed, report.stopped, report.unreaped) == (("llm/0",), (), ())
    assert 0.5 <= took <= 0.5 + deadlines.kill_s + NOISE_S


async def test_a_stopped_engine_does_not_hold_up_the_shutdown():
    deadlines = attrs.evolve(QUICK, stop_s=0.5)
    async with open_in_time(speech(talker={"deadlines": deadlines})) as omni:
        os.kill(omni.pids()["talker/0"], signal.SIGSTOP)
        report = await omni.shutdown()
    assert report.killed == ("talker/0",)
    assert set(report.stopped) == {"thinker/0", "vocoder/0"}
