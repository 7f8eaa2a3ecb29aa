"""The engines that vLLM's tests build: ``AsyncLLM.from_engine_args`` gives an AsyncOmni on a pipeline of one stage.

For comparison it gives vLLM's own, on the same tiny model. Ours is kept for the tests that ask for the same: it serves
any number of event loops, one after the other.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["install", "stop_kept"]

_TINY = {"dtype": "float32", "max_model_len": 256, "kv_cache_memory_bytes": 67_108_864, "enforce_eager": True}
ANSWER_S = 10.0
_ALONE = ("pause",)
"""These leave their engine paused."""
_kept: dict[str, Any] = {}


def install(model: str, whose: str) -> None:
    """Change what ``AsyncLLM.from_engine_args`` makes."""
    from vllm.v1.engine.async_llm import AsyncLLM

    theirs = AsyncLLM.from_engine_args

    def from_engine_args(engine_args: Any, **more: Any) -> Any:
        tiny = dataclasses.replace(engine_args, model=model, limit_mm_per_prompt={}, **_TINY)
        return theirs(tiny, **more) if whose == "vllm" else _ours(tiny, **more)

    AsyncLLM.from_engine_args = from_engine_args


def _ours(engine_args: Any, **more: Any) -> Any:
    from omni_actors_asyncio import AsyncOmni

    from omni_actors import PipelineSpec, StageSpec

    defaults = type(engine_args)()
    changed = {
        field.name: getattr(engine_args, field.name)
        for field in dataclasses.fields(engine_args)
        if getattr(engine_args, field.name) != getattr(defaults, field.name)
    }
    changed.pop("model", None)
    spec = StageSpec(name="thinker", engine="vllm", model=engine_args.model, output="text", engine_args=changed)
    key = repr(sorted(changed.items()))
    if any(words in os.environ.get("PYTEST_CURRENT_TEST", "") for words in _ALONE):
        stop_kept()
        return _opened(AsyncOmni(PipelineSpec(name="vllm-tests", stages=[spec]), **more))
    if key not in _kept:
        stop_kept()
        omni = _kept[key] = _opened(AsyncOmni(PipelineSpec(name="vllm-tests", stages=[spec]), **more))
        omni.shutdown, omni._end = lambda timeout=None: None, omni.shutdown
    return _kept[key]


def _opened(omni: Any) -> Any:
    omni._bridge.open()  # blocking, as AsyncLLM's start is
    omni._opened()
    omni.output_processor = _Unfinished(omni)
    return omni


class _Unfinished:
    """What the tests ask AsyncLLM's own output processor."""

    def __init__(self, omni: Any) -> None:
        self._omni = omni

    def has_unfinished_requests(self) -> bool:
        """Whether a request has not come to its end. Asked in the runtime's thread, behind the aborts on their way."""

        async def count() -> int:
            in_flight: int = self._omni.get_num_unfinished_requests()
            return in_flight

        asked: Future[int] = self._omni._bridge.run(count)
        return asked.result(ANSWER_S) > 0


def stop_kept() -> None:
    """End the engine that is being kept, if one is."""
    for omni in _kept.values():
        omni._end(0)
    _kept.clear()
