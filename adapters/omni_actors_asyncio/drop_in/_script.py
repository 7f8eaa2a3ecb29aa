"""``ModelScript``: what ``Omni(model=…)`` makes. vLLM-Omni's Omni, for scripts: prompts in, OmniRequestOutputs out.

It owns a ModelOmni, and for each call of ``generate`` a thread with a loop, in which its prompts are asked: as many at
once as the half of what the pipeline admits.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm  # type: ignore[import-untyped]
from vllm.sampling_params import RequestOutputKind
from vllm_omni.entrypoints.utils import maybe_coerce_to_message_type

from omni_actors_asyncio._omni_sync import Omni

from ._client import ModelOmni

if TYPE_CHECKING:
    from omni_actors import Health, ShutdownReport

__all__ = ["ModelScript"]


class ModelScript(Omni):
    """``Omni(model="Qwen/Qwen2.5-Omni-7B", …)``: the arguments are vLLM-Omni's; see ``ModelOmni``."""

    def __init__(self, pipeline: Any = None, **given: Any) -> None:
        self._use(ModelOmni(pipeline, **given))

    @classmethod
    def over(cls, omni: ModelOmni) -> ModelScript:
        """The same engines for a script; closing it closes them."""
        made: ModelScript = object.__new__(cls)
        made._use(omni)
        return made

    def _use(self, omni: ModelOmni) -> None:
        self._omni, self._bridge, self._spec = omni, omni._bridge, omni._bridge.omni.spec

    def __getattr__(self, name: str) -> Any:
        """``default_sampling_params_list``, ``num_stages``, ``stage_configs``, …: as of ``ModelOmni``."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._omni, name)

    def health(self) -> Health | None:
        """Every stage's state, as of its last change; None when it is closed."""
        return self._omni.health()

    def shutdown(self, timeout: float | None = None) -> ShutdownReport:
        """``close``, by theirs name."""
        return self.close(drain_s=timeout or 0)

    def generate(  # type: ignore[override]
        self,
        prompts: Any,
        sampling_params_list: Any = None,
        *,
        py_generator: bool = False,
        use_tqdm: Any = True,
    ) -> list[Any] | Iterator[Any]:
        """OmniRequestOutputs of all prompts, as they come; a generator of them with ``py_generator``.

        ``prompts``: one, or a series. ``sampling_params_list``: each stage's; a stage speaks at its end only, unless
        its params say DELTA. A prompt's ``modalities`` are what is wanted of it. The first failure is raised, and ends
        the others; leaving a generator early does so too.
        """
        one = isinstance(prompts, str | Mapping) or not isinstance(prompts, Sequence)
        asked = [prompts] if one else list(prompts)
        given = self._omni.default_sampling_params_list if sampling_params_list is None else sampling_params_list
        given = list(given) if isinstance(given, Sequence) else [given]
        found = self._outputs(asked, [_at_its_end(params) for params in given], use_tqdm)
        return found if py_generator else list(found)

    def _outputs(self, prompts: list[Any], params: list[Any], use_tqdm: Any) -> Iterator[Any]:
        batch = _Batch(self._omni, prompts, params)
        make = use_tqdm if callable(use_tqdm) else tqdm
        bar = make(total=len(prompts), desc="Processed prompts", dynamic_ncols=True) if use_tqdm else None
        try:
            batch.start()
            while (item := batch.news.get()) is not None:
                if item is not _DONE:
                    yield item
                elif bar is not None:
                    bar.update(1)
            if batch.failure is not None:
                raise batch.failure
        finally:
            batch.stop()
            if bar is not None:
                bar.close()


def _at_its_end(params: Any) -> Any:
    if getattr(params, "output_kind", RequestOutputKind.DELTA) is RequestOutputKind.DELTA:
        return params
    return maybe_coerce_to_message_type(params, is_streaming=False)


_DONE = object()


class _Batch:
    """All prompts of one call. ``news``: outputs, ``_DONE`` for each prompt that has ended, None at the end."""

    def __init__(self, omni: ModelOmni, prompts: list[Any], params: list[Any]) -> None:
        self.news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.failure: BaseException | None = None
        self._omni, self._prompts, self._params = omni, prompts, params
        self._runner = asyncio.Runner()
        self._thread = threading.Thread(target=self._run, name="omni-script")
        self._stopped = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End what has not ended, and wait until the engines have confirmed."""
        self._stopped.set()
        if self._thread.is_alive() and (task := self._task) is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._runner as runner:
                runner.run(self._all())
        except* asyncio.CancelledError:
            self.failure = None  # by ``stop``
        except* Exception as group:
            self.failure = _first(group)
        finally:
            self.news.put(None)

    async def _all(self) -> None:
        self._task = asyncio.current_task()
        if self._stopped.is_set():
            return
        places = asyncio.Semaphore(max(1, self._omni._bridge.omni.spec.limits.max_requests // 2))
        async with asyncio.TaskGroup() as group:
            for number, prompt in enumerate(self._prompts):
                group.create_task(self._one(number, prompt, places))

    async def _one(self, number: int, prompt: Any, places: asyncio.Semaphore) -> None:
        wanted = prompt.get("modalities") if isinstance(prompt, Mapping) else None
        name = f"{number}_{uuid.uuid4()}"
        async with places:
            async for output in self._omni.generate(
                prompt, request_id=name, sampling_params_list=self._params, output_modalities=wanted
            ):
                self.news.put(output)
        self.news.put(_DONE)


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
