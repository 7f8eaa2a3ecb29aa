"""Of a request that is told as a whole an engine tells its host the beginning, that it is alive, and the end."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.vllm_omni._wholes import tell_wholes

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, when vLLM imports it
    import torch
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
    from vllm.v1.metrics.stats import SchedulerStats

pytestmark = pytest.mark.filterwarnings("ignore")  # of vLLM's own imports


class Output(EngineCoreOutput):
    """As vLLM-Omni's OmniEngineCoreOutput, which is not installed here."""

    multimodal_output: dict | None = None
    is_segment_finished: bool | None = False
    num_generation_tokens: int | None = None


class Scheduler:
    """As vLLM's: ``requests`` are those in flight; what ``update_from_output`` is given is what the step made."""

    def __init__(self):
        self.requests = {}
        self.stats = None

    def update_from_output(self, made, given_up=()):
        for name, *_, more in made:
            if more.get("finish_reason") is not None:
                del self.requests[name]
        if given_up:
            self.finish_requests(given_up, None)
        return {0: EngineCoreOutputs(outputs=[output(*each) for each in made], scheduler_stats=self.stats)}

    def finish_requests(self, names, status):
        return [self.requests.pop(name) for name in names]


def output(name, tokens, more):
    """As vLLM-Omni's schedulers make them: each one says how many tokens there are."""
    return Output(name, tokens, num_generation_tokens=len(tokens), **more)


@pytest.fixture
def scheduler():
    kind = type("Ours", (Scheduler,), {"now": 0.0})
    tell_wholes(kind, lambda: kind.now)
    return kind()


def begin(scheduler, name, kind="FINAL_ONLY", **more):
    params = SamplingParams(output_kind=RequestOutputKind[kind], **more)
    scheduler.requests[name] = SimpleNamespace(sampling_params=params, resumable=False)


def held(scheduler):
    return set(scheduler._omni_actors_wholes._held)


def told(scheduler, *made):
    """What the host hears of a step in which these were made; None if it hears nothing at all."""
    steps = scheduler.update_from_output([(name, tokens, dict(*more)) for name, tokens, *more in made])
    return [(each.request_id, each.new_token_ids) for each in steps[0].outputs] if steps else None


def end():
    return {"finish_reason": FinishReason.STOP}


def test_the_first_is_told_and_the_last_brings_the_rest(scheduler):
    begin(scheduler, "a")
    assert told(scheduler, ("a", [1])) == [("a", [1])]
    assert told(scheduler, ("a", [2])) is None
    assert told(scheduler, ("a", [3, 4])) is None
    assert told(scheduler, ("a", [5], end())) == [("a", [2, 3, 4, 5])]
    assert held(scheduler) == set()


def test_the_last_one_never_brings_very_many(scheduler):
    begin(scheduler, "a")
    heard = [told(scheduler, ("a", [number])) for number in range(200)]
    steps = [made for made in heard if made is not None]
    assert [token for ((_, tokens),) in steps for token in tokens] == list(range(1 + 3 * 64))
    assert max(len(tokens) for ((_, tokens),) in steps) == 64
    assert told(scheduler, ("a", [200], end())) == [("a", list(range(193, 201)))]


def test_it_is_told_several_times_a_second_that_the_engine_is_alive(scheduler):
    """However long a step takes: silence is how a host knows that an engine hangs."""
    begin(scheduler, "a")
    at = []
    for tenth in range(21):
        type(scheduler).now = tenth / 10
        if told(scheduler, ("a", [tenth])) is not None:
            at.append(tenth)
    assert at == [0, 3, 5, 8, 10, 13, 15, 18, 20]


def test_that_is_told_of_all_requests_in_one_message(scheduler):
    for name in ("a", "b"):
        begin(scheduler, name)
    told(scheduler, ("a", [1]))
    type(scheduler).now = 0.2
    told(scheduler, ("a", [2]), ("b", [1]))
    type(scheduler).now = 0.3
    assert told(scheduler, ("a", [3]), ("b", [2])) == [("a", [2, 3]), ("b", [2])]
    assert told(scheduler, ("a", [4]), ("b", [3])) is None


def test_others_are_told_of_every_token(scheduler):
    begin(scheduler, "delta", "DELTA")
    begin(scheduler, "whole")
    begin(scheduler, "stop", stop=["x"])
    told(scheduler, ("delta", [1]), ("whole", [1]), ("stop", [1]))
    assert told(scheduler, ("delta", [2]), ("whole", [2]), ("stop", [2])) == [("delta", [2]), ("stop", [2])]


@pytest.mark.parametrize(
    "more", [{"kv_transfer_params": {"x": 1}}, {"num_nans_in_logits": 2}, {"stop_reason": "x"}], ids=str
)
def test_what_comes_with_more_than_tokens_is_told_at_once_with_those_before_it(scheduler, more):
    begin(scheduler, "a")
    for tokens in ([1], [2]):
        told(scheduler, ("a", tokens))
    assert told(scheduler, ("a", [3], more)) == [("a", [2, 3])]
    assert told(scheduler, ("a", [4])) is None
    assert told(scheduler, ("a", [5], end())) == [("a", [4, 5])]


