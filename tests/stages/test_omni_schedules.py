"""StageDiffusionClient under random schedules on virtual time: every lease ends once, nothing follows its abort."""

from __future__ import annotations

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_actors.config.specs import StageSpec
from omni_actors.lifecycle.events import LeaseFailed, Produced, Released
from omni_actors.stages.omni import KIND, OmniFrontend
from omni_actors.testing._fake_omni import FakeBehaviour, FakeOmni
from omni_actors.testing.sim._schedule import scheduled_by
from omni_actors.transport import MemoryTransport

SPEC = StageSpec(name="voice", engine="fake")

behaviours = st.builds(
    FakeBehaviour,
    echo=st.just(True),
    chunk_s=st.sampled_from([0.0, 0.5]),
    capacity=st.integers(1, 3),
    fail_at_chunk=st.none() | st.integers(0, 4),
    release=st.sampled_from(["normal", "double"]),
    release_s=st.sampled_from([0.0, 1.0]),
)
# Per lease: chunks, and the time from its submit to its abort.
plans = st.lists(st.tuples(st.integers(0, 5), st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.5])), max_size=8)


async def converse(behaviour, plan, hwm):
    """What was emitted for each key, and what had been emitted for it when its abort was called."""
    transport = MemoryTransport(hwm=hwm)
    client = KIND.client(SPEC, lambda: OmniFrontend(SPEC), transport, replica=0, generation=1)
    engine = FakeOmni(behaviour, dict(client.addresses), transport)
    emitted = {f"k{number}": [] for number in range(len(plan))}
    at_abort = {}

    async def emit(batch):
        await trio.lowlevel.checkpoint()
        for event in batch:
            emitted[event.key].append(event)

    async def one(key, chunks, abort_s):
        (work,) = OmniFrontend(SPEC).prepare([key], list(range(chunks)), None, stream=True, text=False)
        client.submit(work)
        if abort_s is not None:
            await trio.sleep(abort_s)
            at_abort[key] = len(emitted[key])
            client.abort([key])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        await client.handshake()
        nursery.start_soon(client.serve, emit)
        async with trio.open_nursery() as work:
            for key, (chunks, abort_s) in zip(emitted, plan, strict=True):
                work.start_soon(one, key, chunks, abort_s)
        await trio.sleep(1000)
        assert client.owed_since is None
        nursery.cancel_scope.cancel()
    client.close()
    return emitted, at_abort


@settings(deadline=None, max_examples=60)
@given(behaviours, plans, st.sampled_from([1, 2, 1000]), st.integers(0, 2**32))
def test_every_lease_ends_once(behaviour, plan, hwm, seed):
    clock = trio.testing.MockClock(autojump_threshold=0)
    with scheduled_by(seed):
        emitted, at_abort = trio.run(converse, behaviour, plan, hwm, clock=clock)
    for key, (chunks, _) in zip(emitted, plan, strict=True):
        *produced, end = emitted[key]
        assert isinstance(end, Released | LeaseFailed)
        assert all(isinstance(event, Produced) for event in produced)
        data = b"".join(bytes(t.data) for event in produced if event.payload for t in event.payload.tensors.values())
        assert data == bytes(range(chunks))[: len(data)]
        if key not in at_abort:
            failed = behaviour.fail_at_chunk is not None and behaviour.fail_at_chunk < max(chunks, 1)
            assert isinstance(end, LeaseFailed) is failed
            assert failed or data == bytes(range(chunks))
