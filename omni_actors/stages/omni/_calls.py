"""The pending calls of one client: who waits for which answer, and until when."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import trio

from omni_actors._errors import EngineRejected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omni_actors.wire.omni import CallResult

__all__ = ["Calls", "PendingCall"]


class PendingCall:
    """One call on its way. Settled once, by an answer or by the end of the generation."""

    def __init__(self, number: int, method: str, deadline: float) -> None:
        self.id, self.method, self.deadline = number, method, deadline
        self._settled = trio.Event()
        self._value: Any = None
        self._error: EngineRejected | None = None

    def settle(self, value: Any, error: EngineRejected | None) -> None:
        """Wake the caller."""
        self._value, self._error = value, error
        self._settled.set()

    async def result(self) -> Any:
        """The value. Raises EngineRejected, or ``trio.TooSlowError`` at the deadline."""
        with trio.fail_at(self.deadline):
            await self._settled.wait()
        if self._error is not None:
            raise self._error
        return self._value


class Calls:
    """Owns the pending calls and their ids, which are never used twice."""

    def __init__(self, where: dict[str, Any]) -> None:
        self._where = where
        self._last_id = 0
        self._pending: dict[int, PendingCall] = {}

    @property
    def waiting(self) -> bool:
        """Whether anybody waits for an answer."""
        return bool(self._pending)

    @property
    def latest_deadline(self) -> float:
        """The latest deadline of a pending call; ``-inf`` without one."""
        return max((call.deadline for call in self._pending.values()), default=-math.inf)

    @contextlib.contextmanager
    def pending(self, method: str, timeout_s: float) -> Iterator[PendingCall]:
        """A call that is pending while the block runs."""
        self._last_id += 1
        call = PendingCall(self._last_id, method, trio.current_time() + timeout_s)
        self._pending[call.id] = call
        try:
            yield call
        finally:
            self.forget(call)

    def forget(self, call: PendingCall) -> None:
        """Nobody waits for this one any more. Idempotent."""
        self._pending.pop(call.id, None)

    def answer(self, result: CallResult) -> None:
        """Hand an answer to whoever waits for it; a late one has nobody."""
        if (call := self._pending.get(result.id)) is not None:
            words = result.error
            call.settle(result.value, None if words is None else EngineRejected(words, **self._where))

    def fail_all(self) -> None:
        """The generation is over: no answer will come."""
        for call in self._pending.values():
            call.settle(None, EngineRejected(f"the engine ended before it answered {call.method}", **self._where))
