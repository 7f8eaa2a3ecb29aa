"""The two benchmarks against AsyncLLM: how rounds become verdicts, and that different answers are never compared."""

import pytest
import trio

from omni_actors._errors import OmniError
from omni_actors.cli._bench import Bound, judge
from omni_actors.cli.benches import chain, engine
from omni_actors.cli.benches._pairs import Measured, Pair, measure
from omni_actors.cli.benches._sharing import FLOOR_INDEX, REFERENCE_INDEX, SharedKind, guest_addresses
from omni_actors.cli.benches._verdicts import compared
from omni_actors.cli.benches._work import Answer, Job, Round, pipeline, prompts
from omni_actors.config import validate
from omni_actors.lifecycle import Edge, Graph, Node


class Scripted:
    """A front-end that needs ``second`` per request, and says ``word``."""

    def __init__(self, second=0.01, word="five"):
        self.second, self.word, self.jobs = second, word, []

    async def run(self, job: Job) -> Round:
        await trio.lowlevel.checkpoint()
        self.jobs.append(job)
        answers = [Answer(self.word, [number], self.second / 2, self.second) for number in range(job.requests)]
        return Round(self.second * job.requests, self.second * job.requests / 10, answers)


async def test_both_run_the_same_jobs_and_the_order_is_drawn():
    turns, fast, slow = [], Scripted(), Scripted()

    class Watched:
        def __init__(self, name, inner):
            self.name, self.inner = name, inner

        async def run(self, job):
            turns.append(self.name)
            return await self.inner.run(job)

    found = await measure(Pair(Watched("ours", fast), Watched("reference", slow)), {1: 3, 4: 8}, 15, lambda _: None)

    assert fast.jobs == slow.jobs
    first = turns[4::2]  # after the warm-up
    assert len(first) == 30
    assert 5 < first.count("ours") < 25
    assert len(found[4].ours) == len(found[4].reference) == 15


async def test_the_floor_takes_turns_with_both_and_is_compared_with_the_reference():
    turns = []

    class Watched(Scripted):
        async def run(self, job):
            turns.append(self)
            return await super().run(job)

    ours, reference, floor = Watched(0.02), Watched(0.01), Watched(0.0125)
    found = await measure(Pair(ours, reference, floor), {1: 3, 8: 2}, 15, lambda _: None)

    assert ours.jobs == reference.jobs == floor.jobs
    groups = [turns[at : at + 3] for at in range(0, len(turns), 3)]
    assert all(set(group) == {ours, reference, floor} for group in groups)
    for one in (ours, reference, floor):
        assert 4 < sum(group[0] is one for group in groups) < 18
    result = compared(found, {"rps_ratio_8": None, "floor_rps_ratio_8": None, "floor_cpu_ratio_1": None}, ())
    for name, value in (("rps_ratio_8", 0.5), ("floor_rps_ratio_8", 0.8), ("floor_cpu_ratio_1", 1.25)):
        assert [result.metrics[f"{name}{which}"] for which in ("", "_low", "_high")] == pytest.approx([value] * 3)
    assert result.metrics["req_per_s_8_floor"] == pytest.approx(80)
    assert result.metrics["req_per_s_8_ours"] == pytest.approx(50)
    assert result.bounds == {}


async def test_a_floor_that_says_something_else_is_no_floor():
    with pytest.raises(OmniError, match="4 answers differ from the reference's at 2 concurrent"):
        await measure(Pair(Scripted(), Scripted(), Scripted(word="six")), {2: 4}, 1, lambda _: None)


async def test_different_answers_are_an_error():
    pair = Pair(Scripted(word="five"), Scripted(word="six"))

    with pytest.raises(OmniError, match="differ from the reference's at 2 concurrent"):
        await measure(pair, {2: 4}, 1, lambda _: None)


async def test_a_front_end_that_is_slower_fails_its_bounds():
    pair = Pair(Scripted(second=0.02), Scripted(second=0.01))
    found = await measure(pair, {1: 2, 8: 2, 64: 2}, 15, lambda _: None)

    result = compared(found, engine.BOUNDS, ())

    assert result.metrics["rps_ratio_8"] == pytest.approx(0.5)
    assert result.metrics["ttft_ratio_1"] == pytest.approx(2)
    assert result.metrics["cpu_us_per_req_64_ours"] == pytest.approx(2000)
    assert set(judge(result).values()) == {"fails"}


async def test_equal_front_ends_hold_every_bound_of_both_benchmarks():
    found = await measure(Pair(Scripted(), Scripted()), {1: 2, 8: 2, 64: 2}, 15, lambda _: None)

    for bounds in (engine.BOUNDS, chain.BOUNDS):
        verdicts = judge(compared(found, bounds, ()))
        assert set(verdicts.values()) == {"holds"}
        assert set(verdicts) == {name for name, bound in bounds.items() if bound is not None}


def test_few_pairs_are_said_to_be_few():
    one = Round(1.0, 0.1, [Answer("", [], 0.1, 0.2)])
    result = compared({8: Measured([one], [one])}, {"rps_ratio_8": Bound()}, ("a note",))

    assert result.notes[0] == "a note"
    assert "1 pairs" in result.notes[1]


@pytest.mark.parametrize(("bench", "stages"), [("engine", 1), ("chain", 3)])
def test_the_pipelines_are_sound_and_only_their_last_stage_is_heard(bench, stages):
    spec = pipeline(bench)

    validate(spec, engines={"vllm"})
    assert [stage.output for stage in spec.stages] == [None] * (stages - 1) + ["text"]
    graph = Graph(
        Node(name=s.name, output=s.output, edges=tuple(Edge(source=i.stage) for i in s.inputs)) for s in spec.stages
    )
    plan = graph.plan(None)
    assert [plan.streams(stage.name) for stage in spec.stages] == [False] * (stages - 1) + [True]


def test_prompts_begin_alike_for_everybody():
    assert prompts(20)[:5] == prompts(5)
    assert len(set(prompts(20))) > 10


@pytest.mark.parametrize("guests", [[REFERENCE_INDEX], [REFERENCE_INDEX, FLOOR_INDEX]])
async def test_the_engine_is_told_of_all_clients_in_the_order_of_their_indexes(tmp_path, guests):
    import msgspec

    from omni_actors.transport import ZmqTransport

    transport = ZmqTransport(tmp_path)
    spec = pipeline("engine").stages[0]
    client = SharedKind(tmp_path, len(guests)).client(spec, lambda: None, transport, replica=0, generation=0)

    hello = [b"\0\0", msgspec.msgpack.encode({"status": "HELLO", "local": True, "headless": False})]
    _, init = client._machine().on_handshake(hello)

    told = msgspec.msgpack.decode(init)["addresses"]
    inputs, outputs = zip(*(guest_addresses(tmp_path, spec.name, index) for index in guests), strict=True)
    assert told["inputs"] == [client._input.address, *inputs]
    assert told["outputs"] == [client._output.address, *outputs]
    client.close()
    transport.close()
