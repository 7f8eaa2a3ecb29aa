"""The quick way from text to token ids says what vLLM's renderer says, or nothing. Real vLLM, no engine."""

from __future__ import annotations

import asyncio
import json
import warnings
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omni_actors._errors import InvalidRequest
from omni_actors.config.specs import StageSpec
from omni_actors.wire.vllm import ReadyResponse

pytest.importorskip("vllm")

LIMIT = 64
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 512, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "max_position_embeddings": LIMIT, "eos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": True,
}  # fmt: skip
LEARNT = ("two plus three is five", "Größe, Straße and naïve words", "<begin> and <end> are no words")


def byte_level(folder):
    """A tokenizer of today's kind: byte-level pairs, a normalizer, special tokens, one of them before every text."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "<end>", "<begin>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(LEARNT, trainer)
    made.post_processor = processors.TemplateProcessing(single="<begin> $A", special_tokens=[("<begin>", 2)])
    made.save(str(folder / "tokenizer.json"))
    special = {"eos_token": "<end>", "pad_token": "<pad>", "bos_token": "<begin>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def frontend_of(model):
    from omni_actors.stages.vllm._frontend import VllmFrontend

    arguments = {"dtype": "float32", "max_model_len": LIMIT, "enforce_eager": True, "max_num_seqs": 64}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return VllmFrontend(StageSpec(name="thinker", engine="vllm", model=model, engine_args=arguments))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return byte_level(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def frontend(model):
    return frontend_of(model)


@pytest.fixture(scope="module")
def quick(frontend):
    return quick_of(frontend.renderer, frontend)


def quick_of(renderer, frontend):
    from omni_actors.stages.vllm._quick_text import QuickText

    return QuickText(renderer, frontend.vllm_config.model_config)


@pytest.fixture(scope="module")
def untouched(frontend):
    """vLLM's own renderer for the same model."""
    from vllm.renderers import renderer_from_config

    return renderer_from_config(frontend.vllm_config)


def parsed_prompt(renderer, prompt):
    from vllm.renderers.inputs.preprocess import parse_model_prompt

    return parse_model_prompt(renderer.model_config, prompt)


def rendered(renderer, text):
    """A renderer's own way. None where it refuses."""
    from vllm.exceptions import VLLMValidationError

    parsed = parsed_prompt(renderer, text)
    try:
        (made,) = renderer.render_cmpl([parsed], renderer.default_cmpl_tok_params)
    except VLLMValidationError:
        return None
    del made["arrival_time"]
    return made


@contextmanager
def defaults(renderer, **changed):
    """Other params for who says nothing of them."""
    params = renderer.default_cmpl_tok_params
    renderer.__dict__["default_cmpl_tok_params"] = params.with_kwargs(**changed)
    try:
        yield
    finally:
        renderer.__dict__["default_cmpl_tok_params"] = params


@given(st.text(min_size=1, max_size=90) | st.sampled_from(LEARNT))
@example("<begin>two<end>")
@example("o\u0308 and e\u0301")
@example("x" * (LIMIT - 1))
@example("x" * LIMIT)
@example("\ud7ff\ue000 \x00")
def test_it_says_what_vllms_renderer_says(frontend, untouched, quick, text):
    assert quick.render(text) == rendered(untouched, text) == rendered(frontend.renderer, text)


@given(st.text(min_size=1, max_size=40))
def test_without_special_tokens_too(frontend, untouched, quick, text):
    with defaults(frontend.renderer, add_special_tokens=False), defaults(untouched, add_special_tokens=False):
        assert quick.render(text) == rendered(untouched, text) == rendered(frontend.renderer, text)


@pytest.mark.parametrize("prompt", ["", "a" * 4097, ["a"], {"prompt": "a"}, b"a", None])
def test_what_is_no_short_text_is_not_for_it(quick, prompt):
    assert quick.render(prompt) is None


@pytest.mark.parametrize(
    "changed", [{"truncation": True, "max_length": 3}, {"pad_prompt_tokens": 9}, {"do_lower_case": True}]
)
def test_params_that_do_more_are_not_for_it(frontend, untouched, quick, changed):
    with defaults(frontend.renderer, **changed), defaults(untouched, **changed):
        assert quick.render("Two PLUS three?") is None
        assert rendered(frontend.renderer, "Two PLUS three?") == rendered(untouched, "Two PLUS three?")


# ---------------------------------------------------------------------- in its place


def prepare(frontend, prompt, **options):
    (work,) = frontend.prepare(["k-1"], prompt, None, stream=True, text=True, options=options)
    return work.body


def test_a_frontend_takes_it_for_text(model, monkeypatch):
    frontend = frontend_of(model)
    expected = rendered(frontend.renderer, "two plus three")["prompt_token_ids"]
    monkeypatch.setattr(type(frontend.renderer), "render_cmpl", None)
    assert prepare(frontend, "two plus three").prompt_token_ids == expected
    with pytest.raises(InvalidRequest):
        prepare(frontend, "two plus three", tokenization_kwargs={"add_special_tokens": False})


def test_a_text_that_is_too_long_is_refused_in_vllms_words(frontend):
    with pytest.raises(InvalidRequest, match="maximum context length is 64 tokens"):
        prepare(frontend, "q" * (LIMIT + 10))


