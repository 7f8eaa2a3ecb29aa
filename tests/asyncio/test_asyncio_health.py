"""What ``health`` says while it ends, and closing by rungs."""

from __future__ import annotations

from omni_actors import Kind

from .conftest import endless, llm


def test_not_ready_at_once_and_the_reason_follows_the_ladder(run):
    async def main():
        async with endless() as omni:
            assert omni.health().ready
            stream = omni.generate_omni("x")
            await anext(stream)
            omni.request_close(drain_s=60)
            assert not omni.health().ready
            while omni.health().reason == "the runtime is being closed":
                await omni.statistics()
            assert omni.health().reason == "the runtime is draining"
            assert omni.health().stages[0].state == "ready"
            report = await omni.close(drain_s=0, abort_s=1, stop_s=1)
            assert stream.terminal.kind is Kind.ABORTED
            assert (report.aborted_requests, report.stopped) == (1, ("llm/0",))
            assert omni.health() is None

    run(main)


def test_the_stage_that_takes_the_prompt(run):
    async def main():
        async with llm() as omni:
            return omni.front_stage

    assert run(main) == "llm"
