"""tiny-omni's graph and the functions between its stages: what each engine is asked, given what the last one made."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import SimpleNamespace

import pytest

from omni_actors._errors import InvalidRequest
from omni_actors.pipelines.tiny_omni import pipeline, speak, think, voice
from omni_actors.pipelines.tiny_omni._questions import Part
from omni_actors.pipelines.tiny_omni._vocabulary import WEIGHTS, alphabet, pieces, vocabulary

MAX_WEIGHTS_BYTES = 8_000_000
ENGINE_LIBRARIES = {"torch", "vllm", "transformers", "hibari", "onnxruntime", "numpy", "pocketsphinx"}


def request(prompt: object) -> SimpleNamespace:
    return SimpleNamespace(prompt=prompt, request_id="r", modalities=("text", "audio"))


def test_a_text_question_becomes_a_chat_message() -> None:
    assert think({}, request("What is two plus three?")) == [{"role": "user", "content": "What is two plus three?"}]


@pytest.mark.parametrize("prompt", [{"prompt_token_ids": [1, 2]}, [{"role": "user", "content": "hi"}], [3, 4]])
def test_other_prompts_pass_untouched(prompt: object) -> None:
    assert think({}, request(prompt)) is prompt


def test_a_blank_question_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        think({}, request(" \n"))


def test_a_sentence_becomes_words_and_the_mark_that_begins_audio() -> None:
    said = SimpleNamespace(text="Two plus three is five.")
    ids = speak({"thinker": said}, request("?"))["prompt_token_ids"]
    words = {number: word for word, number in vocabulary().ids.items()}
    assert [words[i] for i in ids[:-1]] == ["Two", "▁plus", "▁three", "▁is", "▁five", "."]
    assert ids[-1] == alphabet().begin_audio


def test_an_unknown_word_is_unknown_and_not_an_error() -> None:
    said = SimpleNamespace(text="Seven elephants.")
    assert vocabulary().ids["<unk>"] in speak({"thinker": said}, request("?"))["prompt_token_ids"]


def test_the_talkers_tokens_become_phonemes_without_its_marks() -> None:
    marks = alphabet()
    made = SimpleNamespace(token_ids=[marks.offset + 62, marks.offset + 156, 3, marks.end_audio])
    assert voice({"talker": made}, request("?")) == {"phonemes": [62, 156]}


def test_spaces_belong_to_the_word_after_them() -> None:
    assert pieces(" Two  is two. Nine,") == ["Two", "▁is", "▁two", ".", "▁Nine", ","]


def test_the_marks_lie_behind_words_and_phonemes() -> None:
    marks = alphabet()
    assert marks.offset == len(vocabulary().ids)
    assert (marks.begin_audio, marks.end_audio) == (marks.offset + marks.phonemes, marks.offset + marks.phonemes + 1)


def test_the_graph_is_thinker_talker_vocoder() -> None:
    spec = pipeline()
    assert [(s.name, s.engine, s.output) for s in spec.stages] == [
        ("thinker", "vllm", "text"),
        ("talker", "vllm", None),
        ("vocoder", "generation", "audio"),
    ]
    assert [(i.stage, i.mode) for s in spec.stages for i in s.inputs] == [("thinker", "segments"), ("talker", "whole")]
    assert spec.stage("talker").fixed_params["stop_token_ids"] == [alphabet().end_audio]


def test_every_dotted_path_leads_to_something_callable() -> None:
    stages = pipeline().stages
    paths = [s.transform for s in stages] + [i.split for s in stages for i in s.inputs] + [stages[2].model]
    for path in filter(None, paths):
        module, _, name = path.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


def test_the_weights_are_small_enough_to_ship_and_readable_by_all() -> None:
    files = [file for file in WEIGHTS.rglob("*") if file.is_file()]
    assert {file.parent.name for file in files} == {"thinker", "talker"}
    assert sum(file.stat().st_size for file in files) < MAX_WEIGHTS_BYTES
    assert all(file.stat().st_mode & 0o444 == 0o444 for file in files)


def test_the_longest_conversation_fits_the_context() -> None:
    part = Part(7, "plus", 7)
    question = "Please tell me " + ", ".join([part.words] * 3) + f", and how much is {part.words}?"
    answer = " ".join([part.sentence] * 4)
    room = pipeline().stage("thinker").engine_args["max_model_len"]
    assert len(pieces(question)) + len(pieces(answer)) + 3 <= room


def test_the_host_imports_it_in_no_time_and_without_any_engine() -> None:
    program = (
        "import sys, time, omni_actors.config.specs\n"
        "start = time.perf_counter()\n"
        "import omni_actors.pipelines.tiny_omni as t; t.pipeline()\n"
        "took = time.perf_counter() - start\n"
        f"print(took, *{ENGINE_LIBRARIES!r} & set(sys.modules))\n"
    )
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    answers = [run.stdout.split() for run in runs]
    assert [heavy for _, *heavy in answers] == [[], [], []]
    assert min(float(took) for took, *_ in answers) < 0.030
