"""Names on the wire: all stages know a request by one, a lease's key comes back, and nothing stays of either."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from omni_actors.pipelines.tiny_omni._vocabulary import WEIGHTS
from omni_actors.vllm_omni._wire import OmniCoreCodec, OmniOutputs


def body_of(key):
    from vllm.sampling_params import SamplingParams
    from vllm_omni.engine import OmniEngineCoreRequest

    return OmniEngineCoreRequest(
        request_id=key, prompt_token_ids=[1], mm_features=None, sampling_params=SamplingParams(detokenize=False),
        pooling_params=None, arrival_time=0.0, lora_request=None, cache_salt=None, data_parallel_rank=None,
        external_req_id=key.rpartition("-")[0],
    )  # fmt: skip


def added(codec, key):
    codec.encode_add(body_of(key))
    return key


@pytest.mark.parametrize("how", ["abort", "never sent"])
def test_of_a_request_that_does_not_finish_no_name_is_kept(how):
    codec = OmniCoreCodec()
    key = added(codec, "1-0a1b2c-0")
    assert codec._keys == {"1-0a1b2c": key}
    codec.encode_abort([key]) if how == "abort" else codec.forget(key)
    assert codec._keys == {}


class Sink:
    def __init__(self):
        self.finished = []

    def put(self, output, payload=None):
        self.finished.append(output.finished)


@pytest.mark.parametrize("finished", [True, False])
def test_of_a_request_that_is_over_nothing_is_counted_any_more(finished):
    from vllm.v1.engine import FinishReason
    from vllm_omni.engine import OmniEngineCoreOutput

    outputs, key = OmniOutputs(None, makes="latent", rate=None), "1-0a1b2c-0"
    sink = Sink()
    outputs.add(body_of(key), 0, sink)
    step = SimpleNamespace(timestamp=1.0)
    reason = FinishReason.STOP if finished else None
    made = OmniEngineCoreOutput(request_id=key, new_token_ids=[1], finish_reason=reason, num_generation_tokens=1)
    outputs.process([made], step)
    assert sink.finished == [finished]
    if not finished:
        outputs.drop([key])
    assert not outputs._processor.request_states
    assert not outputs._processor._native_text_metrics_by_request


class Text(Sink):
    def __init__(self):
        super().__init__()
        self.native, self.short = [], []

    def put(self, output, payload=None):
        super().put(output)
        self.native.append(output.outputs[0])

    def put_text(self, text, token_ids):
        self.short.append((text, token_ids))


def told(outputs, key, token, **more):
    from vllm_omni.engine import OmniEngineCoreOutput

    made = OmniEngineCoreOutput(request_id=key, new_token_ids=[token], **more)
    outputs.process([made], SimpleNamespace(timestamp=1.0))


@pytest.fixture
def outputs():
    from transformers import AutoTokenizer

    return OmniOutputs(AutoTokenizer.from_pretrained(WEIGHTS / "thinker"), makes="text", rate=None)


def streamed_body(key, kind="DELTA"):
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    body = body_of(key)
    body.sampling_params = SamplingParams(output_kind=RequestOutputKind[kind])
    return body


def test_text_in_the_middle_takes_the_shortcut_and_the_last_output_knows_all_of_it(outputs):
    from vllm.v1.engine import FinishReason

    sink, key = Text(), "1-0a1b2c-0"
    outputs.add(streamed_body(key), 0, sink)
    for token in (4, 5, 6):
        told(outputs, key, token)
    told(outputs, key, 7, finish_reason=FinishReason.LENGTH)
    assert [tokens for _, tokens in sink.short] == [[5], [6]]
    assert [list(choice.token_ids) for choice in sink.native] == [[4], [7]]
    last = sink.native[-1]
    assert list(last.cumulative_token_ids) == [4, 5, 6, 7]
    texts = [sink.native[0].text, *(text for text, _ in sink.short), last.text]
    assert "".join(texts) == last.cumulative_text
    assert last.cumulative_text


def test_of_an_inner_stage_one_output_comes_and_knows_all_of_it(outputs):
    from vllm.v1.engine import FinishReason

    sink, key = Text(), "1-0a1b2c-0"
    outputs.add(streamed_body(key, "FINAL_ONLY"), 0, sink)
    for token in (4, 5, 6):
        told(outputs, key, token)
    told(outputs, key, 7, finish_reason=FinishReason.LENGTH)
    (last,) = sink.native
    assert list(last.token_ids) == list(last.cumulative_token_ids) == [4, 5, 6, 7]
    assert last.text == last.cumulative_text
    assert last.text


@pytest.mark.parametrize("how", ["as it is", "packed"])
def test_what_a_model_makes_beside_its_text_reaches_the_processor(outputs, how):
    import torch
    from vllm.v1.engine import FinishReason
    from vllm.v1.serial_utils import MsgpackEncoder
    from vllm_omni.engine import OmniEngineCoreOutput, OmniEngineCoreOutputs
    from vllm_omni.engine.serialization import serialize_additional_information

    sink, key, made = Text(), "1-0a1b2c-0", {"meta": {"left_context_size": 3}, "codes": {"audio": torch.arange(6)}}
    codec = OmniCoreCodec()
    body = streamed_body(key)
    codec.encode_add(body)
    outputs.add(body, 0, sink)
    packed = {"pooling_output_payload": serialize_additional_information(made)}
    more = packed if how == "packed" else {"multimodal_output": {"codes.audio": torch.arange(6)}}
    for token, reason, extra in ((4, None, {}), (5, None, more), (6, None, {}), (7, FinishReason.LENGTH, {})):
        one = OmniEngineCoreOutput(request_id="1-0a1b2c", new_token_ids=[token], finish_reason=reason, **extra)
        step = OmniEngineCoreOutputs(outputs=[one], timestamp=1.0)
        decoded = codec.decode_outputs([bytes(frame) for frame in MsgpackEncoder().encode(step)])
        outputs.process(decoded.outputs, decoded)
    assert sink.short == [], "from the one that brought more on, all outputs are the processor's"
    assert list(sink.native[-1].cumulative_token_ids) == [4, 5, 6, 7]
    assert torch.equal(sink.native[-1].multimodal_output["codes"]["audio"], torch.arange(6))
