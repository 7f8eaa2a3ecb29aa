"""omni_actors: the runtime that multi-stage omni-modal models are served on.

::

    async with open_omni("tiny-omni") as omni:
        async with omni.generate("What is two plus three?") as stream:
            async for output in stream:
                ...

The public names are listed in ``__all__`` and loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_actors._errors import (
        ConfigError as ConfigError,
    )
    from omni_actors._errors import (
        EdgeTimeout as EdgeTimeout,
    )
    from omni_actors._errors import (
        EngineDead as EngineDead,
    )
    from omni_actors._errors import (
        EngineRejected as EngineRejected,
    )
    from omni_actors._errors import (
        InvalidRequest as InvalidRequest,
    )
    from omni_actors._errors import (
        OmniError as OmniError,
    )
    from omni_actors._errors import (
        Overloaded as Overloaded,
    )
    from omni_actors._errors import (
        ProtocolError as ProtocolError,
    )
    from omni_actors._errors import (
        Refused as Refused,
    )
    from omni_actors._errors import (
        RequestFailed as RequestFailed,
    )
    from omni_actors._errors import (
        RequestTimeout as RequestTimeout,
    )
    from omni_actors._errors import (
        RuntimeClosed as RuntimeClosed,
    )
    from omni_actors._errors import (
        ShuttingDown as ShuttingDown,
    )
    from omni_actors._errors import (
        SlowConsumer as SlowConsumer,
    )
    from omni_actors._errors import (
        StageFailed as StageFailed,
    )
    from omni_actors._errors import (
        StageUnavailable as StageUnavailable,
    )
    from omni_actors._errors import (
        StartupFailed as StartupFailed,
    )
    from omni_actors._errors import (
        TransformFailed as TransformFailed,
    )
    from omni_actors._errors import (
        UsageError as UsageError,
    )
    from omni_actors.config import (
        Deadlines as Deadlines,
    )
    from omni_actors.config import (
        InputSpec as InputSpec,
    )
    from omni_actors.config import (
        Limits as Limits,
    )
    from omni_actors.config import (
        PipelineSpec as PipelineSpec,
    )
    from omni_actors.config import (
        StageSpec as StageSpec,
    )
    from omni_actors.lifecycle import (
        Kind as Kind,
    )
    from omni_actors.lifecycle import (
        RequestView as RequestView,
    )
    from omni_actors.lifecycle import (
        StageResult as StageResult,
    )
    from omni_actors.lifecycle import (
        Terminal as Terminal,
    )
    from omni_actors.lifecycle.events import Output as Output
    from omni_actors.lifecycle.events import StepChunk as StepChunk
    from omni_actors.lifecycle.events import TensorChunk as TensorChunk
    from omni_actors.lifecycle.events import TextChunk as TextChunk
    from omni_actors.runtime import (
        AbortReport as AbortReport,
    )
    from omni_actors.runtime import (
        Health as Health,
    )
    from omni_actors.runtime import (
        OmniRuntime as OmniRuntime,
    )
    from omni_actors.runtime import (
        ShutdownReport as ShutdownReport,
    )
    from omni_actors.runtime import (
        StageInput as StageInput,
    )
    from omni_actors.runtime import (
        Statistics as Statistics,
    )
    from omni_actors.runtime import (
        Stream as Stream,
    )
    from omni_actors.runtime import (
        open_omni as open_omni,
    )
    from omni_actors.stages import StageEvent as StageEvent
    from omni_actors.stages import StageState as StageState

_HOMES = {
    "_errors": (
        "ConfigError EdgeTimeout EngineDead EngineRejected InvalidRequest OmniError Overloaded ProtocolError Refused "
        "RequestFailed RequestTimeout RuntimeClosed ShuttingDown SlowConsumer StageFailed StageUnavailable "
        "StartupFailed TransformFailed UsageError"
    ),
    "config": "Deadlines InputSpec Limits PipelineSpec StageSpec",
    "lifecycle": "Kind RequestView StageResult Terminal",
    "lifecycle.events": "Output StepChunk TensorChunk TextChunk",
    "runtime": "AbortReport Health OmniRuntime ShutdownReport StageInput Statistics Stream open_omni",
    "stages": "StageEvent StageState",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
