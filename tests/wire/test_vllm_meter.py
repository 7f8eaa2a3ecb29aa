"""The meter counts what vLLM's own OutputProcessor counts, for every lease, and costs a fraction of it."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_actors.pipelines.tiny_omni._vocabulary import WEIGHTS

pytest.importorskip("vllm")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, when vLLM imports it
    import vllm.v1.engine.output_processor  # noqa: F401

KEYS = ("a", "b", "c")


@pytest.fixture(scope="module")
def tokenizer():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(WEIGHTS / "thinker")


def body(key, **more):
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    return EngineCoreRequest(key, [4, 5, 6], None, SamplingParams(max_tokens=99), None, 1.0, None, None, None,
                             external_req_id=key, **more)  # fmt: skip


def output(key, tokens, *, first=False, finish=None, preempted=False):
    from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, FinishReason
    from vllm.v1.metrics.stats import PrefillStats

    events = None
    if first:
        events = [EngineCoreEvent(EngineCoreEventType.QUEUED, 1.0), EngineCoreEvent(EngineCoreEventType.SCHEDULED, 2.0)]
    elif preempted:
        events = [EngineCoreEvent(EngineCoreEventType.PREEMPTED, 3.0)]
    prefill = PrefillStats(num_prompt_tokens=3, num_computed_tokens=2, num_cached_tokens=1, num_local_cached_tokens=1)
    return EngineCoreOutput(
        key,
        tokens,
        events=events,
        finish_reason=None if finish is None else FinishReason[finish],
        prefill_stats=prefill if first else None,
    )


class Told:
    """The meter's listener: what it was told, without the moments of this process's clock."""

    def __init__(self):
        from omni_actors.wire.vllm.meter import EngineCoreMeter

        self.steps, self.schedulers = [], []
        self.meter = EngineCoreMeter(self)

    def __call__(self, scheduler, iteration):
        self.schedulers.append(scheduler)
        self.steps.append(iteration and shown(iteration))


def shown(iteration):
    numbers = dict(vars(iteration))
    del numbers["iteration_timestamp"]
    numbers["time_to_first_tokens_iter"] = len(numbers["time_to_first_tokens_iter"])
    numbers["finished_requests"] = [
        {name: value for name, value in vars(done).items() if name != "e2e_latency"}
        for done in numbers["finished_requests"]
    ]
    return numbers


def by_vllm(tokenizer, steps):
    from vllm.v1.engine.output_processor import OutputProcessor
    from vllm.v1.metrics.stats import IterationStats

    processor, told = OutputProcessor(tokenizer, log_stats=True), []
    for key in KEYS:
        processor.add_request(body(key), None, None, 0, SimpleNamespace(put=lambda output: None))
    for timestamp, outputs in steps:
        iteration = IterationStats()
        processor.process_outputs(outputs, timestamp, iteration)
        told.append(shown(iteration))
    return told


def by_us(steps):
    told = Told()
    for key in KEYS:
        told.meter.add(body(key))
    for timestamp, outputs in steps:
        half = len(outputs) // 2
        for piece in (outputs[:half], outputs[half:]):
            told.meter.count(piece, timestamp)
            for each in piece:
                if each.finish_reason is not None:
                    told.meter.finished(each.request_id, str(each.finish_reason))
        told.meter.end(SimpleNamespace(scheduler_stats=None))
    return told


@st.composite
def runs(draw):
    """Steps of an engine: requests come in, are preempted, make some tokens, end."""
    steps, begun, ended = [], set(), set()
    for number in range(draw(st.integers(1, 8))):
        outputs = []
        for key in KEYS:
            if key in ended or not draw(st.booleans()):
                continue
            finish = draw(st.sampled_from([None, None, None, "STOP", "LENGTH", "REPETITION"]))
            preempted = key in begun and draw(st.booleans())
            tokens = draw(st.lists(st.integers(3, 40), min_size=1, max_size=3))
            outputs.append(output(key, tokens, first=key not in begun, finish=finish, preempted=preempted))
            begun.add(key)
            if finish:
                ended.add(key)
        steps.append((10.0 + number, outputs))
    return steps


@settings(deadline=None)  # the first example imports
@given(runs())
def test_it_counts_as_vllms_processor_does(tokenizer, steps):
    assert by_us(steps).steps == by_vllm(tokenizer, steps)


def test_what_a_scheduler_says_is_told_even_if_nothing_was_made():
    told = Told()
    stats = object()
    told.meter._loras = SimpleNamespace(update_scheduler_stats=lambda stats: None)
    told.meter.end(SimpleNamespace(scheduler_stats=stats))
    told.meter.end(SimpleNamespace(scheduler_stats=None))
    assert told.schedulers == [stats]
    assert told.steps == [None]


def test_the_end_of_a_generation_says_that_nothing_runs_there():
    told = Told()
    told.meter.add(body("a"))
    told.meter.close()
    (last,) = told.schedulers
    assert (last.num_running_reqs, last.num_waiting_reqs, last.kv_cache_usage) == (0, 0, 0.0)
    assert told.meter.stats("a") is None


def test_the_aborted_are_not_counted_as_finished():
    told = Told()
    told.meter.add(body("a"))
    told.meter.count([output("a", [5], first=True)], 10.0)
    told.meter.end(SimpleNamespace(scheduler_stats=None))
    told.meter.drop(["a", "unknown"])
    told.meter.count([output("a", [6])], 11.0)
    told.meter.finished("a", "abort")
    told.meter.end(SimpleNamespace(scheduler_stats=None))
    assert [step["num_generation_tokens"] for step in told.steps] == [1, 0]
    assert told.steps[1]["finished_requests"] == []


def test_another_piece_of_input_has_a_first_token_of_its_own():
    told = Told()
    told.meter.add(body("a"))
    told.meter.count([output("a", [5], first=True)], 10.0)
    told.meter.add(body("a"))
    told.meter.count([output("a", [6], first=True)], 11.0)
    told.meter.end(SimpleNamespace(scheduler_stats=None))
    assert told.steps[0]["time_to_first_tokens_iter"] == 2


def test_a_requests_outputs_show_its_numbers(tokenizer):
    from vllm.v1.engine import EngineCoreOutputs

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from omni_actors.wire.vllm.codec import EngineCoreText

    told, shown_metrics = Told(), []
    text = EngineCoreText(tokenizer, stats=told.meter.stats)
    sink = SimpleNamespace(put=lambda output: shown_metrics.append(output.metrics))
    told.meter.add(body("a"))
    text.add(body("a"), 0, sink)
    outputs = [output("a", [5], first=True, finish="STOP")]
    told.meter.count(outputs, 12.0)
    text.process(outputs, EngineCoreOutputs(outputs=outputs, timestamp=12.0))
    (metrics,) = shown_metrics
    assert (metrics.first_token_ts, metrics.queued_ts, metrics.num_generation_tokens) == (12.0, 1.0, 1)


def test_a_request_leaves_the_span_that_vllm_would_make_of_it(tokenizer, monkeypatch):
    from vllm.v1.engine import output_processor
    from vllm.v1.metrics.stats import IterationStats

    from omni_actors.wire.vllm.meter import EngineCoreMeter

    spans, headers = [], {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    monkeypatch.setattr(output_processor, "instrument_manual", lambda **span: spans.append(span))
    monkeypatch.setattr(output_processor, "extract_trace_context", dict)
    monkeypatch.setattr("time.time", lambda: 5.0)
    outputs = [output("a", [5], first=True, finish="STOP")]
    outputs[0].trace_headers = headers
    theirs = output_processor.OutputProcessor(tokenizer, log_stats=True, tracing_enabled=True)
    theirs.add_request(body("a", trace_headers=headers), None, None, 0, SimpleNamespace(put=lambda output: None))
    theirs.process_outputs(outputs, 12.0, IterationStats())

    meter = EngineCoreMeter(lambda *stats: None, spans=True)
    meter.add(body("a", trace_headers=headers))
    meter.count(outputs, 12.0)
    meter.finished("a", "stop")

    assert spans[1] == spans[0]
    assert spans[1]["context"] == headers
    assert spans[1]["attributes"]["gen_ai.usage.completion_tokens"] == 1
