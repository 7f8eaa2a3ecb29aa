"""The runtime: request handler, router, streams, the shutdown ladder, and ``open_omni`` that holds them."""

from ._abort import AbortReport, Unconfirmed
from ._omni import Health, OmniRuntime, Statistics
from ._open import open_omni
from ._shutdown import ShutdownReport
from ._stream import Stream
from ._work import StageInput
from ._world import World

__all__ = [
    "AbortReport",
    "Health",
    "OmniRuntime",
    "ShutdownReport",
    "StageInput",
    "Statistics",
    "Stream",
    "Unconfirmed",
    "World",
    "open_omni",
]
