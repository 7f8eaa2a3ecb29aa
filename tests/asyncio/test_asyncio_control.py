"""The control plane, on fake engines that write down what they are asked."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import attrs
import msgspec
import pytest
from omni_actors_asyncio import AsyncOmni
from vllm.exceptions import GracefulHTTPError
from vllm.v1.engine.exceptions import EngineGenerateError

from omni_actors import EngineRejected, StageUnavailable, UsageError
from omni_actors.config import InputSpec
from omni_actors.testing import FakeCore, FakeCoreBehaviour, MemoryWorld, current_process
from omni_actors.testing._core_wire import FakeUtility
from omni_actors.testing.rigs import SHORT, core, pipeline

from .conftest import endless, llm

ANSWERS = {
    "get_supported_tasks": ["generate", "embed", "transcription"],
    "is_scheduler_paused": False,
    "wake_up": True,
    "add_lora": True,
    "remove_lora": True,
    "pin_lora": True,
    "list_loras": [1, 2],
    "collective_rpc": ["of a worker", "of another"],
    "compute_weight_checksums": [{"rank": "0"}],
    "get_weight_version": "v1",
}


class Obedient(FakeCore):
    """Answers everything, and keeps what it was asked."""

    def __init__(self, asked: list, name: str, *how) -> None:
        super().__init__(*how)
        self._asked, self._name = asked, name

    def _call(self, call_id, method, args):
        if method in ("is_sleeping", "has_work", "reset_prefix_cache"):
            return super()._call(call_id, method, args)
        if method == "fail":
            return FakeUtility(call_id, "Call to fail method failed: on purpose")
        self._asked.append((self._name, method, *args))
        return FakeUtility.answer(call_id, ANSWERS.get(method))


def two_stages(asked: list) -> AsyncOmni:
    async def engine(launch, payload, transport):
        behaviour = msgspec.convert(payload["engine_args"], FakeCoreBehaviour)
        fake = Obedient(asked, f"{launch.stage}/{launch.replica}", behaviour, payload["handshake"], transport)
        current_process().on_terminate(fake.stop)
        await fake.run()

    spec = pipeline(
        core("thinker", output="text", replicas=2, tokens=8_000, params={"max_tokens": None}),
        core("talker", inputs=[InputSpec(stage="thinker")], output="audio", transform=None),
    )
    return AsyncOmni(spec, world=MemoryWorld({"omni_actors.testing.fake_core": engine}))


def ask(run, question):
    """What ``question(omni)`` answers, and what the engines were asked meanwhile."""
    asked = []

    async def main():
        async with two_stages(asked) as omni:
            return await question(omni)

    return run(main), sorted(asked, key=repr)


THINKERS, ALL = ("thinker/0", "thinker/1"), ("talker/0", "thinker/0", "thinker/1")


@pytest.mark.parametrize(
    ("question", "answer", "stages", "call"),
    [
        (lambda o: o.resume_generation(), None, ALL, ("resume_scheduler",)),
        (lambda o: o.is_paused(), False, ALL, ("is_scheduler_paused",)),
        (lambda o: o.pause_generation(mode="wait", clear_cache=False), None, ALL, ("pause_scheduler", "wait", False)),
        (lambda o: o.pause_generation(mode="keep"), None, ALL, ("pause_scheduler", "keep", True)),
        (lambda o: o.sleep(2, "wait"), None, ALL, ("sleep", 2, "wait")),
        (lambda o: o.wake_up(), True, ALL, ("wake_up", None)),
        (lambda o: o.release_kv_cache_memory(), None, ALL, ("release_kv_cache_memory",)),
        (lambda o: o.reset_mm_cache(), None, ALL, ("reset_mm_cache",)),
        (lambda o: o.reset_encoder_cache(), None, ALL, ("reset_encoder_cache",)),
        (lambda o: o.start_profile("p"), None, ALL, ("profile", True, "p")),
        (lambda o: o.start_profile(max_iterations=3), None, ALL, ("profile", True, None, None, 3)),
        (lambda o: o.start_profile(stages=["talker"]), None, ("talker/0",), ("profile", True)),
        (lambda o: o.stop_profile(), None, ALL, ("profile", False)),
        (lambda o: o.add_lora({"lora_int_id": 1}), True, THINKERS, ("add_lora", {"lora_int_id": 1})),
        (lambda o: o.remove_lora(1), True, THINKERS, ("remove_lora", 1)),
        (lambda o: o.pin_lora(1, stages=["talker"]), True, ("talker/0",), ("pin_lora", 1)),
        (lambda o: o.list_loras(), {1, 2}, THINKERS, ("list_loras",)),
        (lambda o: o.update_weight_version("v2"), None, THINKERS, ("set_weight_version", "v2")),
        (lambda o: o.get_weight_version(), "v1", THINKERS, ("get_weight_version",)),
        (lambda o: o.compute_weight_checksums(), [{"rank": "0"}] * 2, THINKERS, ("compute_weight_checksums",)),
        (
            lambda o: o.collective_rpc("name", 5.0, (1,), {"k": 2}),
            ["of a worker", "of another"] * 3,
            ALL,
            ("collective_rpc", "name", 5.0, [1], {"k": 2}),
        ),
        (
            lambda o: o.update_weights(SimpleNamespace(update_info={"names": ["w"]})),
            None,
            THINKERS,
            ("collective_rpc", "update_weights", None, [], {"update_info": {"names": ["w"]}}),
        ),
    ],
)
def test_each_call_goes_where_it_belongs(run, question, answer, stages, call):
    answered, asked = ask(run, question)
    assert answered == answer
    assert asked == [(stage, *call) for stage in stages]


def test_a_pause_that_aborts_hands_back_the_partial_answers_and_comes_to_rest(run):
    async def question(omni):
        streams = [omni.generate(f"x{n}", {"output_kind": 0}, f"r{n}") for n in range(3)]
        first = [await anext(stream) for stream in streams]
        await omni.pause_generation()
        assert await omni.call("thinker", "has_work") == [False, False]
        return first, [[output async for output in stream] for stream in streams]

    (first, rest), asked = ask(run, question)
    for early, (last,) in zip(first, rest, strict=True):
        assert last.finished
        assert last.outputs[0].finish_reason == "abort"
        assert last.outputs[0].text.startswith(early.outputs[0].text)
    assert asked == [(stage, "pause_scheduler", "keep", clear) for stage in ALL for clear in (False, True)]


def test_failures_are_exceptions(run):
    async def question(omni):
        with pytest.raises(EngineRejected, match="on purpose"):
            await omni.call("talker", "fail")
        with pytest.raises(EngineRejected, match="on purpose"):
            await omni._all("fail", stages=None)
        with pytest.raises(UsageError, match="there is no stage 'painter'"):
            await omni.resume_generation(stages=["painter"])
        with pytest.raises(ValueError, match="mode is abort, wait or keep"):
            await omni.pause_generation(mode="soon")
        for refused in (omni.scale_elastic_ep(2), omni.handle_fault(None), omni.get_status()):
            with pytest.raises(NotImplementedError):
                await refused
        with pytest.raises(NotImplementedError, match="KV"):
            await omni.notify_kv_transfer_request_rejected("r", {})

    ask(run, question)


def test_what_a_model_can_do_is_what_we_offer(run):
    assert ask(run, lambda omni: omni.get_supported_tasks())[0] == ("generate", "embed", "transcription")


def test_a_call_has_its_own_deadline_and_a_cancelled_one_leaves_nothing(run):
    async def main():
        async with endless(die_at=3, death="stall") as omni:
            stream = omni.generate_omni("x")
            await anext(stream)
            with pytest.raises(TimeoutError):
                while True:
                    await omni.call("llm", "is_sleeping", timeout_s=0.1)
            call = asyncio.ensure_future(omni.call("llm", "is_sleeping", timeout_s=60))
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await omni.close(drain_s=0)

    began = time.monotonic()
    run(main)
    assert time.monotonic() - began < 15


def test_nobody_ready_is_an_error_and_not_an_empty_yes(run):
    async def main():
        async with llm(tokens=5, die_at=1, deadlines=attrs.evolve(SHORT, backoff_first_s=0.05)) as omni:
            while not omni.errored:
                with pytest.raises((EngineGenerateError, GracefulHTTPError), match="llm"):
                    await anext(omni.generate("x", None, "x"))
            with pytest.raises(StageUnavailable, match="no replica of stage llm is ready"):
                await omni.reset_prefix_cache()

    run(main)
