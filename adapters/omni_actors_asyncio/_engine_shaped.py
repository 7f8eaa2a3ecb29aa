"""``AsyncOmniEngine``: add requests, and fetch the next message of any of them; for code written for vLLM-Omni's.

It owns its bridge, and the inbox in which tickets wait that have something to say. A ticket is in the inbox, in a
reader's hands, or parked: then the trio thread puts it there with its next output. What is unread is bounded: in bytes
by each ticket, and by the number of requests whose end nobody has fetched.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import trio

from omni_actors import Kind, Output, Overloaded, RuntimeClosed, UsageError

from ._bridge import Bridge
from ._control import LONG_CALL_S, call_all
from ._messages import Message, OutputMessage, failed
from ._tenure import Owned
from ._ticket import Ask, Ticket

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from omni_actors import AbortReport, ShutdownReport
    from omni_actors.config import StageSpec

    from ._ticket import Ways

__all__ = ["AsyncOmniEngine"]


class _Inbox:
    """Tickets with news. ``put`` is the trio thread's and the readers'; None says that the runtime is gone."""

    def __init__(self) -> None:
        self.due: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._sleepers: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    def put(self, request: _Request | None) -> None:
        """Never waits. All readers that sleep in a loop look again; who sleeps in a thread is the queue's to wake."""
        self.due.put(request)
        while self._sleepers:
            try:
                loop, sleeper = self._sleepers.popleft()
                loop.call_soon_threadsafe(_wake, sleeper)
            except (IndexError, RuntimeError):  # another was faster; its loop is closed
                continue

    async def news(self, within_s: float) -> None:
        """Until something was put, or so many seconds have passed."""
        loop = asyncio.get_running_loop()
        entry = (loop, loop.create_future())
        self._sleepers.append(entry)
        try:
            if self.due.empty():
                await asyncio.wait((entry[1],), timeout=within_s)
        finally:
            if entry in self._sleepers:
                self._sleepers.remove(entry)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


class _Request(Ticket):
    """A ticket whose reader is whoever takes it from the inbox."""

    def __init__(self, ways: Ways, ask: Ask, inbox: _Inbox, stage_ids: Mapping[str, int], *, limit: int) -> None:
        super().__init__(ways, ask, limit=limit)
        self.told = False  # its end
        self.parked = True
        self._inbox, self._stage_ids = inbox, stage_ids

    def _wake(self) -> None:
        self._inbox.put(self)

    def read(self) -> Message | None:
        """The next message. None if there is none now: it is parked. Not for two readers at a time."""
        if self.told:
            return None
        over = self.over  # first: after it, nothing is added
        outputs = () if self.fenced else self._of_one_stage()
        if over and (self.fenced or not self.unread):
            self.told = True
            return self._end(outputs)
        if outputs:
            self._inbox.put(self)
            return OutputMessage(
                request_id=outputs[0].request_id, stage_id=self._stage_ids[outputs[0].stage], engine_outputs=outputs
            )
        self.parked = True
        if self.unread or self.over:
            self._inbox.put(self)
        return None

    def _of_one_stage(self) -> tuple[Output, ...]:
        outputs: list[Output] = []
        while self.unread:
            following = self.unread[0]
            if outputs and isinstance(following, Output) and following.stage != outputs[0].stage:
                break
            outputs.append(self.take_one())
        return tuple(outputs)

    def _end(self, outputs: tuple[Output, ...]) -> Message:
        terminal, name = self.terminal, self.ask.request_id or ""
        if terminal is None:
            assert self.refusal is not None
            if self.withdrawn:
                return OutputMessage(request_id=name, stage_id=0, finished=True)
            return failed(name, self.refusal, None)
        stage_id = self._stage_ids.get(terminal.stage)
        if terminal.kind in (Kind.FAILED, Kind.TIMED_OUT) and terminal.error is not None:
            return failed(name, terminal.error, stage_id, terminal)
        last = self._stage_ids[outputs[0].stage] if outputs else stage_id
        return OutputMessage(
            request_id=name, stage_id=last or 0, engine_outputs=outputs, finished=True, terminal=terminal
        )


