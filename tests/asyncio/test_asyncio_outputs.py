"""The assembler alone, with vLLM's own objects: what comes of a stream's pieces, however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omni_actors_asyncio._outputs import Assembler
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind

from omni_actors import Output, TextChunk

DELTA, CUMULATIVE, FINAL_ONLY = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY


def piece(text: str, index: int = 0, *, native: bool = False, finish: str | None = None, logprobs=None) -> Output:
    tokens = [ord(c) for c in text]
    made = None
    if native or finish:
        choice = CompletionOutput(
            index, text, list(tokens), -1.0 if logprobs else None, logprobs, finish_reason=finish, stop_reason=None
        )
        made = RequestOutput("key-s0", None, [1, 2], None, [choice], bool(finish), num_cached_tokens=7)
    chunk = TextChunk(text=text, token_ids=tokens, finish_reason=finish, native=made, logprobs=logprobs)
    return Output("mine", "llm", "text", chunk, index)


def assembler(kind, choices: int = 1) -> Assembler:
    return Assembler("mine", "llm", kind, choices, text="prompt", tokens=[1, 2])


def test_a_piece_without_a_native_object_has_the_requests_data():
    made = assembler(DELTA)
    made.take([piece("a", native=True)])
    middle = made.take([piece("b")])
    assert (middle.request_id, middle.prompt, middle.prompt_token_ids) == ("mine", "prompt", [1, 2])
    assert (middle.num_cached_tokens, middle.finished) == (7, False)
    assert (middle.outputs[0].text, middle.outputs[0].token_ids) == ("b", [98])


def test_pieces_of_other_stages_are_not_its_business():
    made = assembler(DELTA)
    other = Output("mine", "talker", "text", TextChunk(text="x"))
    assert made.take([other]) is None


def test_log_probabilities_add_up_as_vllm_adds_them():
    made = assembler(CUMULATIVE)
    made.take([piece("a", native=True, logprobs=[{97: 1}])])
    last = made.take([piece("b", native=True, logprobs=[{98: 1}]), piece("c", finish="stop", logprobs=[{99: 1}])])
    assert last.outputs[0].logprobs == [{97: 1}, {98: 1}, {99: 1}]
    assert last.outputs[0].cumulative_logprob == -1.0


def test_a_cumulative_output_does_not_grow_in_its_readers_hands():
    made = assembler(CUMULATIVE)
    first = made.take([piece("a", native=True)])
    made.take([piece("b"), piece("c", finish="length")])
    assert (first.outputs[0].text, first.outputs[0].token_ids, first.finished) == ("a", [97], False)
    assert first.outputs[0].finish_reason is None


def test_an_abort_before_anything_was_made():
    for kind in (DELTA, CUMULATIVE, FINAL_ONLY):
        last = assembler(kind, 2).abort([])
        assert [(c.index, c.text, c.finish_reason) for c in last.outputs] == [(0, "", "abort"), (1, "", "abort")]
        assert (last.finished, last.prompt_token_ids) == (True, [1, 2])


def test_an_abort_leaves_a_choice_that_had_ended_as_it_was():
    for kind in (CUMULATIVE, FINAL_ONLY):
        made = assembler(kind, 2)
        made.take([piece("a", 0, native=True), piece("b", 1, native=True)])
        made.take([piece("c", 0, finish="stop")])
        last = made.abort([piece("d", 1)])
        ends = {choice.index: (choice.text, choice.finish_reason) for choice in last.outputs}
        assert ends[1] == ("bd", "abort")
        assert ends.get(0, ("ac", "stop")) == ("ac", "stop")


@given(
    kind=st.sampled_from([DELTA, CUMULATIVE, FINAL_ONLY]),
    texts=st.lists(st.lists(st.text("xyz", max_size=3), min_size=1, max_size=6), min_size=1, max_size=3),
    data=st.data(),
)
def test_however_it_is_cut_the_text_is_the_same(kind, texts, data):
    """I2 across the bridge: nothing is lost, doubled or swapped by merging what was unread."""
    left = [
        [piece(t, i, native=n == 0, finish="stop" if n + 1 == len(own) else None) for n, t in enumerate(own)]
        for i, own in enumerate(texts)
    ]
    made, outputs = assembler(kind, len(texts)), []
    while any(left):
        batch = [
            data.draw(st.sampled_from([own for own in left if own])).pop(0)
            for _ in range(data.draw(st.integers(1, 4)))
            if any(left)
        ]
        if (output := made.take(batch)) is not None:
            outputs.append(output)
    said = ["" for _ in texts]
    for output in outputs:
        for choice in output.outputs:
            said[choice.index] = said[choice.index] + choice.text if kind is DELTA else choice.text
            assert kind is DELTA or choice.token_ids == [ord(c) for c in choice.text]
    assert said == ["".join(own) for own in texts]
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert kind is not FINAL_ONLY or len(outputs) == 1


@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE, FINAL_ONLY])
def test_every_choice_ends_once(kind):
    made = assembler(kind, 2)
    outputs = [
        made.take([piece("a", 0, finish="stop")]),
        made.take([piece("b", 1, native=True)]),
        made.take([piece("c", 1, finish="length")]),
    ]
    ends = [(c.index, c.finish_reason) for o in outputs if o for c in o.outputs if c.finish_reason]
    assert ends == [(0, "stop"), (1, "length")]
