"""The shortcut past vLLM's OutputProcessor says what the processor says, piece by piece."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.pipelines.tiny_omni._vocabulary import WEIGHTS

pytest.importorskip("vllm")


class Heard:
    """A sink that notes every piece, and how it came."""

    def __init__(self):
        self.pieces, self.short = [], 0

    def put(self, output):
        (choice,) = output.outputs
        self.pieces.append((choice.text, list(choice.token_ids), choice.finish_reason, choice.stop_reason))

    def put_text(self, text, token_ids):
        self.short += 1
        self.pieces.append((text, token_ids, None, None))


@pytest.fixture(scope="module")
def tokenizer():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vllm.v1.engine.output_processor  # noqa: F401  # which warns once, of its own imports
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(WEIGHTS / "thinker")


def processor(tokenizer, *, shortcuts, interval=1):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from omni_actors.wire.vllm.codec import EngineCoreText

    made = EngineCoreText(tokenizer, stream_interval=interval)
    assert made._shortcut._usable, "this vLLM has outputs that we do not know"
    made._shortcut._usable = shortcuts
    return made


def body(key, **params):
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreRequest

    given = {"max_tokens": 99, "output_kind": RequestOutputKind.DELTA, **params}
    return EngineCoreRequest(key, [4, 5], None, SamplingParams(**given), None, 1.0, None, None, None,
                             external_req_id=key)  # fmt: skip


def step(key, tokens, *, finish=None, version="default", **more):
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason

    reason = None if finish is None else FinishReason[finish]
    output = EngineCoreOutput(request_id=key, new_token_ids=tokens, finish_reason=reason, **more)
    return EngineCoreOutputs(outputs=[output], timestamp=1.0, weight_version=version)


def said(tokenizer, steps, *, shortcuts, interval=1, **params):
    text, sink = processor(tokenizer, shortcuts=shortcuts, interval=interval), Heard()
    text.add(body("k", **params), 0, sink)
    aborts = [key for each in steps for key in text.process(each.outputs, each)]
    return sink, aborts, text


TOKENS = st.lists(st.lists(st.integers(3, 40), min_size=1, max_size=3), min_size=1, max_size=8)


@given(
    TOKENS,
    st.sampled_from(["LENGTH", "STOP"]),
    st.sampled_from([{}, {"stop": ["seven"]}, {"stop_token_ids": [7]}, {"skip_special_tokens": False}]),
    st.integers(1, 2),
    st.lists(st.sampled_from(["default", "new"]), min_size=8, max_size=8),
    st.sampled_from(["DELTA", "FINAL_ONLY", "CUMULATIVE"]),
)
def test_the_same_pieces_either_way(tokenizer, tokens, finish, params, interval, versions, kind):
    from vllm.sampling_params import RequestOutputKind

    params = {**params, "output_kind": RequestOutputKind[kind]}
    last = len(tokens) - 1
    steps = [
        step("k", ids, finish=finish if n == last else None, version=version)
        for n, (ids, version) in enumerate(zip(tokens, versions, strict=False))
    ]

    short, short_aborts, text = said(tokenizer, steps, shortcuts=True, interval=interval, **params)
    long, long_aborts, _ = said(tokenizer, steps, shortcuts=False, interval=interval, **params)

    assert short.pieces == long.pieces
    assert short_aborts == long_aborts
    assert long.short == 0
    assert not text._shortcut._plain


def test_the_first_and_the_last_output_meet_the_processor(tokenizer):
    steps = [step("k", [5]), step("k", [6]), step("k", [7]), step("k", [8], finish="LENGTH")]

    sink, _, _ = said(tokenizer, steps, shortcuts=True)

    assert sink.short == 2
    assert [tokens for _, tokens, _, _ in sink.pieces] == [[5], [6], [7], [8]]


def test_what_is_told_as_a_whole_meets_the_processor_twice_too(tokenizer, monkeypatch):
    from vllm.sampling_params import RequestOutputKind

    text, sink, met = processor(tokenizer, shortcuts=True), Heard(), []
    process = text._processor.process_outputs
    monkeypatch.setattr(
        text._processor, "process_outputs", lambda outputs, *a, **k: met.extend(outputs) or process(outputs, *a, **k)
    )
    text.add(body("k", output_kind=RequestOutputKind.FINAL_ONLY), 0, sink)
    for each in (step("k", [5]), step("k", [6]), step("k", [7]), step("k", [8], finish="LENGTH")):
        text.process(each.outputs, each)

    assert [output.new_token_ids for output in met] == [[5], [8]]
    assert [(tokens, finish) for _, tokens, finish, _ in sink.pieces] == [([5, 6, 7, 8], "length")]


@pytest.mark.parametrize("params", [{"stop": ["seven"]}, {"logprobs": 1}, {"prompt_logprobs": 1}])
def test_a_request_that_wants_more_takes_the_whole_way(tokenizer, params):
    text = processor(tokenizer, shortcuts=True)
    text.add(body("k", **params), 0, Heard())

    assert not text._shortcut._plain


def test_an_output_that_says_more_takes_the_whole_way(tokenizer):
    import numpy as np

    experts = np.zeros((1, 1, 1), dtype=np.int16)
    steps = [
        step("k", [5]),
        step("k", [6], version="new"),
        step("k", [7], version="new"),
        step("k", [8], version="new", routed_experts=experts),
        step("k", [9], version="new"),
    ]

    sink, _, text = said(tokenizer, steps, shortcuts=True)

    assert sink.short == 1
    assert [tokens for _, tokens, _, _ in sink.pieces] == [[5], [6], [7], [8], [9]]
    state = text._processor.request_states["k"]
    assert len(state.routed_experts_chunks) == 1
    assert [version for version, _ in state.weight_version_starts] == ["default", "new"]


def test_a_dropped_request_is_forgotten_and_silent(tokenizer):
    text, sink = processor(tokenizer, shortcuts=True), Heard()
    text.add(body("k"), 0, sink)
    for each in (step("k", [5]), step("k", [6])):
        text.process(each.outputs, each)

    text.drop(["k", "unknown"])
    late = step("k", [7])
    text.process(late.outputs, late)

    assert len(sink.pieces) == 2
    assert not text._shortcut._plain
