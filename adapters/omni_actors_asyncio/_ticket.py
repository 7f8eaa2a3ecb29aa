"""One request on its way across: written to by the trio thread, read by whoever asked, with no lock between them.

Each field has one writer. The trio thread appends to ``unread`` and sets, in this order, ``fenced``, then ``terminal``;
the reader takes from ``unread`` and sets ``parked`` before it sleeps. Both sides write their own flag first and look at
the other's second, so one of them always sees the other and no wake-up is lost. What is unread is bounded in bytes by
two counters that only ever grow, one for each side (I3: the fence is tested after the reader's last await).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from omni_actors import Kind, Output, Terminal, TextChunk

if TYPE_CHECKING:
    import trio

    from omni_actors.runtime import OmniRuntime
    from omni_actors.runtime._omni import Generation

__all__ = ["Ask", "Ticket", "Ways"]

OVERHEAD = 256
"""Bytes that an unread output costs beside its payload."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for: the arguments of ``OmniRuntime.generate``."""

    prompt: Any
    sampling: Any = None
    request_id: str | None = None
    modalities: Sequence[str] | None = None
    timeout_s: float | None = None
    priority: int = 0
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def generation(self, omni: OmniRuntime) -> Generation:
        """Raises InvalidRequest."""
        return omni.generate(
            self.prompt,
            self.sampling,
            request_id=self.request_id,
            modalities=self.modalities,
            timeout_s=self.timeout_s,
            priority=self.priority,
            **self.options,
        )


class Ways(Protocol):
    """What a ticket needs of its bridge."""

    def post(self, act: Callable[[], None]) -> bool:
        """Have ``act`` called in the trio thread."""

    def leave(self, ticket: Ticket) -> None:
        """In the trio thread: its reader left."""

    def ended(self, ticket: Ticket) -> None:
        """In the trio thread: it has its terminal."""


class _Fold:
    """Plain text that nobody reads before the end: as many tokens as there are, one object."""

    __slots__ = ("first", "texts", "token_ids")

    def __init__(self, first: Output, chunk: TextChunk) -> None:
        self.first, self.texts, self.token_ids = first, [chunk.text], list(chunk.token_ids)

    def add(self, chunk: TextChunk) -> None:
        self.texts.append(chunk.text)
        self.token_ids += chunk.token_ids

    def output(self) -> Output:
        payload = msgspec.structs.replace(self.first.payload, text="".join(self.texts), token_ids=self.token_ids)
        return msgspec.structs.replace(self.first, payload=payload)


def _output(item: Output | _Fold) -> Output:
    return item.output() if isinstance(item, _Fold) else item


class Ticket:
    """A runtime's ``Sink``. Subclasses know how to wake their reader (``_wake``, in the trio thread).

    ``quiet``: the reader wants the end only, with everything made so far; it is not woken before, and plain text is
    folded meanwhile. ``limit``: unread bytes. ``refusal`` is set instead of ``terminal`` if the request was not taken;
    ``released`` when its engines have confirmed that they hold nothing of it (or will not in time).
    """

    def __init__(self, ways: Ways, ask: Ask, *, limit: int, quiet: bool = False) -> None:
        self.ask, self.quiet = ask, quiet
        self.unread: deque[Output | _Fold] = deque()
        self.terminal: Terminal | None = None
        self.refusal: Exception | None = None
        self.fenced = self.released = self.parked = False
        self.withdrawn = False  # it was aborted before it was taken
        self.scope: trio.CancelScope | None = None  # while it is being taken, if that takes long
        self.generation: Generation | None = None  # set once it is taken
        self._ways, self._limit = ways, limit
        self._pushed = self._taken = 0
        self._folds: dict[int, _Fold] = {}
        self._abort_posted = False

    # ------------------------------------------------------------------ in the trio thread

    def push(self, output: Output) -> bool:
        """See ``Sink``."""
        size = output.payload.nbytes + OVERHEAD
        if self._pushed - self._taken + size > self._limit:
            return False
        if self.quiet:
            self._keep_quietly(output, size)
            self._look_for_reader()
            return True
        self._pushed += size
        self.unread.append(output)
        if self.parked:
            self.parked = False
            self._wake()
        else:
            self._look_for_reader()
        return True

    def _keep_quietly(self, output: Output, size: int) -> None:
        chunk = output.payload
        plain = chunk if isinstance(chunk, TextChunk) and chunk.native is None and chunk.finish_reason is None else None
        fold = self._folds.get(output.index)
        if plain is not None and fold is not None:
            fold.add(plain)
            self._pushed += size - OVERHEAD
            return
        if plain is not None:
            fold = self._folds[output.index] = _Fold(output, plain)
            self.unread.append(fold)
        else:
            self._folds.pop(output.index, None)
            self.unread.append(output)
        self._pushed += size

    def close(self, terminal: Terminal) -> None:
        """See ``Sink``. Unread outputs stay where they are: an aborted request hands back what it had made."""
        self.fenced = terminal.kind is not Kind.FINISHED
        self.terminal = terminal
        self._ways.ended(self)
        self._wake()

    def take_in(self, generation: Generation) -> None:
        """It was taken."""
        self.generation = generation

    def refuse(self, error: Exception) -> None:
        """It was not taken, or is lost with the runtime."""
        if not self.over:
            self.refusal = error
            self._wake()

    def confirm(self) -> None:
        """Nothing of it is left in any engine; or the wait for that is over."""
        self.released = True
        self._wake()

    def _wake(self) -> None:
        """Let the reader look again. Never raises, never waits."""
        raise NotImplementedError

    def _look_for_reader(self) -> None:
        """Called now and then while the reader is busy: is it still there?"""

    # ------------------------------------------------------------------ in the reader's

    @property
    def over(self) -> bool:
        """Whether nothing more is added to ``unread``. Look at it first, and take afterwards."""
        return self.terminal is not None or self.refusal is not None

    @property
    def unread_bytes(self) -> int:
        """What the reader has not taken yet. From any thread."""
        return self._pushed - self._taken

    def take(self) -> list[Output]:
        """All that is unread."""
        self._taken = self._pushed  # what is being pushed in this moment counts as taken: one output too little
        unread, taken = self.unread, []
        while unread:
            taken.append(_output(unread.popleft()))
        return taken

    def take_one(self) -> Output:
        """The oldest unread; IndexError if there is none."""
        output = _output(self.unread.popleft())
        self._taken += output.payload.nbytes + OVERHEAD
        return output

    def post_abort(self) -> bool:
        """The reader leaves: append and wake, with no await. From any thread, under garbage collection, at exit.

        Idempotent, and uses no module's globals: at exit they may be gone. False if there is nothing to wait for: it
        has finished, was not taken, or its bridge is gone.
        """
        finished = self.terminal is not None and not self.fenced
        if finished or self.refusal is not None or self.released:
            return False
        if self._abort_posted:
            return True
        self._abort_posted = self._ways.post(lambda: self._ways.leave(self))
        return self._abort_posted
