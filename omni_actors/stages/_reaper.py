"""The host's side of the reaper: starts it, tells it every process group, starts another one if it dies.

Owns the reaper's process and the set of groups it must know. Keeps: a group is known to a living reaper before
``register`` returns; the reaper outlives every other process of the runtime.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from os import getpid
from typing import TYPE_CHECKING

import trio

from omni_actors._errors import OmniError
from omni_actors.engines import reaper as _program
from omni_actors.stages._shield import bounded_shield, open_service_nursery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from omni_actors.engines.reaper import Group
    from omni_actors.stages._shield import ServiceNursery

__all__ = ["Reaper", "open_reaper"]

_log = logging.getLogger("omni_actors.reaper")

_ANSWER_S = 10.0
_CLOSE_S = 5.0
_MAX_LIVES = 8


@asynccontextmanager
async def open_reaper(cookie: str, run_folder: str | None = None) -> AsyncIterator[Reaper]:
    """A running reaper for the length of the block. Raises OmniError if none can be started."""
    async with open_service_nursery() as services:
        reaper = Reaper(services, cookie=cookie, run_folder=run_folder)
        try:
            await reaper.start()
            yield reaper
        finally:
            await reaper.aclose()


class Reaper:
    """One runtime's reaper. ``services`` must outlive it; ``aclose`` is idempotent."""

    def __init__(self, services: ServiceNursery, *, cookie: str, run_folder: str | None = None) -> None:
        self._services = services
        self._cookie = cookie
        self._run_folder = run_folder
        self._groups: dict[int, Group] = {}
        self._process: trio.Process | None = None
        self._lock = trio.Lock()  # one question on the pipe at a time
        self._lives = 0
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The reaper's own pid; None before ``start`` and after ``aclose``."""
        return self._process.pid if self._process else None

    @property
    def groups(self) -> Mapping[int, Group]:
        """The groups a living reaper knows, or is being told."""
        return self._groups

    async def start(self) -> None:
        """Start it. Raises OmniError if it does not answer within 10 s."""
        async with self._lock:
            await self._spawn()

    async def register(self, group: Group) -> None:
        """Return when a living reaper knows the group. Raises OmniError if that cannot be had within 10 s.

        After a cancellation the group may be known or not; ``forget`` it in any case.
        """
        self._groups[group.pgid] = group
        async with self._lock:
            await self._tell(group)

    async def forget(self, pgid: int) -> None:
        """The group is gone. Raises nothing."""
        self._groups.pop(pgid, None)
        async with self._lock:
            if self._process is not None and self._process.stdin is not None:
                # A dead reaper needs not be told: its successor will not hear of this group.
                with trio.move_on_after(_ANSWER_S), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._process.stdin.send_all(b"forget %d\n" % pgid)

    async def aclose(self) -> None:
        """Close its stdin: it cleans up what was not forgotten (normally nothing) and exits. Shielded, 6 s."""
        self._closed = True
        with bounded_shield(trio.current_time() + _CLOSE_S + 1):
            async with self._lock:
                await self._end()

    async def _tell(self, group: Group) -> None:
        process = self._process
        try:
            if process is None:
                raise trio.BrokenResourceError
            await _ask(process, "group", f"{group.pgid} {group.started} {group.session}")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # A half-told successor would be worse than a short wait.
            with bounded_shield(trio.current_time() + 2 * _ANSWER_S):
                await self._restart()  # which tells it all groups, this one too

    async def _restart(self) -> None:
        if self._closed or self._lives >= _MAX_LIVES:
            raise OmniError("the reaper is gone; a crash of this process would leave its engines running")
        await self._end()
        await self._spawn()

    async def _spawn(self) -> None:
        self._lives += 1
        process = await _open()
        self._process = process
        self._services.start_soon(self._guard, process)
        try:
            await self._introduce(process)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise OmniError("the reaper ended while it was started") from error

    async def _introduce(self, process: trio.Process) -> None:
        assert process.stdin is not None
        await process.stdin.send_all(f"cookie {self._cookie}\n".encode())
        if self._run_folder is not None and not await _ask(process, "folder", self._run_folder):
            _log.warning("the reaper will not remove %s: not a private folder of ours", self._run_folder)
        for group in list(self._groups.values()):
            await _ask(process, "group", f"{group.pgid} {group.started} {group.session}")

    async def _guard(self, process: trio.Process) -> None:
        code = await process.wait()
        if self._closed:
            return
        async with self._lock:
            if self._process is process and not self._closed:
                _log.error("the reaper (pid %d) ended with %d; starting another one", process.pid, code)
                try:
                    await self._restart()
                except OmniError as error:
                    _log.error("%s", error)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        if not self._groups:  # all is well, so the folder stays its owner's
            with trio.move_on_after(_CLOSE_S), suppress(trio.BrokenResourceError):
                await process.stdin.send_all(b"folder\n")
        await process.stdin.aclose()
        await process.stdout.aclose()
        with trio.move_on_after(_CLOSE_S) as scope:
            await process.wait()
        if scope.cancelled_caught and not self._groups:
            process.kill()  # it hangs with nothing to do
            await process.wait()


async def _open() -> trio.Process:
    command = [sys.executable, "-I", "-S", _program.__file__, str(getpid())]
    try:
        return await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0
        )
    except OSError as error:
        raise OmniError(f"the reaper cannot be started: {error}") from error


async def _ask(process: trio.Process, word: str, value: str) -> bool:
    """Whether it said ok. Raises BrokenResourceError if it is gone; one that does not answer is killed and gone too."""
    assert process.stdin is not None
    assert process.stdout is not None
    key = value.split(" ")[0].encode()
    with trio.move_on_after(_ANSWER_S):
        await process.stdin.send_all(f"{word} {value}\n".encode())
        # Lines are shorter than PIPE_BUF, hence never torn. One may be the answer to a question that was cancelled.
        while data := await process.stdout.receive_some(4096):
            for line in data.splitlines():
                if line[3:] == key:
                    return line.startswith(b"ok ")
        raise trio.BrokenResourceError
    process.kill()
    raise trio.BrokenResourceError
