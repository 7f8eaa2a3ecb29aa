"""The reference of ``startup`` and ``shutdown``: the same engines without us, in the script that a user would write.

Run by path, in a process of its own. It reads one line of JSON from stdin (``llms``: engine arguments of each;
``generators``: class and arguments of each), starts everything at once the way vLLM itself does
(``launch_core_engines``: an EngineCore process each, no front-end around them), and says ``ready``; at the next line it
stops everything at once, also as vLLM itself does, and says ``closed``. vLLM offers nothing faster: one import of it in
the parent, no tokenizer, no client. The generators (no engine of vLLM's) are plain processes that load their class.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from typing import Any, TextIO

__all__: list[str] = []

_GENERATOR = "generator"


def main() -> None:
    """Start, say so, wait for a line, stop, say so."""
    channel = own_channel()
    job = json.loads(sys.stdin.readline())
    generators = [_start_generator(**one) for one in job["generators"]]
    managers, sockets = _start_engines(job["llms"])
    for process in generators:
        assert process.stdout is not None
        process.stdout.readline()
    channel.write("ready {}\n")
    sys.stdin.readline()
    _stop(managers, generators)
    for socket in sockets:
        socket.close(linger=0)
    channel.write("closed {}\n")


def own_channel() -> TextIO:
    """What is our stdout now, line by line; whoever writes to stdout from here on, engines too, writes to stderr."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return channel


def _start_engines(llms: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    import zmq
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.network_utils import get_open_zmq_ipc_path
    from vllm.v1.engine.utils import EngineZmqAddresses, launch_core_engines
    from vllm.v1.executor import Executor

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    managers: list[Any] = []
    sockets: list[Any] = []
    with ExitStack() as starting:  # leaving it waits until each of them is ready
        for arguments in llms:
            config = AsyncEngineArgs(**arguments).create_engine_config()
            addresses = EngineZmqAddresses([get_open_zmq_ipc_path()], [get_open_zmq_ipc_path()])
            for kind, address in ((zmq.ROUTER, addresses.inputs[0]), (zmq.PULL, addresses.outputs[0])):
                sockets.append(context.socket(kind))
                sockets[-1].bind(address)
            started = launch_core_engines(config, Executor.get_class(config), log_stats=False, addresses=addresses)
            managers.append(starting.enter_context(started).engine_manager)
    return managers, sockets


def _start_generator(**one: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", __file__, _GENERATOR, json.dumps(one)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _generate(one: dict[str, Any]) -> None:
    from omni_actors.engines._generator import load_generator

    load_generator(one["path"], one["args"])
    print("ready", flush=True)
    sys.stdin.read()


def _stop(managers: list[Any], generators: list[subprocess.Popen[str]]) -> None:
    threads = [threading.Thread(target=manager.shutdown) for manager in managers]
    for thread in threads:
        thread.start()
    for process in generators:
        process.terminate()
    for process in generators:
        process.wait()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    if sys.argv[1:2] == [_GENERATOR]:
        _generate(json.loads(sys.argv[2]))
    else:
        main()
