"""The ladder: bounded, ordered, idempotent, callable at any moment; and what leaves ``open_omni``."""

from __future__ import annotations

import pytest
import trio

from omni_actors import ConfigError, Kind, OmniError, open_omni
from omni_actors.testing.rigs import core, pipeline, speech

LONG = {"max_tokens": 10_000}


async def test_a_normal_end_drains(world, autojump_clock):
    async with (
        open_omni(pipeline(core("llm", output="text", tokens=50)), world=world) as omni,
        trio.open_nursery() as nursery,
    ):
        terminals = []

        async def one(*, task_status) -> None:
            async with omni.generate("x", {"max_tokens": 50}) as stream:
                task_status.started()
                terminals.append(await stream.result())

        await nursery.start(one)
        report = await omni.shutdown()
        assert [t.kind for t in terminals] == [Kind.FINISHED]
        assert report.stopped == ("llm/0",)
        assert report.aborted_requests == 0
    assert world.launcher.processes == []


async def test_what_does_not_drain_is_aborted_before_an_engine_is_stopped(world, autojump_clock):
    order = []
    spec = pipeline(core("llm", output="text", tokens=100_000), drain_s=2)
    async with open_omni(spec, world=world, on_event=lambda e: order.append((e.kind, trio.current_time()))) as omni:
        async with omni.generate("x", {"max_tokens": 100_000}) as stream:
            await anext(stream)
            begun = trio.current_time()
            report = await omni.shutdown()
            assert stream.terminal.kind is Kind.ABORTED
            assert "shutting down" in stream.terminal.reason
            assert stream.terminal.at <= next(at for kind, at in order if kind == "stopping")
        assert report.aborted_requests == 1
        assert report.unconfirmed_leases == 0
        assert report.seconds["draining"] == pytest.approx(2)
        assert trio.current_time() - begun < 3


async def test_every_call_gets_the_same_report(world, autojump_clock):
    async with open_omni(speech(), world=world) as omni:
        reports = []

        async def call() -> None:
            reports.append(await omni.shutdown())

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call)
        reports.append(await omni.shutdown())
    assert all(report is omni.shutdown_report for report in reports)
    assert set(omni.shutdown_report.stopped) == {"thinker/0", "talker/0", "vocoder/0"}


async def test_a_second_call_shortens(world, autojump_clock):
    spec = pipeline(core("llm", output="text", tokens=100_000, ignore_sigterm=True), drain_s=1000)
    async with open_omni(spec, world=world) as omni:
        async with omni.generate("x", {"max_tokens": 100_000}) as stream:
            await anext(stream)
            omni.request_shutdown()
            await trio.sleep(1)
            assert stream.terminal is None
            begun = trio.current_time()
            report = await omni.shutdown(drain_s=0, abort_s=0.5, stop_s=0)
            assert trio.current_time() - begun < 1
        assert report.killed == ("llm/0",)
    assert world.launcher.processes == []


async def test_an_engine_that_ignores_sigterm_is_killed_at_stop_s(world, autojump_clock):
    async with open_omni(pipeline(core("llm", output="text", ignore_sigterm=True)), world=world) as omni:
        begun = trio.current_time()
    assert trio.current_time() - begun == pytest.approx(3, abs=0.1)
    assert omni.shutdown_report.killed == ("llm/0",)


async def test_the_bodys_exception_leaves_as_itself(world, autojump_clock):
    with pytest.raises(KeyError, match="mine") as caught:
        async with open_omni(speech(), world=world) as omni, omni.generate("x"):
            raise KeyError("mine")
    assert caught.type is KeyError
    assert world.launcher.processes == []
    assert omni.closed


async def test_a_group_of_the_bodys_leaves_as_itself(world, autojump_clock):
    async def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(ExceptionGroup) as caught:
        async with open_omni(speech(), world=world) as omni, trio.open_nursery() as nursery:
            nursery.start_soon(omni.wait_health, lambda health: not health.ready)
            nursery.start_soon(fail)
    assert [type(error) for error in caught.value.exceptions] == [KeyError]
    assert world.launcher.processes == []


async def test_cancelling_the_body_stops_everything(world, autojump_clock):
    with trio.move_on_after(1):
        async with open_omni(speech(), world=world):
            await trio.sleep_forever()
    assert world.launcher.processes == []


async def test_cancelling_the_start_leaves_nothing(world, autojump_clock):
    with trio.move_on_after(1) as scope:
        async with open_omni(speech(talker={"start_s": 10}), world=world):
            pytest.fail("it started")
    assert scope.cancelled_caught
    assert world.launcher.processes == []


async def test_a_bug_in_the_runtime_cancels_the_body_and_leaves_as_one_error(world, autojump_clock, monkeypatch):
    from omni_actors.runtime._router import Router

    def bug(self, batch):
        raise ZeroDivisionError("a bug of ours")

    with pytest.raises(OmniError, match="the runtime failed: ZeroDivisionError") as caught:
        async with open_omni(speech(), world=world) as omni:
            monkeypatch.setattr(Router, "apply", bug)
            async with omni.generate("x") as stream:
                async for _ in stream:
                    pass
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert world.launcher.processes == []


async def test_cancel_at_every_step(world, autojump_clock):
    """I24: wherever the cancellation falls, start-up included, no engine is left and the clock is bounded."""

    async def scenario() -> None:
        async with open_omni(speech(), world=world) as omni, omni.generate("x") as stream:
            async for _ in stream:
                pass

    steps = await _count(scenario)
    assert steps > 50
    for step in range(0, steps, 3):
        await _cancelled_at(scenario, step)
        assert world.launcher.processes == []


class _Steps(trio.abc.Instrument):
    def __init__(self, at: int | None, scope: trio.CancelScope) -> None:
        self.seen, self.at, self.scope = 0, at, scope

    def before_task_step(self, task) -> None:
        self.seen += 1
        if self.seen == self.at:
            self.scope.cancel()


async def _run(scenario, at: int | None) -> int:
    with trio.CancelScope() as scope:
        steps = _Steps(at, scope)
        trio.lowlevel.add_instrument(steps)
        try:
            await scenario()
        finally:
            trio.lowlevel.remove_instrument(steps)
    return steps.seen


async def _count(scenario) -> int:
    return await _run(scenario, None)


async def _cancelled_at(scenario, step: int) -> None:
    with trio.fail_after(60):
        await _run(scenario, step)


async def test_two_runtimes_in_one_process(autojump_clock):
    from omni_actors.testing import MemoryWorld

    async with open_omni(speech(), world=MemoryWorld()) as one, open_omni(speech(), world=MemoryWorld()) as two:
        await one.shutdown()
        async with two.generate("x") as stream:
            assert (await stream.result()).kind is Kind.FINISHED


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"transform": "omni_actors.testing.pipelines:nothing"}, "nothing"),
        ({"engine": "fakes"}, "fakes"),
    ],
)
async def test_a_wrong_spec_starts_nothing(world, change, words):
    import attrs

    spec = speech()
    broken = attrs.evolve(spec, stages=[*spec.stages[:2], attrs.evolve(spec.stages[2], **change)])
    with pytest.raises(ConfigError, match=words):
        async with open_omni(broken, world=world):
            pytest.fail("it started")
    assert world.launcher.spawned == []
