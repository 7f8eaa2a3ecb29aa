"""Thinker, talker, vocoder: routing, segments, and the cases of CASES.md that need three stages."""

from __future__ import annotations

import signal

import attrs
import pytest
import trio

from omni_actors import (
    EdgeTimeout,
    InputSpec,
    InvalidRequest,
    Kind,
    StageFailed,
    StartupFailed,
    TransformFailed,
    open_omni,
)
from omni_actors.testing.rigs import SHORT, core, omni_stage, pipeline, speech

PIPES = "omni_actors.testing.pipelines"


async def read(stream) -> list:
    return [output async for output in stream]


async def test_c1_abort_in_the_middle_stage(world, autojump_clock):
    spec = speech(thinker={"tokens": 20, "token_s": 0.02}, talker={"tokens": 200, "token_s": 0.02})
    async with open_omni(spec, world=world) as omni:
        async with omni.generate("question", request_id="r") as stream:
            await trio.sleep(20 * 0.02 + 5 * 0.02 + 0.005)
            report = await omni.abort("r")
            assert report.unconfirmed == ()
            (terminal,) = report.terminals
            assert (terminal.kind, terminal.stage, len(terminal.text("thinker"))) == (Kind.ABORTED, "vocoder", 16)
            for stage in ("thinker", "talker"):
                assert await omni.call(stage, "has_work") == [False]
            assert (await omni.call("vocoder", "stats"))[0]["live"] == 0
            await trio.sleep(2)
            assert await read(stream) == []  # what it had not read yet is gone with the abort
        assert stream.terminal is terminal
        omni.check()


@pytest.mark.parametrize("silent", [False, True])
async def test_c13_a_stage_that_does_not_start(world, autojump_clock, silent):
    talker = {"handshake": "silent" if silent else "exit", "stderr": "no such weights", "exit_code": 3}
    spec = speech(talker=talker, vocoder={"start_s": 15})
    begun = trio.current_time()
    with pytest.raises(StartupFailed) as caught:
        async with open_omni(spec, world=world):
            pytest.fail("it started")
    error, took = caught.value, trio.current_time() - begun
    assert error.stage == "talker"
    if silent:
        assert took == pytest.approx(SHORT.start_s)
        assert "did not become ready within 20 s" in str(error)
    else:
        assert took <= 1
        assert error.exit_code == 3
        assert "exited with code 3" in str(error)
    assert world.launcher.processes == []


@pytest.mark.parametrize("replicas", [1, 2])
async def test_c15_the_last_stage_dies_under_load(world, autojump_clock, replicas):
    spec = speech(
        thinker={"tokens": 30, "max_running": 4, "params": {"max_tokens": 30}},
        vocoder={"chunks": 30, "chunk_s": 0.5, "replicas": replicas},
    )
    outcomes: dict[int, object] = {}
    async with open_omni(spec, world=world) as omni:

        async def one(number: int) -> None:
            async with omni.generate(f"question {number}") as stream:
                try:
                    outcomes[number] = (await stream.result()).kind
                except StageFailed as error:
                    outcomes[number] = error

        async def text_only() -> None:
            for _ in range(20):
                async with omni.generate("just text", modalities=["text"]) as stream:
                    assert (await stream.result()).kind is Kind.FINISHED

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(one, number)
            await trio.sleep(1.2)
            bound = sum(
                lease.stage == "vocoder" and lease.replica == 0 for lease in omni._handler.table.leases.values()
            )
            assert bound
            nursery.start_soon(text_only)
            world.launcher.find("vocoder", 0).kill(signal.SIGKILL)
            await trio.sleep(0.1)
            assert omni.health().ready is (replicas == 2)
        failed = [error for error in outcomes.values() if isinstance(error, StageFailed)]
        assert len(failed) == bound
        assert all("vocoder" in str(error) and error.signal == "SIGKILL" for error in failed)
        assert sum(kind is Kind.FINISHED for kind in outcomes.values()) == 10 - bound
        assert omni.health().ready
        omni.check()


