"""Admission: who may come in, by slots and by bytes. The one owner of the house's credits (I13).

Credits are taken in one synchronous step before anything else is done for a request, and come back when the request
is closed, that is when every engine has released it.
"""

from __future__ import annotations

import attrs

from omni_actors._errors import Overloaded, ShuttingDown

__all__ = ["Admission"]


@attrs.define
class Admission:
    """``max_slots`` counts samples (a request with n=4 takes four), ``max_bytes`` prompts. ``close`` is for good."""

    max_slots: int
    max_bytes: int
    slots: int = 0
    bytes: int = 0
    refused: int = 0
    closed: bool = False

    def enter(self, slots: int, nbytes: int, *, request_id: str | None = None) -> None:
        """Take credits, or raise Overloaded or ShuttingDown and take none."""
        if self.closed:
            self.refused += 1
            raise ShuttingDown("the runtime is shutting down and takes no new requests", request_id=request_id)
        self._check(self.slots, slots, self.max_slots, "slots", request_id)
        self._check(self.bytes, nbytes, self.max_bytes, "bytes of prompts", request_id)
        self.slots += slots
        self.bytes += nbytes

    def _check(self, held: int, more: int, limit: int, what: str, request_id: str | None) -> None:
        if held + more > limit:
            self.refused += 1
            advice = "try again later" if more <= limit else "it will never fit"
            text = f"the house is full: {held} of {limit} {what} are taken and this request needs {more}; {advice}"
            raise Overloaded(text, in_flight=held, limit=limit, request_id=request_id)

    def leave(self, slots: int, nbytes: int) -> None:
        """Give credits back."""
        self.slots -= slots
        self.bytes -= nbytes
        assert min(self.slots, self.bytes) >= 0, "more credits came back than were taken"

    def close(self) -> None:
        """Refuse everybody from now on. Idempotent."""
        self.closed = True
