"""Companions in a running pipeline: early, late, silent, refused and dead ones, and who gets to see them.

The painter repeats its prompt byte by byte, so what it made is what its transform saw of the thinker.
"""

from __future__ import annotations

import signal
import sys
import threading
import types

import attrs
import pytest
import trio

from omni_actors import (
    EdgeTimeout,
    EngineRejected,
    InputSpec,
    InvalidRequest,
    Kind,
    Limits,
    OmniError,
    Overloaded,
    StageFailed,
    StageInput,
    TransformFailed,
    open_omni,
)
from omni_actors.testing import FakeCoreBehaviour, FakeParams, fake_tokens
from omni_actors.testing.rigs import SHORT, core, omni_stage, pipeline

PIPES = "omni_actors.testing.pipelines"
HERE = "functions_of_the_companions_test"


@pytest.fixture
def functions(monkeypatch):
    """A module that a spec can name; tests put what they want into it."""
    module = types.ModuleType(HERE)
    monkeypatch.setitem(sys.modules, HERE, module)
    return module


def guided(*, companions=f"{PIPES}:guides", painter=(), limits=None, **thinker):
    """A thinker whose main work is two tokens, with a companion of one and one of eight; a painter that sees all."""
    thinker = {"output": "text", "tokens": 8, "token_s": 0.1, "params": {"max_tokens": 2}, **thinker}
    seen = {"inputs": [InputSpec(stage="thinker")], "transform": f"{PIPES}:blend_bytes", "echo": True}
    return pipeline(
        core("thinker", companions=companions, **thinker),
        omni_stage("painter", output="image", **seen, **dict(painter)),
        limits=limits or Limits(),
    )


def said(prompt: str, limit: int) -> str:
    tokens = fake_tokens([ord(c) for c in prompt], FakeCoreBehaviour(tokens=8), FakeParams(max_tokens=limit))
    return "".join(map(chr, tokens))


def painted(terminal) -> str:
    return b"".join(bytes(piece.data) for piece in terminal.results["painter"][0].tensors["data"]).decode()


def ask(omni, *prompt, **more):
    """A request that fails if what it waits for never comes."""
    return omni.generate(*prompt, timeout_s=100, **more)


def leases(omni) -> list:
    return list(omni._handler.table.leases.values())


async def test_the_consumer_sees_the_companions_and_the_user_does_not(world, autojump_clock):
    async with open_omni(guided(), world=world) as omni:
        async with ask(omni, "question", request_id="r") as stream:
            outputs = [output async for output in stream]
        terminal = stream.terminal
        main, short, long = said("question", 2), said("short r ", 1), said("long r ", 8)
        assert painted(terminal) == f"{main}+{short}+{long}"
        assert "".join(output.text for output in outputs) == main
        (result,) = terminal.results["thinker"]
        assert (result.text, dict(result.companions)) == (main, {})
        thinker = next(timing for timing in terminal.timings if timing.stage == "thinker")
        assert (thinker.tokens, thinker.companion_tokens) == (2, 1 + 8)
        assert terminal.prompt_tokens == len("question")
        omni.check()


async def test_the_next_stage_starts_with_the_last_companion(world, autojump_clock):
    async with open_omni(guided(), world=world) as omni:
        async with ask(omni, "question") as stream:
            terminal = await stream.result()
        thinker, painter = terminal.timings
        assert thinker.finished_at - thinker.submitted_at == pytest.approx(0.8)  # the long one's eight tokens
        assert painter.ready_at == pytest.approx(thinker.finished_at)


async def test_who_wants_only_the_text_pays_for_no_companion(world, autojump_clock):
    async with open_omni(guided(), world=world) as omni, ask(omni, "question", modalities=["text"]) as stream:
        await anext(stream)
        assert [lease.index for lease in leases(omni)] == [0]
        assert (await stream.result()).timings[0].companion_tokens == 0


async def test_companions_go_where_their_parent_goes(world, autojump_clock):
    async with open_omni(guided(replicas=3), world=world) as omni, trio.open_nursery() as nursery:

        async def one(number: int) -> None:
            async with ask(omni, f"question {number}") as stream:
                await stream.result()

        for number in range(6):
            nursery.start_soon(one, number)
        await trio.sleep(0.05)
        places = {}
        for lease in leases(omni):
            places.setdefault(lease.record.key, []).append((lease.replica, lease.generation, lease.index))
        assert [len(found) for found in places.values()] == [3] * 6
        assert all(len({(replica, generation) for replica, generation, _ in found}) == 1 for found in places.values())
        assert {found[0][0] for found in places.values()} == {0, 1, 2}