async def test_c18_an_edge_has_a_deadline(world, autojump_clock):
    """The talker takes four at once and 0.8 s for them: the fifth has no output within the edge's second."""
    edge = attrs.evolve(SHORT, edge_s=1.0)
    spec = speech(
        thinker={"params": {"max_tokens": 2}},
        talker={"deadlines": edge, "tokens": 8, "token_s": 0.1, "max_running": 4},
    )
    kinds, late = [], []
    async with open_omni(spec, world=world) as omni:

        async def one(number: int) -> None:
            async with omni.generate(f"question {number}", request_id=f"r{number}", timeout_s=5) as stream:
                begun = trio.current_time()
                try:
                    kinds.append((await stream.result()).kind)
                except EdgeTimeout as error:
                    late.append((error, trio.current_time() - begun))

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(one, number)
        assert kinds == [Kind.FINISHED] * 4
        ((error, took),) = late
        assert (error.edge, error.stage) == ("thinker->talker", "talker")
        assert error.request_id.startswith("r")
        assert took == pytest.approx(1.0, abs=0.1)
        assert await omni.call("talker", "has_work") == [False]
        omni.check()


@pytest.mark.parametrize("segments", [False, True])
async def test_c21_streamed_bytes_are_the_whole_in_order(world, autojump_clock, segments):
    """The vocoder maps byte i to chunk i: what arrives must be the thinker's text, byte for byte."""
    source = (
        InputSpec(stage="thinker", mode="segments", split=f"{PIPES}:words") if segments else InputSpec(stage="thinker")
    )
    spec = pipeline(
        core("thinker", output="text", echo=True, tokens=500, token_s=0.003),
        core("talker", inputs=[source], transform=f"{PIPES}:speak", echo=True, tokens=500, max_running=3),
        omni_stage(
            "vocoder",
            inputs=[InputSpec(stage="talker")],
            transform=f"{PIPES}:voice",
            output="audio",
            echo=True,
            chunk_s=0.02,
        ),
    )
    question = "one two three four five six seven eight nine ten eleven twelve"
    long = {"thinker": {"max_tokens": 500}, "talker": {"max_tokens": 500}}
    async with open_omni(spec, world=world) as omni:
        async with omni.generate(question, long) as stream:
            outputs = await read(stream)
        heard = b"".join(
            bytes(o.payload.tensors["data"].data)
            for o in outputs
            if o.stage == "vocoder" and "data" in o.payload.tensors
        )
        assert "".join(o.text for o in outputs) == question
        assert heard.decode() == (question.replace(" ", "") if segments else question)
        assert [o.part for o in outputs if o.stage == "vocoder"] == sorted(
            o.part for o in outputs if o.stage == "vocoder"
        )
        if segments:
            first_audio = next(i for i, o in enumerate(outputs) if o.stage == "vocoder")
            assert any(o.stage == "thinker" for o in outputs[first_audio:])  # heard while it still thinks
        omni.check()


async def test_an_answer_without_segments_is_silence_not_a_hang(world, autojump_clock):
    split = InputSpec(stage="thinker", mode="segments", split=f"{PIPES}:words")
    spec = pipeline(
        core("thinker", output="text", echo=True, tokens=5),
        omni_stage("vocoder", inputs=[split], transform=f"{PIPES}:echo", output="audio", echo=True),
    )
    async with open_omni(spec, world=world) as omni:
        async with omni.generate("   ") as stream:
            outputs = await read(stream)
        assert stream.terminal.kind is Kind.FINISHED
        assert {o.stage for o in outputs} == {"thinker"}


@pytest.mark.parametrize(
    ("modalities", "stages"),
    [
        (["text"], {"thinker"}),
        (["audio"], {"vocoder"}),
        (["text", "audio"], {"thinker", "vocoder"}),
        (None, {"thinker", "vocoder"}),
    ],
)
async def test_c22_only_the_stages_that_are_needed(world, autojump_clock, modalities, stages):
    async with open_omni(speech(), world=world) as omni:
        async with omni.generate("x", modalities=modalities) as stream:
            outputs = await read(stream)
        assert {o.stage for o in outputs} == stages
        worked = {t.stage for t in stream.terminal.timings}
        assert worked == ({"thinker"} if modalities == ["text"] else {"thinker", "talker", "vocoder"})
        made = (await omni.call("vocoder", "stats"))[0]["made"]
        assert (made == 0) is (modalities == ["text"])
        with pytest.raises(InvalidRequest, match="text, audio"):
            async with omni.generate("x", modalities=["video"]):
                pass


