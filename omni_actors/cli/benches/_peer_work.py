"""What all sides of ``bench peer`` run: models, deploy files, the environment; and what a side says of itself.

Every side is a program that gets a workload's name and a folder in which ``prepare`` has put what the workload needs.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from omni_actors.cli.benches._work import PARAMS, TOKENS, Answer
from omni_actors.pipelines.tiny_omni._vocabulary import WEIGHTS
from omni_actors.vllm_omni.tiny import chains, deploy_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = [
    "ANSWER_S", "CHAINS", "QWEN", "QWEN_STAGES", "START_S", "Closed", "Heard", "Ready", "environment", "model",
    "options", "prepare", "prompt",
]  # fmt: skip

CHAINS: Mapping[str, int] = {f"chain{length}": length for length in chains.LENGTHS}
"""Of Qwen3 stages (tiny-omni's thinker), 16 tokens each."""
QWEN = "q25"
"""Qwen2.5-Omni: 16 tokens of text, 64 of its codec, 1.3 seconds of sound."""
QWEN_STAGES = 3
_QWEN_MODEL = "qwen2_5_omni"

START_S = 600.0
ANSWER_S = 120.0
"""One request's limit: what has no answer by then has none. Only a machine that is busy with other things needs it."""
_MAKE_S = 300.0


class Ready(msgspec.Struct, frozen=True):
    """What a side says first: each stage's engine process, and the processes whose CPU time is the host's."""

    engines: list[int]
    host: list[int]


class Closed(msgspec.Struct, frozen=True):
    """What a side says when it has shut down: how many of its engines had to be killed."""

    killed: int


def environment(folder: Path) -> dict[str, str]:
    """The same for all sides; engines are children and inherit it."""
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {
        "PYTHONPATH": path,
        "OMNI_ACTORS_DETERMINISTIC": "1",  # or Qwen2.5-Omni's vocoder would make other noise every time
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


async def prepare(workload: str, folder: Path) -> None:
    """Write what the workload needs to an empty folder: seconds."""
    chains.announce(folder)
    if workload in CHAINS:
        (folder / "deploy.yaml").write_text(chains.deploy(CHAINS[workload], PARAMS))
    else:
        command = [sys.executable, "-m", "omni_actors.vllm_omni.tiny", _QWEN_MODEL, str(folder)]
        with trio.fail_after(_MAKE_S):
            await trio.run_process(command, capture_stdout=True, capture_stderr=True)


def model(workload: str, folder: Path) -> str:
    """The folder of its checkpoint."""
    return str(WEIGHTS / "thinker" if workload in CHAINS else folder / _QWEN_MODEL)


def options(workload: str, folder: Path) -> dict[str, Any]:
    """What vLLM-Omni's AsyncOmni and our ``pipeline`` take besides the model."""
    deploy = folder / "deploy.yaml" if workload in CHAINS else deploy_file(_QWEN_MODEL)
    return {"deploy_config": str(deploy), "stage_init_timeout": int(START_S), "init_timeout": int(START_S)}


def prompt(workload: str, text: str) -> Any:
    """As a user of the model gives it."""
    return text if workload in CHAINS else {"prompt": text}


class Heard:
    """One request's answer while it comes. Sound is kept as a checksum of its samples beside the text."""

    def __init__(self) -> None:
        self._began_at, self._first_at = time.perf_counter(), 0.0
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._sound = self._samples = 0

    def take(self, text: str = "", tokens: Iterable[int] = (), samples: Any = None) -> None:
        """One output: new text and tokens, or new samples (float32)."""
        if not self._first_at:
            self._first_at = time.perf_counter()
        self._text.append(text)
        self._tokens += tokens
        if samples is not None:
            self._sound = zlib.crc32(samples.tobytes(), self._sound)
            self._samples += samples.size

    def answer(self) -> Answer:
        """It is complete. Raises AssertionError if it has not as many tokens as were asked for."""
        assert len(self._tokens) == TOKENS, f"{len(self._tokens)} tokens"
        text = "".join(self._text) + (f" and {self._samples} samples ({self._sound:08x})" if self._samples else "")
        return Answer(text, self._tokens, self._first_at - self._began_at, time.perf_counter() - self._began_at)

    def failed(self, error: BaseException) -> Answer:
        """It will not be: an answer without tokens, whose text is what was raised."""
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Answer(words[:2000], [], 0.0, time.perf_counter() - self._began_at)
