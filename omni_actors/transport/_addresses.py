"""Names and addresses: what a socket may be called, what fits into a Unix socket's path, what counts as loopback.

A non-loopback address without CURVE keys is refused, whether bound or connected to.
"""

from __future__ import annotations

import ipaddress
import os
import re
from typing import TYPE_CHECKING

import attrs
import zmq

from omni_actors._errors import ConfigError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MAX_IPC_PATH_BYTES", "CurveKeys", "checked_name", "ipc_address", "require_private"]

MAX_IPC_PATH_BYTES = 107
"""``sun_path`` holds 108 bytes, the last one is a NUL."""

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


@attrs.frozen(kw_only=True)
class CurveKeys:
    """One side's CURVE key pair, Z85. ``server`` is the binding side's public key, which a connecting side must know.

    Encrypts, and authenticates the binding side. Whoever knows ``server`` may connect: keep it as private as the pipe.
    """

    public: bytes
    secret: bytes = attrs.field(repr=False)
    server: bytes | None = None

    @classmethod
    def generate(cls, server: bytes | None = None) -> CurveKeys:
        """A fresh pair. ``server`` is the other side's public key, for the side that connects."""
        public, secret = zmq.curve_keypair()
        return cls(public=public, secret=secret, server=server)


def checked_name(name: str) -> str:
    """The name, if it can be a file's name and a part of an address. Raises UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} can not be a socket's name: use letters, digits, '.', '_' and '-'")
    return name


def ipc_address(folder: Path, name: str) -> str:
    """``ipc://folder/name``. Raises ConfigError if the path is over 107 bytes: the kernel would not take it."""
    path = folder / checked_name(name)
    length = len(os.fsencode(path))
    if length > MAX_IPC_PATH_BYTES:
        problem = f"the socket path {path} has {length} bytes; the kernel takes {MAX_IPC_PATH_BYTES}"
        raise ConfigError(problem, hint="set XDG_RUNTIME_DIR (or TMPDIR) to a shorter folder")
    return f"ipc://{path}"


def require_private(address: str, keys: CurveKeys | None) -> None:
    """Raises ConfigError unless the address stays on this machine, or is TCP and has CURVE keys."""
    if address.startswith("ipc://"):
        return
    if not address.startswith("tcp://"):
        raise ConfigError(f"{address}: only ipc:// and tcp:// addresses are known")
    if keys is None and not _is_loopback(address.removeprefix("tcp://").rpartition(":")[0]):
        raise ConfigError(f"{address} can be reached from other machines", hint="give CURVE keys, or use 127.0.0.1")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
