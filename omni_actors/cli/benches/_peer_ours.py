"""Our side of ``bench peer`` as a program: ``python -m omni_actors.cli.benches._peer_ours WORKLOAD FOLDER``.

Opens the pipeline that ``omni_actors.vllm_omni.pipeline`` makes of the model and the deploy file, through the public
API, and runs one round per ``Job`` line on stdin. At its end it shuts down and says so.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import attrs
import msgspec
import trio

from omni_actors._errors import OmniError
from omni_actors.cli.benches._peer_work import ANSWER_S, Closed, Heard, Ready, model, options, prompt
from omni_actors.cli.benches._proc import cpu_s
from omni_actors.cli.benches._work import Answer, Job, own_channel, run_round
from omni_actors.cli.benches.idle import host_processes
from omni_actors.lifecycle.events import TensorChunk, TextChunk
from omni_actors.runtime import open_omni
from omni_actors.vllm_omni import pipeline

if TYPE_CHECKING:
    from omni_actors.config import PipelineSpec
    from omni_actors.runtime import OmniRuntime

__all__ = ["HANG_S", "ask", "main"]

HANG_S = 5.0
"""An engine that owes an answer and is silent for so long is replaced; the engine kind's own default is a minute."""


def main() -> None:
    """Run until stdin ends."""
    workload, folder = sys.argv[1:]
    trio.run(_serve, workload, Path(folder), own_channel())


async def _serve(workload: str, folder: Path, channel: TextIO) -> None:
    def say(value: msgspec.Struct) -> None:
        channel.write(msgspec.json.encode(value).decode() + "\n")

    spec = _watchful(pipeline(model(workload, folder), **options(workload, folder)))
    async with open_omni(spec) as omni:
        hosts = host_processes(omni)
        pids = omni.pids()
        say(Ready(engines=[pids[f"{stage.name}/0"] for stage in spec.stages], host=hosts))
        # Waits without a deadline: the benchmark decides when the next round begins, and closes stdin at the end.
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            job = msgspec.json.decode(line, type=Job)
            say(await run_round(job, [partial(ask, omni, workload)] * job.concurrent, partial(cpu_s, hosts)))
    say(Closed(killed=len(omni.shutdown_report.killed)))


def _watchful(spec: PipelineSpec) -> PipelineSpec:
    stages = [attrs.evolve(stage, deadlines=attrs.evolve(stage.deadlines, hang_s=HANG_S)) for stage in spec.stages]
    return attrs.evolve(spec, stages=stages)


async def ask(omni: OmniRuntime, workload: str, text: str) -> Answer:
    """One request; that it failed is an answer, too."""
    heard = Heard()
    try:
        async with omni.generate(prompt(workload, text), timeout_s=ANSWER_S) as stream:
            async for output in stream:
                if isinstance(output.payload, TextChunk):
                    heard.take(output.text, output.payload.token_ids)
                elif isinstance(output.payload, TensorChunk):
                    heard.take(samples=output.payload.tensors.get("audio"))
    except OmniError as error:
        return heard.failed(error)
    return heard.answer()


if __name__ == "__main__":
    main()
