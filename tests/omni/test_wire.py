"""Names on the wire: all stages know a request by one, a lease's key comes back, and nothing stays of either."""

from __future__ import annotations

import pytest

from omni_actors.vllm_omni._wire import OmniCoreCodec


def added(codec, key):
    from vllm.sampling_params import SamplingParams
    from vllm_omni.engine import OmniEngineCoreRequest

    body = OmniEngineCoreRequest(
        request_id=key, prompt_token_ids=[1], mm_features=None, sampling_params=SamplingParams(), pooling_params=None,
        arrival_time=0.0, lora_request=None, cache_salt=None, data_parallel_rank=None,
        external_req_id=key.rpartition("-")[0],
    )  # fmt: skip
    codec.encode_add(body)
    return key


@pytest.mark.parametrize("how", ["abort", "never sent"])
def test_of_a_request_that_does_not_finish_no_name_is_kept(how):
    codec = OmniCoreCodec()
    key = added(codec, "1-0a1b2c-0")
    assert codec._keys == {"1-0a1b2c": key}
    codec.encode_abort([key]) if how == "abort" else codec.forget(key)
    assert codec._keys == {}
