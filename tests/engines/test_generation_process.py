"""The real GenerationEngine process, over ZeroMQ, with its real client."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest
import trio
import trio.testing

from omni_actors._errors import EngineRejected
from omni_actors.config.specs import StageSpec
from omni_actors.lifecycle.events import LeaseFailed, Produced, Released
from omni_actors.stages.omni import KIND, OmniFrontend
from omni_actors.transport import ZmqTransport

pytestmark = pytest.mark.process

HERE = str(Path(__file__).parent)
DEADLINE_S = 30


@pytest.fixture(autouse=True)
def _classes(monkeypatch):
    """The host finds the classes' module, so the child must: sys.path travels."""
    monkeypatch.syspath_prepend(HERE)


@pytest.fixture
def folder():
    """Short enough for an ipc path."""
    with tempfile.TemporaryDirectory(prefix="oa-") as path:
        yield Path(path)


def spawn(launch):
    process = subprocess.Popen(
        launch.argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **launch.env}, process_group=0
    )
    process.stdin.write(struct.pack("<Q", len(launch.payload)) + launch.payload)
    process.stdin.flush()
    return process


class Engine:
    """A child, its client, and what came of each key."""

    def __init__(self, folder, **engine_args):
        self.gate = folder / "gate"
        os.mkfifo(self.gate)
        if engine_args.pop("gated", False):
            engine_args["gate"] = str(self.gate)
        self.spec = StageSpec(
            name="g", engine="generation", model="generation_classes:Echo", engine_args=engine_args
        )  # fmt: skip
        KIND.check(self.spec)
        self.transport = ZmqTransport(folder)
        self.client = KIND.client(self.spec, lambda: OmniFrontend(self.spec), self.transport, replica=0, generation=1)
        self.process = spawn(KIND.launch(self.spec, self.client.addresses, replica=0, generation=1))
        self.events, self.news = [], trio.Event()

    async def emit(self, batch):
        self.events += batch
        self.news.set()
        self.news = trio.Event()

    def submit(self, *keys, **prompt):
        for key in keys:
            (work,) = OmniFrontend(self.spec).prepare([key], prompt, None, stream=True, text=False)
            self.client.submit(work)

    def of(self, key):
        return [event for event in self.events if event.key == key]

    def data(self, key):
        chunks = (event.payload for event in self.of(key) if isinstance(event, Produced))
        return b"".join(bytes(chunk.tensors["x"].data) for chunk in chunks if "x" in chunk.tensors)

    async def until(self, there):
        while not there():
            await self.news.wait()

    async def ended(self, *keys):
        await self.until(lambda: all(self.of(key) and not isinstance(self.of(key)[-1], Produced) for key in keys))

    @contextlib.asynccontextmanager
    async def behind_the_gate(self):
        """The class is inside a chunk, waiting, for as long as the block lasts."""
        # Opening the FIFO to write succeeds when there is a reader.
        fd = await trio.to_thread.run_sync(os.open, self.gate, os.O_WRONLY, abandon_on_cancel=True)
        try:
            yield
        finally:
            os.write(fd, b"!")
            os.close(fd)

    async def exited(self):
        return await trio.to_thread.run_sync(self.process.wait, DEADLINE_S, abandon_on_cancel=True)

    def close(self):
        self.client.close()
        self.transport.close()
        self.process.kill()
        self.process.stdin.close()
        self.process.stderr.close()
        self.process.wait()


@contextlib.asynccontextmanager
async def running(folder, **engine_args):
    engine = Engine(folder, **engine_args)
    try:
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                await engine.client.handshake()
                nursery.start_soon(engine.client.serve, engine.emit)
                yield engine
                nursery.cancel_scope.cancel()
    finally:
        engine.close()


async def test_a_batch_streams(folder):
    async with running(folder, gain=2, gated=True, max_batch=3) as engine:
        engine.submit("a", values=[1, 2, 3], at=1)
        async with engine.behind_the_gate():
            engine.submit("b", "c", "d", values=[4, 5])
            await answered(engine)
        await engine.ended("a", "b", "c", "d")
        assert engine.data("a") == b"\2\4\6"
        assert all(engine.data(key) == b"\x08\x0a" for key in "bcd")
        assert engine.of("a")[0].payload.meta["pid"] == engine.process.pid
        batches = (await engine.client.call("seen", timeout_s=10))["batches"]
        assert batches[0] == ["a"]
        assert ["a", "b", "c"] in batches
        assert max(map(len, batches)) == 3
        assert engine.client.owed_since is None


