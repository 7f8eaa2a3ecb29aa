"""The real world with its seams tapped: processes and ZeroMQ as ever, and real signals as a scenario's faults.

``ProcessWorld`` wraps ``real_world``: what the host's sockets carry and what happens to its processes is written into
the history as it happens. It owns one pidfd per process while that lives, so that no signal ever reaches a stranger.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from omni_actors.runtime._world import real_world
from omni_actors.testing.os_state import children
from omni_actors.testing.sim._history import Faulted, Process
from omni_actors.testing.sim._wiretap import TappedTransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from omni_actors.config import PipelineSpec, StageSpec
    from omni_actors.runtime import World
    from omni_actors.stages import Launch
    from omni_actors.testing.sim._driver import Driver
    from omni_actors.testing.sim._history import History

__all__ = ["ProcessWorld", "with_worker", "workers"]


def workers(pid: int) -> list[int]:
    """The processes below an engine, but for multiprocessing's resource trackers, which clean up after the others."""
    return [child for child in children(pid) if b"resource_tracker" not in _command(child)]


def with_worker(stage: StageSpec, method: str = "fork") -> StageSpec:
    """A vLLM stage whose engine has its model in a process below it, which tiny-omni's go without.

    ``method``: how that comes about, ``fork`` or ``spawn``.
    """
    env = {**stage.env, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_WORKER_MULTIPROC_METHOD": method}
    engine_args = {**stage.engine_args, "distributed_executor_backend": "mp"}
    return attrs.evolve(stage, env=env, engine_args=engine_args)


def _command(pid: int) -> bytes:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


class _TappedProcess:
    """One engine's process, as the runtime has it (``stages.Process``). What is done to it is written down first."""

    def __init__(self, process: Any, launch: Launch, record: Callable[..., None]) -> None:
        self.launch = launch
        self._process, self._record = process, record
        self._gone = False
        self._fd = os.pidfd_open(process.pid)

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    @property
    def alive(self) -> bool:
        """Whether it runs. A zombie does not."""
        if self._fd < 0:
            return False
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return not poller.poll(0)

    def fate(self, signum: int) -> None:
        """A signal from nobody of ours."""
        self._say("signalled", signum, by="fate")
        signal.pidfd_send_signal(self._fd, signum)

    async def wait(self) -> int:
        code: int = await self._process.wait()
        self._exited(code)
        return code

    def terminate(self) -> None:
        if self.alive:
            self._say("signalled", signal.SIGTERM)
        self._process.terminate()

    async def destroy(self, kill_s: float) -> Sequence[int]:
        if self.alive:
            self._say("signalled", signal.SIGKILL)
        try:
            survivors: Sequence[int] = await self._process.destroy(kill_s)
        finally:
            self.close()
        if self._process.returncode is not None:
            self._exited(self._process.returncode)
        return survivors

    def tail(self) -> tuple[str, ...]:
        lines: tuple[str, ...] = self._process.tail()
        return lines

    def close(self) -> None:
        """Let go of the pidfd. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _exited(self, code: int) -> None:
        if not self._gone:
            self._gone = True
            self._say("exited", code)

    def _say(
        self, what: Literal["spawned", "exited", "signalled"], code: int | None, by: Literal["us", "fate"] = "us"
    ) -> None:
        self._record(self, what, code, by)


class ProcessWorld:
    """What ``open_omni(world=…)`` calls, and what a driver's faults are done with. One per run.

    ``driver`` must be set before the world is entered. ``pids`` has every engine there ever was.
    """

    def __init__(self) -> None:
        self.driver: Driver
        self.pids: list[int] = []
        self._launcher: Any = None
        self._newest: dict[tuple[str, int], _TappedProcess] = {}
        self._ambushes: dict[tuple[str, int], int] = {}

    @asynccontextmanager
    async def __call__(self, spec: PipelineSpec) -> AsyncIterator[World]:
        """``real_world``, tapped."""
        async with real_world(spec) as world:
            self._launcher = world.launcher
            transport = TappedTransport(world.transport, self.driver.record, begun=self.driver.begun)
            try:
                yield attrs.evolve(world, launcher=self, transport=transport)
            finally:
                self._ambushes.clear()
        for process in self._newest.values():
            process.close()

    # ------------------------------------------------------------------ for the runtime: Launcher

    async def spawn(self, launch: Launch) -> _TappedProcess:
        """The real launcher's process, tapped. Raises StartupFailed as that does."""
        process = _TappedProcess(await self._launcher.spawn(launch), launch, self._record)
        self.pids.append(process.pid)
        self._newest[launch.stage, launch.replica] = process
        self._record(process, "spawned", None, "us")
        signum = self._ambushes.pop((launch.stage, launch.replica), None)
        if signum is not None:
            self._spring(process, signum)
        return process

    def _spring(self, process: _TappedProcess, signum: int) -> None:
        launch, at = process.launch, self.driver.now
        where = {"stage": launch.stage, "replica": launch.replica, "generation": launch.generation}
        self.driver.record(Faulted(at=at, op="kill", **where))  # type: ignore[arg-type]
        process.fate(signum)

    def _record(self, process: _TappedProcess, what: Any, code: int | None, by: Any) -> None:
        launch = process.launch
        self.driver.record(
            Process(
                at=self.driver.now,
                what=what,
                stage=launch.stage,
                replica=launch.replica,
                generation=launch.generation,
                pid=process.pid,
                code=code,
                by=by,
            )
        )

    # ------------------------------------------------------------------ for the driver: Faults

    def signal(self, stage: str, replica: int, signum: int, member: str = "engine") -> int | None:
        """Send a real signal. To the "next" generation: once that is spawned; then the history says so."""
        if member == "next":
            self._ambushes[stage, replica] = signum
            return None
        process = self._newest.get((stage, replica))
        if process is None or not process.alive:
            return None
        if member == "worker":
            found = workers(process.pid)
            if not found:
                return None
            os.kill(found[0], signum)
        else:
            process.fate(signum)
        return process.launch.generation

    def exit(self, stage: str, replica: int, code: int) -> int | None:
        """Nobody can do that to a process from outside."""
        return None

    def inject(self, stage: str, replica: int, what: str, history: History) -> int | None:
        """Nor that."""
        return None
