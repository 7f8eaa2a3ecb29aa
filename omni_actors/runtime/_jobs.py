"""The forwards under way: inputs being prepared, and work that waits for a replica.

Owns their cancel scopes, by request. A job lives in the runtime's nursery and in its request's own scope: it is
cancelled when the request settles, and its failure is its request's, never the runtime's.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

import trio

from omni_actors._buggify import pause, simulated
from omni_actors._errors import OmniError
from omni_actors.lifecycle import Fail

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from omni_actors.lifecycle import Forward, Record

    Job = Callable[..., Awaitable[None]]

Result = TypeVar("Result")
Args = TypeVarTuple("Args")

__all__ = ["Jobs", "in_thread"]


class Jobs:
    """``fail`` is told of a job that raised: its request, and with what. It must not raise."""

    def __init__(self, nursery: trio.Nursery, fail: Callable[[Record, Fail], None]) -> None:
        self._nursery, self._fail = nursery, fail
        self._scopes: dict[str, dict[trio.CancelScope, str]] = {}

    @property
    def waiting(self) -> Counter[str]:
        """How many there are, by stage. From any thread."""
        return Counter(stage for scopes in list(self._scopes.values()) for stage in list(scopes.values()))

    def spawn(self, record: Record, job: Job, forward: Forward, *args: Any) -> None:
        """Run ``job(record, forward, *args)``."""
        self._nursery.start_soon(self._run, record, job, forward, args, name=f"{record.key} {job.__name__}")

    async def _run(self, record: Record, job: Job, forward: Forward, args: tuple[Any, ...]) -> None:
        if record.settled:
            return
        scope = trio.CancelScope()
        scopes = self._scopes.setdefault(record.key, {})
        scopes[scope] = forward.stage
        try:
            with scope:
                await job(record, forward, *args)
        except OmniError as error:
            self._fail(record, Fail(error.stage or forward.stage, error))
        finally:
            del scopes[scope]
            if not scopes:
                self._scopes.pop(record.key, None)

    def cancel(self, record: Record) -> None:
        """Its request has settled."""
        for scope in self._scopes.get(record.key, ()):
            scope.cancel()


async def in_thread(function: Callable[[*Args], Result], *args: *Args) -> Result:
    """What takes long; cancelled, its result reaches nobody. A simulation has no threads: a few steps stand for one."""
    if simulated():
        await trio.lowlevel.checkpoint()
        await pause("thread.slow")
        return function(*args)
    return await trio.to_thread.run_sync(function, *args, abandon_on_cancel=True)
