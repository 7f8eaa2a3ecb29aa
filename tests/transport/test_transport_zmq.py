"""What only real sockets can show: lost wake-ups under stress, idle cost, options, addresses, CURVE."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import threading
from pathlib import Path

import pytest
import trio
import zmq

from omni_actors._errors import ConfigError, UsageError
from omni_actors.transport import CurveKeys, QueueFull, RunFolder, ZmqTransport
from omni_actors.transport._addresses import require_private

BULK = b"x" * 32_000


class Steps(trio.abc.Instrument):
    """Counts the scheduler's steps of one task."""

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.task, self.count = task, 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task is self.task


async def steps_while_parked(*sockets) -> list[int]:
    """How often each owner ran in 0.4 s of silence."""

    async def park(socket, *, task_status) -> None:
        task_status.started(trio.lowlevel.current_task())
        await socket.receive()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            counters = [Steps(await nursery.start(park, socket)) for socket in sockets]
            await trio.sleep(0.1)  # the last frames move into the kernel's buffer
            for counter in counters:
                trio.lowlevel.add_instrument(counter)
            await trio.sleep(0.4)  # the measurement itself: a silent stretch of real time
            for counter in counters:
                trio.lowlevel.remove_instrument(counter)
            nursery.cancel_scope.cancel()
    return [counter.count for counter in counters]


async def fill(router, peer: bytes) -> None:
    """Send until nothing moves any more: the queue, both pipes and the kernel's buffer are full."""
    quiet = 0
    with trio.fail_after(10):
        while quiet < 3:
            quiet += 1
            with contextlib.suppress(QueueFull):
                while True:
                    router.send([peer, BULK])
                    quiet = 0
            await trio.sleep(0.02)  # libzmq's I/O thread has no event to wait for


