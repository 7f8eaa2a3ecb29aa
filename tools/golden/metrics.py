"""Record the metrics of vLLM's own server: ``python tools/golden/metrics.py`` writes ``tests/golden/metrics-….json``.

It serves tiny-omni's first stage as ``vllm serve`` would, with the same engine arguments, asks it for a chat and a
completion, and keeps of each ``vllm:`` family in its ``/metrics`` the name, the type and the names of the labels.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from omni_actors.pipelines.tiny_omni import pipeline
from omni_actors.stages.vllm._frontend import engine_args
from omni_actors.stages.vllm._kind import _CPU_ENV, _ENV

FOLDER = Path(__file__).parents[2] / "tests" / "golden"
NAME = "tiny-omni"
_SERVED = "Application startup complete"


def main() -> None:
    """Write the file of the version that is installed."""
    stage = pipeline().stages[0]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environment = {**_ENV, **_CPU_ENV, **stage.env, **os.environ, "VLLM_LOGGING_STREAM": "ext://sys.stderr"}
    server = subprocess.Popen(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--port", port, *options(engine_args(stage))],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait(server)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=120) as http:
            found = {"version": http.get("/version").json()["version"], "families": ask(http)}
    finally:
        server.terminate()
        server.communicate()
    path = FOLDER / f"metrics-{found['version']}.json"
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    print(path)


def options(arguments: dict[str, Any]) -> list[str]:
    """Engine arguments as on vLLM's command line."""
    made = ["--host", "127.0.0.1", "--served-model-name", NAME]
    for name, value in arguments.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            made.append(option if value else option.replace("--", "--no-", 1))
        else:
            made += [option, value if isinstance(value, str) else json.dumps(value)]
    return made


def wait(server: subprocess.Popen[str]) -> None:
    """Until it serves: as long as it takes to load, or to fail. Its log goes where ours goes."""
    assert server.stderr is not None
    for line in server.stderr:
        sys.stderr.write(line)
        if _SERVED in line:
            return
    raise SystemExit("vLLM's server ended before it served")


def ask(http: httpx.Client) -> dict[str, Any]:
    """Ask it something, and see what it counted."""
    messages = [{"role": "user", "content": "What is two plus three?"}]
    http.post("/v1/chat/completions", json={"model": NAME, "messages": messages}).raise_for_status()
    http.post("/v1/completions", json={"model": NAME, "prompt": "What", "max_tokens": 3}).raise_for_status()
    return families(http.get("/metrics").text)


def families(text: str) -> dict[str, Any]:
    """Of an exposition, the ``vllm:`` families."""
    return {
        family.name: {"type": family.type, "labels": sorted({label for s in family.samples for label in s.labels})}
        for family in text_string_to_metric_families(text)
        if family.name.startswith("vllm:")
    }


if __name__ == "__main__":
    main()