@pytest.mark.parametrize("field", ["multimodal_output", "pooling_output"])
def test_what_comes_with_tensors_is_told_as_it_was_made_one_after_the_other(scheduler, field):
    begin(scheduler, "a")
    made = [torch.full((2, 3), float(number)) for number in range(5)]
    steps = [{}, {field: made[1]}, {field: made[2]}, {}, {}, {field: made[4], **end()}]
    assert told(scheduler, ("a", [0])) is not None
    for number, more in enumerate(steps[1:5], 1):
        assert told(scheduler, ("a", [number], more)) is None
    (step,) = scheduler.update_from_output([("a", [5], steps[5])]).values()
    assert [output.new_token_ids for output in step.outputs] == [[1], [2], [3, 4, 5]]
    assert [getattr(output, field) is not None for output in step.outputs] == [True, True, True]
    assert [float(getattr(output, field)[0, 0]) for output in step.outputs] == [1.0, 2.0, 4.0]
    assert [output.finish_reason for output in step.outputs] == [None, None, FinishReason.STOP]


def test_of_an_aborted_one_nothing_is_kept(scheduler):
    begin(scheduler, "a")
    for tokens in ([1], [2]):
        told(scheduler, ("a", tokens))
    scheduler.finish_requests(["a"], None)
    assert held(scheduler) == set()


def test_finishing_may_finish_again_within(scheduler):
    plain = Scheduler.finish_requests

    class Twice(Scheduler):
        def finish_requests(self, names, status):
            if status is None:
                return self.finish_requests(names, "again")
            return plain(self, names, status)

    tell_wholes(Twice)
    twice = Twice()
    begin(twice, "a")
    told(twice, ("a", [1]))
    told(twice, ("a", [2]))
    twice.finish_requests(["a"], None)
    assert held(twice) == set()


@pytest.mark.parametrize("more", [{}, {"finish_reason": FinishReason.STOP}])
def test_another_of_the_same_name_does_not_get_its_tokens(scheduler, more):
    begin(scheduler, "a")
    for tokens in ([1], [2]):
        told(scheduler, ("a", tokens))
    scheduler.finish_requests(["a"], None)
    begin(scheduler, "a")
    assert told(scheduler, ("a", [7], more)) == [("a", [7])]


def test_one_that_is_given_up_while_a_step_is_applied_takes_nothing_from_another_that_ends_with_it(scheduler):
    for name in ("a", "b"):
        begin(scheduler, name)
    for tokens in ([1], [2]):
        told(scheduler, ("a", tokens), ("b", tokens))
    steps = scheduler.update_from_output([("a", [3], end())], given_up=["b"])
    assert [(each.request_id, each.new_token_ids) for each in steps[0].outputs] == [("a", [2, 3])]
    assert held(scheduler) == set()


def test_a_step_with_statistics_is_told_all_the_same(scheduler):
    begin(scheduler, "a")
    told(scheduler, ("a", [1]))
    scheduler.stats = SchedulerStats()
    (step,) = scheduler.update_from_output([("a", [2], {})]).values()
    assert (step.outputs, step.scheduler_stats) == ([], scheduler.stats)


NAMES = ("a", "b", "c")
MORE = {
    "tokens": {},
    "tensors": {"multimodal_output": {"hidden": object()}},
    "urgent": {"kv_transfer_params": {"x": 1}},
    "end": {"finish_reason": FinishReason.STOP},
    "end with tensors": {"finish_reason": FinishReason.STOP, "multimodal_output": {"hidden": object()}},
}
MADE = st.dictionaries(st.sampled_from(NAMES), st.tuples(st.integers(0, 3), st.sampled_from([*MORE])))
STEPS = st.lists(st.tuples(MADE, st.sets(st.sampled_from(NAMES)), st.floats(0, 0.2)), max_size=120)


class Told:
    """What was made and what was told of one request: numbered tokens, and how many tensors came before each."""

    def __init__(self):
        self.made, self.told, self.tensors_made, self.tensors_told = [], [], 0, 0

    def make(self, count, more):
        tokens = list(range(len(self.made), len(self.made) + count))
        self.made += tokens
        self.tensors_made += "multimodal_output" in more
        return tokens

    def hear(self, output):
        self.told += output.new_token_ids
        self.tensors_told += output.multimodal_output is not None
        assert self.told == self.made[: len(self.told)], "a token is missing, or told twice"

    @property
    def heard_all(self):
        return (self.told, self.tensors_told) == (self.made, self.tensors_made)


@given(STEPS)
def test_whatever_happens_who_ends_has_been_told_all_in_order_and_silence_is_short(steps):
    kind = type("Ours", (Scheduler,), {"now": 0.0})
    tell_wholes(kind, lambda: kind.now)
    scheduler, live = kind(), {}
    for made, aborted, passed in steps:
        kind.now += passed
        scheduler.finish_requests([name for name in aborted if live.pop(name, None)], None)
        for name in made.keys() - live.keys():
            begin(scheduler, name)
            live[name] = Told()
        outputs = [(name, live[name].make(count, MORE[more]), MORE[more]) for name, (count, more) in made.items()]
        turn, told = int(kind.now / 0.25), scheduler.update_from_output(outputs)
        for output in told[0].outputs if told else []:
            live[output.request_id].hear(output)
        for name, _, more in outputs:
            if not {"finish_reason", "kv_transfer_params"}.isdisjoint(more):
                assert live[name].heard_all
            if live[name].heard_all:
                live[name].turn = turn
            assert live[name].turn == turn, "it made something in this turn of the clock and has told nothing in it"
            if "finish_reason" in more:
                del live[name]
        assert held(scheduler) <= live.keys()
