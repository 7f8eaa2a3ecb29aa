"""What both kinds of socket promise: the same conversations over ZeroMQ and over memory."""

from __future__ import annotations

import contextlib
import itertools

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from omni_actors._errors import UsageError
from omni_actors.transport import QueueFull, Socket, Transport, Unroutable

BULK = b"x" * 32_000  # large enough that a few fill the kernel's buffer, small enough to be copied


async def acquainted(transport: Transport, name: str = "r", identity: bytes = b"\0\0") -> tuple[Socket, Socket]:
    """A ROUTER that has heard from its DEALER, so that both may speak."""
    router = transport.router(name)
    dealer = transport.dealer(router.address, identity)
    dealer.send([b"hello"])
    with trio.fail_after(10):
        assert await router.receive() == [[identity, b"hello"]]
    return router, dealer


async def gather(socket: Socket, count: int) -> list[bytes]:
    """The last frames of the next ``count`` messages."""
    got: list[bytes] = []
    with trio.fail_after(20):
        while len(got) < count:
            got += [bytes(message[-1]) for message in await socket.receive()]
    return got


def fill(socket: Socket, *head: bytes) -> list[bytes]:
    """Send numbered messages until the queue is full; what was accepted. The tag is the number."""
    accepted: list[bytes] = []
    for number in itertools.count():
        body = b"%d " % number + BULK
        try:
            socket.send([*head, body], tag=str(number))
        except QueueFull:
            return accepted
        accepted.append(body)
    raise AssertionError


async def pumping(socket: Socket) -> None:
    """The owner of a socket that only sends: receive pumps its queue until cancelled."""
    await socket.receive()


async def test_a_router_and_a_dealer_talk(transport: Transport):
    router, dealer = await acquainted(transport)
    router.send([b"\0\0", b"question", b"", b"with parts"])
    with trio.fail_after(10):
        assert await dealer.receive() == [[b"question", b"", b"with parts"]]
    dealer.send([b"answer"])
    with trio.fail_after(10):
        assert await router.receive() == [[b"\0\0", b"answer"]]


async def test_what_a_push_sends_a_pull_receives_in_order(transport: Transport):
    pull = transport.pull("p")
    push = transport.push(pull.address)
    for number in range(200):
        push.send([b"%d" % number])
    assert await gather(pull, 200) == [b"%d" % number for number in range(200)]


async def test_the_connecting_side_may_come_first(transport: Transport):
    address = transport.router("other").address.replace("other", "late")
    dealer = transport.dealer(address, b"e")
    dealer.send([b"early"])
    router = transport.router("late")
    assert router.address == address
    with trio.fail_after(10):
        assert await router.receive() == [[b"e", b"early"]]


async def test_receive_takes_a_burst_at_once_and_respects_its_limit(transport: Transport):
    pull = transport.pull("p")
    push = transport.push(pull.address)
    for number in range(10):
        push.send([b"%d" % number])
    got: list[bytes] = []
    with trio.fail_after(10):
        while len(got) < 10:
            batch = await pull.receive(limit=3)
            assert 1 <= len(batch) <= 3
            got += [bytes(message[0]) for message in batch]
    assert got == [b"%d" % number for number in range(10)]


async def test_small_frames_arrive_as_bytes_and_large_ones_as_views(transport: Transport):
    pull = transport.pull("p")
    push = transport.push(pull.address)
    large = b"L" * 100_000
    push.send([b"small", large, memoryview(b"view")])
    with trio.fail_after(10):
        [[small, big, view]] = await pull.receive()
    assert isinstance(small, bytes)
    assert isinstance(view, bytes)
    assert isinstance(big, memoryview)
    assert (small, big, view) == (b"small", large, b"view")


async def test_a_small_buffer_may_be_reused_at_once(narrow: Transport):
    pull = narrow.pull("p")
    push = narrow.push(pull.address)
    buffer, accepted = bytearray(1_000), 0
    while True:
        buffer[:4] = b"%4d" % accepted
        try:
            push.send([memoryview(buffer), BULK[:1]])
        except QueueFull:
            break
        accepted += 1
        if accepted == 3_000:  # ZeroMQ may swallow all of it; both queued and sent copies were tried by then
            break
    buffer[:] = b"!" * 1_000
    got: list[bytes] = []
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pumping, push)
            while len(got) < accepted:
                got += [bytes(message[0][:4]) for message in await pull.receive()]
            nursery.cancel_scope.cancel()
    assert got == [b"%4d" % number for number in range(accepted)]


