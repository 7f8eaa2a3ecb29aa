"""Readers: tasks in a ``generate`` block, as users are, and what they see of their requests.

Owns every stream of a run. ``look`` writes a terminal down as soon as it is there, and again if it ever changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from omni_actors._errors import InvalidRequest, OmniError, TransformFailed
from omni_actors.lifecycle import Terminal
from omni_actors.lifecycle.events import Output, StepChunk
from omni_actors.runtime import Stream

from ._history import Accepted, Crashed, Ended, Got, Left, Refused, Submitting, TerminalSeen
from ._scenario import Submit
from ._wiretap import fingerprint

if TYPE_CHECKING:
    from omni_actors.lifecycle.events import Payload
    from omni_actors.runtime import OmniRuntime

    from ._history import AnyEvent, History

__all__ = ["Notes", "Readers"]


class Notes(Protocol):
    """The writing end of a history, and its clock."""

    history: History

    @property
    def now(self) -> float: ...

    def record(self, event: AnyEvent) -> None: ...


@attrs.define(eq=False)
class _Reader:
    """One request's reader: its task's scope, its stream once it has one."""

    op: Submit
    scope: trio.CancelScope
    submitted: bool = False
    stream: Stream | None = None
    terminal: Terminal | None = None


class _Raised(Exception):
    """What a reader raises in its own block, to leave it so."""


class Readers:
    """``start`` one per submit; the tasks are the nursery's."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._all: dict[str, _Reader] = {}
        self._streams: list[tuple[_Reader, Stream]] = []

    def start(self, nursery: trio.Nursery, omni: OmniRuntime, op: Submit) -> None:
        """Begin to submit and to read. Nothing for a request that has begun before."""
        if op.request not in self._all:
            reader = self._all[op.request] = _Reader(op, trio.CancelScope())
            nursery.start_soon(self._read, reader, omni)

    def cancel(self, request: str) -> None:
        """The client disconnects. Nothing for a request that never began."""
        if (reader := self._all.get(request)) is not None:
            reader.scope.cancel()

    def live(self, user_id: str) -> tuple[str, ...]:
        """The accepted requests of this user's id that have no terminal."""
        return tuple(r.op.request for r, _ in self._streams if r.op.user_id == user_id and r.terminal is None)

    @property
    def most_unread(self) -> int:
        """Bytes that wait in the fullest stream."""
        return max((stream.unread_bytes for _, stream in self._streams), default=0)

    @property
    def most_steps(self) -> int:
        """How many steps of one lease wait side by side, previews aside, at most: the last says it all."""
        return max((_in_a_row(stream) for _, stream in self._streams), default=0)

    def look(self) -> None:
        """See the terminals that are new."""
        for reader, stream in self._streams:
            if stream.terminal is not reader.terminal:
                self._see(reader, stream.terminal)

    def _see(self, reader: _Reader, terminal: Terminal | None) -> None:
        reader.terminal = terminal
        if terminal is None:
            return
        error = terminal.error
        self._blame(reader, error)
        self._notes.record(
            TerminalSeen(
                at=self._notes.now,
                request=reader.op.request,
                kind=terminal.kind.value,
                error=None if error is None else type(error).__name__,
                reason=terminal.reason,
                stage=error.stage if error is not None else terminal.stage,
                replica=error.replica if error is not None else None,
                generation=error.generation if error is not None else None,
                made=_made(terminal),
                pieces=_pieces(terminal),
            )
        )

    def _blame(self, reader: _Reader, error: BaseException | None) -> None:
        """Keep what a pipeline's own functions did wrong: whoever wrote them wants to see the arguments."""
        if isinstance(error, TransformFailed) or (isinstance(error, InvalidRequest) and reader.stream is not None):
            self._notes.history.failures[reader.op.request] = error

    # ------------------------------------------------------------------ one reader's task

    async def _read(self, reader: _Reader, omni: OmniRuntime) -> None:
        request, notes, how = reader.op.request, self._notes, "end"
        try:
            with reader.scope:
                await self._read_block(reader, omni)
            if reader.scope.cancelled_caught:
                how = "Cancelled"
        except (OmniError, _Raised) as error:
            self._blame(reader, error)
            how = type(error).__name__
        except trio.Cancelled:
            how = "Cancelled"
            raise
        except BaseException as error:
            notes.record(Crashed(at=notes.now, where=request, error=f"{type(error).__name__}: {error}"))
            raise
        finally:
            self.look()
            if reader.stream is not None:
                notes.record(Left(at=notes.now, request=request))
            elif reader.submitted:
                notes.record(Refused(at=notes.now, request=request, error=how))

    async def _read_block(self, reader: _Reader, omni: OmniRuntime) -> None:
        op, notes = reader.op, self._notes
        reader.submitted = True
        notes.record(Submitting(at=notes.now, request=op.request, id=op.user_id, modalities=op.modalities))
        prompt = f"{op.request}: hello" if op.prompt is None else op.prompt
        block = omni.generate(
            prompt, op.params, request_id=op.user_id, modalities=op.modalities, timeout_s=op.timeout_s
        )
        async with block as stream:
            self._accepted(reader, stream)
            await self._read_on(reader, stream)

    def _accepted(self, reader: _Reader, stream: Stream) -> None:
        self._notes.record(Accepted(at=self._notes.now, request=reader.op.request, key=stream.key))
        reader.stream = stream
        self._streams.append((reader, stream))
        self.look()

    async def _read_on(self, reader: _Reader, stream: Stream) -> None:
        """Iterate, and go as the scenario says."""
        how = "Cancelled"
        try:
            how = await self._iterate(reader.op, stream)
        except OmniError as error:
            how = type(error).__name__
            raise
        finally:
            self.look()
            self._notes.record(Ended(at=self._notes.now, request=reader.op.request, how=how))
        if how == "raise":
            raise _Raised
        if how == "cancel":
            reader.scope.cancel()
            await trio.lowlevel.checkpoint()

    async def _iterate(self, op: Submit, stream: Stream) -> str:
        taken = 0
        while op.leave_after is None or taken < op.leave_after:
            try:
                output = await anext(stream)
            except StopAsyncIteration:
                return "end"
            taken += 1
            self._notes.record(
                Got(
                    at=self._notes.now,
                    request=op.request,
                    stage=output.stage,
                    modality=output.modality,
                    data=fingerprint(output.payload),
                    part=output.part,
                    index=output.index,
                    finish_reason=output.payload.finish_reason,
                    step=_step(output.payload),
                )
            )
            if op.pace_s:
                await trio.sleep(op.pace_s)
        return op.leave


