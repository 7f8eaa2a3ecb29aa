"""omni_actors for asyncio, for scripts, and for what was written for vLLM.

::

    async with AsyncOmni("tiny-omni") as omni:                     # vLLM's EngineClient
        async for output in omni.generate_omni("Two plus three?"):
            ...

    with Omni("tiny-omni") as omni:                                # no loop at all
        for answer in omni.generate(["Two plus three?", "One plus one?"]):
            ...

    with AsyncOmniEngine("tiny-omni") as engine:                   # messages, as vLLM-Omni's engine gives them
        engine.add_request("mine", "Two plus three?")
        message = engine.try_get_output(timeout=10)

The names in ``__all__`` are loaded when first used: ``Omni`` does not need vLLM for itself.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._client import AsyncOmni as AsyncOmni
    from ._engine_shaped import AsyncOmniEngine as AsyncOmniEngine
    from ._messages import ErrorMessage as ErrorMessage
    from ._messages import OutputMessage as OutputMessage
    from ._omni_sync import Omni as Omni
    from ._stream import OmniStream as OmniStream

_HOME = {
    "AsyncOmni": "_client",
    "AsyncOmniEngine": "_engine_shaped",
    "ErrorMessage": "_messages",
    "Omni": "_omni_sync",
    "OmniStream": "_stream",
    "OutputMessage": "_messages",
}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _environ_kept():
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


@contextmanager
def _environ_kept() -> Iterator[None]:
    """vLLM logs to stdout unless told when it is first imported, and changes the environment that children inherit."""
    before = dict(os.environ)
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