async def test_views_of_many_dimensions_are_flattened(transport: Transport):
    pull = transport.pull("p")
    push = transport.push(pull.address)
    matrix = memoryview(b"abcdef").cast("B", (2, 3))
    push.send([matrix, memoryview(b"a.b.c.")[::2]])
    with trio.fail_after(10):
        assert await pull.receive() == [[b"abcdef", b"abc"]]


@pytest.mark.parametrize("nonsense", [["text"], [b"begin", 5], []])
async def test_a_message_that_is_none_is_refused_whole(transport: Transport, nonsense):
    pull = transport.pull("p")
    push = transport.push(pull.address)
    with pytest.raises((TypeError, ValueError)):
        push.send(nonsense)
    push.send([b"next"])
    with trio.fail_after(10):
        assert await pull.receive() == [[b"next"]]


async def test_an_unknown_peer_is_unroutable_and_others_are_not_harmed(transport: Transport):
    router, dealer = await acquainted(transport)
    with pytest.raises(Unroutable):
        router.send([b"stranger", b"hello?"])
    router.send([b"\0\0", b"hello"])
    assert await gather(dealer, 1) == [b"hello"]


async def test_a_peer_that_has_gone_becomes_unroutable(transport: Transport):
    router, dealer = await acquainted(transport)
    dealer.close()

    async def insist() -> None:
        while True:
            router.send([b"\0\0", b"still there?"])
            await trio.lowlevel.checkpoint()

    with trio.fail_after(10), pytest.raises(Unroutable):
        await insist()


async def test_a_full_peer_holds_messages_back_and_then_refuses(narrow: Transport):
    router, dealer = await acquainted(narrow)
    accepted = fill(router, b"\0\0")
    assert len(accepted) >= 5
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pumping, router)
        assert await gather(dealer, len(accepted)) == accepted
        router.send([b"\0\0", b"room again"])
        assert await gather(dealer, 1) == [b"room again"]
        nursery.cancel_scope.cancel()


async def test_urgent_messages_overtake_the_queued_ones(narrow: Transport):
    router, dealer = await acquainted(narrow)
    accepted = fill(router, b"\0\0")
    router.send([b"\0\0", b"abort"], urgent=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pumping, router)
        got = await gather(dealer, len(accepted) + 1)
        nursery.cancel_scope.cancel()
    assert got.index(b"abort") <= len(accepted) - 3, "three were queued when it came"
    got.remove(b"abort")
    assert got == accepted


async def test_a_queued_message_can_be_taken_back_and_a_sent_one_not(narrow: Transport):
    router, dealer = await acquainted(narrow)
    accepted = fill(router, b"\0\0")
    newest = str(len(accepted) - 1)
    assert router.unsend(newest)
    assert not router.unsend(newest)
    assert not router.unsend("0"), "the first one left long ago"
    assert not router.unsend("never sent")
    accepted.pop()
    router.send([b"\0\0", b"last"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pumping, router)
        assert await gather(dealer, len(accepted) + 1) == [*accepted, b"last"]
        nursery.cancel_scope.cancel()


async def test_a_full_peer_does_not_hold_up_another(narrow: Transport):
    router, slow = await acquainted(narrow, identity=b"slow")
    quick = narrow.dealer(router.address, b"quick")
    quick.send([b"hello"])
    await gather(router, 1)
    accepted = fill(router, b"slow")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pumping, router)
        await wait_all_tasks_blocked()
        for number in range(20):
            router.send([b"quick", b"%d" % number])
            assert await gather(quick, 1) == [b"%d" % number]
        assert await gather(slow, len(accepted)) == accepted
        nursery.cancel_scope.cancel()


async def test_a_flood_in_does_not_starve_what_goes_out(make_transport):
    transport = make_transport(hwm=8, queue_limit=1_000)
    router, dealer = await acquainted(transport)
    answers = [b"%d" % number for number in range(500)]

    async def flood() -> None:
        while True:
            with contextlib.suppress(QueueFull):
                dealer.send([b"more"])
            await trio.lowlevel.checkpoint()

    async def serve() -> None:
        while True:
            await router.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flood)
        nursery.start_soon(serve)
        for answer in answers:
            router.send([b"\0\0", answer])
        assert await gather(dealer, len(answers)) == answers
        nursery.cancel_scope.cancel()
    transport.close()


