"""Batches of scenarios in processes of their own, and the one promise about them: none outlives the block.

``Workers`` owns the processes. They are told what to do over one pipe each, and end when it closes: by themselves where
this process dies, at once where the block is left. Ctrl-C reaches this process only: theirs is blocked from the start.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import contextmanager, suppress
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import attrs

from omni_actors._errors import OmniError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Batch", "WorkerLost", "Workers"]

SILENCE_S = 300.0
"""A worker tells of every example, and one takes milliseconds: after so long without a word it hangs."""
_JOIN_S = 5.0


class WorkerLost(OmniError):
    """Raised when a worker has died, or hangs. What it said itself went to stderr."""


@attrs.frozen
class Batch:
    """So many examples under one seed. ``index`` orders the batches: the first one that fails is what is reported."""

    index: int
    seed: int
    examples: int


Run = Callable[[Batch, Callable[[], None]], Any]
"""``run(batch, example)``: runs it, calls ``example`` after each. Importable by name; what it returns is picklable."""


@attrs.define(eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection
    batch: Batch | None = None


class Workers:
    """``jobs`` processes that run ``run``. A context manager: the processes are dead when the block has been left."""

    def __init__(self, run: Run, jobs: int) -> None:
        self._run, self._jobs = run, jobs
        self._workers: list[_Worker] = []

    def __enter__(self) -> Workers:
        try:
            for _ in range(self._jobs):
                self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(self._run, there), name="prove", daemon=True)
        with _interrupts_blocked():
            process.start()
            self._workers.append(_Worker(process, here))
        there.close()

    def _end(self) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(_JOIN_S)
        self._workers.clear()

    def results(
        self, batches: Sequence[Batch], example: Callable[[], None], failed: Callable[[Any], bool]
    ) -> list[tuple[Batch, Any]]:
        """What ``run`` returned of each batch, in order, up to the first for which ``failed``. Blocks until then.

        Batches behind one that failed are not waited for; those before it are, for one of them may fail too. Raises
        WorkerLost.
        """
        waiting, done = list(reversed(batches)), dict[int, tuple[Batch, Any]]()
        first_failed = len(batches)
        for worker in self._workers:
            self._hand_out(worker, waiting)
        while any(worker.batch is not None and worker.batch.index < first_failed for worker in self._workers):
            for worker, result in self._heard(example):
                assert worker.batch is not None
                done[worker.batch.index] = worker.batch, result
                if failed(result):
                    first_failed = min(first_failed, worker.batch.index)
                    waiting = [batch for batch in waiting if batch.index < first_failed]
                self._hand_out(worker, waiting)
        return [done[index] for index in sorted(done) if index <= first_failed]

    def _hand_out(self, worker: _Worker, waiting: list[Batch]) -> None:
        worker.batch = waiting.pop() if waiting else None
        if worker.batch is not None:
            worker.pipe.send(worker.batch)

    def _heard(self, example: Callable[[], None]) -> Iterator[tuple[_Worker, Any]]:
        """Whatever has come next: examples are counted, results yielded."""
        busy = {worker.pipe: worker for worker in self._workers if worker.batch is not None}
        ready = connection.wait(list(busy), timeout=SILENCE_S)
        if not ready:
            raise WorkerLost(f"no worker has finished an example for {SILENCE_S:g} s")
        for pipe in ready:
            worker = busy[pipe]  # type: ignore[index]
            try:
                said = worker.pipe.recv()
            except (EOFError, ConnectionResetError):
                worker.process.join(_JOIN_S)
                raise WorkerLost(f"a worker has died, exit code {worker.process.exitcode}") from None
            if said is None:
                example()
            else:
                yield worker, said[0]


def _work(run: Run, pipe: Connection) -> None:
    """A worker's whole life. Waits for work without a deadline: the pipe closes where nobody is left to give any."""
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            pipe.send((run(pipe.recv(), lambda: _tell(pipe)),))


def _tell(pipe: Connection) -> None:
    """One example more. With nobody there to hear it this process is over, in the middle of whatever it is doing."""
    try:
        pipe.send(None)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A child inherits what is blocked. The resource tracker would unblock it when it starts, so it starts first."""
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
