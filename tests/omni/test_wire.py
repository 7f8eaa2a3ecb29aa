"""Names on the wire: all stages know a request by one, a lease's key comes back, and nothing stays of either."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

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
