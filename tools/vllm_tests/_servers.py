"""The servers that vLLM's tests start: ``omni-actors serve`` on a pipeline of one stage, or vLLM's own; the tiny model.

A start takes longer than most files' tests, so the last server is kept for whoever asks for the same options next.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from typing import Any

import yaml

from tools.vllm_tests._arguments import Asked, Option, for_vllm, options_of, pipeline_of, possible

__all__ = ["install", "stop_kept"]

_ALONE = ("test_shutdown", "test_uds")
"""Their tests end the server themselves, or reach it another way."""
_kept: dict[str, Any] = {"key": None, "server": None}


def install(model: str, names: tuple[str, ...], whose: str) -> None:
    """Make vLLM's ``RemoteOpenAIServer`` one of these."""
    from tests.utils import RemoteOpenAIServer, RemoteVLLMServer

    begin, end = RemoteVLLMServer.__init__, RemoteVLLMServer._shutdown

    def __init__(self: Any, asked_model: str, arguments: list[str], **how: Any) -> None:
        options = options_of(arguments)
        first = _named(options) or (asked_model,)
        key = (possible(options), tuple(sorted((how.get("env_dict") or {}).items())))
        alone = any(words in os.environ.get("PYTEST_CURRENT_TEST", "") for words in _ALONE)
        if not alone and _kept["key"] == key and _kept["server"].proc.poll() is None:
            self.__dict__.update(_kept["server"].__dict__)
            return
        stop_kept()
        self._names = tuple(dict.fromkeys((*first, *names)))
        self._alone = alone
        # The base class parses the arguments for what it must know itself; the model's folder needs no download.
        begin(self, model, list(arguments), **{"max_wait_seconds": 600, **how})
        if not alone:
            _kept.update(key=key, server=self)

    def _start_server(self: Any, _: str, arguments: list[str], env: dict[str, str] | None) -> None:
        asked = Asked(model, self._names, possible(options_of(arguments)))
        command = _ours(asked) if whose == "ours" else _theirs(asked)
        self.proc = subprocess.Popen(command, env=os.environ | (env or {}), process_group=0)

    def _shutdown(self: Any) -> None:
        if self._alone or self is _kept["server"]:
            end(self)

    def __exit__(self: Any, *_: object) -> None:
        if self._alone:
            end(self)

    RemoteVLLMServer.__init__, RemoteVLLMServer._shutdown = __init__, _shutdown
    RemoteVLLMServer.__exit__ = __exit__
    RemoteOpenAIServer._start_server = _start_server


def stop_kept() -> None:
    """End the server that is being kept, if one is."""
    server = _kept["server"]
    if server is not None:
        server._shutdown()
        _kept.update(key=None, server=None)


def _named(options: tuple[Option, ...]) -> tuple[str, ...]:
    """What ``--served-model-name`` says."""
    return next((option.values for option in options if option.name == "served-model-name"), ())


def _theirs(asked: Asked) -> list[str]:
    return [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", *for_vllm(asked)]


def _ours(asked: Asked) -> list[str]:
    from omni_actors_asyncio.server._options import _ENGINE_OPTIONS_OF_THE_SERVER
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    of_the_server = frozenset(field.name for field in dataclasses.fields(FrontendArgs)) | _ENGINE_OPTIONS_OF_THE_SERVER
    kinds = {field.name: str(field.type) for field in dataclasses.fields(AsyncEngineArgs)}
    texts = frozenset(name for name, kind in kinds.items() if kind in ("str", "str | None", "<class 'str'>"))
    data, arguments = pipeline_of(asked, of_the_server, texts)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", dir=".", delete=False) as file:
        yaml.safe_dump(data, file)
    return [
        sys.executable,
        "-c",
        "from omni_actors.cli import main; main()",
        "serve",
        os.path.abspath(file.name),
        *arguments,
    ]
