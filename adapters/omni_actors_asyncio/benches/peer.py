"""vLLM-Omni's own AsyncOmni as a program: ``python -m omni_actors_asyncio.benches.peer WORKLOAD FOLDER``.

On uvloop, its heap frozen, without statistics; in a chain, stages before the last answer once, at their end. Which of
its two orchestration loops runs, its own VLLM_OMNI_EVENT_DRIVEN_ORCH says. One round per ``Job`` line on stdin; at its
end it shuts down and says so.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from omni_actors.cli.benches._peer_work import ANSWER_S, CHAINS, Closed, Heard, Ready, model, options, prompt
from omni_actors.cli.benches._reference import on_uvloop, serve_jobs
from omni_actors.cli.benches._work import PARAMS

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from omni_actors.cli.benches._work import Answer

__all__ = ["ask", "main"]

_JOIN_S = 10.0


def main() -> None:
    """Run until stdin ends."""
    on_uvloop(_serve)


async def _serve(loop: Any, workload: str, folder: Path, channel: TextIO) -> None:
    from vllm_omni.entrypoints.async_omni import AsyncOmni
    from vllm_omni.plugins import load_omni_general_plugins

    load_omni_general_plugins()  # which it does in its engines by itself, but here too late to know our chains
    omni = AsyncOmni(model=model(workload, folder), **options(workload, folder))
    engines = _engines()
    try:
        ready = Ready(engines=[process.pid or 0 for process in engines], host=[os.getpid()])
        await serve_jobs(loop, partial(ask, omni, _params(workload), workload), channel, time.process_time, ready)
    finally:
        omni.shutdown()
    killed = sum(_exit_code(process) == -signal.SIGKILL for process in engines)
    channel.write(msgspec.json.encode(Closed(killed=killed)).decode() + "\n")


def _engines() -> list[BaseProcess]:
    """Its engine processes, in the order of the stages, which their names tell."""
    return sorted(multiprocessing.active_children(), key=lambda process: process.name)


def _exit_code(process: BaseProcess) -> int | None:
    """It has been told to end, or killed, but nobody may have waited for it."""
    process.join(_JOIN_S)
    return process.exitcode


def _params(workload: str) -> list[Any] | None:
    """Each stage's; none for those of the deploy file, of which AsyncOmni streams every one."""
    if workload not in CHAINS:
        return None
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    inner = SamplingParams(**PARAMS, output_kind=RequestOutputKind.FINAL_ONLY)
    last = SamplingParams(**PARAMS, output_kind=RequestOutputKind.DELTA)
    return [inner] * (CHAINS[workload] - 1) + [last]


async def ask(omni: Any, params: list[Any] | None, workload: str, text: str, name: str) -> Answer:
    """One request; that it failed is an answer, too."""
    heard = Heard()
    try:
        async with asyncio.timeout(ANSWER_S):
            async for output in omni.generate(prompt(workload, text), request_id=name, sampling_params_list=params):
                _take(heard, output)
    except Exception as error:  # whatever it raises is what is to be shown
        return heard.failed(error)
    return heard.answer()


def _take(heard: Heard, output: Any) -> None:
    if output.final_output_type == "text" and output.outputs:
        heard.take(output.outputs[0].text, output.outputs[0].token_ids)
    audio = (output.multimodal_output or {}).get("audio")
    for piece in [] if audio is None else audio if isinstance(audio, list) else [audio]:
        heard.take(samples=piece.detach().float().cpu().numpy().reshape(-1))


if __name__ == "__main__":
    main()