class AsyncOmniEngine:
    """A running pipeline, as vLLM-Omni's engine of that name is used. The arguments are ``open_omni``'s.

    Making it starts every stage, and raises what ``open_omni`` raises. Any thread and any loop may use it; each message
    goes to one reader. It is closed by ``shutdown``, or at the end of the program, within 5 s.
    """

    def __init__(self, pipeline: Any, **how: Any) -> None:
        self._inbox = _Inbox()
        self._bridge = Bridge(Owned(pipeline, **how))
        self._spec = self._bridge.open().spec
        self._stage_ids = {stage.name: number for number, stage in enumerate(self._spec.stages)}
        self._lock = threading.Lock()  # readers' and adders'; never the trio thread's
        self._unfinished: set[_Request] = set()  # whose end nobody has fetched
        self._bridge.closed.add_done_callback(lambda _: self._inbox.put(None))

    def __enter__(self) -> AsyncOmniEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    @property
    def num_stages(self) -> int:
        """How many stages the pipeline has."""
        return len(self._spec.stages)

    def get_stage_metadata(self, stage_id: int) -> StageSpec:
        """The stage's spec: its name, engine kind, inputs, output, parameters."""
        return self._spec.stages[stage_id]

    # ------------------------------------------------------------------ requests

    def add_request(
        self,
        request_id: str,
        prompt: Any,
        sampling_params_list: Sequence[Any] | None = None,
        final_stage_id: int | None = None,
        arrival_time: float | None = None,
        *,
        final_output_stage_ids: Sequence[int] | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
        **options: Any,
    ) -> None:
        """Ask for something. Never waits; what becomes of it is told by messages, a refusal too.

        ``sampling_params_list``: one for each stage, None where the pipeline's own are meant. What is wanted:
        ``final_output_stage_ids`` name the stages that make it, ``final_stage_id`` means all that is made up to that
        stage; without them it is everything. ``arrival_time`` has no effect: time counts from here. ``timeout_s`` and
        ``options`` are ``OmniRuntime.generate``'s.

        Raises RuntimeClosed; UsageError for stages that are not there; Overloaded while twice as many requests as may
        run have ends that nobody has fetched.
        """
        ask = Ask(
            prompt=prompt,
            sampling=self._per_stage(sampling_params_list),
            request_id=request_id,
            modalities=self._modalities(final_stage_id, final_output_stage_ids),
            timeout_s=timeout_s,
            priority=priority,
            options={name: value for name, value in options.items() if value is not None},
        )
        self._bridge.check()
        limits = self._spec.limits
        request = _Request(self._bridge, ask, self._inbox, self._stage_ids, limit=limits.stream_bytes)
        with self._lock:
            if len(self._unfinished) >= 2 * limits.max_requests:
                words = f"{len(self._unfinished)} requests have outputs that nobody has fetched"
                raise Overloaded(words, request_id=request_id)
            self._unfinished.add(request)
        self._bridge.submit(request)

    async def add_request_async(self, *args: Any, **how: Any) -> None:
        """The same, which never waits either."""
        self.add_request(*args, **how)

    def _per_stage(self, given: Sequence[Any] | None) -> Mapping[str, Any] | None:
        if given is None:
            return None
        if len(given) != len(self._spec.stages):
            raise UsageError(f"{len(given)} sampling params for {len(self._spec.stages)} stages; None leaves one out")
        pairs = zip(self._spec.stages, given, strict=True)
        return {stage.name: params for stage, params in pairs if params is not None}

    def _modalities(self, last: int | None, finals: Sequence[int] | None) -> tuple[str, ...] | None:
        if finals is None and last is None:
            return None
        wanted = range(last + 1) if finals is None and last is not None else finals or ()
        made = [self._stage(number).output for number in wanted]
        return tuple(dict.fromkeys(output for output in made if output))

    def _stage(self, number: int) -> StageSpec:
        if not 0 <= number < len(self._spec.stages):
            raise UsageError(f"there is no stage {number}; there are {len(self._spec.stages)}")
        return self._spec.stages[number]

    # ------------------------------------------------------------------ messages

    def try_get_output(self, timeout: float = 0.001) -> Message | None:
        """The next message of any request; None if there is none within ``timeout`` seconds. Blocking.

        A request that fails is an ErrorMessage. Raises RuntimeClosed, or the runtime's fatal error, when the runtime is
        gone and every message has been fetched.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                request = self._inbox.due.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            if (message := self._message(request)) is not None:
                return message

    async def try_get_output_async(self, timeout: float = 0.0) -> Message | None:
        """The same for a loop, which goes on meanwhile. Cancelling it loses nothing."""
        deadline = time.monotonic() + timeout
        while (message := self.try_get_output(0)) is None and (left := deadline - time.monotonic()) > 0:
            await self._inbox.news(left)
        return message

    def _message(self, request: _Request | None) -> Message | None:
        with self._lock:
            if request is None:
                self._inbox.due.put(None)  # for the next one to ask
                if not self._unfinished:
                    raise self._gone()
                return None
            message = request.read()
            if request.told:
                self._unfinished.discard(request)
            return message

    def _gone(self) -> BaseException:
        return self._bridge.closed.exception() or RuntimeClosed("this runtime is closed")

    # ------------------------------------------------------------------ abort

    def abort(self, request_ids: Sequence[str]) -> None:
        """End them in every stage. Never waits: their last messages tell. Unknown and ended ids are no-ops."""
        if self.is_alive():
            self._abort(request_ids)

    async def abort_async(self, request_ids: Sequence[str], timeout: float | None = None) -> list[AbortReport]:
        """The same; returns when every engine has confirmed, at the latest after ``abort_s``, with what was made.

        The last messages come as well. Raises TimeoutError if it is not over within ``timeout`` seconds.
        """
        if not self.is_alive():
            return []
        waiting = [asyncio.wrap_future(future) for future in self._abort(request_ids)]
        async with asyncio.timeout(timeout):
            return list(await asyncio.gather(*waiting))

    def _abort(self, ids: Sequence[str]) -> list[Future[AbortReport]]:
        return [self._bridge.run(self._bridge.abort, request_id) for request_id in ids]

    # ------------------------------------------------------------------ calls, life

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        stage_ids: Sequence[int] | None = None,
    ) -> list[Any]:
        """A method of every worker of the stages, all at once: one list for each stage, of its workers' answers.

        ``stage_ids``: default all. Blocking, for at most ``timeout`` (default 600) seconds. Raises the first failure.
        """
        return self._call(method, timeout, args, kwargs, stage_ids).result()

    async def collective_rpc_async(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        stage_ids: Sequence[int] | None = None,
    ) -> list[Any]:
        """The same for a loop."""
        return await asyncio.wrap_future(self._call(method, timeout, args, kwargs, stage_ids))

    def _call(
        self,
        method: str,
        timeout: float | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        stage_ids: Sequence[int] | None,
    ) -> Future[list[Any]]:
        stages = self._spec.stages if stage_ids is None else [self._stage(number) for number in stage_ids]
        names = [stage.name for stage in stages]
        call = (method, timeout, tuple(args), dict(kwargs or {}))

        async def called() -> list[Any]:
            within_s = LONG_CALL_S if timeout is None else timeout
            try:
                found = await call_all(self._bridge, names, "collective_rpc", call, within_s)
            except trio.TooSlowError as error:
                raise TimeoutError("an engine did not answer in time") from error
            return [[one for replica in found[name] for one in replica] for name in names]

        return self._bridge.run(called)

    def is_alive(self) -> bool:
        """Whether it is open. A stage that is down, or restarting, does not end it."""
        return self._bridge.health is not None

    def shutdown(self, drain_s: float = 0.0) -> ShutdownReport:
        """Close; requests that run get ``drain_s`` seconds to finish. Blocking; any number of times, from any thread.

        Messages that were not fetched can be fetched afterwards.
        """
        self._bridge.request_close(drain_s=drain_s)
        return self._bridge.join()