def _step(payload: Payload) -> tuple[int, int] | None:
    return (payload.done, payload.total) if isinstance(payload, StepChunk) else None


def _in_a_row(stream: Stream) -> int:
    most = row = 0
    before = None
    for unread in stream._unread:
        payload = unread.payload if isinstance(unread, Output) else None
        if not isinstance(unread, Output) or not isinstance(payload, StepChunk):
            before = None
            continue
        lane = (unread.stage, unread.part, unread.index)
        row = row + 1 if lane == before else 1
        most, before = max(most, row), lane if payload.preview is None else None
    return most


def _pieces(terminal: Terminal) -> tuple[tuple[str, int, int, int], ...]:
    """How many tensors the terminal's results hold, where they hold any."""
    found = [result for results in terminal.results.values() for result in results if result.tensors]
    return tuple((each.stage, each.part, each.index, sum(map(len, each.tensors.values()))) for each in found)


def _made(terminal: Terminal) -> tuple[tuple[str, int, int, tuple[int, ...]], ...]:
    """The terminal's results as fingerprints: tokens or text, or one sum per tensor chunk."""
    found = []
    for stage, results in terminal.results.items():
        for result in results:
            data = tuple(result.token_ids or map(ord, result.text))
            found.append((stage, result.part, result.index, data))
    return tuple(found)