async def test_two_samples_share_one_set_of_companions(world, autojump_clock):
    async with open_omni(guided(params={"max_tokens": 2, "n": 2}), world=world) as omni:
        async with ask(omni, "question") as stream:
            assert sorted(lease.index for lease in leases(omni)) == [-2, -1, 0, 1]
            assert [r.index for r in (await stream.result()).results["thinker"]] == [0, 1]
        omni.check()


async def test_they_are_admitted_with_their_parent_or_refused_with_it(world, autojump_clock):
    async with open_omni(guided(limits=Limits(max_requests=5)), world=world) as omni:
        async with ask(omni, "first") as stream:
            assert omni.statistics().slots == 3
            with pytest.raises(Overloaded, match="4 of 5 slots are taken and this request needs 2"):
                async with ask(omni, "second"):
                    pytest.fail("half of it came in")
            assert (omni.statistics().slots, len(leases(omni))) == (3, 3)
            assert (await stream.result()).kind is Kind.FINISHED
        with trio.fail_after(1):
            await omni._handler.emptied()
        omni.check()
        assert omni.statistics().slots == omni.statistics().prompt_bytes == 0


async def test_an_abort_takes_them_along(world, autojump_clock):
    async with open_omni(guided(), world=world) as omni:
        async with ask(omni, "question", request_id="r") as stream:
            await trio.sleep(0.35)  # the main work and the short one are done
            assert [lease.index for lease in leases(omni)] == [-2]
            report = await omni.abort("r")
            assert (report.unconfirmed, stream.terminal.kind) == ((), Kind.ABORTED)
            assert await omni.call("thinker", "has_work") == [False]
        omni.check()


@pytest.mark.parametrize("cheap", [True, False])
async def test_what_fails_a_companion_fails_its_parent_and_names_it(world, autojump_clock, cheap):
    async with open_omni(guided(reject="long", cheap=cheap), world=world) as omni:
        async with ask(omni, "question", request_id="r") as stream:
            with pytest.raises(EngineRejected, match="companion 'long' of stage thinker: ") as caught:
                await stream.result()
        assert (caught.value.stage, caught.value.request_id) == ("thinker", "r")
        assert isinstance(caught.value.__cause__, EngineRejected)
        assert await omni.call("thinker", "has_work") == [False]
        omni.check()


async def test_a_companion_that_dies_with_its_engine(world, autojump_clock):
    async with open_omni(guided(), world=world) as omni:
        async with ask(omni, "question") as stream:
            await trio.sleep(0.35)
            world.launcher.find("thinker").kill(signal.SIGKILL)
            with pytest.raises(StageFailed, match="companion 'long' of stage thinker: ") as caught:
                await stream.result()
        assert (caught.value.signal, caught.value.replica) == ("SIGKILL", 0)
        await omni.wait_health(lambda health: health.ready)
        omni.check()


@pytest.mark.parametrize(("edge_s", "silent"), [(0.25, "short"), (0.35, "long")])
async def test_c18_a_companion_that_never_answers(world, autojump_clock, edge_s, silent):
    """One at a time: the main work speaks at 0.1 s and ends at 0.2 s, then the short one, then the long one."""
    limits = attrs.evolve(SHORT, edge_s=edge_s)
    async with open_omni(guided(max_running=1, deadlines=limits), world=world) as omni:
        async with ask(omni, "question") as stream:
            with pytest.raises(EdgeTimeout, match=f"companion '{silent}' of stage thinker gave no output") as caught:
                await stream.result()
        assert stream.terminal.at - stream.terminal.submitted_at == pytest.approx(edge_s)
        assert caught.value.edge == "request->thinker"
        omni.check()


async def test_c18_a_companion_of_an_inner_stage(world, autojump_clock):
    limits = attrs.evolve(SHORT, edge_s=0.25)
    spec = guided(companions=None)
    talker = core(
        "talker",
        inputs=[InputSpec(stage="thinker")],
        companions=f"{PIPES}:guides",
        transform=f"{PIPES}:blend",
        deadlines=limits,
        token_s=0.1,
        max_running=1,
        params={"max_tokens": 2},
    )
    thinker, painter = spec.stages
    painter = attrs.evolve(painter, inputs=[InputSpec(stage="talker")])
    async with open_omni(attrs.evolve(spec, stages=[thinker, talker, painter]), world=world) as omni:
        async with ask(omni, "question") as stream:
            with pytest.raises(EdgeTimeout, match="companion 'short' of stage talker") as caught:
                await stream.result()
        assert caught.value.edge == "thinker->talker"
        omni.check()


