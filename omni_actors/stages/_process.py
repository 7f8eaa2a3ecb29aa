"""Engine processes: each leads its own process group, gets its spec as data on stdin, and ends with all its members.

``ProcessLauncher`` owns every process it started: none outlives ``open_launcher``'s block. ``EngineProcess`` owns one
group, its pipes and the tasks that serve them. Keeps: the reaper knows a group before its payload is sent, so a crash
of the host at any moment leaves nothing (I24); output is drained to the end, so no engine ever blocks on its log.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import shutil
import struct
import subprocess
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from omni_actors._errors import OmniError, StartupFailed
from omni_actors.engines.reaper import COOKIE, LAST_S, TRACKER_S, Group, GroupKill, Step, identify
from omni_actors.stages._lines import Lines
from omni_actors.stages._reaper import open_reaper
from omni_actors.stages._shield import bounded_shield, open_service_nursery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from omni_actors.stages._interface import Launch
    from omni_actors.stages._reaper import Reaper
    from omni_actors.stages._shield import ServiceNursery

__all__ = ["SCRATCH", "EngineProcess", "ProcessLauncher", "device_env", "open_launcher"]

SCRATCH = "OMNI_ACTORS_SCRATCH"
"""Names a private folder in the child's environment, its TMPDIR too; it is removed with the child."""

_log = logging.getLogger("omni_actors.engine")

_PAYLOAD_S = 120.0  # from the start of the interpreter until it has read its payload
_DRAIN_S = 0.5  # for the last output after the group's end: a stranger may hold the pipe
_KILL_S = 2.0  # for what is killed without anybody's wish: a torn spawn, a leftover
_REAP_S = 0.5


def device_env(devices: str | None) -> dict[str, str]:
    """What makes ``devices`` (``"0,1"``) the only ones that a CUDA engine sees; empty for None."""
    return {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}


@asynccontextmanager
async def open_launcher(*, cookie: str | None = None, run_folder: str | None = None) -> AsyncIterator[ProcessLauncher]:
    """A launcher with its reaper. When the block ends, what was not destroyed is, within about 6 s, shielded.

    ``cookie``: at least eight of ``[a-z0-9-]``, unique to this runtime (default: random). ``run_folder``: removed if
    this process dies.
    Raises OmniError if the reaper cannot be started. The body's exception leaves as itself.
    """
    cookie = cookie or f"omni-{secrets.token_hex(8)}"
    async with open_reaper(cookie, run_folder) as reaper, open_service_nursery() as services:
        launcher = ProcessLauncher(reaper, services, cookie=cookie, run_folder=run_folder)
        try:
            yield launcher
        finally:
            await launcher.aclose()


