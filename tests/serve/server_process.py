"""A real ``omni-actors serve`` process, its lines, and proof that it left nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from omni_actors.testing.os_state import Watch, descendants, shared_memory

START_S = 300.0
STOP_S = 30.0
_SERVED = re.compile(r" (http://\S+)")
_QUICK = ("vocoder.deadlines.backoff_first_s=0.1", "vocoder.deadlines.hang_s=60")


class ServerProcess:
    """``url`` once it serves. vLLM's ``development`` routes show whether its engines hold anything."""

    said_at = "is served at"

    def __init__(
        self,
        *arguments: str,
        pipeline: str = "tiny-omni",
        overrides: tuple[str, ...] = _QUICK,
        command: tuple[str, ...] = (),
        development: bool = True,
    ) -> None:
        self.lines: list[str] = []
        self._held: tuple[Watch, set[str]] | None = None
        self._base = Path(tempfile.mkdtemp(prefix="oa-"))  # socket paths must be short
        environment = {"XDG_RUNTIME_DIR": str(self._base), "HF_HUB_OFFLINE": "1"}
        environment["VLLM_SERVER_DEV_MODE"] = str(int(development))
        changes = [part for override in overrides for part in ("--set", override)]
        program = "from omni_actors.cli import main; main()"
        self.process = subprocess.Popen(
            command or [sys.executable, "-c", program, "serve", pipeline, "--port", "0", *changes, *arguments],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._heard = threading.Condition()
        self._over = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._heard:
                self.lines.append(line)
                self._heard.notify_all()
        with self._heard:
            self._over = True
            self._heard.notify_all()

    def wait_line(self, words: str) -> str:
        """The first line with these words, which it has said or will say."""

        def found() -> list[str]:
            return [line for line in self.lines if words in line]

        with self._heard:
            assert self._heard.wait_for(lambda: found() or self._over, START_S), f"it did not say {words!r}"
            assert found(), "".join(self.lines)
            return found()[0]

    @property
    def url(self) -> str:
        match = _SERVED.search(self.wait_line(self.said_at))
        assert match is not None
        return match[1]

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, headers=headers)

    def children(self, command: str) -> list[int]:
        """The pids of the children whose command lines have this in them."""
        return [
            pid
            for pid in descendants(self.process.pid)
            if command in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        ]

    def child(self, command: str) -> int:
        """The pid of the only one."""
        (pid,) = self.children(command)
        return pid

    def signal(self, number: signal.Signals) -> None:
        """What may end by it is held first: afterwards it may be gone before it can be."""
        self._held = self._held or self._hold()
        self.process.send_signal(number)

    def _hold(self) -> tuple[Watch, set[str]]:
        pids = descendants(self.process.pid)
        return Watch(pids), shared_memory(pids)

    def ended(self, within_s: float = STOP_S) -> int:
        """Its exit code. Nothing of it may be left."""
        watch, names = self._held or self._hold()
        code = self.process.wait(within_s)
        assert watch.alive_after(1) == set()
        watch.close()
        assert [name for name in names if Path("/dev/shm", name).exists()] == []
        assert list(self._base.iterdir()) == []
        return code

    @contextmanager
    def until_stopped(self) -> Iterator[ServerProcess]:
        """While it serves; then SIGTERM, upon which it exits with 0 and leaves nothing."""
        try:
            _ = self.url
            yield self
            self.signal(signal.SIGTERM)
            assert self.ended() == 0
        finally:
            self.close()

    def close(self) -> None:
        """For ``finally``: whatever happened."""
        if self._held is not None:
            self._held[0].close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        shutil.rmtree(self._base, ignore_errors=True)


class Lent:
    """A server for those who leave it as they found it, and last of all for who stops it: ``server()``."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._server: ServerProcess | None = None

    def server(self) -> ServerProcess:
        """The one that runs, or a new one."""
        if self._server is None or self._server.process.poll() is not None:
            self.close()
            self._server = ServerProcess(*self._arguments)
        return self._server

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


def ready_within(http: httpx.Client, status: int, limit_s: float, naming: str = "") -> httpx.Response:
    """The first answer of ``/ready`` with this status that has this name in it; each look is a round trip."""
    deadline = time.monotonic() + limit_s
    while (answer := http.get("/ready")).status_code != status or naming not in (answer.json()["reason"] or ""):
        assert time.monotonic() < deadline, answer.text
    return answer
