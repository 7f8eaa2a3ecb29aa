"""What ``health`` says on every rung of the shutdown ladder, and that who waits for it is told."""

from __future__ import annotations

import trio

from omni_actors import open_omni
from omni_actors.testing import MemoryWorld
from omni_actors.testing.rigs import core, pipeline


async def test_each_rung_is_seen_and_a_stopped_stage_says_that_it_was_asked_to(autojump_clock):
    seen = []

    def look(health):
        seen.append(health)
        return False

    spec = pipeline(core("llm", output="text"))
    async with open_omni(spec, world=MemoryWorld()) as omni, trio.open_nursery() as nursery:
        nursery.start_soon(omni.wait_health, look)
        await trio.testing.wait_all_tasks_blocked()
        omni.request_shutdown()
        assert omni.health().reason == "the runtime is draining"
        await omni.shutdown()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [health.ready for health in seen] == [True] + [False] * (len(seen) - 1)
    assert seen[-1].reason.startswith("the runtime is closed")
    down = {stage.reason for health in seen for stage in health.stages if stage.state == "down"}
    assert down == {"it was asked to stop"}