async def test_a_flood_in_does_not_starve_other_tasks(transport: Transport):
    pull = transport.pull("p")
    push = transport.push(pull.address)
    steps_of_others = 0

    async def other() -> None:
        nonlocal steps_of_others
        while True:
            steps_of_others += 1
            await trio.lowlevel.checkpoint()

    for _ in range(500):
        push.send([b"flood"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        received = receives = 0
        while received < 500:
            received += len(await pull.receive(limit=10))
            receives += 1
        nursery.cancel_scope.cancel()
    assert steps_of_others >= receives - 1


async def test_cancelling_receive_anywhere_loses_nothing(transport: Transport):
    router, dealer = await acquainted(transport)
    got: list[bytes] = []

    async def receive_some(scope: trio.CancelScope, finished: trio.Event) -> None:
        with scope:
            got.extend(message[1] for message in await router.receive(limit=2))
        finished.set()

    sent = 0
    for steps in list(range(12)) * 12:
        dealer.send([b"%d" % sent])
        sent += 1
        scope, finished = trio.CancelScope(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive_some, scope, finished)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            scope.cancel()
            await finished.wait()
    got += await gather(router, sent - len(got)) if len(got) < sent else []
    assert got == [b"%d" % number for number in range(sent)]


async def test_receive_is_a_checkpoint_even_with_messages_waiting(transport: Transport):
    pull = transport.pull("p")
    transport.push(pull.address).send([b"x"])
    await gather(pull, 1)
    transport.push(pull.address).send([b"y"])
    with trio.CancelScope() as scope:
        scope.cancel()
        await pull.receive()
    assert scope.cancelled_caught
    assert await gather(pull, 1) == [b"y"]


async def test_a_send_while_the_owner_is_parked_loses_no_wake_up(transport: Transport):
    """Both directions on one socket: the owner waits for input while others send through it."""
    router, dealer = await acquainted(transport)
    echoed: list[bytes] = []

    async def echo() -> None:
        while True:
            for message in await dealer.receive():
                dealer.send(message)

    async def own() -> None:
        while True:
            echoed.extend([bytes(message[1]) for message in await router.receive()])

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(echo)
            nursery.start_soon(own)
            for number in range(2_000):
                router.send([b"\0\0", b"%d" % number])
                if number % 7 == 0:
                    await trio.lowlevel.checkpoint()
            while len(echoed) < 2_000:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert echoed == [b"%d" % number for number in range(2_000)]


async def test_draining_takes_what_has_arrived_and_never_waits(transport: Transport):
    pull = transport.pull("p")
    assert pull.drain() == []
    push = transport.push(pull.address)
    push.send([b"1"])
    push.send([b"2"])
    with trio.fail_after(10):
        assert await pull.receive(limit=1) == [[b"1"]]
    drained: list[list[bytes]] = []
    with trio.fail_after(10):
        while not drained:
            drained = pull.drain()
            await trio.lowlevel.checkpoint()
    assert drained == [[b"2"]]
    pull.close()
    assert pull.drain() == []


async def test_closing_wakes_the_task_in_receive(transport: Transport):
    pull = transport.pull("p")
    outcome: list[type[Exception]] = []

    async def receive() -> None:
        try:
            await pull.receive()
        except trio.ClosedResourceError as error:
            outcome.append(type(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        pull.close()
        pull.close()
    assert outcome == [trio.ClosedResourceError]
    with pytest.raises(trio.ClosedResourceError):
        await pull.receive()


async def test_a_closed_socket_sends_nothing(transport: Transport):
    router, dealer = await acquainted(transport)
    dealer.close()
    with pytest.raises(trio.ClosedResourceError):
        dealer.send([b"too late"])
    assert not dealer.unsend("x")
    transport.close()
    transport.close()
    with pytest.raises(trio.ClosedResourceError):
        router.send([b"\0\0", b"too late"])
    with pytest.raises(UsageError):
        transport.router("after")


async def test_one_task_at_a_time_receives(transport: Transport):
    pull = transport.pull("p")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pumping, pull)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await pull.receive()
        transport.push(pull.address).send([b"the first one still gets it"])


async def test_a_pull_does_not_send_and_a_router_says_to_whom(transport: Transport):
    pull, router = transport.pull("p"), transport.router("r")
    with pytest.raises(UsageError):
        pull.send([b"x"])
    with pytest.raises(ValueError, match="identity"):
        router.send([b"whom?"])


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", ".hidden"])
async def test_a_name_that_is_no_file_name_is_refused(transport: Transport, name: str):
    with pytest.raises(UsageError):
        transport.router(name)


async def test_a_name_is_used_once(transport: Transport):
    transport.router("r").close()
    with pytest.raises(UsageError):
        transport.pull("r")
