"""One set of real tiny-omni engines for all tests of a session, held by a trio run in a thread of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from omni_actors import OmniRuntime, StageEvent, open_omni
from omni_actors.testing.os_state import Watch, descendants, shared_memory

OVERRIDES = (
    "talker.deadlines.backoff_first_s=0.1",
    "vocoder.deadlines.silence_s=1",
    "vocoder.deadlines.hang_s=3",
    "vocoder.deadlines.backoff_first_s=0.1",
)
START_S = 300.0


class Portal:
    """Runs async functions of tests in the run that holds the engines. ``run`` gives them the runtime first.

    A test that kills or freezes a stage appends its name to ``attacked``: no other may have ended.
    """

    def __init__(self, base: Path) -> None:
        self.omni: OmniRuntime
        self.attacked: list[str] = []
        self._ended: list[str] = []
        self._base = base
        self._token: trio.lowlevel.TrioToken
        self._open, self._close = threading.Event(), trio.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._live, name="real engines")

    def start(self) -> None:
        self._thread.start()
        assert self._open.wait(START_S), "the engines did not start"
        if self._failure is not None:
            raise self._failure

    def run(self, function: Callable[..., Awaitable[Any]], *args: Any, within_s: float = 60) -> Any:
        async def bounded() -> Any:
            with trio.fail_after(within_s):
                return await function(self.omni, *args)

        return trio.from_thread.run(bounded, trio_token=self._token)

    def finish(self) -> None:
        """Close it, and prove that nothing had to be killed and nothing is left."""
        assert self._ended == self.attacked, "an engine ended that was not attacked"
        watch, names = self.run(self._belongings)
        trio.from_thread.run_sync(self._close.set, trio_token=self._token)
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure
        report = self.omni.shutdown_report
        assert (report.killed, report.unreaped, report.unconfirmed_leases) == ((), (), 0)
        assert set(report.stopped) == {"thinker/0", "talker/0", "vocoder/0", "painter/0"}
        assert watch.alive_after(0) == set()
        watch.close()
        assert [name for name in names if Path("/dev/shm", name).exists()] == []
        assert list(self._base.iterdir()) == []

    async def _belongings(self, omni: OmniRuntime) -> tuple[Watch, set[str]]:
        pids = [pid for leader in omni.pids().values() for pid in (leader, *descendants(leader))]
        return Watch(pids), shared_memory(pids)

    def _live(self) -> None:
        try:
            trio.run(self._hold)
        except BaseException as error:
            self._failure = error
        finally:
            self._open.set()

    def _note(self, event: StageEvent) -> None:
        if event.kind == "exited":
            self._ended.append(event.stage)

    async def _hold(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with open_omni("tiny-omni", overrides=OVERRIDES, on_event=self._note) as self.omni:
            self._open.set()
            await self._close.wait()


@pytest.fixture(scope="session")
def engines() -> Iterator[Portal]:
    """All four stages, for real. Ends with the session, and checks that nothing is left."""
    pytest.importorskip("vllm")
    pytest.importorskip("hibari")
    pytest.importorskip("diffusers")
    with pytest.MonkeyPatch.context() as patch:
        base = Path(tempfile.mkdtemp(prefix="oa-"))  # socket paths must be short
        patch.setenv("XDG_RUNTIME_DIR", str(base))
        patch.setenv("HF_HUB_OFFLINE", os.environ.get("HF_HUB_OFFLINE", "1"))
        portal = Portal(base)
        try:
            portal.start()
            yield portal
            portal.finish()
        finally:
            shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """As the engine's process runs on these machines; what the model switched off is on again afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.set_grad_enabled(True)