async def test_a_root_s_companions_have_their_deadline_from_when_they_are_placed(world, autojump_clock):
    limits = attrs.evolve(SHORT, edge_s=0.25, backoff_first_s=1.0)
    async with open_omni(guided(max_running=1, deadlines=limits), world=world) as omni:
        world.launcher.find("thinker").kill(signal.SIGKILL)
        await omni.wait_health(lambda health: not health.ready)
        async with ask(omni, "question") as stream:
            with pytest.raises(EdgeTimeout, match="companion 'short'"):
                await stream.result()
        placed = stream.terminal.timings[0].submitted_at
        assert placed - stream.terminal.submitted_at > limits.edge_s
        assert stream.terminal.at - placed == pytest.approx(limits.edge_s)


WRONG = {
    "raises": (lambda up, request: 1 / 0, TransformFailed, "raised ZeroDivisionError"),
    "too many": (lambda up, request: {f"c{n}": "x" for n in range(9)}, TransformFailed, "returned 9 companions"),
    "no mapping": (lambda up, request: ["x"], TransformFailed, "returned list, not a mapping"),
    "no names": (lambda up, request: {1: "x"}, TransformFailed, "not a mapping of names"),
    "bad prompt": (lambda up, request: {"cfg": ""}, InvalidRequest, "companion 'cfg' of stage thinker: .*empty"),
    "bad params": (lambda up, request: {"cfg": StageInput("x", {"n": 0})}, InvalidRequest, "companion 'cfg' of stage"),
}


@pytest.mark.parametrize("cheap", [True, False])
@pytest.mark.parametrize("wrong", WRONG)
async def test_a_function_that_is_wrong_fails_its_request_alone(world, autojump_clock, functions, wrong, cheap):
    functions.guide, kind, words = WRONG[wrong]
    async with open_omni(guided(companions=f"{HERE}:guide", cheap=cheap), world=world) as omni:
        with pytest.raises(OmniError, match=words) as caught:
            async with ask(omni, "question"):
                pytest.fail("it came in")
        assert type(caught.value) is kind
        omni.check()
        assert omni.statistics().slots == 0
        functions.guide = lambda up, request: {}
        assert omni.health().ready


class OfStage:
    """A class that a path names is made once, with the stage's spec."""

    made = 0

    def __init__(self, spec):
        OfStage.made += 1
        self.name = spec.name

    def __call__(self, upstream, request):
        return {"beside": self.name}


async def test_a_class_makes_the_companions_of_its_stage(world, autojump_clock, functions):
    functions.guides, OfStage.made = OfStage, 0
    async with open_omni(guided(companions=f"{HERE}:guides"), world=world) as omni:
        for _ in range(2):
            async with ask(omni, "question") as stream:
                terminal = await stream.result()
            assert painted(terminal) == f"{said('question', 2)}+{said('thinker', 2)}"
    assert OfStage.made == 1


async def test_no_companion_this_time(world, autojump_clock, functions):
    functions.guide = lambda up, request: {}
    async with open_omni(guided(companions=f"{HERE}:guide"), world=world) as omni:
        async with ask(omni, "question") as stream:
            assert painted(await stream.result()) == said("question", 2)


async def test_a_function_that_is_not_cheap_runs_in_a_thread(world, autojump_clock, functions):
    """With the request's own params where it gives none."""
    threads = []

    def guide(upstream, request):
        threads.append(threading.current_thread())
        return {"cfg": "cfg"}

    functions.guide = guide
    async with open_omni(guided(companions=f"{HERE}:guide", cheap=False), world=world) as omni:
        async with ask(omni, "question", {"thinker": {"max_tokens": 3}}) as stream:
            assert painted(await stream.result()) == f"{said('question', 3)}+{said('cfg', 3)}"
    assert threads
    assert threading.main_thread() not in threads


async def test_what_needs_companions_is_not_submitted_in_one_step(world, autojump_clock):
    async with open_omni(guided(), world=world) as omni:
        async with ask(omni, "question") as stream:
            (record,) = omni._handler.table.records.values()
            assert omni._handler.submit_now(record.view, deadline=float("inf")) is None
            await stream.result()
