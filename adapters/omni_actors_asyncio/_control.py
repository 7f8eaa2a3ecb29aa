"""The control plane of ``AsyncOmni``: what EngineClient offers beside requests, over stages and replicas.

Each call goes to every ready replica of every stage it concerns, all at once, never on a request's path, and has a
deadline of its own. What concerns schedulers, caches, memory and profiling goes to all vLLM stages; what concerns a
model's weights or adapters to the one that takes the prompt. ``stages`` says otherwise. Failures are exceptions:
``EngineRejected`` with the engine's words, ``TimeoutError``. Cancelling a call ends the waiting; the engine may do it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import trio

from omni_actors import StageUnavailable, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ._bridge import Bridge
    from ._metrics import Metrics

__all__ = ["LONG_CALL_S", "Control", "call_all"]

CALL_S = 60.0
"""A call's own deadline, where its caller gives none."""
_PAUSED = ("pause_scheduler", "keep", False)
LONG_CALL_S = 600.0
"""For what may wait for running requests, move weights, or run anything (``collective_rpc``)."""


class Control:
    """Mixed into ``AsyncOmni``, which has the bridge, and knows its vLLM stages."""

    _bridge: Bridge
    _metrics: Metrics
    _vllm_stages: tuple[str, ...] = ()
    _front: str | None = None

    # ------------------------------------------------------------------ how

    async def call(self, stage: str, method: str, *args: Any, timeout_s: float = CALL_S) -> list[Any]:
        """Call a method of the stage's engines; answers in replica order."""
        return (await self._calls([stage], method, args, timeout_s))[stage]

    async def _calls(
        self, stages: Sequence[str], method: str, args: Sequence[Any], timeout_s: float = CALL_S
    ) -> dict[str, list[Any]]:
        answers: dict[str, list[Any]] = await self._cross(call_all, tuple(stages), method, tuple(args), timeout_s)
        return answers

    async def _cross(self, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Run it in the trio thread, with the bridge first."""

        async def crossed() -> Any:
            try:
                return await function(self._bridge, *args)
            except trio.TooSlowError as error:
                raise TimeoutError("an engine did not answer in time") from error

        return await asyncio.wrap_future(self._bridge.run(crossed))

    async def _all(self, method: str, *args: Any, stages: Sequence[str] | None, timeout_s: float = CALL_S) -> list[Any]:
        """Of all vLLM stages, unless ``stages`` says which; answers in stage and replica order."""
        found = await self._calls(self._meant(stages), method, args, timeout_s)
        return [answer for answers in found.values() for answer in answers]

    def _meant(self, stages: Sequence[str] | None) -> Sequence[str]:
        return self._vllm_stages if stages is None else stages

    async def _model(
        self, method: str, *args: Any, stages: Sequence[str] | None, timeout_s: float = CALL_S
    ) -> list[Any]:
        """Of the stage that takes the prompt, unless ``stages`` says which."""
        if stages is None and self._front is None:
            raise UsageError("no vLLM stage of this pipeline takes the prompt; say which stages are meant")
        return await self._all(
            method, *args, stages=[self._front] if stages is None and self._front else stages, timeout_s=timeout_s
        )

    # ------------------------------------------------------------------ pause, sleep

    async def pause_generation(
        self,
        *,
        mode: str = "abort",
        wait_for_inflight_requests: bool = False,
        clear_cache: bool = True,
        stages: Sequence[str] | None = None,
    ) -> None:
        """Let no engine work on requests until ``resume_generation``; new ones are taken, and wait.

        ``abort``: all requests in flight end now, and hand back what they made. ``wait``: they finish first. ``keep``:
        they freeze where they are. Returns when the engines are at rest. A replica that starts during a pause is paused
        before it gets any work, also if this call failed: ``resume_generation`` ends it. ``wait_for_inflight_requests``
        is what vLLM 0.30 and 0.31 also call ``wait``.
        """
        mode = "wait" if wait_for_inflight_requests else mode
        _check_mode(mode)
        await self._keep_resting(stages, *_PAUSED)
        if clear_cache:
            await self._clear_senders(stages)
        if mode == "abort":
            await self._quiesce(stages)
            mode = "keep"
        await self._all("pause_scheduler", mode, clear_cache, stages=stages, timeout_s=LONG_CALL_S)

    async def _quiesce(self, stages: Sequence[str] | None) -> None:
        """Freeze the engines, then abort everything: so nothing is made between, and all partial answers are kept."""
        await self._all("pause_scheduler", "keep", False, stages=stages)
        await self._cross(_abort_all, "generation was paused")

    async def resume_generation(self, *, stages: Sequence[str] | None = None) -> None:
        """End a pause."""
        await self._keep_resting(stages, None)
        await self._all("resume_scheduler", stages=stages)

    async def _keep_resting(self, stages: Sequence[str] | None, method: str | None, *args: Any) -> None:
        """What an engine that starts from now on is told, before any work. Said before running ones are told to rest,
        and taken back before they are told to go on: so none is left behind.
        """
        await self._cross(_keep_calling, self._meant(stages), method, args)

    async def is_paused(self, *, stages: Sequence[str] | None = None) -> bool:
        """Whether any engine is paused."""
        return any(await self._all("is_scheduler_paused", stages=stages))

    async def sleep(self, level: int = 1, mode: str = "abort", *, stages: Sequence[str] | None = None) -> None:
        """Level 0 pauses, 1 moves weights off the device, 2 drops them. ``mode`` as in ``pause_generation``.

        A replica that starts meanwhile sleeps as well.
        """
        _check_mode(mode)
        await self._keep_resting(stages, "sleep", level, "keep")
        if level >= 1:
            await self._clear_senders(stages)
        if mode == "abort":
            await self._quiesce(stages)
            mode = "keep"
        await self._all("sleep", level, mode, stages=stages, timeout_s=LONG_CALL_S)
        self._metrics.slept(self._meant(stages), asleep=True, level=level)

    async def release_kv_cache_memory(self, *, stages: Sequence[str] | None = None) -> None:
        """Needs a completed pause."""
        await self._clear_senders(stages)
        await self._all("release_kv_cache_memory", stages=stages)
        self._metrics.slept(self._meant(stages), asleep=True)

    async def wake_up(self, tags: list[str] | None = None, *, stages: Sequence[str] | None = None) -> bool:
        """Whether every engine is fully awake."""
        # One that starts between two partial calls has all its memory: it waits, and is woken with the others.
        await self._keep_resting(stages, *(_PAUSED if tags else (None,)))
        answers = await self._all("wake_up", tags, stages=stages, timeout_s=LONG_CALL_S)
        awake = all(answer is not False for answer in answers)  # vLLM 0.30 answers None
        if awake and tags:
            await self.resume_generation(stages=stages)
        if awake:
            self._metrics.slept(self._meant(stages), asleep=False)
        return awake

    async def is_sleeping(self, *, stages: Sequence[str] | None = None) -> bool:
        """Whether any engine sleeps, or is paused."""
        return any(await self._all("is_sleeping", stages=stages))

    # ------------------------------------------------------------------ caches, profiling

    async def reset_mm_cache(self, *, stages: Sequence[str] | None = None) -> None:
        """Both halves of it."""
        await self._clear_senders(stages)
        await self._all("reset_mm_cache", stages=stages)

    async def _clear_senders(self, stages: Sequence[str] | None) -> None:
        for stage in self._meant(stages):
            renderer = getattr(self._bridge.omni.frontend(stage), "renderer", None)
            if renderer is not None:
                await renderer.clear_mm_cache_async()

    async def reset_encoder_cache(self, *, stages: Sequence[str] | None = None) -> None:
        """Forget encoder outputs."""
        await self._all("reset_encoder_cache", stages=stages)

    async def reset_prefix_cache(
        self,
        reset_running_requests: bool = False,
        reset_connector: bool = False,
        *,
        stages: Sequence[str] | None = None,
    ) -> bool:
        """Whether all could be reset: an engine refuses while requests hold blocks."""
        return all(await self._all("reset_prefix_cache", reset_running_requests, reset_connector, stages=stages))

    async def start_profile(
        self,
        profile_prefix: str | None = None,
        *,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
        profiler_kwargs: dict[str, Any] | None = None,
        stages: Sequence[str] | None = None,
    ) -> None:
        """The engines' own profilers, as their configuration says.

        vLLM 0.30 knows the prefix only, and ``profiler_kwargs`` is 0.33's: EngineRejected where an engine knows less.
        """
        args: list[Any] = [True, profile_prefix, delay_iterations, max_iterations, profiler_kwargs]
        while args[-1] is None:
            args.pop()
        await self._all("profile", *args, stages=stages)

    async def stop_profile(self, *, stages: Sequence[str] | None = None) -> None:
        """Writes the traces, which may take a while."""
        await self._all("profile", False, stages=stages, timeout_s=LONG_CALL_S)

    # ------------------------------------------------------------------ adapters, weights, anything

    async def add_lora(self, lora_request: Any, *, stages: Sequence[str] | None = None) -> bool:
        """Load an adapter everywhere. Whether all did."""
        return all(await self._model("add_lora", lora_request, stages=stages))

    async def remove_lora(self, lora_id: int, *, stages: Sequence[str] | None = None) -> bool:
        """Unload it. Whether all did."""
        return all(await self._model("remove_lora", lora_id, stages=stages))

    async def list_loras(self, *, stages: Sequence[str] | None = None) -> set[int]:
        """Those that every replica has."""
        return set.intersection(*(set(answer) for answer in await self._model("list_loras", stages=stages)))

    async def pin_lora(self, lora_id: int, *, stages: Sequence[str] | None = None) -> bool:
        """Never evict it. Whether all did."""
        return all(await self._model("pin_lora", lora_id, stages=stages))

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        stages: Sequence[str] | None = None,
    ) -> list[Any]:
        """A method of every worker, everywhere at once; the answers in stage, replica and worker order.

        Without a ``timeout`` in seconds it has 600.
        """
        within_s = LONG_CALL_S if timeout is None else timeout
        answers = await self._all(
            "collective_rpc", method, timeout, args, kwargs and dict(kwargs), stages=stages, timeout_s=within_s
        )
        return [one for answer in answers for one in answer]

    async def _workers(self, method: str, **kwargs: Any) -> list[Any]:
        """A method of the workers of the stage that takes the prompt."""
        return await self.collective_rpc(method, kwargs=kwargs, stages=[self._front] if self._front else None)

    async def compute_weight_checksums(self) -> list[dict[str, str]]:
        """One per worker."""
        answers = await self._model("compute_weight_checksums", stages=None, timeout_s=LONG_CALL_S)
        return [one for answer in answers for one in answer]

    async def init_weight_transfer_engine(self, init_request: Any) -> None:
        """As vLLM's; to the stage that takes the prompt, like all that follows."""
        await self._workers("init_weight_transfer_engine", init_info=init_request.init_info)

    async def shutdown_weight_transfer_engine(self) -> None:
        """Release the trainer's connection."""
        await self._workers("shutdown_weight_transfer_engine")

    async def start_weight_update(self) -> None:
        """Begin to take new weights."""
        await self._workers("start_weight_update")

    async def start_draft_weight_update(self) -> None:
        """The same for the speculative draft model."""
        await self._workers("start_draft_weight_update")

    async def update_weights(self, request: Any) -> None:
        """A batch of new weights."""
        await self._workers("update_weights", update_info=request.update_info)

    async def finish_weight_update(self, weight_version: str | None = None) -> None:
        """The new weights are complete."""
        await self._workers("finish_weight_update")
        if weight_version is not None:
            await self.update_weight_version(weight_version)

    async def update_weight_version(self, new_version: str) -> None:
        """What outputs are labelled with from now on."""
        await self._model("set_weight_version", new_version, stages=None)

    async def get_weight_version(self) -> str:
        """The label; replicas that disagree are a UsageError."""
        versions = set(await self._model("get_weight_version", stages=None))
        if len(versions) != 1:
            raise UsageError(f"the replicas' weights have different versions: {', '.join(sorted(map(str, versions)))}")
        version: str = versions.pop()
        return version

    # ------------------------------------------------------------------ not here

    async def scale_elastic_ep(self, new_data_parallel_size: int, drain_timeout: int = 300) -> None:
        """Raises NotImplementedError: a stage's size is its ``replicas``, fixed when it starts."""
        raise NotImplementedError("a stage's size is fixed when it starts: set its replicas in the pipeline's spec")

    async def handle_fault(self, fault_tolerance_request: Any) -> Any:
        """Raises NotImplementedError: supervision handles faults by itself."""
        raise NotImplementedError("faults are handled by the stage's supervisor; see its deadlines in the spec")

    async def get_status(self) -> Any:
        """Raises NotImplementedError: vLLM's is about its own fault tolerance. Ours is ``health``."""
        raise NotImplementedError("vLLM's fault tolerance does not run here; ask health()")

    async def notify_kv_transfer_request_rejected(
        self, request_id: str, kv_transfer_params: dict[str, Any], *, data_parallel_rank: int | None = None
    ) -> None:
        """Raises NotImplementedError: stages have no KV connectors yet, so there is nothing to free."""
        raise NotImplementedError("KV transfer between engines is not supported by this pipeline's stages")


def _check_mode(mode: str) -> None:
    if mode not in ("abort", "wait", "keep"):
        raise ValueError(f"mode is abort, wait or keep, not {mode!r}")


# ---------------------------------------------------------------------- in the trio thread


def _check_stages(bridge: Bridge, stages: Sequence[str]) -> None:
    known = {stage.name for stage in bridge.omni.spec.stages}
    for stage in stages:
        if stage not in known:
            raise UsageError(f"there is no stage {stage!r}; there are {', '.join(sorted(known))}")


async def call_all(
    bridge: Bridge, stages: Sequence[str], method: str, args: Sequence[Any], timeout_s: float
) -> dict[str, list[Any]]:
    """A method of every ready replica of these stages; each stage's answers in replica order.

    Raises the first failure, once all have answered: UsageError, StageUnavailable, EngineRejected, trio.TooSlowError.
    """
    _check_stages(bridge, stages)
    answers: dict[str, list[Any]] = {stage: [] for stage in stages}
    errors: list[Exception] = []

    async def ask(stage: str) -> None:
        try:
            answers[stage] = await bridge.omni.call(stage, method, *args, timeout_s=timeout_s)
            if not answers[stage]:
                raise StageUnavailable(f"no replica of stage {stage} is ready to be asked {method!r}", stage=stage)
        except Exception as error:  # the first of them is the caller's, once all have answered
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for stage in stages:
            nursery.start_soon(ask, stage)
    if errors:
        raise errors[0]
    return answers


async def _keep_calling(bridge: Bridge, stages: Sequence[str], method: str | None, args: Sequence[Any]) -> None:
    _check_stages(bridge, stages)
    for stage in stages:
        bridge.omni.keep_calling(stage, "rest", method, *args)


async def _abort_all(bridge: Bridge, reason: str) -> None:
    await bridge.abort_all(reason)
