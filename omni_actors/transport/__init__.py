"""Sockets on trio: the ZeroMQ owner, the private run folder, and an in-memory twin behind the same interface."""

from ._interface import Frame, Message, Socket, Transport

__all__ = ["Frame", "Message", "Socket", "Transport"]