async def test_fan_out_and_fan_in(world, autojump_clock):
    spec = pipeline(
        core("root", output="text", tokens=3),
        core("left", inputs=[InputSpec(stage="root")], transform=f"{PIPES}:speak", tokens=20),
        core("right", inputs=[InputSpec(stage="root")], transform=f"{PIPES}:speak", echo=True, tokens=20),
        omni_stage(
            "end",
            inputs=[InputSpec(stage="left"), InputSpec(stage="right")],
            transform=f"{PIPES}:join_bytes",
            output="audio",
            echo=True,
        ),
    )
    async with open_omni(spec, world=world) as omni:
        async with omni.generate("x", {"root": {"max_tokens": 3}}) as stream:
            outputs = await read(stream)
        terminal = stream.terminal
        heard = b"".join(bytes(o.payload.tensors["data"].data) for o in outputs if o.stage == "end")
        assert heard.decode() == f"{terminal.text('left')}+{terminal.text('right')}"
        assert terminal.text("right") == terminal.text("root")


async def test_a_transform_that_is_not_cheap_runs_in_a_thread(world):
    """On the real clock: a virtual one would jump while a thread works."""
    split = InputSpec(stage="root", mode="segments", split=f"{PIPES}:words")
    spec = pipeline(
        core("root", output="text", echo=True, tokens=9, transform=f"{PIPES}:in_a_thread", cheap=False),
        omni_stage("end", inputs=[split], transform=f"{PIPES}:in_a_thread", cheap=False, output="audio", echo=True),
    )
    async with open_omni(spec, world=world) as omni:
        async with omni.generate("is it ok", {"max_tokens": 9}) as stream:
            outputs = await read(stream)
        heard = b"".join(bytes(o.payload.tensors["data"].data) for o in outputs if "end" in o.stage)
        assert heard.decode() == "isitok"
        with pytest.raises(TransformFailed, match="in_a_thread"):
            async with omni.generate(""):
                pytest.fail("its transform raised")
        omni.check()


async def test_a_transform_that_raises_fails_its_request_only(world, autojump_clock):
    spec = speech(vocoder={"transform": f"{PIPES}:broken"})
    async with open_omni(spec, world=world) as omni:
        async with omni.generate("!bad", request_id="mine") as bad, omni.generate("good") as good:
            with pytest.raises(TransformFailed, match="a bug in the user's transform") as caught:
                await read(bad)
            assert (await good.result()).kind is Kind.FINISHED
        assert (caught.value.stage, caught.value.function, caught.value.request_id) == (
            "vocoder",
            f"{PIPES}:broken",
            "mine",
        )
        assert isinstance(caught.value.__cause__, ValueError)
        omni.check()


async def test_a_splitter_that_raises_fails_its_request_only(world, autojump_clock):
    split = InputSpec(stage="thinker", mode="segments", split=f"{PIPES}:broken_split")
    spec = pipeline(
        core("thinker", output="text", tokens=5),
        omni_stage("vocoder", inputs=[split], transform=f"{PIPES}:echo", output="audio"),
    )
    async with open_omni(spec, world=world) as omni:
        async with omni.generate("x") as stream:
            with pytest.raises(TransformFailed, match="broken_split"):
                await read(stream)
        async with omni.generate("x", modalities=["text"]) as stream:
            assert (await stream.result()).kind is Kind.FINISHED
        omni.check()


async def test_one_failed_lease_on_the_omni_wire_fails_one_request(world, autojump_clock):
    async with open_omni(speech(vocoder={"fail_at_chunk": 1}), world=world) as omni:
        async with omni.generate("x") as stream:
            with pytest.raises(Exception, match="failed at chunk 1") as caught:
                await read(stream)
        assert caught.value.stage == "vocoder"
        async with omni.generate("x", modalities=["text"]) as stream:
            assert (await stream.result()).kind is Kind.FINISHED
        assert len(world.launcher.spawned) == 3
        omni.check()
