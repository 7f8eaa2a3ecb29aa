"""Transports of both kinds behind one fixture, each with small pipes so that back-pressure is one message away."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from omni_actors.transport import MemoryTransport, RunFolder, Transport, ZmqTransport

Make = Callable[..., Transport]


@pytest.fixture
def run_folder() -> Iterator[RunFolder]:
    with RunFolder() as folder:
        yield folder


@pytest.fixture
def zmq_transports(run_folder: RunFolder) -> Iterator[Make]:
    """Makes ZeroMQ transports over one run folder, closed in the end."""
    made: list[ZmqTransport] = []

    def make(**options) -> ZmqTransport:
        made.append(ZmqTransport(run_folder.path, **options))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


@pytest.fixture(params=["zmq", "memory"])
def make_transport(request: pytest.FixtureRequest) -> Make:
    """Makes transports of one kind: every test with it runs on both."""
    return request.getfixturevalue("zmq_transports") if request.param == "zmq" else MemoryTransport


@pytest.fixture
def transport(make_transport: Make) -> Iterator[Transport]:
    made = make_transport()
    yield made
    made.close()


@pytest.fixture
def narrow(make_transport: Make) -> Iterator[Transport]:
    """Two messages fit into a pipe and three into a queue. (ZeroMQ's I/O thread and the kernel hold some more.)"""
    made = make_transport(hwm=2, queue_limit=3)
    yield made
    made.close()
