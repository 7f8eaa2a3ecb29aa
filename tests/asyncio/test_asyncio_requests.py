"""Requests through AsyncOmni: vLLM's outputs, our own, several at once, and what is refused."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import attrs
import pytest
from omni_actors_asyncio import AsyncOmni
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from omni_actors import InvalidRequest, Kind, Overloaded, RequestTimeout, RuntimeClosed, SlowConsumer, StageFailed
from omni_actors.config import Limits
from omni_actors.testing import FakeCoreBehaviour, FakeParams, MemoryWorld, fake_tokens
from omni_actors.testing.rigs import SHORT, core, pipeline, speech

from .conftest import endless, idle_within, llm

CUMULATIVE, DELTA, FINAL_ONLY = (kind.value for kind in RequestOutputKind)


def said(prompt: str, tokens: int = 16, **params) -> str:
    made = fake_tokens(
        [ord(c) for c in prompt], FakeCoreBehaviour(tokens=tokens), FakeParams(max_tokens=None, **params)
    )
    return "".join(map(chr, made))


async def all_of(generator) -> list:
    return [output async for output in generator]


def test_deltas_add_up(run):
    async def main():
        async with llm() as omni:
            return await all_of(omni.generate("hello", {"output_kind": DELTA}, "mine"))

    outputs = run(main)
    assert "".join(output.outputs[0].text for output in outputs) == said("hello")
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1].outputs[0].finish_reason == "stop"
    assert {(output.request_id, output.prompt) for output in outputs} == {("mine", "hello")}


def test_cumulative_is_the_default_and_grows(run):
    async def main():
        async with llm() as omni:
            return await all_of(omni.generate("hello", None, "mine"))

    texts = [output.outputs[0].text for output in run(main)]
    assert texts[-1] == said("hello")
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert len(texts) > 1


def test_final_only_is_one_output(run):
    async def main():
        async with llm() as omni:
            return await all_of(omni.generate("hello", {"output_kind": FINAL_ONLY, "n": 2, "seed": 5}, "mine"))

    (output,) = run(main)
    assert output.finished
    assert [choice.index for choice in output.outputs] == [0, 1]
    assert [choice.text for choice in output.outputs] == [said("hello", seed=5), said("hello", seed=6)]
    assert [choice.token_ids for choice in output.outputs] == [
        [ord(c) for c in choice.text] for choice in output.outputs
    ]


@pytest.mark.parametrize("kind", [CUMULATIVE, DELTA])
def test_two_choices_end_each_for_itself_and_the_request_with_the_last(run, kind):
    async def main():
        async with llm() as omni:
            params = {"n": 2, "seed": 5, "output_kind": kind, "stop_token_ids": [ord(said("hello", seed=5)[3])]}
            return await all_of(omni.generate("hello", params, "mine"))

    outputs = run(main)
    texts = {0: "", 1: ""}
    for output in outputs:
        for choice in output.outputs:
            texts[choice.index] = choice.text if kind == CUMULATIVE else texts[choice.index] + choice.text
    assert texts[0] == said("hello", seed=5)[:4]
    assert texts[1] == said("hello", seed=6)[: len(texts[1])] != ""
    ended = [choice.index for output in outputs for choice in output.outputs if choice.finish_reason]
    assert sorted(ended) == [0, 1]
    assert [output.finished for output in outputs].index(True) == len(outputs) - 1


def test_every_modality(run):
    async def main():
        async with AsyncOmni(speech(), world=MemoryWorld()) as omni:
            async with omni.generate_omni("hello", request_id="mine") as stream:
                outputs = await all_of(stream)
            assert stream.terminal.kind is Kind.FINISHED
            alone = await all_of(omni.generate_omni("hello", modalities=["audio"]))
        return outputs, alone

    outputs, alone = run(main)
    assert {output.modality for output in outputs} == {"text", "audio"}
    assert {output.modality for output in alone} == {"audio"}
    assert "".join(output.text for output in outputs) == said("hello", 10)


def test_sixty_four_at_once_are_sixty_four_answers(run):
    async def main():
        async with llm(token_s=0.001) as omni:
            asked = [f"prompt {number}" for number in range(64)]
            answers = await asyncio.gather(*(all_of(omni.generate(p, {"output_kind": DELTA}, p)) for p in asked))
            assert (await omni.statistics()).requests == 0
        return asked, answers

    asked, answers = run(main)
    for prompt, outputs in zip(asked, answers, strict=True):
        assert "".join(output.outputs[0].text for output in outputs) == said(prompt)


def test_a_reader_that_comes_late_gets_all_of_it_as_one(run):
    async def main():
        async with llm(token_s=0.001) as omni:
            stream = omni.generate("hello", {"output_kind": DELTA}, "mine")
            first = await anext(stream)
            assert await idle_within(omni, 5)
            rest = await all_of(stream)
        return first, rest

    first, rest = run(main)
    assert len(rest) == 1
    assert first.outputs[0].text + rest[0].outputs[0].text == said("hello")


def test_a_reader_that_does_not_come_loses_its_request(run):
    async def main():
        limits = Limits(stream_bytes=5_000)
        stage = core("llm", output="text", tokens=8_000, token_s=0.0005, params={"max_tokens": None})
        async with AsyncOmni(pipeline(stage, limits=limits), world=MemoryWorld()) as omni:
            plain, ours = omni.generate("a", {"output_kind": DELTA}, "a"), omni.generate_omni("b")
            await anext(plain), await anext(ours)
            assert await idle_within(omni, 5)
            with pytest.raises(EngineGenerateError, match="not read") as failed:
                await all_of(plain)
            assert isinstance(failed.value.__cause__, SlowConsumer)
            with pytest.raises(SlowConsumer):
                await all_of(ours)

    run(main)


def test_an_abort_hands_back_what_was_made(run):
    async def main():
        async with endless() as omni:
            streams = {kind: omni.generate("hello", {"output_kind": kind}, str(kind)) for kind in (CUMULATIVE, DELTA)}
            got = {kind: [await anext(stream), await anext(stream)] for kind, stream in streams.items()}
            final = asyncio.ensure_future(all_of(omni.generate("hello", {"output_kind": FINAL_ONLY}, "final")))
            await anext(omni.generate_omni("a while", request_id="other"))
            reports = await omni.abort([*map(str, streams), "final", "nobody"])
            assert await omni.call("llm", "has_work") in ([False], [True])  # the other's
            rest = {kind: await all_of(stream) for kind, stream in streams.items()}
            return reports, got, rest, await final

    reports, got, rest, final = run(main)
    assert [report.known for report in reports] == [True, True, True, False]
    made = [report.terminals[0].text() for report in reports[:3]]
    assert [len(rest[kind]) for kind in rest] == [1, 1]
    assert rest[CUMULATIVE][0].outputs[0].text == made[0]
    assert "".join(output.outputs[0].text for output in [*got[DELTA], *rest[DELTA]]) == made[1]
    assert final[0].outputs[0].text == made[2]
    for output in (rest[CUMULATIVE][0], rest[DELTA][0], final[0]):
        assert output.finished
        assert output.outputs[0].finish_reason == "abort"


def test_an_aborted_omni_stream_ends_at_once(run):
    async def main():
        async with endless() as omni:
            stream = omni.generate_omni("hello", request_id="mine")
            first = await anext(stream)
            await anext(stream)
            (report,) = await omni.abort("mine")
            assert await all_of(stream) == []
            assert stream.terminal is report.terminals[0]
            assert stream.terminal.text().startswith(first.text)

    run(main)


def test_what_is_wrong_is_said_in_vllms_words_and_ours_is_the_cause(run):
    async def main():
        async with llm() as omni:
            for prompt, params, words in (
                ("", None, "empty"),
                ("x", {"max_tokens": 0}, "at least 1"),
                ("x", {"tempreature": 1}, "tempreature"),
                ("x", 7, "int"),
            ):
                with pytest.raises(VLLMValidationError, match=words) as refused:
                    await all_of(omni.generate(prompt, params, "r"))
                assert isinstance(refused.value.__cause__, InvalidRequest)
            with pytest.raises(InvalidRequest, match="smell"):
                await all_of(omni.generate_omni("x", modalities=["smell"]))
            with pytest.raises(RequestTimeout):
                await all_of(omni.generate_omni("x", timeout_s=0.001))
            with pytest.raises(VLLMValidationError, match="does not support pooling"):
                await all_of(omni.encode("x", None, "r"))
            with pytest.raises(VLLMValidationError, match="Input streaming"):
                await all_of(omni.generate((x async for x in omni.generate("x", None, "a")), None, "r"))

    run(main)


def test_a_full_house_is_503(run):
    async def main():
        limits = Limits(max_requests=1)
        async with AsyncOmni(
            pipeline(core("llm", output="text", tokens=5_000), limits=limits), world=MemoryWorld()
        ) as omni:
            omni.check_admission()
            stream = omni.generate("x", {"max_tokens": None}, "one")
            await anext(stream)
            with pytest.raises(GracefulHTTPError) as refused:
                omni.check_admission()
            assert refused.value.http_status == 503
            with pytest.raises(GracefulHTTPError) as refused:
                await all_of(omni.generate("y", None, "two"))
            assert isinstance(refused.value.__cause__, Overloaded)
            await stream.aclose()
            omni.check_admission()

    run(main)


def test_a_stage_that_dies_fails_its_requests_and_is_there_again(run):
    async def main():
        world = MemoryWorld()
        async with AsyncOmni(pipeline(core("llm", output="text", tokens=12, die_at=30)), world=world) as omni:
            assert len(await all_of(omni.generate("a", {"output_kind": DELTA}, "a"))) > 1
            with pytest.raises(EngineGenerateError) as failed:
                await asyncio.gather(*(all_of(omni.generate("b", None, f"b{number}")) for number in range(4)))
            assert isinstance(failed.value.__cause__, StageFailed)
            assert not omni.errored
            assert omni.is_running
            await omni.check_health()
            assert (
                len(await all_of(omni.generate("c", {"output_kind": DELTA}, "c"))) > 1
            )  # placed on the next generation

    run(main)


def test_a_stage_that_stays_down_is_an_error_that_says_so(run):
    async def main():
        stage = core("llm", output="text", tokens=12, die_at=1, deadlines=attrs.evolve(SHORT, backoff_first_s=0.05))
        async with AsyncOmni(pipeline(stage), world=MemoryWorld()) as omni:
            while not omni.errored:
                with pytest.raises((EngineGenerateError, GracefulHTTPError)):
                    await all_of(omni.generate("x", None, "x"))
            assert omni.is_running
            with pytest.raises(EngineDeadError, match="stage llm is down"):
                await omni.check_health()

    run(main)


def test_closed_is_closed(run):
    async def main():
        omni = await AsyncOmni.open(pipeline(core("llm", output="text")), world=MemoryWorld())
        report, again = await asyncio.gather(omni.close(), omni.close(drain_s=0))
        assert report.stopped == ("llm/0",)
        assert report is again is await omni.close()
        assert (omni.is_running, omni.is_stopped, omni.errored) == (False, True, True)
        with pytest.raises(EngineDeadError):
            await all_of(omni.generate("x", None, "x"))
        with pytest.raises(RuntimeClosed):
            omni.generate_omni("x")
        with pytest.raises(RuntimeClosed):
            await omni.abort("x")

    run(main)


def test_closing_while_requests_run_ends_them_with_what_they_made(run):
    async def main():
        async with endless() as omni:
            stream = omni.generate("x", {"output_kind": CUMULATIVE}, "x")
            first = await anext(stream)
            report = await omni.close(drain_s=0)
            (last,) = await all_of(stream)
        assert report.aborted_requests == 1
        assert last.outputs[0].finish_reason == "abort"
        assert last.outputs[0].text.startswith(first.outputs[0].text)

    run(main)