def test_a_limit_that_the_engine_has_lowered_holds(model):
    frontend = frontend_of(model)
    assert len(prepare(frontend, "q" * 20).prompt_token_ids) == 21
    frontend.engine_ready(ReadyResponse(max_model_len=16, num_gpu_blocks=1), generation=1)
    with pytest.raises(InvalidRequest, match="maximum context length is 16 tokens"):
        prepare(frontend, "q" * 20)


# ---------------------------------------------------------------------- the renderer, for everybody who uses it


def rendered_in_a_loop(renderer, text, monkeypatch):
    """What its async way makes of it, and how often that went to a thread."""
    parsed, submit, went = parsed_prompt(renderer, text), renderer._executor.submit, []
    monkeypatch.setattr(renderer._executor, "submit", lambda *args, **more: went.append(1) or submit(*args, **more))

    async def ask():
        return await renderer.render_cmpl_async([parsed])

    (made,) = asyncio.run(ask())
    del made["arrival_time"]
    return made, len(went)


def test_a_renderer_that_was_taken_over_asks_no_thread_for_a_text(frontend, untouched, monkeypatch):
    expected = rendered(untouched, "two plus three")
    assert rendered_in_a_loop(frontend.renderer, "two plus three", monkeypatch) == (expected, 0)
    assert rendered_in_a_loop(untouched, "two plus three", monkeypatch) == (expected, 1)


def test_it_still_asks_one_for_a_long_text(frontend, untouched, monkeypatch):
    monkeypatch.setattr("omni_actors.stages.vllm._quick_text.MOST_CHARS", 10)
    expected = rendered(untouched, "two plus three")
    assert rendered_in_a_loop(frontend.renderer, "two plus three", monkeypatch) == (expected, 1)


@pytest.mark.parametrize("prompt", [{"prompt": "two three", "cache_salt": "abc"}, {"prompt": "two"}])
def test_what_is_beside_the_text_stays(frontend, untouched, prompt):
    assert rendered(frontend.renderer, prompt) == rendered(untouched, prompt)


def test_the_end_token_is_looked_up_once(model, untouched, monkeypatch):
    frontend = frontend_of(model)
    assert frontend.renderer.get_eos_token_id() == untouched.get_eos_token_id() == 1
    monkeypatch.setattr(frontend.renderer, "tokenizer", None)
    assert frontend.renderer.get_eos_token_id() == 1


def test_offsets_are_vllms_to_find(frontend, untouched):
    from dataclasses import replace

    def offsets(renderer):
        params = replace(renderer.default_cmpl_tok_params, return_token_offsets=True)
        (made,) = renderer.render_cmpl([parsed_prompt(renderer, "two three")], params)
        return made["prompt_token_offsets"]

    assert offsets(frontend.renderer) == offsets(untouched) != []


# ---------------------------------------------------------------------- tokenizers that are no plain ones


def dressed(tokenizer, **changes):
    """The same tokenizer, of a class of its own."""
    import copy

    made = copy.copy(tokenizer)
    made.__class__ = type("Own", (type(tokenizer),), {"__module__": "somebody", **changes})
    return made


def of(tokenizer, frontend, render_cmpl=None):
    renderer = frontend.renderer
    theirs = SimpleNamespace(
        tokenizer=tokenizer,
        default_cmpl_tok_params=renderer.default_cmpl_tok_params,
        render_cmpl=render_cmpl or renderer.render_cmpl,
    )
    return quick_of(theirs, frontend)


def test_a_class_that_changes_nothing_of_it_is_taken(frontend):
    assert of(dressed(frontend.renderer.tokenizer, greeting="hello"), frontend).render("a") is not None


@pytest.mark.parametrize("name", ["__call__", "_encode_plus", "set_truncation_and_padding"])
def test_a_class_that_encodes_in_its_own_way_is_not(frontend, name):
    tokenizer = frontend.renderer.tokenizer
    changed = {name: lambda self, *args, **more: getattr(tokenizer, name)(*args, **more)}
    assert of(dressed(tokenizer, **changed), frontend).render("a") is None


def test_a_tokenizer_that_is_not_the_librarys_is_not(frontend):
    assert of(SimpleNamespace(max_chars_per_token=4), frontend).render("a") is None
    assert of(None, frontend).render("a") is None


def test_one_whose_settings_truncate_is_not(frontend):
    tokenizer = dressed(frontend.renderer.tokenizer)
    tokenizer._tokenizer = tokenizer._tokenizer.from_str(tokenizer._tokenizer.to_str())
    assert of(tokenizer, frontend).render("a") is not None
    tokenizer._tokenizer.enable_truncation(3)
    assert of(tokenizer, frontend).render("a") is None


def test_a_renderer_that_makes_more_of_a_text_is_asked(frontend):
    def more(prompts, params):
        (made,) = frontend.renderer.render_cmpl(prompts, params)
        return [{**made, "cache_salt": "x"}]

    assert of(frontend.renderer.tokenizer, frontend, more).render("a") is None


def test_a_renderer_that_cannot_take_a_text_is_asked(frontend):
    def refuse(prompts, params):
        raise ValueError("it takes pictures alone")

    assert of(frontend.renderer.tokenizer, frontend, refuse).render("a") is None
