"""``Omni``: a pipeline for scripts and notebooks. No loop is needed, and one that runs already is not in the way.

It owns its bridge. A batch is a sliding window of tickets: what is asked for next waits until the oldest answer has
been handed out, so a generator over a million prompts holds no more than the window.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from omni_actors import Kind, OmniError, RequestFailed, Terminal, TextChunk, UsageError

from ._asked_model import in_its_place, is_model
from ._bridge import Bridge
from ._progress import Meter, progress
from ._tenure import Owned
from ._ticket import Ask, Ticket

if TYPE_CHECKING:
    from types import TracebackType

    from omni_actors import Health, Output, ShutdownReport

    from ._ticket import Ways

__all__ = ["Omni"]

WINDOW = 256
"""Prompts that are asked for and not handed out yet."""

Answer = Terminal | OmniError


class _Job(Ticket):
    """One prompt. Its outputs are only counted: its terminal has them all."""

    def __init__(self, ways: Ways, ask: Ask, meter: Meter) -> None:
        super().__init__(ways, ask, limit=0)
        self._meter = meter
        self._news = threading.Event()

    def push(self, output: Output) -> bool:
        if isinstance(output.payload, TextChunk):
            self._meter.tokens += len(output.payload.token_ids)
        elif output.audio is not None and output.sample_rate:
            self._meter.audio_s += output.audio.shape[0] / output.sample_rate
        return True

    def _wake(self) -> None:
        self._news.set()

    @property
    def answer(self) -> Answer | None:
        """How it ended; None before."""
        if self.refusal is not None:
            return _ours(self.refusal)
        terminal = self.terminal
        if terminal is None or terminal.kind is Kind.FINISHED:
            return terminal
        return terminal.error or _aborted(terminal)

    def wait(self) -> Answer:
        """Until it has ended. Its deadline is the request's own; Ctrl-C interrupts it."""
        while (answer := self.answer) is None:
            self._news.wait()
            self._news.clear()
        return answer

    def see_off(self, deadline: float) -> None:
        """Wait until its engines have confirmed that they hold nothing of it; at most until then (monotonic)."""
        while not self.released and self._news.wait(max(0.0, deadline - time.monotonic())):
            self._news.clear()


