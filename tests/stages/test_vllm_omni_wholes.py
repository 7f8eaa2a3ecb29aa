"""Of a request that is told as a whole an engine tells its host the beginning, a few times more, and the end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from omni_actors.vllm_omni._wholes import tell_wholes

pytestmark = pytest.mark.filterwarnings("ignore")  # of vLLM's own imports


class Scheduler:
    """As vLLM's: ``requests`` are those in flight; what ``update_from_output`` is given is what the step made."""

    def __init__(self):
        self.requests = {}

    def update_from_output(self, made, given_up=()):
        from vllm.v1.engine import EngineCoreOutputs

        for name, *_, more in made:
            if more.get("finish_reason") is not None:
                del self.requests[name]
        if given_up:
            self.finish_requests(given_up, None)
        return {0: EngineCoreOutputs(outputs=[output(*each) for each in made])}

    def finish_requests(self, names, status):
        return [self.requests.pop(name) for name in names]


def output(name, tokens, more):
    from vllm.v1.engine import EngineCoreOutput

    return EngineCoreOutput(name, tokens, **more)


@pytest.fixture
def scheduler():
    kind = type("Ours", (Scheduler,), {})
    tell_wholes(kind)
    return kind()


def begin(scheduler, name, kind="FINAL_ONLY", **more):
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(output_kind=RequestOutputKind[kind], **more)
    scheduler.requests[name] = SimpleNamespace(sampling_params=params, resumable=False)


def told(scheduler, *made):
    """What the host hears of a step in which these were made; None if it hears nothing at all."""
    steps = scheduler.update_from_output([(name, tokens, dict(*more)) for name, tokens, *more in made])
    return [(each.request_id, each.new_token_ids) for each in steps[0].outputs] if steps else None


def end():
    from vllm.v1.engine import FinishReason

    return {"finish_reason": FinishReason.STOP}


def test_the_first_is_told_and_the_last_brings_the_rest(scheduler):
    begin(scheduler, "a")
    assert told(scheduler, ("a", [1])) == [("a", [1])]
    assert told(scheduler, ("a", [2])) is None
    assert told(scheduler, ("a", [3, 4])) is None
    assert told(scheduler, ("a", [5], end())) == [("a", [2, 3, 4, 5])]
    assert scheduler._omni_actors_wholes._held == {}


def test_the_last_one_never_brings_very_many(scheduler):
    begin(scheduler, "a")
    heard = [told(scheduler, ("a", [number])) for number in range(200)]
    steps = [made for made in heard if made is not None]
    assert [token for ((_, tokens),) in steps for token in tokens] == list(range(196))
    assert max(len(tokens) for ((_, tokens),) in steps) == 65
    assert told(scheduler, ("a", [200], end())) == [("a", list(range(196, 201)))]


def test_others_are_told_of_every_token(scheduler):
    begin(scheduler, "delta", "DELTA")
    begin(scheduler, "whole")
    begin(scheduler, "stop", stop=["x"])
    told(scheduler, ("delta", [1]), ("whole", [1]), ("stop", [1]))
    assert told(scheduler, ("delta", [2]), ("whole", [2]), ("stop", [2])) == [("delta", [2]), ("stop", [2])]


def test_what_comes_with_more_than_tokens_is_told_with_those_before_it(scheduler):
    begin(scheduler, "a")
    for tokens in ([1], [2]):
        told(scheduler, ("a", tokens))
    assert told(scheduler, ("a", [3], {"kv_transfer_params": {"x": 1}})) == [("a", [2, 3])]
    assert told(scheduler, ("a", [4])) is None
    assert told(scheduler, ("a", [5], end())) == [("a", [4, 5])]


def test_of_an_aborted_one_nothing_is_kept(scheduler):
    begin(scheduler, "a")
    for tokens in ([1], [2]):
        told(scheduler, ("a", tokens))
    scheduler.finish_requests(["a"], None)
    assert scheduler._omni_actors_wholes._held == {}
    begin(scheduler, "a")
    assert told(scheduler, ("a", [7])) == [("a", [7])]


def test_one_that_is_given_up_while_a_step_is_applied_takes_nothing_from_another_that_ends_with_it(scheduler):
    for name in ("a", "b"):
        begin(scheduler, name)
    for tokens in ([1], [2]):
        told(scheduler, ("a", tokens), ("b", tokens))
    steps = scheduler.update_from_output([("a", [3], end())], given_up=["b"])
    assert [(each.request_id, each.new_token_ids) for each in steps[0].outputs] == [("a", [2, 3])]
    assert scheduler._omni_actors_wholes._held == {}


def test_a_step_with_statistics_is_told_all_the_same(scheduler):
    from vllm.v1.metrics.stats import SchedulerStats

    begin(scheduler, "a")
    told(scheduler, ("a", [1]))
    steps = Scheduler.update_from_output(scheduler, [("a", [2], {})])
    steps[0].scheduler_stats = stats = SchedulerStats()
    kept = scheduler._omni_actors_wholes.tell(steps, scheduler.requests)
    assert (kept[0].outputs, kept[0].scheduler_stats) == ([], stats)
