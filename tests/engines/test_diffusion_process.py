"""A diffusion stage in a process of its own, through the runtime: what an abort, a call, a stuck step does to others.

The class in it walks instead of denoising, so that a step takes as long as the test says.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from omni_actors import InvalidRequest, Kind, StageFailed, open_omni
from omni_actors.config import PipelineSpec, StageSpec
from omni_actors.lifecycle.events import StepChunk
from omni_actors.testing.rigs import SHORT

pytestmark = pytest.mark.process

STEP_S = 0.02


@pytest.fixture(autouse=True)
def _classes(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture
def gate():
    with tempfile.TemporaryDirectory(prefix="oa-") as folder:
        path = Path(folder, "gate")
        os.mkfifo(path)
        yield path


def painting(*, max_batch=8, deadlines=SHORT, **engine_args):
    painter = StageSpec(
        name="painter", engine="diffusion", model="generation_classes:Painter", output="image", deadlines=deadlines,
        engine_args={"max_batch": max_batch, "step_s": STEP_S, **engine_args},
    )  # fmt: skip
    return open_omni(PipelineSpec(name="pictures", stages=(painter,), drain_s=5.0, abort_s=5.0))


async def paint(omni, name, steps, ends=None, **params):
    async with omni.generate({"name": name, "steps": steps}, params or None) as stream:
        outputs = [output async for output in stream]
    if ends is not None:
        ends[name] = stream.terminal
    return outputs


async def log(omni):
    (walked,) = await omni.call("painter", "log", timeout_s=5)
    return walked


async def test_it_paints_and_tells_how_far_it_is():
    with trio.fail_after(30):
        async with painting() as omni:
            *steps, picture = await paint(omni, "a", 5, progress=True)
            assert [(step.payload.done, step.payload.total) for step in steps] == [(n, 5) for n in range(1, 5)]
            assert all(isinstance(step.payload, StepChunk) and step.image is None for step in steps)
            assert picture.image.shape == (1, 1, 3)
            (quiet,) = await paint(omni, "b", 5)
            assert quiet.payload.meta["name"] == "b"


async def test_c5_who_leaves_costs_two_steps_at_most_and_who_queues_costs_none():
    ends, at_step_five = {}, trio.Event()
    first, third = trio.CancelScope(), trio.CancelScope()

    async def leaves(omni):
        with first:
            async with omni.generate({"name": "first", "steps": 50}, {"progress": True}) as stream:
                async for output in stream:
                    if output.payload.done >= 5:
                        at_step_five.set()

    async def queues(omni):
        with third:
            await paint(omni, "third", 50)

    with trio.fail_after(30):
        async with painting(max_batch=1) as omni:
            pid = omni.pids
            async with trio.open_nursery() as nursery:
                for work in (leaves, lambda omni: paint(omni, "second", 5, ends), queues):
                    nursery.start_soon(work, omni)
                    await trio.testing.wait_all_tasks_blocked(0.01)
                await at_step_five.wait()
                third.cancel()
                first.cancel()
            walked = await log(omni)
            assert ends["second"].kind is Kind.FINISHED
            assert walked.count("first") <= 5 + 1 + 2 + 1
            assert "third" not in walked
            assert walked.count("second") == 5
            assert omni.pids == pid


async def test_after_an_abort_has_returned_no_step_runs_for_it():
    with trio.fail_after(30):
        async with painting(step_s=0.2) as omni:
            async with omni.generate({"name": "a", "steps": 50}, {"progress": True}) as stream:
                step = await anext(stream)
                report = await omni.abort(stream.request_id)
            assert report.unconfirmed == ()
            walked = await log(omni)
            assert len(walked) <= step.payload.done + 2
            await paint(omni, "b", 2)
            assert (await log(omni)).count("a") == len(walked)


async def test_a_long_call_never_keeps_an_abort_waiting(gate):
    with trio.fail_after(30):
        async with painting(gate=str(gate)) as omni, trio.open_nursery() as nursery:
            stream = await nursery.start(_running, omni)
            nursery.start_soon(_call, omni, "load_slowly")
            fd = await trio.to_thread.run_sync(os.open, gate, os.O_WRONLY, abandon_on_cancel=True)
            report = await omni.abort(stream.request_id)
            assert report.unconfirmed == ()
            os.write(fd, b"!")
            os.close(fd)
            await paint(omni, "after", 2)


async def _running(omni, *, task_status):
    async with omni.generate({"name": "long", "steps": 10_000}, {"progress": True}) as stream:
        await anext(stream)
        task_status.started(stream)
        async for _ in stream:
            pass


async def _call(omni, method):
    assert await omni.call("painter", method, timeout_s=20) == ["loaded"]


async def test_a_step_that_never_ends_is_found_though_the_process_lives():
    impatient = attrs.evolve(SHORT, silence_s=0.5, hang_s=20.0, step_s=1.5, backoff_first_s=0.1)
    with trio.fail_after(40):
        async with painting(deadlines=impatient) as omni:
            with pytest.raises(StageFailed, match="has been inside one step for"):
                await paint_stuck(omni)
            (picture,) = await paint(omni, "after", 2)
            assert picture.payload.meta["name"] == "after"


async def paint_stuck(omni):
    async with omni.generate({"name": "a", "steps": 5, "stuck": 2}) as stream:
        async for _ in stream:
            pass


async def test_what_the_class_refuses_is_an_invalid_request():
    with trio.fail_after(30):
        async with painting() as omni:
            with pytest.raises(InvalidRequest, match="at least one step"):
                await paint(omni, "a", 0)
            with pytest.raises(InvalidRequest, match="no option 'params'"):
                async with omni.generate({"name": "a", "steps": 1}, params={"n": 2}):
                    pass
            assert len(await paint(omni, "many", 2, n=3)) == 3
            assert len(await paint(omni, "many", 2, num_images_per_prompt=2)) == 2