class Omni:
    """A running pipeline: ``with Omni("tiny-omni") as omni: answers = omni.generate(["Two plus three?"])``.

    The arguments are ``open_omni``'s. Making it starts every stage, and raises what ``open_omni`` raises. Without a
    ``with`` it is closed by ``close``, or at the end of the program, within 5 s. Any thread may use it.
    """

    def __new__(cls, pipeline: Any = None, **how: Any) -> Omni:
        """Of a model of vLLM-Omni it is a ``ModelScript``, which takes vLLM-Omni's arguments."""
        kind: type[Omni] = in_its_place("ModelScript") if cls is Omni and is_model(pipeline, how) else cls
        return super().__new__(kind)

    def __init__(self, pipeline: Any, **how: Any) -> None:
        self._bridge = Bridge(Owned(pipeline, **how))
        self._spec = self._bridge.open().spec

    def __enter__(self) -> Omni:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(drain_s=None if kind is None else 0)

    def close(self, *, drain_s: float | None = None) -> ShutdownReport:
        """Drain, abort, stop, and say how it went. Any number of times. Interrupted (Ctrl-C) it aborts what is left."""
        self._bridge.request_close(drain_s=drain_s)
        try:
            return self._bridge.join()
        except KeyboardInterrupt:
            self._bridge.request_close(drain_s=0, abort_s=0.5)
            self._bridge.join()
            raise

    def health(self) -> Health | None:
        """Every stage's state, as of its last change; None when it is closed."""
        return self._bridge.health

    @overload
    def generate(
        self, prompts: Any, sampling_params: Any = None, *, stream: Literal[False] = False, **how: Any
    ) -> list[Answer]: ...

    @overload
    def generate(
        self, prompts: Any, sampling_params: Any = None, *, stream: Literal[True], **how: Any
    ) -> Iterator[Answer]: ...

    def generate(
        self,
        prompts: Any,
        sampling_params: Any = None,
        *,
        stream: bool = False,
        modalities: Sequence[str] | None = None,
        timeout_s: float | None = None,
        progress: bool | None = None,
        **options: Any,
    ) -> list[Answer] | Iterator[Answer]:
        """Answer prompts, in their order: a list, or with ``stream`` a generator that gives each as soon as it may.

        ``prompts`` is one prompt or a series of them; ``sampling_params`` one for all, or a list with one for each. An
        answer is a ``Terminal`` (``.text()``, ``.results`` with every stage's tensors), or the OmniError that this
        prompt alone failed with: one bad prompt is one error in the list. ``progress``: a bar on stderr (default: if
        it is a terminal). ``timeout_s`` and ``options``, for each prompt, are ``OmniRuntime.generate``'s.

        Raises RuntimeClosed; UsageError if there are not as many sampling params as prompts. Leaving it early (Ctrl-C,
        a generator that is closed) aborts all that is not answered; that is confirmed before it leaves.
        """
        self._bridge.check()
        asked = [prompts] if _is_one(prompts) else prompts
        asks = self._asks(asked, sampling_params, modalities=modalities, timeout_s=timeout_s, options=options)
        total = len(asked) if isinstance(asked, Sequence) else None
        answers = self._answers(asks, total, progress)
        return answers if stream else list(answers)

    def _asks(self, prompts: Iterable[Any], sampling: Any, **how: Any) -> Iterator[Ask]:
        if not isinstance(sampling, list):
            return (Ask(prompt=prompt, sampling=sampling, **how) for prompt in prompts)
        if not isinstance(prompts, Sequence) or len(prompts) != len(sampling):
            raise UsageError(f"{len(sampling)} sampling params need as many prompts, in a list")
        return (Ask(prompt=prompt, sampling=one, **how) for prompt, one in zip(prompts, sampling, strict=True))

    def _answers(self, asks: Iterator[Ask], total: int | None, wanted: bool | None) -> Iterator[Answer]:
        meter = Meter()
        jobs: deque[_Job] = deque()
        window = min(WINDOW, max(1, self._spec.limits.max_requests // 2))
        with progress(total, meter, wanted) as advance:
            try:
                for ask in asks:
                    jobs.append(self._submit(ask, meter))
                    if len(jobs) == window:
                        yield jobs[0].wait()
                        jobs.popleft()
                        advance()
                while jobs:
                    yield jobs[0].wait()
                    jobs.popleft()
                    advance()
            finally:
                self._abort(jobs)

    def _submit(self, ask: Ask, meter: Meter) -> _Job:
        job = _Job(self._bridge, ask, meter)
        self._bridge.submit(job)
        return job

    def _abort(self, jobs: Sequence[_Job]) -> None:
        left = [job for job in jobs if job.post_abort()]
        deadline = time.monotonic() + self._spec.abort_s
        for job in left:
            job.see_off(deadline)


def _is_one(prompts: Any) -> bool:
    """Whether this is one prompt: text, a prompt dict, token ids, or chat messages."""
    if isinstance(prompts, str | Mapping):
        return True
    first = prompts[0] if isinstance(prompts, list | tuple) and prompts else None
    return type(first) is int or (isinstance(first, Mapping) and "role" in first)


def _ours(error: Exception) -> OmniError:
    """A refusal as an item of the list; what is not ours (a bug in somebody's code) leaves as it is."""
    if isinstance(error, OmniError):
        return error
    raise error


def _aborted(terminal: Terminal) -> OmniError:
    error = RequestFailed(f"aborted: {terminal.reason}", request_id=terminal.request_id, stage=terminal.stage)
    error.terminal = terminal
    return error
