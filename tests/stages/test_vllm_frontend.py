"""VllmFrontend on a tiny model's config and tokenizer. Real vLLM, no engine."""

from __future__ import annotations

import copy
import json
import os
import warnings

import pytest

from omni_actors._errors import ConfigError, InvalidRequest
from omni_actors.config.specs import StageSpec
from omni_actors.wire.vllm import ReadyResponse

pytest.importorskip("vllm")

ENGINE_ARGS = {"dtype": "float32", "max_model_len": 256, "enforce_eager": True, "max_num_seqs": 64}
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 128, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "max_position_embeddings": 256, "eos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": True,
}  # fmt: skip
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}{% if add_generation_prompt %}w0{% endif %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Config and tokenizer: word ``w7`` is token 10."""
    folder = tmp_path_factory.mktemp("model")
    words = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(120))]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": "<unk>"},
    }  # fmt: skip
    special = {"unk_token": "<unk>", "eos_token": "<eos>", "pad_token": "<pad>", "chat_template": TEMPLATE}
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special}))
    return str(folder)


@pytest.fixture(scope="module")
def make(model):
    from omni_actors.stages.vllm._frontend import VllmFrontend

    made = {}

    def frontend(**changes):
        key = json.dumps(changes, sort_keys=True)
        if key not in made:
            spec = StageSpec(name="thinker", engine="vllm", model=model, engine_args=ENGINE_ARGS, **changes)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made[key] = VllmFrontend(spec)
        return made[key]

    return frontend


def prepare(frontend, prompt, params=None, *, keys=("k-1",), stream=True, text=True, **more):
    return frontend.prepare(list(keys), prompt, params, stream=stream, text=text, **more)


def sampling(frontend, params=None, **more):
    (work,) = prepare(frontend, "w1 w2", params, **more)
    return work.body.sampling_params


def test_the_environment_is_as_before(model):
    before = dict(os.environ)
    from omni_actors.stages.vllm._frontend import VllmFrontend

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        VllmFrontend(StageSpec(name="t", engine="vllm", model=model, engine_args=ENGINE_ARGS))
    changed = {name for name in os.environ.keys() | before.keys() if os.environ.get(name) != before.get(name)}
    assert changed == set()


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("w1 w2", [4, 5]),
        ([4, 5, 6], [4, 5, 6]),
        ((4, 5), [4, 5]),
        ({"prompt": "w3"}, [6]),
        ({"prompt_token_ids": [7, 8]}, [7, 8]),
        ({"type": "token", "prompt_token_ids": [9]}, [9]),
        ([{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w2"}], [4, 5, 3]),
    ],
)
def test_prompts_become_token_ids_under_our_key(make, prompt, tokens):
    frontend = make()
    assert frontend.check(prompt, None) == 1
    (work,) = prepare(frontend, prompt, priority=3)
    assert (work.key, work.body.request_id, work.body.external_req_id) == ("k-1", "k-1", "k-1")
    assert work.body.prompt_token_ids == tokens
    assert work.body.priority == 3


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "empty"),
        ([], "empty"),
        ({"prompt": ""}, "empty"),
        (b"w1", "not bytes"),
        (7, "not int"),
        ({"text": "w1"}, "prompt dict"),
        ([1.5], "whole numbers"),
        ([4] * 256, "256"),
        ({"prompt_token_ids": [4] * 300}, "256"),
    ],
)
def test_a_bad_prompt_is_refused_at_the_door(make, prompt, words):
    with pytest.raises(InvalidRequest, match=words) as caught:
        make().check(prompt, None)
    assert "stage 'thinker'" in str(caught.value)
    assert caught.value.stage == "thinker"


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("w1 " * 300, "256"),
        ([500], "out of vocabulary"),
        ("   ", "empty"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "thinker"),
    ],
)
def test_what_only_vllm_can_see_is_refused_in_its_words(make, prompt, words):
    with pytest.raises(InvalidRequest, match=words) as caught:
        prepare(make(), prompt)
    assert "stage 'thinker'" in str(caught.value)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"temprature": 0}, "did you mean 'temperature'"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n must be"),
        ({"n": "two"}, "n must be"),
        (7, "not int"),
        ({"skip_clone": True}, "skip_clone"),
    ],
)
def test_bad_params_are_refused_at_the_door(make, params, words):
    with pytest.raises(InvalidRequest, match=words):
        make().check("w1", params)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 2.0}, "top_p"),
        ({"temprature": 0}, "temperature"),
        ({"logprobs": 1000}, "logprobs"),
        ({"n": 2, "temperature": 0}, "greedy"),
    ],
)
def test_bad_params_are_refused_in_vllms_words(make, params, words):
    with pytest.raises(InvalidRequest, match=words):
        prepare(make(), "w1", params)


def test_defaults_fill_a_mapping_key_by_key_and_constraints_win(make):
    frontend = make(
        params={"temperature": 0.5, "max_tokens": 9, "stop_token_ids": [8]}, fixed_params={"ignore_eos": True}
    )
    chosen = sampling(frontend, {"seed": 5, "max_tokens": 3, "ignore_eos": False})
    assert (chosen.temperature, chosen.max_tokens, chosen.seed, chosen.ignore_eos) == (0.5, 3, 5, True)
    assert chosen.stop_token_ids == [8]
    assert sampling(frontend).max_tokens == 9


def test_the_stop_tokens_of_constraints_are_united_with_the_callers(make):
    from vllm import SamplingParams

    frontend = make(params={"stop_token_ids": [8]}, fixed_params={"stop_token_ids": [7]})
    assert sampling(frontend).stop_token_ids == [8, 7]
    assert sampling(frontend, {"stop_token_ids": [9]}).stop_token_ids == [9, 7]
    assert set(sampling(frontend, SamplingParams(stop_token_ids=[9])).stop_token_ids) == {7, 8, 9}


def test_a_params_object_is_the_callers_but_keeps_the_stages_stops(make):
    from vllm import SamplingParams

    frontend = make(params={"temperature": 0.5, "stop_token_ids": [8], "stop": "w5"}, fixed_params={"ignore_eos": True})
    given = SamplingParams(temperature=1.0, stop_token_ids=[9], stop=["w6"], max_tokens=4)
    chosen = sampling(frontend, given)
    assert (chosen.temperature, chosen.max_tokens, chosen.ignore_eos) == (1.0, 4, True)
    assert sorted(chosen.stop_token_ids) == [8, 9]
    assert chosen.stop == ["w6", "w5"]
    assert {8, 9} <= chosen.all_stop_token_ids


def test_the_callers_object_is_left_as_it_was(make):
    from vllm import SamplingParams

    given = SamplingParams(max_tokens=4, seed=3, n=2)
    before = copy.deepcopy(given)
    prepare(make(), "w1", given, keys=("a", "b"), text=False)
    assert given == before


def test_samples_are_seeded_apart(make):
    params = {"n": 3, "seed": 10, "temperature": 1.0}
    assert make().check("w1", params) == 3
    works = prepare(make(), "w1", params, keys=("a", "b", "c"))
    assert [(w.key, w.index, w.body.request_id) for w in works] == [("a", 0, "a"), ("b", 1, "b"), ("c", 2, "c")]
    assert [(w.body.sampling_params.n, w.body.sampling_params.seed) for w in works] == [(1, 10), (1, 11), (1, 12)]


def test_output_kinds(make):
    from vllm.sampling_params import RequestOutputKind as Kind

    assert sampling(make(), {"output_kind": 0}).output_kind is Kind.DELTA
    assert sampling(make(), stream=False).output_kind is Kind.FINAL_ONLY
    (work,) = prepare(make(), "w1", {"output_kind": 2})
    assert (work.stream, work.body.sampling_params.output_kind) == (False, Kind.FINAL_ONLY)


def test_text_is_made_only_where_it_is_read_or_needed(make):
    codec = make().codec()
    for params, detokenize, needs in (
        ({}, False, False),
        ({"stop": ["w1"]}, True, True),
        ({"logprobs": 1}, False, True),
    ):
        (work,) = prepare(make(), "w1", params, text=False)
        assert (work.body.sampling_params.detokenize, codec.needs_text(work.body)) == (detokenize, needs)
    assert sampling(make()).detokenize


def test_options_are_vllms_own(make):
    (work,) = prepare(make(), "w1", options={"trace_headers": {"traceparent": "x"}, "data_parallel_rank": 0})
    assert (work.body.trace_headers, work.body.data_parallel_rank) == ({"traceparent": "x"}, 0)
    with pytest.raises(InvalidRequest, match="'colour'"):
        prepare(make(), "w1", options={"colour": "red"})
    with pytest.raises(InvalidRequest, match="rank"):
        prepare(make(), "w1", options={"data_parallel_rank": 7})
    with pytest.raises(InvalidRequest, match="LoRA"):
        prepare(make(), "w1", options={"lora_request": object()})
    (work,) = prepare(make(), [{"role": "user", "content": "w1"}],
                      options={"chat_template_kwargs": {"add_generation_prompt": False}})  # fmt: skip
    assert work.body.prompt_token_ids == [4]


def test_only_long_or_rich_prompts_are_heavy(make):
    heavy = make().heavy
    light = ["w1", [1] * 1000, [{"role": "user", "content": "w1"}], {"prompt": "w1"}, {"prompt_token_ids": [1] * 1000}]
    rich = ["w1 " * 5000, [1] * 40_000, {"prompt_token_ids": [1] * 40_000},
            [{"role": "user", "content": [{"type": "image_url"}]}],
            {"prompt": "w1", "multi_modal_data": {}}, {"prompt_embeds": None}]  # fmt: skip
    assert [heavy(prompt) for prompt in (*light, *rich)] == [False] * len(light) + [True] * len(rich)


def test_what_the_engine_found_out_is_followed(model):
    from omni_actors.stages.vllm._frontend import VllmFrontend

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frontend = VllmFrontend(StageSpec(name="t", engine="vllm", model=model, engine_args=ENGINE_ARGS))
    prepare(frontend, "w1 " * 100)
    frontend.engine_ready(
        ReadyResponse(max_model_len=50, num_gpu_blocks=11, block_size=4, kv_cache_size_tokens=44), generation=1
    )
    with pytest.raises(InvalidRequest, match="50"):
        prepare(frontend, "w1 " * 100)
    cache = frontend.vllm_config.cache_config
    assert (cache.num_gpu_blocks, cache.block_size, cache.kv_cache_size_tokens) == (11, 4, 44)


def test_a_config_that_vllm_refuses_is_a_config_error(model):
    from omni_actors.stages.vllm._frontend import VllmFrontend

    spec = StageSpec(name="t", engine="vllm", model=model, engine_args={**ENGINE_ARGS, "max_model_len": 100_000})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ConfigError, match=r"stages\.t.*max_model_len"):
            VllmFrontend(spec)


def test_bad_stage_params_are_a_config_error(make):
    with pytest.raises(ConfigError, match="temperature"):
        make(params={"temperature": -1})
