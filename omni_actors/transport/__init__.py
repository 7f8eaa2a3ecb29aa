"""Sockets on trio: the ZeroMQ owner, the private run folder, and an in-memory twin behind the same interface."""

from ._addresses import CurveKeys
from ._errors import QueueFull, TransportError, Unroutable
from ._interface import Frame, Message, Socket, Transport
from ._memory import MemoryTransport
from ._runfolder import RunFolder, sweep_stale
from ._zmq import ZmqTransport

__all__ = [
    "CurveKeys",
    "Frame",
    "MemoryTransport",
    "Message",
    "QueueFull",
    "RunFolder",
    "Socket",
    "Transport",
    "TransportError",
    "Unroutable",
    "ZmqTransport",
    "sweep_stale",
]
