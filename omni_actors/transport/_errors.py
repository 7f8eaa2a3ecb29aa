"""The transport's errors: both are verdicts on one ``send``; the socket stays usable.

::

    OmniError
    └── TransportError
        ├── Unroutable             the peer is unknown or gone
        └── QueueFull              the peer takes nothing and our own queue is at its bound
"""

from __future__ import annotations

from omni_actors._errors import OmniError

__all__ = ["QueueFull", "TransportError", "Unroutable"]


class TransportError(OmniError):
    """The root of what ``send`` raises about a peer."""


class Unroutable(TransportError):
    """Raised when a ROUTER has no peer of this identity: it never came, or it is gone. Nothing was sent."""


class QueueFull(TransportError):
    """Raised when the outbound queue is at its bound. Nothing was queued."""