class Side:
    """One end of the stress: a sender and an owner that is cancelled at random, on one socket."""

    def __init__(self, socket, head: list[bytes], total: int, seed: int) -> None:
        self.socket, self.head, self.total = socket, head, total
        self.random = random.Random(seed)
        self.got: list[int] = []
        self.cancelled = 0
        self._came = trio.Event()

    async def send_all(self) -> None:
        for number in range(self.total):
            while True:
                try:
                    self.socket.send([*self.head, b"%d" % number])
                except QueueFull:
                    self._came = trio.Event()
                    with trio.move_on_after(0.01):  # the peer's messages pace us; at its end none may come
                        await self._came.wait()
                else:
                    break
            if self.random.random() < 0.05:
                await trio.lowlevel.checkpoint()

    async def receive_all(self) -> None:
        while len(self.got) < self.total:
            with trio.CancelScope() as scope:
                if self.random.random() < 0.2:
                    scope.deadline = trio.current_time() + self.random.random() * 2e-4
                self.got += [
                    int(bytes(message[-1])) for message in await self.socket.receive(self.random.randint(1, 64))
                ]
            self.cancelled += scope.cancelled_caught
            self._came.set()

    async def run(self, finished) -> None:
        """Until cancelled: after the last message in, the owner still pumps what goes out."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.send_all)
            await self.receive_all()
            finished()
            await self.socket.receive()


async def test_two_threads_flood_each_other_through_narrow_pipes(run_folder: RunFolder):
    """Every lost wake-up ends as a hang here: both directions full, both owners cancelled at random."""
    total = 30_000
    near_transport = ZmqTransport(run_folder.path, hwm=16, queue_limit=64)
    far_transport = ZmqTransport(hwm=16, queue_limit=64)
    router = near_transport.router("stress")
    done, token = [trio.Event(), trio.Event()], trio.lowlevel.current_trio_token()
    stop_far: list = []
    far_got: list[int] = []

    async def far_main() -> None:
        dealer = far_transport.dealer(router.address, b"far")
        dealer.send([b"hello"])
        side = Side(dealer, [], total, seed=2)
        with trio.CancelScope() as scope:
            stop_far.append((trio.lowlevel.current_trio_token(), scope))
            await side.run(functools.partial(token.run_sync_soon, done[1].set))
        far_got.extend(side.got)
        far_transport.close()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, trio.run, far_main)
            assert await router.receive(limit=1) == [[b"far", b"hello"]]
            near = Side(router, [b"far"], total, seed=1)
            nursery.start_soon(near.run, done[0].set)
            for event in done:
                await event.wait()
            far_token, scope = stop_far[0]
            far_token.run_sync_soon(scope.cancel)
            nursery.cancel_scope.cancel()
    near_transport.close()
    assert near.got == list(range(total))
    assert far_got == list(range(total))
    assert near.cancelled > 10


async def test_a_parked_owner_costs_no_wake_up(zmq_transports):
    transport = zmq_transports(hwm=2, queue_limit=3)
    router = transport.router("r")
    dealer = transport.dealer(router.address, b"e")
    push = transport.push(transport.pull("p").address)
    dealer.send([b"hello"])
    await router.receive()
    await fill(router, b"e")
    assert await steps_while_parked(router, transport.pull("idle"), push) == [0, 0, 0]


async def test_a_full_peer_beside_one_with_room_does_not_keep_the_owner_spinning(zmq_transports):
    """The one wait that is also bounded in time: it looks again every 50 ms, and a look is a few steps."""
    transport = zmq_transports(hwm=2, queue_limit=3)
    router = transport.router("r")
    dealers = [transport.dealer(router.address, identity) for identity in (b"full", b"free")]
    for dealer in dealers:
        dealer.send([b"hello"])
        await router.receive()
    await fill(router, b"full")
    [steps] = await steps_while_parked(router)
    assert len(router._outbox) == 3
    assert 0 < steps < 50


async def test_a_large_frame_is_shared_not_copied(zmq_transports):
    transport = zmq_transports()
    pull = transport.pull("p")
    push = transport.push(pull.address)
    payload = os.urandom(5_000_000)
    push.send([b"head", payload])
    with trio.fail_after(10):
        [[head, body]] = await pull.receive()
    assert head == b"head"
    assert isinstance(body, memoryview)
    assert isinstance(body.obj, zmq.Frame), "libzmq's own buffer"
    assert body == payload
    transport.close()
    gc.collect()
    assert body == payload, "it outlives its socket"


async def test_every_socket_has_its_bounds(zmq_transports):
    transport = zmq_transports(hwm=7, max_frame_bytes=1 << 20)
    router = transport.router("r")
    for socket in (router, transport.dealer(router.address, b"e"), transport.pull("p")):
        sock = socket._sock
        assert (sock.linger, sock.sndhwm, sock.rcvhwm, sock.maxmsgsize) == (0, 7, 7, 1 << 20)
    assert transport.dealer(router.address, b"\0\0")._sock.identity == b"\0\0"


async def test_a_peer_that_sends_too_much_loses_its_connection_and_nobody_else_does(zmq_transports):
    transport = zmq_transports(max_frame_bytes=1_000)
    pull = transport.pull("p")
    transport.push(pull.address).send([b"x" * 1_001])
    transport.push(pull.address).send([b"x" * 1_000])
    with trio.fail_after(10):
        assert [len(message[0]) for message in await pull.receive()] == [1_000]


async def test_an_overlong_path_is_refused_with_the_way_out(tmp_path: Path):
    with ZmqTransportIn(tmp_path / ("d" * 100)) as transport, pytest.raises(ConfigError, match=r"107.*XDG_RUNTIME_DIR"):
        transport.router("r")


async def test_a_missing_folder_is_named(run_folder: RunFolder):
    with ZmqTransportIn(run_folder.path / "nowhere") as transport, pytest.raises(ConfigError, match="nowhere"):
        transport.router("r")


async def test_a_transport_without_a_folder_only_connects():
    with ZmqTransportIn(None) as transport, pytest.raises(UsageError, match="only connects"):
        transport.pull("p")


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "192.0.2.1", "example.org", "[::]"])
async def test_a_public_address_needs_keys(host: str):
    with ZmqTransportIn(None, host=host) as transport, pytest.raises(ConfigError, match="CURVE"):
        transport.router("r")
    with ZmqTransportIn(None) as transport, pytest.raises(ConfigError, match="CURVE"):
        transport.push(f"tcp://{host}:5555")
    require_private(f"tcp://{host}:5555", CurveKeys.generate())


@pytest.mark.parametrize("address", ["udp://127.0.0.1:1", "nonsense", "inproc://x", "mem://x"])
async def test_an_unknown_kind_of_address_is_refused(address: str):
    with ZmqTransportIn(None) as transport, pytest.raises(ConfigError, match="only ipc"):
        transport.dealer(address, b"e")


async def test_loopback_tcp_works_without_keys():
    with ZmqTransportIn(None, host="127.0.0.1") as transport:
        pull = transport.pull("p")
        transport.push(pull.address).send([b"over tcp"])
        with trio.fail_after(10):
            assert await pull.receive() == [[b"over tcp"]]


async def test_curve_shuts_out_whoever_lacks_the_key():
    keys = CurveKeys.generate()
    stranger = CurveKeys.generate(server=CurveKeys.generate().public)
    friend = CurveKeys.generate(server=keys.public)
    assert keys.secret.decode() not in repr(keys)
    with ZmqTransportIn(None, host="127.0.0.1", curve=keys) as transport:
        router = transport.router("r")
        with (
            ZmqTransportIn(None) as plain,
            ZmqTransportIn(None, curve=stranger) as wrong,
            ZmqTransportIn(None, curve=friend) as right,
        ):
            plain.dealer(router.address, b"plain").send([b"let me in"])
            wrong.dealer(router.address, b"wrong").send([b"let me in"])
            welcome = right.dealer(router.address, b"right")
            for word in (b"hello", b"again"):
                welcome.send([word])
                with trio.fail_after(10):
                    assert await router.receive() == [[b"right", word]]


async def test_a_connecting_side_must_know_the_servers_key():
    with ZmqTransportIn(None, curve=CurveKeys.generate()) as transport, pytest.raises(ConfigError, match="public key"):
        transport.push("tcp://127.0.0.1:5555")


async def test_closing_leaves_no_descriptor_thread_or_file(run_folder: RunFolder):
    async def cycle() -> tuple[int, int]:
        with ZmqTransportIn(run_folder.path) as transport:
            router = transport.router("r")
            transport.dealer(router.address, b"e").send([b"hello"])
            await router.receive()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    first = await cycle()
    assert await cycle() == first
    assert os.listdir(run_folder.path) == ["lock"]


async def test_a_foreign_context_stays_open(run_folder: RunFolder):
    with zmq.Context() as context:
        with ZmqTransportIn(run_folder.path, context=context) as transport:
            transport.pull("p")
        assert not context.closed


class ZmqTransportIn(ZmqTransport):
    """A transport that closes with its block."""

    def __enter__(self) -> ZmqTransport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
