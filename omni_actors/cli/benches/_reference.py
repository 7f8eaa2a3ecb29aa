"""The reference front-end as a program: ``python -m omni_actors.cli.benches._reference BENCH FOLDER``.

vLLM's AsyncLLM on uvloop, as its users would run it at its best: no statistics, a frozen heap, the prompt rendered as
its docstring advises, and in a chain intermediate stages that neither stream nor detokenize. Attaches itself to the
engines that ``_ours`` has started. This is the one place in the package that runs on another event loop than trio.
``run_rounds`` is the client of both when AsyncOmni is measured: it runs on any of vLLM's EngineClients. ``serve_jobs``
is what every program on uvloop does, whatever answers its prompts.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
import uvloop

from omni_actors.cli.benches._sharing import REFERENCE_INDEX, guest_addresses
from omni_actors.cli.benches._work import PARAMS, Answer, Job, Round, own_channel, pipeline, prompts
from omni_actors.stages.vllm._frontend import engine_args

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from omni_actors.config import StageSpec

    Ask = Callable[[str, str], Awaitable[Answer]]

__all__ = ["attached", "main", "on_uvloop", "run_rounds", "serve_jobs"]


def main() -> None:
    """Run until stdin ends."""
    on_uvloop(_serve)


def on_uvloop(serve: Callable[[Any, str, Path, TextIO], Coroutine[Any, Any, None]]) -> None:
    """Run a side of a benchmark: the loop, the bench and the folder that the program was given, its own channel."""
    bench, folder = sys.argv[1:]
    channel = own_channel()
    loop = uvloop.new_event_loop()
    loop.run_until_complete(serve(loop, bench, Path(folder), channel))


async def _serve(loop: Any, bench: str, folder: Path, channel: TextIO) -> None:
    llms = [attached(stage, folder, REFERENCE_INDEX) for stage in pipeline(bench).stages]
    await run_rounds(loop, llms, channel)
    for llm in llms:
        llm.shutdown()


async def run_rounds(
    loop: Any, llms: list[Any], channel: TextIO, cpu_s: Callable[[], float] = time.process_time
) -> None:
    """``serve_jobs`` with a chain. ``llms``: vLLM EngineClients. ``cpu_s``: the host's so far."""
    await serve_jobs(loop, _Chain(llms).answer, channel, cpu_s)


async def serve_jobs(
    loop: Any,
    ask: Ask,
    channel: TextIO,
    cpu_s: Callable[[], float] = time.process_time,
    ready: Any = "ready",
) -> None:
    """Say ``ready``, then run one round per ``Job`` line on stdin, until it ends; ``ask`` takes a prompt and a name.

    Waits without a deadline: the benchmark decides when the next round begins.
    """
    from vllm.utils.gc_utils import freeze_gc_heap

    freeze_gc_heap()
    channel.write(msgspec.json.encode(ready).decode() + "\n")
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        result = await _round(loop, ask, msgspec.json.decode(line, type=Job), cpu_s)
        channel.write(msgspec.json.encode(result).decode() + "\n")


def attached(stage: StageSpec, folder: Path, index: int) -> Any:
    """An AsyncLLM that starts no engine: as guest ``index`` it waits for the one that connects to its addresses."""
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    inputs, outputs = guest_addresses(folder, stage.name, index)
    return AsyncLLM.from_vllm_config(
        AsyncEngineArgs(**engine_args(stage)).create_engine_config(),
        disable_log_stats=True,
        client_addresses={"input_address": inputs, "output_address": outputs},
        client_index=index,
    )


class _Chain:
    """The hand-written chain: each engine's tokens are the next one's prompt; the last one streams."""

    def __init__(self, llms: list[Any]) -> None:
        from vllm import SamplingParams
        from vllm.renderers.inputs.preprocess import parse_model_prompt
        from vllm.sampling_params import RequestOutputKind

        self.llms = llms
        self._parse, self._first = parse_model_prompt, llms[0]
        self._inner = SamplingParams(**PARAMS, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
        self._last = SamplingParams(**PARAMS, output_kind=RequestOutputKind.DELTA)

    def _rendered(self, prompt: str) -> Any:
        llm = self._first
        parsed = self._parse(llm.model_config, prompt)
        (rendered,) = llm.renderer.render_cmpl([parsed], llm.renderer.default_cmpl_tok_params)
        return rendered

    async def answer(self, prompt: str, name: str) -> Answer:
        """One request through all engines."""
        began_at, first_at = time.perf_counter(), 0.0
        rendered = self._rendered(prompt)
        for llm in self.llms[:-1]:
            async for output in llm.generate(rendered, self._inner, name):
                rendered = {"type": "token", "prompt_token_ids": output.outputs[0].token_ids}
        pieces: list[str] = []
        tokens: list[int] = []
        async for output in self.llms[-1].generate(rendered, self._last, name):
            if not first_at:
                first_at = time.perf_counter()
            pieces.append(output.outputs[0].text)
            tokens += output.outputs[0].token_ids
        return Answer("".join(pieces), tokens, first_at - began_at, time.perf_counter() - began_at)


async def _round(loop: Any, ask: Ask, job: Job, cpu_s: Callable[[], float]) -> Round:
    texts = prompts(job.first + job.requests)[job.first :]
    answers: list[Answer | None] = [None] * len(texts)
    numbers = iter(range(len(texts)))

    async def worker() -> None:
        for number in numbers:
            answers[number] = await ask(texts[number], f"reference-{number}")

    began_at, began_cpu_s = time.perf_counter(), cpu_s()
    for task in [loop.create_task(worker()) for _ in range(job.concurrent)]:
        await task
    wall_s, used_s = time.perf_counter() - began_at, cpu_s() - began_cpu_s
    return Round(wall_s, used_s, [answer for answer in answers if answer is not None])


if __name__ == "__main__":
    main()