class ProcessLauncher:
    """Starts engine processes. The real ``Launcher``."""

    def __init__(self, reaper: Reaper, services: ServiceNursery, *, cookie: str, run_folder: str | None = None) -> None:
        self.reaper = reaper
        self._services = services
        self._cookie = cookie
        self._run_folder = run_folder
        self._count = 0
        self._processes: set[EngineProcess] = set()
        # Sweeps must not queue behind the pipeline's transforms in trio's default limiter.
        self._limiter = trio.CapacityLimiter(4)

    @property
    def processes(self) -> frozenset[EngineProcess]:
        """Those that are not destroyed yet."""
        return frozenset(self._processes)

    async def spawn(self, launch: Launch) -> EngineProcess:
        """Start the child; its payload is written by a task of ours while it starts.

        Raises StartupFailed if the program cannot be started or the reaper does not take it. Once the child runs, a
        failure or a cancellation kills and reaps it first, shielded, within about 6 s.
        """
        self._count += 1
        cookie = f"{self._cookie}.{self._count}"
        scratch = self._make_scratch(launch)
        try:
            child = await self._open(launch, cookie, scratch)
        except BaseException:
            _remove(scratch)
            raise
        process = EngineProcess(child, launch, self, cookie=cookie, scratch=scratch)
        self._processes.add(process)
        try:
            await self.reaper.register(process.group)
        except OmniError as error:
            await process.destroy(_KILL_S)
            raise StartupFailed(f"{launch.name}: {error}", **_where(launch)) from error
        except BaseException:
            await process.destroy(_KILL_S)
            raise
        process.serve(self._services)
        return process

    async def aclose(self) -> None:
        """Destroy what is left, all at once. Idempotent, raises nothing."""
        with bounded_shield(trio.current_time() + _destroy_s(_KILL_S)):
            async with trio.open_nursery() as nursery:
                for process in self._processes:
                    nursery.start_soon(process.destroy, _KILL_S)

    def _make_scratch(self, launch: Launch) -> str | None:
        if self._run_folder is None:
            return None
        # Short: ipc paths inside must stay below 107 bytes.
        scratch = os.path.join(self._run_folder, f"p{self._count}")
        try:
            os.mkdir(scratch, 0o700)
        except OSError as error:
            raise StartupFailed(f"{launch.name}: no private folder: {error}", **_where(launch)) from error
        return scratch

    async def _open(self, launch: Launch, cookie: str, scratch: str | None) -> trio.Process:
        open_process = partial(
            trio.lowlevel.open_process, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        # Temporary files too, so that what a library leaves there (vLLM: one file per engine) goes with the folder.
        ours = {SCRATCH: scratch, "TMPDIR": scratch} if scratch else {}
        environment = {**os.environ, **ours, **launch.env, COOKIE: cookie}
        try:
            # Never a new session: sched_autogroup would starve this process of CPU time.
            child = await open_process(list(launch.argv), env=environment, process_group=0)
        except (OSError, ValueError) as error:
            raise StartupFailed(f"{launch.name}: cannot start {launch.argv[0]}: {error}", **_where(launch)) from error
        if launch.nice:
            # Before it has read its payload: it has one thread, and all that follow inherit this.
            os.setpriority(os.PRIO_PROCESS, child.pid, os.getpriority(os.PRIO_PROCESS, 0) + launch.nice)
        return child

    async def forget(self, process: EngineProcess, survivors: Sequence[int]) -> None:
        """A process is destroyed. One that cannot be killed stays with the reaper."""
        self._processes.discard(process)
        if not survivors:
            await self.reaper.forget(process.pid)

    async def sweep(self, kill: GroupKill) -> Step:
        """One sweep, in a thread: it reads the whole process table."""
        return await trio.to_thread.run_sync(kill.sweep, trio.current_time(), limiter=self._limiter)


class EngineProcess:
    """One engine's process group. The real ``Process``; made by ``ProcessLauncher.spawn``."""

    def __init__(
        self, child: trio.Process, launch: Launch, launcher: ProcessLauncher, *, cookie: str, scratch: str | None
    ) -> None:
        group = identify(child.pid)
        assert group is not None, "nobody else reaps our child"
        self.group: Group = group
        self._child = child
        self._launch = launch
        self._launcher = launcher
        self._cookie = cookie
        self._scratch = scratch
        self._code: int | None = None
        self._exited = trio.Event()
        self._out, self._err = Lines(), Lines()
        self._undrained: set[trio.Event] = set()
        self._destroying = trio.Lock()
        self._survivors: tuple[int, ...] = ()
        self._destroyed = False

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        """The leader's return code (negative: signal); None while it runs."""
        return self._code

    async def wait(self) -> int:
        """The leader's return code. Any number of waiters; cancellable. No deadline: the caller has one."""
        await self._exited.wait()
        assert self._code is not None
        return self._code

    def terminate(self) -> None:
        """SIGTERM to the leader. Harmless when it is gone."""
        if self._code is None:
            self._child.terminate()

    def tail(self) -> tuple[str, ...]:
        """The last 20 lines of stderr, or of stdout if it wrote none there. Complete after ``destroy``."""
        return tuple(self._err.tail or self._out.tail)

    def serve(self, services: ServiceNursery) -> None:
        """Start the tasks that watch the leader, write the payload and pump the output."""
        services.start_soon(self._watch)
        services.start_soon(self._feed)
        for stream, lines in ((self._child.stdout, self._out), (self._child.stderr, self._err)):
            drained = trio.Event()
            self._undrained.add(drained)
            services.start_soon(self._pump, stream, lines, drained)

    async def destroy(self, kill_s: float) -> Sequence[int]:
        """SIGKILL the group and wait until it is gone, resource trackers last; reap; close the pipes.

        Shielded; bounded by ``kill_s`` seconds, the trackers' 3 and about 3 more. Returns the pids that survived.
        Never raises. Later calls join the first.
        """
        with bounded_shield(trio.current_time() + _destroy_s(kill_s)):
            async with self._destroying:
                if not self._destroyed:
                    self._destroyed = True
                    try:
                        await self._destroy(kill_s)
                    except Exception:
                        _log.exception("%s: cannot destroy pid %d", self._launch.name, self.pid, extra=self._extra)
        return self._survivors

    async def _destroy(self, kill_s: float) -> None:
        try:
            await self._kill(kill_s)
            await self._reap()
            await self._drain()
        finally:
            for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
                if stream is not None:
                    await stream.aclose()
            _remove(self._scratch)
            await self._launcher.forget(self, self._survivors)

    async def _kill(self, kill_s: float) -> None:
        self._survivors = (self.pid,)
        kill = GroupKill([self.group], self._cookie, trio.current_time(), kill_s=kill_s)
        try:
            while not (step := await self._launcher.sweep(kill)).over:
                self._survivors = step.alive
                with trio.move_on_at(step.until):
                    for fd in step.pidfds:
                        await trio.lowlevel.wait_readable(fd)
                    if not step.pidfds:
                        await trio.sleep_forever()
            self._survivors = step.alive
        finally:
            kill.close()

    async def _reap(self) -> None:
        with trio.move_on_after(_REAP_S):
            self._record(await self._child.wait())

    async def _drain(self) -> None:
        with trio.move_on_after(_DRAIN_S):
            for drained in tuple(self._undrained):
                await drained.wait()

    async def _watch(self) -> None:
        code = await self._child.wait()
        await self._hear_out()
        self._record(code)

    async def _hear_out(self) -> None:
        """Read what the leader had written before it ended: whoever waits for the end will quote its last words."""
        with trio.move_on_after(_DRAIN_S):
            # Not until EOF: other members may hold the pipe for as long as they live.
            while self._undrained and _readable(self._child.stdout, self._child.stderr):
                await trio.lowlevel.checkpoint()

    def _record(self, code: int) -> None:
        self._code = code
        self._exited.set()

    async def _feed(self) -> None:
        assert self._child.stdin is not None
        payload = self._launch.payload
        try:
            with trio.fail_after(_PAYLOAD_S):
                await self._child.stdin.send_all(struct.pack("<Q", len(payload)) + payload)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # it has exited, or is being destroyed: wait() tells
        except trio.TooSlowError:
            _log.error("did not read its payload in %g s", _PAYLOAD_S, extra=self._extra)
            await self._child.stdin.aclose()

    async def _pump(self, stream: trio.abc.ReceiveStream, lines: Lines, drained: trio.Event) -> None:
        try:
            while data := await stream.receive_some(65536):
                self._report(lines.feed(bytes(data)))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # closed by destroy, with somebody else still holding the other end
        finally:
            self._report(lines.end())
            self._undrained.discard(drained)
            drained.set()

    def _report(self, lines: list[str]) -> None:
        for line in lines:
            _log.info("%s", line, extra=self._extra)

    @property
    def _extra(self) -> dict[str, Any]:
        return {"stage": self._launch.stage, "replica": self._launch.replica}


def _readable(*streams: Any) -> bool:
    poller = select.poll()
    for stream in streams:
        if (fd := stream.fileno()) >= 0:  # else it is closed already
            poller.register(fd, select.POLLIN)
    return any(event & select.POLLIN for _, event in poller.poll(0))


def _destroy_s(kill_s: float) -> float:
    return kill_s + TRACKER_S + LAST_S + _REAP_S + _DRAIN_S + 1.5


def _where(launch: Launch) -> dict[str, Any]:
    return {"stage": launch.stage, "replica": launch.replica, "generation": launch.generation}


def _remove(scratch: str | None) -> None:
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)