async def test_an_abort_acts_before_the_next_chunk(folder):
    async with running(folder, gated=True) as engine:
        engine.submit("a", values=[1, 2, 3, 4], at=2)
        engine.submit("b", values=[5, 6, 7])
        async with engine.behind_the_gate():
            await engine.until(lambda: engine.data("a") == b"\1\2")
            engine.client.abort(["a"])
            # Urgent messages keep their order: once the ping is answered, the abort has arrived as well.
            await trio.testing.wait_all_tasks_blocked()
            await answered(engine)
        await engine.ended("a", "b")
        assert engine.data("a") == b"\1\2"
        assert engine.of("a")[-1] == Released("a")
        assert engine.data("b") == b"\5\6\7"
        assert (await engine.client.call("seen", timeout_s=10))["closed"] == ["a", "b"]


async def answered(engine):
    """Ping, and wait until its own Heartbeat has come."""
    engine.client.ping()
    while engine.client._pongs < engine.client._pings:
        await trio.lowlevel.checkpoint()


async def test_the_engine_answers_while_a_chunk_takes_long(folder):
    async with running(folder, gated=True) as engine:
        engine.submit("a", values=[1, 2], at=1)
        async with engine.behind_the_gate():
            await answered(engine)
            assert engine.client.busy_s is not None
            assert engine.client.made == 1
        await engine.ended("a")
        await answered(engine)
        assert engine.client.busy_s is None
        assert engine.client.made == 3


async def test_what_one_item_raises_fails_it_alone(folder):
    async with running(folder) as engine:
        engine.submit("bad", values=[1, 2], raise_at=1)
        engine.submit("refused", refuse=True)
        engine.submit("good", values=[3, 4])
        await engine.ended("bad", "refused", "good")
        error = engine.of("bad")[-1].error
        assert isinstance(error, EngineRejected)
        assert (error.message, error.stage) == ("ValueError: this one", "g")
        assert engine.of("refused")[-1].error.message == "ValueError: not this one"
        assert (engine.data("good"), engine.of("good")[-1]) == (b"\3\4", Released("good"))
        with pytest.raises(EngineRejected, match="KeyError: 'inside'"):
            await engine.client.call("broken", timeout_s=10)


async def test_what_step_raises_fails_the_batch_and_the_engine_lives(folder):
    async with running(folder) as engine:
        engine.submit("a", values=[1], raise_in_step=True)
        await engine.ended("a")
        assert engine.of("a")[-1].error.message == "RuntimeError: the whole batch"
        engine.submit("b", values=[1])
        await engine.ended("b")
        assert engine.data("b") == b"\1"


async def test_a_large_tensor_survives_the_way_in(folder):
    async with running(folder) as engine:
        engine.submit("a", values=[1], ballast=bytes(3 << 20))
        await engine.ended("a")
        assert engine.data("a") == b"\1"


@pytest.mark.parametrize("how", ["SIGTERM", "stop", "lifeline"])
async def test_it_ends_at_once_even_inside_a_long_chunk(folder, how):
    async with running(folder, gated=True) as engine:
        engine.submit("a", values=[1, 2], at=1)
        with contextlib.suppress(BrokenPipeError):
            async with engine.behind_the_gate():
                match how:
                    case "SIGTERM":
                        engine.process.send_signal(signal.SIGTERM)
                    case "stop":
                        engine.client.stop()
                    case "lifeline":
                        engine.process.stdin.close()
                assert await engine.exited() == 0
        engine.events += engine.client.drain()
        assert isinstance(engine.of("a")[-1], LeaseFailed)
        assert "stopped before" in engine.of("a")[-1].error.message


async def test_an_idle_engine_ends_by_a_signal(folder):
    async with running(folder) as engine:
        engine.process.send_signal(signal.SIGTERM)
        assert await engine.exited() == 0


@pytest.mark.parametrize(
    ("model", "args", "last_line"),
    [
        ("generation_classes:Missing", {}, "generation_classes:Missing cannot be started: AttributeError"),
        ("generation_classes:Echo", {"gian": 2}, "unexpected keyword argument 'gian'"),
        ("generation_classes:Raises", {}, "generation_classes:Raises cannot be started: OSError: no such weights"),
        ("generation_classes:NotAGenerator", {}, "it has no method start(item)"),
    ],
)
async def test_what_cannot_start_says_so_in_its_last_line(folder, model, args, last_line):
    spec = StageSpec(name="g", engine="generation", model=model, engine_args=args)
    launch = KIND.launch(spec, {"address": f"ipc://{folder}/none", "identity": "g-0-1"}, replica=0, generation=1)
    with spawn(launch) as process:
        # Its stdin stays open meanwhile: the end of the lifeline is another way to end.
        with trio.fail_after(DEADLINE_S):
            said = await trio.to_thread.run_sync(process.stderr.read, abandon_on_cancel=True)
    assert process.returncode == 1
    assert last_line in said.decode().splitlines()[-1]
