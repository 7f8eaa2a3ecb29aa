"""The in-memory twin alone: its faults, its stricter readings, and a Hypothesis machine that holds it to a model."""

from __future__ import annotations

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from trio.testing import wait_all_tasks_blocked

from omni_actors._errors import UsageError
from omni_actors.transport import MemoryTransport, QueueFull, Unroutable

HWM, LIMIT = 2, 3


def acquainted(transport: MemoryTransport, identity: bytes = b"e"):
    router = transport.router("r")
    dealer = transport.dealer(router.address, identity)
    dealer.send([b"hello"])
    assert router.drain() == [[identity, b"hello"]]
    return router, dealer


def test_a_router_answers_only_whom_it_has_heard():
    transport = MemoryTransport()
    router = transport.router("r")
    dealer = transport.dealer(router.address, b"e")
    dealer.send([b"hello"])
    with pytest.raises(Unroutable):
        router.send([b"e", b"too early"])
    router.drain()
    router.send([b"e", b"now"])
    assert dealer.drain() == [[b"now"]]


def test_what_a_peer_sent_before_its_end_is_still_delivered():
    router, dealer = acquainted(MemoryTransport())
    router.send([b"e", b"lost with it"])
    for word in (b"last", b"words"):
        dealer.send([word])
    dealer.close()
    with pytest.raises(Unroutable):
        router.send([b"e", b"still there?"])
    assert router.drain() == [[b"e", b"last"], [b"e", b"words"]]


def test_what_is_sent_to_a_closed_router_vanishes():
    router, dealer = acquainted(MemoryTransport())
    router.send([b"e", b"before"])
    router.close()
    for _ in range(50_000):
        dealer.send([b"to nobody"])
    assert dealer.drain() == [[b"before"]]


def test_a_second_peer_of_a_live_identity_is_shut_out():
    transport = MemoryTransport()
    router, dealer = acquainted(transport)
    impostor = transport.dealer(router.address, b"e")
    impostor.send([b"I am e"])
    router.send([b"e", b"for the first"])
    assert router.drain() == []
    assert dealer.drain() == [[b"for the first"]]
    assert impostor.drain() == []
    dealer.close()
    transport.dealer(router.address, b"e").send([b"a successor"])
    assert router.drain() == [[b"e", b"a successor"]]


def test_a_pull_takes_from_its_peers_in_turn():
    transport = MemoryTransport()
    pull = transport.pull("p")
    for name in (b"a", b"b"):
        push = transport.push(pull.address)
        for number in range(3):
            push.send([name + b"%d" % number])
    assert [message[0] for message in pull.drain()] == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]


def test_a_large_view_of_a_mutable_buffer_is_copied():
    transport = MemoryTransport()
    pull = transport.pull("p")
    buffer = bytearray(100_000)
    transport.push(pull.address).send([memoryview(buffer)])
    buffer[:1] = b"!"
    [[frame]] = pull.drain()
    assert frame[0] == 0


def test_kinds_must_match():
    transport = MemoryTransport()
    with pytest.raises(UsageError, match="ROUTER"):
        transport.push(transport.router("r").address)
    with pytest.raises(UsageError, match="mem://"):
        transport.push("ipc://x")
    with pytest.raises(UsageError, match="no such address"):
        transport.stall("mem://nobody")


async def test_a_stall_delivers_nothing_and_a_resume_all_of_it_in_order():
    transport = MemoryTransport()
    router, dealer = acquainted(transport)
    transport.stall(router.address)
    got: list[bytes] = []

    async def receive() -> None:
        while len(got) < 2:
            got.extend(message[1] for message in await router.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        dealer.send([b"1"])
        router.send([b"e", b"there"])
        await wait_all_tasks_blocked()
        dealer.send([b"2"])
        await wait_all_tasks_blocked()
        assert got == []
        assert dealer.drain() == []
        transport.resume(router.address)
    assert got == [b"1", b"2"]
    assert dealer.drain() == [[b"there"]]


def test_a_severed_peer_is_gone_for_good():
    transport = MemoryTransport()
    router, dealer = acquainted(transport)
    dealer.send([b"arrived"])
    transport.sever(router.address)
    dealer.send([b"lost"])
    with pytest.raises(Unroutable):
        router.send([b"e", b"anyone?"])
    assert router.drain() == [[b"e", b"arrived"]]
    transport.resume(router.address)
    transport.dealer(router.address, b"late").send([b"lost too"])
    assert router.drain() == []


def test_severing_while_stalled_loses_what_was_held_back():
    transport = MemoryTransport()
    router, dealer = acquainted(transport)
    transport.stall(router.address)
    dealer.send([b"held back"])
    transport.sever(router.address)
    transport.resume(router.address)
    assert router.drain() == []


def test_faults_can_strike_one_peer():
    transport = MemoryTransport()
    router, first = acquainted(transport)
    second = transport.dealer(router.address, b"f")
    transport.stall(router.address, b"e")
    first.send([b"held"])
    second.send([b"through"])
    assert router.drain() == [[b"f", b"through"]]
    transport.sever(router.address, b"f")
    transport.resume(router.address, b"e")
    second.send([b"lost"])
    assert router.drain() == [[b"e", b"held"]]


async def test_a_queue_moves_when_the_reader_makes_room():
    transport = MemoryTransport(hwm=1, queue_limit=10)
    router, dealer = acquainted(transport)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.receive)
        await wait_all_tasks_blocked()
        for number in range(5):
            router.send([b"e", b"%d" % number])
        for number in range(5):
            await wait_all_tasks_blocked()
            assert dealer.drain() == [[b"%d" % number]]
        nursery.cancel_scope.cancel()


