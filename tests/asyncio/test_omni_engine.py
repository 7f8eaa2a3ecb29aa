"""``AsyncOmniEngine``: requests go in from any thread, messages come out one by one, each request has its last one."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import attrs
import pytest
import trio
from omni_actors_asyncio import AsyncOmniEngine, ErrorMessage, OutputMessage

from omni_actors import Kind, OmniError, OmniRuntime, Overloaded, RuntimeClosed, UsageError
from omni_actors.config import Limits
from omni_actors.testing import MemoryWorld
from omni_actors.testing.rigs import SHORT, core, pipeline, speech

THINKER, TALKER, VOCODER = range(3)


@contextmanager
def engine_of(spec):
    with AsyncOmniEngine(spec, world=MemoryWorld()) as engine:
        yield engine


def llm(**more):
    return pipeline(core("llm", **{"output": "text", **more}))


def endless(**more):
    return llm(tokens=8_000, token_s=0.002, params={"max_tokens": None}, **more)


def messages_of(engine, *names: str, within_s: float = 20) -> dict[str, list]:
    """What comes until each of these has its end."""
    found: dict[str, list] = {name: [] for name in names}
    deadline = time.monotonic() + within_s
    while any(not ended(messages) for messages in found.values()):
        message = engine.try_get_output(deadline - time.monotonic())
        assert message is not None, found
        found[message.request_id].append(message)
    return found


def ended(messages) -> bool:
    return bool(messages) and (messages[-1].type == "error" or messages[-1].finished)


def text_of(messages) -> str:
    return "".join(output.text for message in messages for output in message.engine_outputs)


def test_messages_of_several_requests_come_mixed_each_in_its_order():
    with engine_of(llm(token_s=0.001)) as engine:
        for name in ("a", "b"):
            engine.add_request(name, name)
        found = messages_of(engine, "a", "b")
        for messages in found.values():
            assert text_of(messages) == messages[-1].terminal.text() != ""
            assert [message.finished for message in messages] == [False] * (len(messages) - 1) + [True]
        assert engine.try_get_output() is None


def test_each_message_names_its_stage_and_only_what_was_asked_for_comes():
    with engine_of(speech()) as engine:
        engine.add_request("all", "x")
        engine.add_request("text", "x", final_stage_id=THINKER)
        engine.add_request("sound", "x", final_output_stage_ids=[VOCODER])
        found = messages_of(engine, "all", "text", "sound")
        heard = {
            name: {output.modality for message in messages for output in message.engine_outputs}
            for name, messages in found.items()
        }
        assert heard == {"all": {"text", "audio"}, "text": {"text"}, "sound": {"audio"}}
        for message in found["all"]:
            assert {output.stage for output in message.engine_outputs} <= {
                engine.get_stage_metadata(message.stage_id).name
            }
        assert engine.num_stages == 3


def test_each_stage_has_its_own_sampling_params():
    with engine_of(speech()) as engine:
        engine.add_request("short", "x", [{"max_tokens": 3}, {"max_tokens": 2}, None])
        (messages,) = messages_of(engine, "short").values()
        terminal = messages[-1].terminal
        assert [len(terminal.token_ids(stage)) for stage in ("thinker", "talker")] == [3, 2]


def test_one_bad_request_is_a_message_and_the_others_go_on():
    with engine_of(llm()) as engine:
        engine.add_request("good", "x")
        engine.add_request("bad", "x", [{"n": "many"}])
        engine.add_request("late", "x", timeout_s=1e-6)
        found = messages_of(engine, "good", "bad", "late")
        (bad,) = found["bad"]
        assert isinstance(bad, ErrorMessage)
        assert (bad.status_code, bad.fatal) == (400, False)
        assert (found["late"][-1].error_type, found["late"][-1].status_code) == ("RequestTimeout", 504)
        assert isinstance(found["good"][-1], OutputMessage)


def test_a_dead_engine_fails_what_it_held_and_the_next_request_is_served():
    with engine_of(llm(tokens=12, die_at=30, deadlines=attrs.evolve(SHORT, backoff_first_s=0.05))) as engine:
        names = ("a", "b", "c")
        for name in names:
            engine.add_request(name, "x")
        ends = [messages[-1] for messages in messages_of(engine, *names).values()]
        died = [end for end in ends if end.type == "error"]
        assert {(end.status_code, end.fatal, end.stage_id) for end in died} == {(503, False, 0)}
        assert any(end.terminal.text() for end in died)
        assert engine.is_alive()
        engine.add_request("again", "x")
        assert messages_of(engine, "again")["again"][-1].finished


def test_abort_is_told_twice_and_hands_back_what_was_made():
    with engine_of(endless()) as engine:
        engine.add_request("mine", "x")
        first = engine.try_get_output(10)
        (report, unknown) = asyncio.run(engine.abort_async(["mine", "nobody"], timeout=10))
        assert (report.known, unknown.known) == (True, False)
        assert report.terminals[0].text().startswith(text_of([first]))
        (message,) = messages_of(engine, "mine")["mine"]
        assert (message.finished, message.terminal.kind, message.engine_outputs) == (True, Kind.ABORTED, ())


def test_an_abort_is_never_too_early(monkeypatch):
    from omni_actors.runtime._omni import Generation

    async def submit(self, *args):
        await trio.sleep_forever()  # its input is being prepared

    monkeypatch.setattr(Generation, "submit_now", lambda self, *args: False)
    monkeypatch.setattr(Generation, "submit", submit)
    with engine_of(llm()) as engine:
        engine.add_request("mine", "x")
        (report,) = asyncio.run(engine.abort_async(["mine"]))
        assert (report.known, report.terminals) == (True, ())
        (message,) = messages_of(engine, "mine")["mine"]
        assert (message.finished, message.terminal) == (True, None)


def test_many_threads_add_and_many_fetch_and_nothing_is_lost_or_doubled():
    names = [f"{thread}-{number}" for thread in range(4) for number in range(8)]
    got: list = []

    def add(thread):
        for number in range(8):
            engine.add_request(f"{thread}-{number}", "x")

    def fetch(_):
        while len([message for message in got if ended([message])]) < len(names):
            if (message := engine.try_get_output(0.05)) is not None:
                got.append(message)

    with engine_of(llm()) as engine, ThreadPoolExecutor(8) as threads:
        fetching = threads.map(fetch, range(4))
        list(threads.map(add, range(4)))
        list(fetching)
        last = [message for message in got if message.finished]
        assert sorted(message.request_id for message in last) == sorted(names)
        for message in last:
            assert text_of([m for m in got if m.request_id == message.request_id]).strip() != ""
            tokens = [m for m in got if m.request_id == message.request_id]
            assert sum(len(output.payload.token_ids) for m in tokens for output in m.engine_outputs) == 16


def test_a_loop_waits_without_standing_still(run):
    async def main():
        with engine_of(llm(token_s=0.005)) as engine:
            assert await engine.try_get_output_async() is None
            turns = 0

            async def count():
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            counting = asyncio.ensure_future(count())
            await engine.add_request_async("mine", "x")
            messages = [await engine.try_get_output_async(timeout=60)]
            assert turns > 10
            while not messages[-1].finished:
                messages.append(await engine.try_get_output_async(timeout=60))
            counting.cancel()
            assert text_of(messages) == messages[-1].terminal.text()
            return await asyncio.get_running_loop().run_in_executor(None, engine.shutdown)

    assert run(main).stopped == ("llm/0",)


def test_a_getter_that_sleeps_learns_at_once_that_the_runtime_is_gone():
    with engine_of(llm()) as engine, ThreadPoolExecutor(2) as threads:
        sleeping = [threads.submit(engine.try_get_output, 60) for _ in range(2)]
        engine.shutdown()
        for getter in sleeping:
            with pytest.raises(RuntimeClosed):
                getter.result(5)
        with pytest.raises(RuntimeClosed):
            engine.add_request("x", "x")
        assert not engine.is_alive()


def test_what_was_not_fetched_can_be_fetched_after_the_end():
    with engine_of(endless()) as engine:
        engine.add_request("mine", "x")
        assert engine.try_get_output(10) is not None
    messages = messages_of(engine, "mine")["mine"]
    assert messages[-1].terminal.kind is Kind.ABORTED
    with pytest.raises(RuntimeClosed):
        engine.try_get_output()


def test_a_bug_in_the_runtime_is_an_exception(monkeypatch):
    from omni_actors.runtime._router import Router

    def bug(self, batch):
        raise ZeroDivisionError

    engine = AsyncOmniEngine(llm(), world=MemoryWorld())
    monkeypatch.setattr(Router, "apply", bug)
    engine.add_request("x", "x")
    messages_of(engine, "x")
    with pytest.raises(OmniError, match="ZeroDivisionError"):
        engine.try_get_output(10)
    with pytest.raises(OmniError, match="ZeroDivisionError"):
        engine.shutdown()


def test_who_fetches_nothing_may_not_add_for_ever():
    spec = attrs.evolve(llm(), limits=Limits(max_requests=2))
    with engine_of(spec) as engine:
        for number in range(4):
            engine.add_request(str(number), "x")
        with pytest.raises(Overloaded, match="nobody has fetched"):
            engine.add_request("5", "x")
        messages_of(engine, *"0123")
        engine.add_request("5", "x")
        assert messages_of(engine, "5")["5"][-1].finished


def test_a_slow_reader_fails_its_own_request_only():
    spec = attrs.evolve(endless(), limits=Limits(stream_bytes=2_000))
    with engine_of(spec) as engine:
        engine.add_request("deaf", "x")
        deadline = time.monotonic() + 20
        while engine._bridge.run(unsettled, engine).result(5):
            assert time.monotonic() < deadline
        assert messages_of(engine, "deaf")["deaf"][-1].error_type == "SlowConsumer"


async def unsettled(engine) -> int:
    return engine._bridge.omni.statistics().unsettled


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"sampling_params_list": [None]}, "1 sampling params for 3 stages"),
        ({"final_stage_id": 3}, "there is no stage 3"),
        ({"final_output_stage_ids": [-1]}, "there is no stage -1"),
    ],
)
def test_stages_that_are_not_there(how, words):
    with engine_of(speech()) as engine:
        with pytest.raises(UsageError, match=words):
            engine.add_request("x", "x", **how)


def test_a_call_of_every_worker(monkeypatch):
    calls = []

    async def call(self, stage, method, *args, timeout_s):
        calls.append((stage, method, *args, timeout_s))
        if args[0] == "slow":
            raise trio.TooSlowError
        return [["of a worker", "of another"]] * 2  # replicas

    monkeypatch.setattr(OmniRuntime, "call", call)
    with engine_of(speech()) as engine:
        assert engine.collective_rpc("name", 5.0, (1,), {"k": 2}) == [["of a worker", "of another"] * 2] * 3
        told = ("collective_rpc", "name", 5.0, (1,), {"k": 2}, 5.0)
        assert sorted(calls, key=repr) == [(stage, *told) for stage in ("talker", "thinker", "vocoder")]
        assert len(asyncio.run(engine.collective_rpc_async("name", stage_ids=[TALKER]))) == 1
        assert calls[3:] == [("talker", "collective_rpc", "name", None, (), {}, 600.0)]
        with pytest.raises(TimeoutError):
            engine.collective_rpc("slow", 0.1)
        with pytest.raises(UsageError, match="there is no stage 7"):
            engine.collective_rpc("name", stage_ids=[7])
