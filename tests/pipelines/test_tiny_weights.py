"""The shipped weights do what they are shipped for, run as vLLM runs them: stored as bf16, computed in float32."""

from __future__ import annotations

from typing import Any

import pytest

from omni_actors.pipelines.tiny_omni import speak, think, voice
from omni_actors.pipelines.tiny_omni._questions import BENCH_SEED, all_parts, questions
from omni_actors.pipelines.tiny_omni._vocabulary import WEIGHTS, alphabet, vocabulary


class Model:
    """One of the two, on transformers, greedy."""

    def __init__(self, folder: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(WEIGHTS / folder, dtype=torch.float32).eval()

    def answer(self, prompt: list[int]) -> list[int]:
        with self._torch.inference_mode():
            ids = self._torch.tensor([prompt])
            mask = self._torch.ones_like(ids)
            made = self._model.generate(ids, attention_mask=mask, max_new_tokens=128, do_sample=False)
        tokens: list[int] = made[0, len(prompt) :].tolist()
        return tokens


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(WEIGHTS / "thinker")


@pytest.fixture(scope="module")
def thinker() -> Model:
    return Model("thinker")


@pytest.fixture(scope="module")
def talker() -> Model:
    return Model("talker")


class Request:
    def __init__(self, prompt: Any) -> None:
        self.prompt = prompt


class Said:
    def __init__(self, text: str = "", token_ids: list[int] | None = None) -> None:
        self.text, self.token_ids = text, token_ids or []


def ask(thinker: Model, tokenizer: Any, question: str) -> str:
    messages = think({}, Request(question))
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return tokenizer.decode(thinker.answer(prompt), skip_special_tokens=True)


def read(talker: Model, sentence: str) -> list[int]:
    prompt = speak({"thinker": Said(sentence)}, Request("?"))["prompt_token_ids"]
    return voice({"talker": Said(token_ids=talker.answer(prompt))}, Request("?"))["phonemes"]


def test_the_host_knows_the_thinkers_letters(tokenizer: Any) -> None:
    assert vocabulary().ids == tokenizer.get_vocab()
    for part in all_parts():
        assert tokenizer.unk_token_id not in vocabulary().encode(part.sentence)
    assert vocabulary().encode("Two €") == tokenizer.convert_tokens_to_ids(["T", "w", "o", "▁", "<unk>"])


def test_text_survives_whole_and_streamed_letter_by_letter(tokenizer: Any) -> None:
    from tokenizers.decoders import DecodeStream

    prompt = tokenizer("<user>What is two plus three?<assistant>", add_special_tokens=False).input_ids
    for question in questions(50, seed=10):
        ids = vocabulary().encode(question.answer)
        stream = DecodeStream(ids=prompt, skip_special_tokens=True)
        assert tokenizer.decode(ids, skip_special_tokens=True) == question.answer
        assert [stream.step(tokenizer.backend_tokenizer, i) for i in ids] == list(question.answer)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own modules, when vLLM imports them
def test_vllms_own_detokenizer_streams_the_same_letters(tokenizer: Any) -> None:
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    answer = "Two plus three is five. Nine minus four is five."
    prompt = tokenizer("<user>What is 2+3, and 9-4?<assistant>", add_special_tokens=False).input_ids
    nothing = dict.fromkeys(("mm_features", "pooling_params", "lora_request", "cache_salt", "data_parallel_rank"))
    request = EngineCoreRequest(
        request_id="r", prompt_token_ids=prompt, sampling_params=SamplingParams(), arrival_time=0.0, **nothing
    )
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request)
    streamed = ""
    for token in vocabulary().encode(answer):
        detokenizer.update([token], False)
        streamed += detokenizer.get_next_output_text(finished=False, delta=True)
    assert streamed == answer


def test_words_are_the_same_however_they_are_typed(tokenizer: Any) -> None:
    plain = tokenizer.tokenize("what is two plus three, and nine minus four?")
    assert "<unk>" not in plain
    for typed in ("WHAT'S 2+3 , and 9-4 ?", "What is two plus three,and nine minus four?"):
        assert tokenizer.tokenize(typed) == plain


@pytest.mark.parametrize(
    "typed",
    [
        "What's 2+3, and 9-4, and 1+1?",
        "What is two plus three, and nine minus four, and one plus one?",
        "what is two plus three , nine minus four and one plus one",
        "2 + 3 and 9 \N{MINUS SIGN} 4 and 1 + 1!",
        "two plus three; nine minus four; one plus one",
        "WHAT IS TWO PLUS THREE? WHAT IS NINE MINUS FOUR? WHAT IS ONE PLUS ONE?",
        "Please, what is two plus three? And what is nine minus four? And one plus one?",
        "Hey robot, tell me two plus three, nine minus four, one plus one please",
    ],
)
def test_people_type_as_they_like(thinker: Model, tokenizer: Any, typed: str) -> None:
    assert ask(thinker, tokenizer, typed) == "Two plus three is five. Nine minus four is five. One plus one is two."


def test_questions_of_one_to_four_parts_are_answered(thinker: Model, tokenizer: Any) -> None:
    asked = questions(30, BENCH_SEED)
    wrong = [q.text for q in asked if ask(thinker, tokenizer, q.text) != q.answer]
    assert len(wrong) <= 1, wrong


def test_nothing_is_canned_another_operand_is_another_answer(thinker: Model, tokenizer: Any) -> None:
    assert ask(thinker, tokenizer, "What is one plus one?") == "One plus one is two."
    assert ask(thinker, tokenizer, "What is one plus two?") == "One plus two is three."


def test_sentences_are_read_spoken_and_heard_right(talker: Model) -> None:
    from omni_actors.pipelines._judge import Judge
    from omni_actors.pipelines.tiny_omni.vocoder import SAMPLE_RATE, Vocoder

    vocoder, judge = Vocoder(), Judge()
    parts = all_parts()[7::31]
    spoken = [vocoder.synthesize(read(talker, part.sentence)) for part in parts]
    assert judge.heard_right(parts, spoken, SAMPLE_RATE) == [True] * len(parts)


def test_the_talker_ends_its_sentences(talker: Model) -> None:
    prompt = speak({"thinker": Said("Nine plus nine is eighteen.")}, Request("?"))["prompt_token_ids"]
    assert talker.answer(prompt)[-1] == alphabet().end_audio
