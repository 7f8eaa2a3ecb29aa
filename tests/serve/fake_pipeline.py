"""A pipeline of fake engines as a file, for servers in processes of their own; and looks at such a server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from .server_process import ServerProcess

_STAGES = """
name: fake
stages:
  - name: thinker
    engine: fake-core
    output: text
    engine_args: {{tokens: 20, token_s: 0.002}}
    {deadlines}
  - name: talker
    engine: fake-core
    inputs: [thinker]
    engine_args: {{tokens: 8}}
    {deadlines}
  - name: vocoder
    engine: fake
    inputs: [talker]
    output: audio
    transform: omni_actors.testing.pipelines:voice
    engine_args: {{chunks: {chunks}, chunk_s: {chunk_s}}}
    {deadlines}
"""
_DEADLINES = "deadlines: {backoff_first_s: 0.1, silence_s: 5, hang_s: 30}"


def serve_fakes(folder: Path, *arguments: str, chunks: int = 3, chunk_s: float = 0.0) -> ServerProcess:
    """A server on engines that say ``chunks`` pieces of sound."""
    file = folder / "fake.yaml"
    file.write_text(_STAGES.format(deadlines=_DEADLINES, chunks=chunks, chunk_s=chunk_s))
    return ServerProcess(*arguments, pipeline=str(file), overrides=())


def state(http: httpx.Client) -> dict[str, Any]:
    """The runtime's state now: each stage's, and how many requests it holds."""
    with http.stream("GET", "/v1/omni/state") as feed:
        line = next(line for line in feed.iter_lines() if line)
    return json.loads(line.removeprefix("data: "))


def holds(http: httpx.Client, wanted: Callable[[dict[str, Any]], bool], within_s: float) -> dict[str, Any]:
    """The first state of which this is true; each look is a round trip."""
    deadline = time.monotonic() + within_s
    while not wanted(now := state(http)):
        assert time.monotonic() < deadline, now
    return now


def idle(now: dict[str, Any]) -> bool:
    """No request anywhere, no stage with anything to do."""
    return now["in_flight"] == 0 and all(stage["running"] == stage["waiting"] == 0 for stage in now["stages"])
