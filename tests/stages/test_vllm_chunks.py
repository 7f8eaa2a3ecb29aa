"""A step of a thousand requests is applied in pieces: the same events, whatever happens between the pieces."""

from __future__ import annotations

import msgspec
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from omni_actors._errors import EngineDead, ProtocolError
from omni_actors.config.specs import StageSpec
from omni_actors.lifecycle.events import Produced, Released
from omni_actors.stages.vllm._client import CHUNK
from omni_actors.stages.vllm._conversation import Conversation
from omni_actors.testing._core_kind import FakeCoreKind, FakeFrontend
from omni_actors.testing._core_wire import FakeOutput, FakeOutputs, FakeUtility
from omni_actors.transport import MemoryTransport
from omni_actors.wire.vllm.codec import DEAD

SPEC = StageSpec(name="t", engine="fake-core")
WHERE = {"stage": "t", "replica": 0, "generation": 1}
KEYS = [f"k{number}" for number in range(6)]


def conversation(*, mixed=False):
    """``mixed``: some of the requests have stop strings, some are token ids alone."""
    frontend = FakeFrontend(SPEC)
    talk = Conversation(frontend.codec(), frontend.processor(), lambda hashes: None, WHERE)
    for number, key in enumerate(KEYS):
        params = {"stop": ["."]} if mixed and number % 3 == 2 else None
        (work,) = frontend.prepare([key], "p", params, stream=True, text=not mixed or number % 2 == 0)
        assert talk.add(work)
    return talk


def message(outputs=(), call=None):
    answer = None if call is None else FakeUtility.answer(call, False)
    return [msgspec.msgpack.encode(FakeOutputs(outputs=list(outputs), utility_output=answer))]


def says(key, text, finish=None):
    return FakeOutput(key, [ord(character) for character in text], finish_reason=finish)


def heard(talk):
    return [(event.key, event.payload.text, event.payload.token_ids, event.finished) for event in talk.take()]


def _key(event):
    return event[0]  # order is kept per request; sorting is stable


outputs = st.builds(says, st.sampled_from(KEYS), st.sampled_from(["a", "b.", ""]), st.sampled_from([None, None, 0]))
steps = st.lists(st.lists(outputs, max_size=6, unique_by=lambda output: output.request_id), max_size=5)


@given(steps, st.lists(st.integers(1, 4), min_size=1))
def test_pieces_add_up_to_the_whole(made, limits):
    """I6"""
    messages = [message(step) for step in made]
    whole, pieces = conversation(mixed=True), conversation(mixed=True)
    whole.apply(messages)

    pieces.apply(messages, limits[0])
    while pieces.behind:
        pieces.apply((), limits[0])
        limits = [*limits[1:], limits[0]]

    assert sorted(heard(pieces), key=_key) == sorted(heard(whole), key=_key)
    assert pieces.live.keys() == whole.live.keys()


def test_no_piece_is_larger_than_its_limit():
    talk = conversation()
    talk.apply([message([says(key, "a") for key in KEYS])], 4)

    assert talk.behind
    assert [key for key, *_ in heard(talk)] == KEYS[:4]
    talk.apply((), 4)
    assert not talk.behind
    assert [key for key, *_ in heard(talk)] == KEYS[4:]


def test_nothing_of_a_request_follows_its_abort_between_two_pieces():
    """I3"""
    talk = conversation()
    talk.apply([message([says(key, "a") for key in KEYS])], 2)
    heard(talk)

    talk.abort([KEYS[3]])
    talk.apply(())

    assert [key for key, *_ in heard(talk)] == [KEYS[2], *KEYS[4:]]


def test_an_answer_comes_after_the_outputs_of_its_step():
    talk = conversation()
    talk.abort([KEYS[0]])
    talk.take_aborts()
    talk.apply([message([says(key, "a") for key in KEYS[1:]], call=0)], 3)
    assert all(isinstance(event, Produced) for event in talk.take())

    talk.apply((), 3)

    assert [type(event) for event in talk.take()] == [Produced, Produced, Released]


def test_the_last_word_is_heard_after_what_came_before_it():
    talk = conversation()
    talk.apply([message([says(key, "a") for key in KEYS]), [DEAD], message([says(KEYS[0], "b")])], 4)
    assert talk.verdict is None

    talk.apply(())

    assert isinstance(talk.verdict, EngineDead)
    assert not talk.behind
    assert [key for key, *_ in heard(talk)] == KEYS


def test_garbage_ends_it_and_leaves_nothing_to_catch_up_with():
    talk = conversation()
    talk.apply([[b"\xc1"], message([says(KEYS[0], "a")])])
    assert isinstance(talk.verdict, ProtocolError)
    assert not talk.behind
    assert talk.take() == []


async def test_a_client_that_is_stopped_between_two_pieces_drains_the_rest():
    transport, frontend = MemoryTransport(), FakeFrontend(SPEC)
    client = FakeCoreKind().client(SPEC, lambda: frontend, transport, replica=0, generation=1)
    keys = [f"k{number}" for number in range(2 * CHUNK + 10)]
    batches = []

    async def emit(events):
        batches.append([event.key for event in events])
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as starting:
        starting.start_soon(engine, transport, client.addresses["handshake"], keys)
        await client.handshake()
        for key in keys:
            client.submit(*frontend.prepare([key], "p", None, stream=True, text=True))
    await trio.testing.wait_all_tasks_blocked()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.serve, emit)

    assert batches == [keys[:CHUNK]]
    assert [event.key for event in client.drain()] == keys[CHUNK:]
    client.close()
    transport.close()


async def engine(transport, address, keys):
    """Shakes hands, makes one step of everything."""
    hello = transport.dealer(address, b"\0\0")
    hello.send([msgspec.msgpack.encode({"status": "HELLO"})])
    ((init,),) = await hello.receive()
    addresses = msgspec.msgpack.decode(init)["addresses"]
    inbound, outbound = transport.dealer(addresses["inputs"][0], b"\0\0"), transport.push(addresses["outputs"][0])
    inbound.send([msgspec.msgpack.encode({})])
    hello.send([msgspec.msgpack.encode({"status": "READY"})])
    await inbound.receive()
    outbound.send(message([says(key, "a") for key in keys]))
