"""A user's pipeline on fakes: every engine replaced, everything else kept, and what its functions did wrong.

The graph, the transforms, the splitters, the limits and the deadlines are the user's. What each stage makes comes from
the user's strategies, as a *script*: a few outputs, of which the prompt decides one, so that the same prompt always
makes the same. The functions run in this process, as they do in the host; engines' libraries are never imported.
"""

from __future__ import annotations

import reprlib
import traceback
from typing import TYPE_CHECKING, Any, Literal

import attrs
import msgspec

from omni_actors._errors import OmniError, TransformFailed, UsageError
from omni_actors.config import PipelineSpec, resolve
from omni_actors.wire.omni import Tensor

from ._fake_omni import FakeChunk, FakeTensor
from .invariants import Violation
from .sim._history import Refused, TerminalSeen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import FrameType

    from omni_actors.config import StageSpec

    from .sim._history import History
    from .sim._scenario import Scenario

__all__ = ["Wire", "broken_functions", "chunks", "denoises", "on_fakes", "spec_of", "tokens", "wire_of"]

Wire = Literal["core", "omni"]

_ROOM = 1 << 20
"""Tokens of a fake LLM's context: a code point is a token, so the model's own limit would be met far too early."""


def spec_of(pipeline: str | Path | PipelineSpec) -> PipelineSpec:
    """As ``open_omni`` takes it: a registered name, a deploy file or a spec. Raises ConfigError."""
    return pipeline if isinstance(pipeline, PipelineSpec) else resolve(str(pipeline)).spec


def wire_of(engine: str) -> Wire:
    """Which wire an engine kind's fake speaks."""
    return "core" if engine in ("vllm", "fake-core") else "omni"


def denoises(stage: StageSpec) -> bool:
    """Whether a stage's fake works in steps."""
    return stage.engine == "diffusion" or "steps" in stage.engine_args


def on_fakes(spec: PipelineSpec, scenario: Scenario) -> PipelineSpec:
    """The pipeline with fakes that do what the scenario says (``Scenario.fakes``)."""
    stages = [_on_fake(stage, scenario.fakes.get(stage.name, {})) for stage in spec.stages]
    return attrs.evolve(spec, stages=tuple(stages))


def _on_fake(stage: StageSpec, behaviour: Mapping[str, Any]) -> StageSpec:
    wire = wire_of(stage.engine)
    own = dict(stage.engine_args) if stage.engine in ("fake", "fake-core") else {}
    room = {"max_model_len": _ROOM} if wire == "core" and behaviour.get("script") else {}
    return attrs.evolve(
        stage,
        engine="fake-core" if wire == "core" else "fake",
        model="",
        engine_args={**own, **room, **behaviour},
        devices=None,
        env={},
        python=None,
    )


# ---------------------------------------------------------------------- what a strategy may give


def tokens(output: Any) -> str | list[int]:
    """One output of an LLM: text, a code point being a token, or token ids. Raises UsageError."""
    if isinstance(output, str):
        return output
    if isinstance(output, list | tuple) and all(type(token) is int for token in output):
        return list(output)
    raise UsageError(f"an LLM's output is text or a list of token ids, not {reprlib.repr(output)}")


def chunks(output: Any) -> list[dict[str, Any]]:
    """One output of a stage on the omni wire, as data: a list of chunks, or one chunk. Raises UsageError.

    A chunk is text, or bytes (a uint8 tensor ``data``), or a mapping: tensors (``Tensor``, bytes, arrays) by name, and
    beside them plain values.
    """
    whole = output if isinstance(output, list | tuple) else [output]
    return [msgspec.to_builtins(_chunk(chunk)) for chunk in whole]


def _chunk(chunk: Any) -> FakeChunk:
    if isinstance(chunk, str):
        return FakeChunk(meta={"text": chunk})
    if not isinstance(chunk, dict):
        chunk = {"data": chunk}
    tensors: dict[str, FakeTensor] = {}
    meta: dict[str, Any] = {}
    for name, value in chunk.items():
        if (tensor := _tensor(value)) is not None:
            tensors[name] = tensor
        elif isinstance(value, str | int | float | bool | list | dict | None):
            meta[name] = value
        else:
            raise UsageError(f"a chunk holds text, bytes, tensors and plain values, not {reprlib.repr(value)}")
    return FakeChunk(tensors=tensors, meta=meta)


def _tensor(value: Any) -> FakeTensor | None:
    if isinstance(value, bytes):
        return FakeTensor("uint8", (len(value),), value)
    if hasattr(value, "__array_interface__"):
        value = Tensor.from_numpy(value)
    if isinstance(value, Tensor):
        return FakeTensor(value.dtype, value.shape, bytes(value.data))
    return None


# ---------------------------------------------------------------------- what the user's functions did wrong


def broken_functions(history: History) -> Iterator[Violation]:
    """Every request that failed in a function of the pipeline, or by what one returned: with its arguments."""
    seen = {e.request: number for number, e in enumerate(history.events) if isinstance(e, TerminalSeen | Refused)}
    for request, error in history.failures.items():
        if (words := _told(error)) is not None:
            message = f"request {request} failed by a bug of the pipeline: {words}"
            yield Violation(invariant="transform", message=message, events=(seen[request],), request=request)


def _told(error: OmniError) -> str | None:
    """The error, where it was raised, and what the function was given. None for a refusal that was meant, and for a
    fake engine's own: that is of what the scenario asks for, never of a prompt.
    """
    if error.generation is not None:
        return None
    frames = _frames(error.__cause__ or error)
    call = _users_call(frames)
    if isinstance(error, TransformFailed):
        if call is None:
            return str(error)
        last = traceback.extract_tb((error.__cause__ or error).__traceback__)[-1]
        where = f"{last.filename.rpartition('/')[2]}:{last.lineno}: {last.line}"
        return f"{error}\n  at {where}\n{_arguments(call)}"
    if call is not None:
        return None
    works = [frame for frame in frames if _module(frame) == _CALLERS[0] and "prompt" in frame.f_locals]
    return f"{error}\n  prompt = {_SHORT.repr(works[0].f_locals['prompt'])}" if works else str(error)


def _frames(error: BaseException) -> list[FrameType]:
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def _users_call(frames: list[FrameType]) -> FrameType | None:
    """The call of a pipeline's function: what stands right below the runtime or routing, and is neither's own."""
    modules = [_module(frame) for frame in frames]
    for number in range(1, len(frames)):
        if modules[number - 1] in _CALLERS and not modules[number].startswith(_OURS):
            return frames[number]
    return None


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


_CALLERS = ("omni_actors.runtime._work", "omni_actors.lifecycle._routing")
_OURS = ("omni_actors.runtime", "omni_actors.lifecycle", "omni_actors.stages", "omni_actors.testing._")


def _arguments(frame: FrameType) -> str:
    """The arguments of a call that has raised, one a line."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return "\n".join(f"  {name} = {_shown(frame.f_locals.get(name))}" for name in names)


def _shown(value: Any) -> str:
    """A value on one line; of our own records only what is set."""
    if isinstance(value, dict) or hasattr(value, "items"):
        return "{" + ", ".join(f"{key!r}: {_shown(item)}" for key, item in value.items()) + "}"
    if attrs.has(type(value)):
        fields = [field for field in attrs.fields(type(value)) if field.repr and getattr(value, field.name)]
        inner = ", ".join(f"{field.name}={_SHORT.repr(getattr(value, field.name))}" for field in fields)
        return f"{type(value).__name__}({inner})"
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_SHORT.maxlist = _SHORT.maxtuple = 20