async def test_input_is_not_held_up_by_a_long_queue_out():
    transport = MemoryTransport(hwm=500, queue_limit=500)
    router, dealer = acquainted(transport)
    for number in range(1_000):
        router.send([b"e", b"%d" % number])
    assert len(dealer.drain()) == 500
    dealer.send([b"news"])
    assert await router.receive() == [[b"e", b"news"]]
    assert len(dealer.drain()) == 64, "one budget of the queue went first, not all of it"


class Model:
    """One direction of one connection: three lists and the rule that moves messages between them."""

    def __init__(self) -> None:
        self.pipe: list[bytes] = []
        self.urgent: list[bytes] = []
        self.ordinary: list[bytes] = []

    def move(self) -> None:
        while len(self.pipe) < HWM and (self.urgent or self.ordinary):
            self.pipe.append((self.urgent or self.ordinary).pop(0))

    def forget(self) -> None:
        self.pipe, self.urgent, self.ordinary = [], [], []


class TwinMachine(RuleBasedStateMachine):
    """Two DEALERs on one ROUTER: every send, drain and fault does what the lists say."""

    PEERS = (b"a", b"b")

    def __init__(self) -> None:
        super().__init__()
        self.transport = MemoryTransport(hwm=HWM, queue_limit=LIMIT)
        self.dealers = {peer: self.transport.dealer("mem://r", peer) for peer in self.PEERS}
        self.router = None
        self.out = {peer: Model() for peer in self.PEERS}  # router → dealer
        self.back = {peer: Model() for peer in self.PEERS}  # dealer → router
        self.heard: set[bytes] = set()
        self.stalled: set[bytes] = set()
        self.severed: set[bytes] = set()
        self.counter = 0

    peers = st.sampled_from(PEERS)

    def body(self) -> bytes:
        self.counter += 1
        return b"%d" % self.counter

    @precondition(lambda self: self.router is None)
    @rule()
    def bind(self) -> None:
        self.router = self.transport.router("r")

    @rule(peer=peers, urgent=st.booleans())
    def dealer_sends(self, peer: bytes, urgent: bool) -> None:
        model, body = self.back[peer], self.body()
        expected = None
        if peer in self.severed:
            model.urgent, model.ordinary = [], []
        else:
            expected = self.queue(model, [model], body, urgent)
        self.check_send(self.dealers[peer], [body], urgent, expected)

    @precondition(lambda self: self.router is not None)
    @rule(peer=peers, urgent=st.booleans())
    def router_sends(self, peer: bytes, urgent: bool) -> None:
        model, body = self.out[peer], self.body()
        if peer in self.severed or peer not in self.heard:
            model.urgent, model.ordinary = [], []
            expected = Unroutable
        else:
            expected = self.queue(model, list(self.out.values()), body, urgent)
        self.check_send(self.router, [peer, body], urgent, expected)

    def queue(self, model: Model, siblings: list[Model], body: bytes, urgent: bool) -> type[Exception] | None:
        (model.urgent if urgent else model.ordinary).append(body)
        model.move()
        queue = model.urgent if urgent else model.ordinary
        if sum(len(other.urgent if urgent else other.ordinary) for other in siblings) > LIMIT and body in queue:
            queue.remove(body)
            return QueueFull
        return None

    def check_send(self, socket, frames: list[bytes], urgent: bool, expected: type[Exception] | None) -> None:
        tag = frames[-1].decode()
        if expected is None:
            socket.send(frames, urgent=urgent, tag=tag)
        else:
            with pytest.raises(expected):
                socket.send(frames, urgent=urgent, tag=tag)

    @rule(peer=peers, number=st.integers(0, 30))
    def dealer_takes_back(self, peer: bytes, number: int) -> None:
        body = b"%d" % max(self.counter - number, 0)
        queues = (self.back[peer].urgent, self.back[peer].ordinary)
        assert self.dealers[peer].unsend(body.decode()) == any(body in queue for queue in queues)
        for queue in queues:
            if body in queue:
                queue.remove(body)

    @precondition(lambda self: self.router is not None)
    @rule(limit=st.integers(1, 3))
    def router_drains(self, limit: int) -> None:
        batch = self.router.drain(limit)
        readable = {peer: self.back[peer].pipe for peer in self.PEERS if peer not in self.stalled}
        assert len(batch) == min(limit, sum(map(len, readable.values())))
        for peer, body in batch:
            assert readable[peer].pop(0) == body
            self.heard.add(peer)

    @rule(peer=peers, limit=st.integers(1, 3))
    def dealer_drains(self, peer: bytes, limit: int) -> None:
        pipe = [] if peer in self.stalled else self.out[peer].pipe
        assert self.dealers[peer].drain(limit) == [[body] for body in pipe[:limit]]
        del pipe[:limit]

    @rule(peer=peers)
    def stall(self, peer: bytes) -> None:
        self.transport.stall("mem://r", peer)
        self.stalled.add(peer)

    @rule(peer=peers)
    def resume(self, peer: bytes) -> None:
        self.transport.resume("mem://r", peer)
        self.stalled.discard(peer)

    @rule(peer=peers)
    def sever(self, peer: bytes) -> None:
        self.transport.sever("mem://r", peer)
        self.severed.add(peer)
        if peer in self.stalled:
            self.out[peer].pipe.clear()
            self.back[peer].pipe.clear()

    @invariant()
    def queues_are_the_models(self) -> None:
        assert len(self.router._outbox if self.router else ()) == sum(
            len(model.urgent) + len(model.ordinary) for model in self.out.values()
        )
        for peer in self.PEERS:
            assert len(self.dealers[peer]._outbox) == len(self.back[peer].urgent) + len(self.back[peer].ordinary)


TestTwinEqualsModel = TwinMachine.TestCase
TestTwinEqualsModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
