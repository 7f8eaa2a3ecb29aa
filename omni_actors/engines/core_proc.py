"""StageCoreProc: one vLLM EngineCore, started from data. ``python -m omni_actors.engines.core_proc``.

The payload on stdin is a msgpack map: ``env``, ``engine_args`` (AsyncEngineArgs' keyword arguments), ``handshake`` (the
ZMQ address of our client's handshake socket), ``log_stats``. The engine's configuration is built here, from the same
arguments as the front-end builds its own: nothing is pickled.

What it adds to vLLM's own process: SIGTERM ends it while it is still loading (vLLM heeds it only afterwards), and is
not missed by an engine that is just falling asleep; once vLLM's teardown has returned it leaves at once, without the
interpreter's; its ipc files lie in our run folder; and what cannot be started says so in one last line on stderr.
Exit codes: 0 after a clean stop, 1 for an engine that failed, 2 for arguments that make no engine, 143 for SIGTERM
while loading.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, NoReturn

from omni_actors.engines._lifeline import kill_members, read_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Termination", "end_worker_quickly", "host", "keeping", "main"]

BAD_ARGUMENTS = 2
FAILED = 1
TERMINATED = 128 + signal.SIGTERM

_MAX_WORDS = 600
_POKE = signal.SIGUSR2
_POKES_S = (0.02, 0.2, 1.0)
_WORKER_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


class Termination:
    """Hears SIGTERM through the interpreter's wake-up descriptor, whoever handles it. Made in the main thread.

    While the engine is made it is the end: the workers are killed and so are we. vLLM installs its own handlers before
    it constructs the engine, and heeds them only afterwards. From ``loading_over`` on vLLM's handler does it. But
    CPython runs handlers in the main thread, between two instructions: a signal that comes in the moment before that
    thread blocks is not seen until it wakes, and an idle engine would sleep on. So it is poked.
    """

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(_POKE, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        # A forked worker would write its own signals into our pipe.
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
        self._loading = True
        threading.Thread(target=self._listen, name="termination", daemon=True).start()

    def loading_over(self) -> None:
        """Leave SIGTERM to whoever handles it."""
        self._loading = False

    def _listen(self) -> None:
        # No deadline: a daemon thread that waits for signals as long as the process lives.
        while signums := os.read(self._reader, 64):
            if signal.SIGTERM not in signums:
                continue
            if self._loading:
                print("terminated while loading", file=sys.stderr, flush=True)
                kill_members()
                os._exit(TERMINATED)
            self._poke()

    def _poke(self) -> None:
        """Interrupt what the main thread waits in, a few times: it may be about to wait."""
        for delay_s in _POKES_S:
            time.sleep(delay_s)
            signal.pthread_kill(threading.main_thread().ident or 0, _POKE)


def main() -> NoReturn:
    """Run the engine until SIGTERM. Never returns."""
    host(_configure, _run)


def host(
    configure: Callable[[dict[str, Any]], tuple[Any, type[Any]]],
    run: Callable[[Any, type[Any], dict[str, Any]], None],
) -> NoReturn:
    """Run an engine core: ``configure`` makes a configuration and an executor of the payload, ``run`` serves them.

    Never returns.
    """
    payload = read_payload()
    termination = Termination()
    _set_defaults()
    _end_quickly()
    try:
        with keeping(_WORKER_METHOD):
            config, executor = configure(payload)
    except Exception as error:
        _leave(BAD_ARGUMENTS, f"no engine can be made of these arguments: {_words(error)}")
    _track_shared_memory(executor)
    try:
        run(config, _announcing(executor, termination), payload)
    except SystemExit as end:
        # From here on SIGTERM is a clean stop, in whatever number an engine says so.
        _leave(end.code if isinstance(end.code, int) and end.code != TERMINATED else 0)
    except Exception as error:
        _leave(FAILED, f"the engine failed: {_words(error)}")
    _leave(0)


def _end_quickly() -> None:
    """Skip the collections of a teardown: they walk a million objects, in engine and worker, to free what ends anyway.

    When vLLM stops it unfreezes the heap and collects, for those who go on in the same process. We do not.
    """
    unfreeze = gc.unfreeze

    def unfreeze_unless_ending() -> None:
        ending = sys._getframe(1).f_code.co_name in ("shutdown", "cleanup_dist_env_and_memory")
        (gc.freeze if ending else unfreeze)()

    gc.unfreeze = unfreeze_unless_ending


def end_worker_quickly() -> None:
    """For vLLM's worker: after a clean end and every other exit handler, leave without the interpreter's teardown."""
    clean: list[bool] = []
    # Runs while multiprocessing ends the process's function: an exception on its way out is visible there.
    Finalize(None, lambda: clean.append(sys.exc_info()[0] is None), exitpriority=-100)
    # The first that is registered runs last.
    atexit.register(lambda: _leave(0) if clean == [True] else None)
    _end_quickly()


def _track_shared_memory(executor: type[Any]) -> None:
    """Start Python's resource tracker before the first memory that an engine shares with its workers.

    It would start with that memory: who is killed in the tens of milliseconds between the two leaves a name that nobody
    knows to be ours.
    """
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    if issubclass(executor, MultiprocExecutor):
        resource_tracker.ensure_running()


@contextmanager
def keeping(name: str) -> Iterator[None]:
    """What a stage's ``env`` says of ``name`` is true afterwards as well: vLLM's CPU platform does not ask."""
    value = os.environ.get(name)
    yield
    if value is not None:
        os.environ[name] = value


def _set_defaults() -> None:
    # vLLM logs to stdout; what it says last must be in the tail that our host quotes.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    if scratch := os.environ.get("OMNI_ACTORS_SCRATCH"):
        os.environ.setdefault("VLLM_RPC_BASE_PATH", scratch)


def _configure(payload: dict[str, Any]) -> tuple[Any, type[Any]]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.executor import Executor

    config = AsyncEngineArgs(**payload["engine_args"]).create_engine_config(usage_context=UsageContext.ENGINE_CONTEXT)
    return config, Executor.get_class(config)


def _announcing(executor: type[Any], termination: Termination) -> type[Any]:
    """The executor class, telling us when its workers are ready: what is left of loading takes milliseconds."""

    def initialize_from_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = executor.initialize_from_config(self, *args, **kwargs)
        termination.loading_over()
        return result

    return type(executor.__name__, (executor,), {"initialize_from_config": initialize_from_config})


def _run(config: Any, executor: type[Any], payload: dict[str, Any]) -> None:
    from vllm.v1.engine.core import EngineCoreProc

    EngineCoreProc.run_engine_core(
        vllm_config=config,
        local_client=True,
        handshake_address=payload["handshake"],
        executor_class=executor,
        log_stats=bool(payload.get("log_stats", False)),
    )


def _words(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return (f"{type(error).__name__}: {words}" if words else type(error).__name__)[:_MAX_WORDS]


def _leave(code: int, words: str = "") -> NoReturn:
    """End without the interpreter's teardown: vLLM's has returned, and torch's takes another two seconds."""
    if words:
        print(words, file=sys.stderr, flush=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # a spawned worker imports its parent's main module under this name
    end_worker_quickly()
