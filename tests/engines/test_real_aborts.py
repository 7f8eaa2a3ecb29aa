"""An abort on real engines is finished when it returns: on a quiet engine their caches can be reset at once."""

from __future__ import annotations

import random
from contextlib import nullcontext

import pytest
import trio

from omni_actors import Kind, RequestTimeout
from omni_actors.pipelines.tiny_omni._questions import questions

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

(FOUR_PARTS,) = questions(1, seed=3, parts=4)
ENDLESS = {"ignore_eos": True, "max_tokens": 60}


async def forgotten(omni) -> bool:
    """Only true if no request is in an engine. Empties the prefix caches: for quiet engines."""
    omni.check()
    assert omni.in_flight == 0
    return [await omni.call(stage, "reset_prefix_cache") for stage in ("thinker", "talker")] == [[True], [True]]


@pytest.mark.parametrize("modalities", [["text"], ["text", "audio"], ["text", "audio", "image"]])
def test_abort_at_a_random_token(engines, modalities):
    """Ten times; the seeds are in the failure."""

    async def trial(omni, seed: int) -> None:
        after = random.Random(seed).randrange(1, 20 if modalities == ["text"] else 40)
        sampling = ENDLESS if modalities == ["text"] else None
        async with omni.generate(FOUR_PARTS.text, sampling, request_id=f"r{seed}", modalities=modalities) as stream:
            for _ in range(after):
                if await anext(stream, None) is None:
                    break
            report = await omni.abort(f"r{seed}")
            assert report.unconfirmed == ()
            assert await forgotten(omni), f"seed {seed}"
            if report.known:
                assert [output async for output in stream] == [], f"seed {seed}"
                assert report.terminals == (stream.terminal,)
        assert stream.terminal.kind is (Kind.ABORTED if report.known else Kind.FINISHED)

    for seed in range(10):
        engines.run(trial, seed)


def test_an_abort_before_the_first_token(engines):
    async def ask(omni) -> None:
        async with omni.generate(FOUR_PARTS.text, request_id="r") as stream:
            report = await omni.abort("r")
            assert (report.known, report.unconfirmed) == (True, ())
            assert await forgotten(omni)
            assert [output async for output in stream] == []

    engines.run(ask)


@pytest.mark.parametrize("how", ["leave", "cancel", "exception", "timeout"])
def test_every_way_out_is_the_abort(engines, how):
    async def ask(omni) -> None:
        raised = {"exception": pytest.raises(KeyError), "timeout": pytest.raises(RequestTimeout)}
        timeout_s = 0.02 if how == "timeout" else None
        generation = omni.generate(FOUR_PARTS.text, ENDLESS, modalities=["text"], timeout_s=timeout_s)
        with trio.CancelScope() as scope, raised.get(how, nullcontext()):
            async with generation as stream:
                async for _ in stream:
                    if how == "leave":
                        break
                    if how == "exception":
                        raise KeyError("the user's own")
                    if how == "cancel":
                        scope.cancel()
        assert stream.terminal.kind is (Kind.TIMED_OUT if how == "timeout" else Kind.ABORTED)
        assert await forgotten(omni)

    engines.run(ask)


def test_an_abort_among_others_touches_only_its_own(engines):
    asked = questions(12, seed=21, parts=2)
    ends: dict[int, Kind] = {}

    async def ask(omni) -> None:
        async def one(number: int) -> None:
            async with omni.generate(asked[number].text, request_id=f"many-{number}") as stream:
                async for _ in stream:
                    if number % 3 == 0:
                        assert (await omni.abort(f"many-{number}")).unconfirmed == ()
            ends[number] = stream.terminal.kind
            if ends[number] is Kind.FINISHED:
                texts[number] = stream.terminal.text()

        texts: dict[int, str] = {}
        async with trio.open_nursery() as nursery:
            for number in range(len(asked)):
                nursery.start_soon(one, number)
        assert sum(texts[number] == asked[number].answer for number in texts) >= len(texts) - 1
        assert await forgotten(omni)

    engines.run(ask)
    assert {number for number, kind in ends.items() if kind is Kind.ABORTED} == {0, 3, 6, 9}
