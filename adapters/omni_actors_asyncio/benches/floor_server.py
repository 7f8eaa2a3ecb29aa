"""The floor of ``bench serve`` as a program: ``python -m omni_actors_asyncio.benches.floor_server VLLM_OPTIONS``.

What ``vllm serve`` runs, with its AsyncLLM in a thread and on a uvloop of its own (see ``floor``): what any server
costs more whose engine client lives in another thread.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import uvloop

from omni_actors_asyncio.benches.floor import Threaded

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

__all__ = ["main"]


def main() -> None:
    """Serve until SIGTERM."""
    uvloop.run(_serve(_parsed(sys.argv[1:])))


def _parsed(options: Sequence[str]) -> Namespace:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    args: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args(list(options))
    validate_parsed_serve_args(args)
    return args


async def _serve(args: Namespace) -> None:
    from vllm.entrypoints.launchers.api_server.entry import build_and_serve
    from vllm.entrypoints.launchers.launcher import setup_server

    address, listener = setup_server(args, reuse_port=False)
    llm = _Served(asyncio.get_running_loop(), partial(_engine, args))
    await llm.start()
    try:
        stopping = await build_and_serve(llm, address, listener, args)
    finally:
        llm.stop()
    await stopping


def _engine(args: Namespace) -> Any:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(args))


class _Served(Threaded):
    """As much of an EngineClient as vLLM's server uses for completions; what does not wait is asked here."""

    async def get_supported_tasks(self) -> Any:
        """Once, before it serves."""
        asked = asyncio.run_coroutine_threadsafe(self._llm.get_supported_tasks(), self._there)
        return await asyncio.wrap_future(asked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_llm"], name)


if __name__ == "__main__":
    main()
